"""ldt commands with faults, each in a process forked from one that has its libraries loaded.

``python zygote.py`` reads requests as JSON lines, forks a child for each and answers in a line. A
test uses `Zygote`. What a child can suffer is said in a `Fault`.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS = {f"os.{name}" for name in "rename remove mkdir rmdir symlink link truncate chmod".split()}
LIMIT = 120.0  # seconds that a command may take


@dataclass(frozen=True)
class Fault:
    """What happens to a command.

    Args:
        at: number of the file event, from 1, at which it happens; 0 for none. A file event opens a
            file below the command's folder for writing, or makes, renames or removes one there.
        number: the signal that the process gets there, else
        errno: the error that the operating system reports there.
        after: seconds after the start at which the signal comes, in place of an event.
        file_size: RLIMIT_FSIZE, in bytes.
        memory: RLIMIT_AS above what the loaded libraries take, in bytes.
        run: Python code that the child executes at event `at` in place of either.
    """

    at: int = 0
    number: int = 0
    errno: int = 0
    after: float = 0.0
    file_size: int = 0
    memory: int = 0
    run: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        code: exit code; negative: the signal that killed it; None: it did not end in time.
        out, err: what it printed.
        events: the file events, as "os.rename runs/r/x".
        seconds: from the fork to the end.
    """

    code: int | None
    out: str
    err: str
    events: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def bug(self) -> bool:
        """True for an end that a person should never see."""
        return self.code in (None, 1) or "Traceback" in self.err or "bug:" in self.err


class Zygote:
    """A process with torch and ldt loaded, whose children run commands; a context."""

    def __enter__(self):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        environment |= {"OMP_NUM_THREADS": "1", "LDT_ONEDNN": "0", "PYTHONUNBUFFERED": "1"}
        environment.pop("LDT_TRACEBACK", None)
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def __call__(
        self, *arguments, cwd=".", fault=None, stdin=None, terminal=False, env=None, limit=LIMIT
    ) -> Outcome:
        """Run ``ldt ARGUMENTS`` in a folder.

        Args:
            fault: a `Fault`, or None.
            stdin: text for its standard input; None is the null device.
            terminal: whether it writes to one; all that comes there is `Outcome.out`.
            env: variables to set.
            limit: seconds after which it is killed, and `Outcome.code` is None.
        """
        request = {
            "arguments": [str(each) for each in arguments],
            "cwd": str(Path(cwd).absolute()),
            "fault": asdict(fault or Fault()),
            "stdin": stdin,
            "terminal": terminal,
            "env": env or {},
            "limit": limit,
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Outcome(**json.loads(self.process.stdout.readline()))


def _serve():
    from ldt.cli import ENVIRONMENT

    os.environ.update(ENVIRONMENT)  # before the libraries are imported, as a command has it
    import ldt.convert
    import ldt.inference.generate
    import ldt.inference.perplexity
    import ldt.training.char_lm
    import ldt.training.finetune
    import ldt.training.masked_lm  # noqa: F401

    gc.freeze()  # children search for garbage only in what is theirs
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
        answers.flush()


def _run(request):
    import tempfile

    with tempfile.TemporaryDirectory(prefix="zygote-") as folder:
        names = {name: os.path.join(folder, name) for name in ("in", "out", "err", "events")}
        for name, path in names.items():
            with open(path, "w") as file:
                file.write((request["stdin"] or "") if name == "in" else "")
        began = time.monotonic()
        screen = _Screen() if request["terminal"] else None
        child = os.fork()
        if not child:
            try:
                _child(request, names, screen)
            finally:
                os._exit(98)  # not into the code of the parent
        fault = request["fault"]
        code, sent = "late", not fault["after"]
        while (seconds := time.monotonic() - began) < request["limit"]:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                break
            if not sent and seconds >= fault["after"]:
                os.kill(child, fault["number"])
                sent = True
            time.sleep(0.002)
        if code == "late":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            code = None
        if screen:
            screen.close()
        texts = {}
        for name in ("out", "err", "events"):
            if screen and name != "events":
                texts[name] = screen.text if name == "out" else ""
                continue
            with open(names[name], errors="replace", newline="") as file:
                texts[name] = file.read()
        texts["events"] = texts["events"].splitlines()
        return {"code": code, "seconds": seconds, **texts}


class _Screen:
    """A terminal in place of the files for both outputs, and what was written there."""

    def __init__(self):
        master, self.handle = os.openpty()
        self._parts = []
        self._reader = threading.Thread(target=self._read, args=[master])
        self._reader.start()

    def _read(self, master):
        with suppress(OSError):  # EIO: the last process has let go of it
            while part := os.read(master, 1 << 16):
                self._parts.append(part)
        os.close(master)

    def close(self):
        os.close(self.handle)
        self._reader.join()
        self.text = b"".join(self._parts).decode(errors="surrogateescape")


def _child(request, names, screen):
    """Run the command in this forked process, which does not come back."""
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    source = os.devnull if request["stdin"] is None else names["in"]
    os.dup2(os.open(source, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(screen.handle if screen else os.open(names[name], os.O_WRONLY), number)
    # The streams of the parent think that they can seek.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)
    fault = Fault(**request["fault"])
    _watch(fault, os.open(names["events"], os.O_WRONLY), request["cwd"])
    if fault.file_size:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.file_size, fault.file_size))
    if fault.memory:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + fault.memory, used + fault.memory))
    from ldt.cli import main

    try:
        main(request["arguments"])
    except SystemExit as stop:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    os._exit(99)


def _watch(fault, log, root):
    """Write the file events below a folder to a file, and have the fault come at its event."""
    count = 0
    inside = False

    def hook(event, arguments):
        nonlocal count, inside
        if inside:
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & WRITES:
                return
        elif event in EVENTS:
            path = arguments[0]
        else:
            return
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str | os.PathLike):
            return
        inside = True
        try:
            path = os.path.abspath(path)
            if not path.startswith(root + os.sep):
                return
            count += 1
            with suppress(OSError):  # a limit on files is one on this log, too
                os.write(log, f"{event} {path[len(root) + 1 :]}\n".encode(errors="replace"))
            if count == fault.at:
                if fault.run:
                    exec(fault.run, {"path": path})
                elif fault.number:
                    os.kill(os.getpid(), fault.number)
                elif fault.errno:
                    raise OSError(fault.errno, os.strerror(fault.errno), path)
        finally:
            inside = False

    sys.addaudithook(hook)


if __name__ == "__main__":
    _serve()
