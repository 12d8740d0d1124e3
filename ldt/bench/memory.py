"""Peak memory on the CPU: each call in a fresh process, told by Linux.

A helper process imports what all of them need and forks one for each call, so none pays for the
imports and none sees what another has left behind.
"""

import ctypes
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from ldt.bench.setting import Setting

STATUS = Path("/proc/self/status")


class FreshProcesses:
    """Context in which `peak_mib` measures.

    Raises:
        OSError: the system is not Linux.
    """

    def __enter__(self):
        if not STATUS.exists():
            raise OSError("peak memory on the CPU is read from /proc, which only Linux has")
        return self

    def __exit__(self, *_):
        if "_helper" in vars(self):
            self._helper.kill()
            self._helper.wait()
            self._helper.stdin.close()
            self._helper.stdout.close()

    @cached_property
    def _helper(self):
        """Started when first asked: its imports would disturb a measurement of time."""
        path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        return subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def peak_mib(self, name, tokens, kind, setting: Setting) -> float:
        """MiB of peak resident memory of a call over the state in which its inputs are loaded.

        Args:
            name, tokens, kind, setting: as for `operations.load` and `encoders.load`.

        Raises:
            RuntimeError: the call failed there, and why.
        """
        cell = {"name": name, "tokens": tokens, "kind": kind, "setting": asdict(setting)}
        self._helper.stdin.write(json.dumps(cell) + "\n")
        self._helper.stdin.flush()
        answer = self._helper.stdout.readline()
        found = json.loads(answer) if answer else "the helper process has ended"
        if isinstance(found, str):
            raise RuntimeError(found)
        return found


def serve():
    """Answer each cell on standard input with a line: MiB, or text that says why not."""
    from transformers import LongformerModel, ModernBertModel, RobertaModel  # noqa: F401

    import ldt.bench.encoders
    import ldt.bench.operations
    import ldt.model  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        read, write = os.pipe()
        if not (child := os.fork()):
            with os.fdopen(write, "w") as answer:
                json.dump(_measure(**json.loads(line)), answer)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            found = answer.read()
        os.waitpid(child, 0)
        answers.write((found or json.dumps("ended by the system: out of memory")) + "\n")
        answers.flush()


def _measure(name, tokens, kind, setting):
    import torch

    from ldt.bench import encoders, operations

    setting = Setting(**setting)
    if setting.threads:
        torch.set_num_threads(setting.threads)
    try:
        load = encoders.load if setting.layers else operations.load
        return peak_mib(*load(name, tokens, kind, setting))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def peak_mib(run, warm_up):
    """MiB of peak resident memory of ``run()`` in this process, over what it holds before; after
    ``warm_up()``, which has libraries load their code.

    The peak is that of the process: only a fresh one has none from before.
    """
    warm_up()
    before = _loaded_mib()
    run()
    return _status_mib("VmHWM") - before


def _loaded_mib():
    """MiB in use now; the peak counts from here."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # a kernel that keeps the peak of the warm-up
        Path("/proc/self/clear_refs").write_text("5")
    return _status_mib("VmRSS")


def _status_mib(field):
    lines = STATUS.read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


if __name__ == "__main__":
    serve()
