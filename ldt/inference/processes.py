"""Processes that answer for this one: fresh ones, or such that go on from this one.

On Linux, what this process has imported takes memory once for all that go on from it, and none of
them imports it again: torch and transformers are 0.3 GB and some seconds. No torch here.
"""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from contextlib import suppress
from typing import IO, NoReturn, Protocol

from ldt.inference.worker import main
from ldt.system import signals_blocked, thread_variables, use_threads


class Process(Protocol):
    """A process with pipes to its standard input and output, such as `subprocess.Popen`."""

    pid: int

    @property
    def stdin(self) -> IO[bytes] | None:
        """What it reads."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """What it writes."""

    def kill(self) -> None:
        """End it, if it has not ended."""

    def wait(self) -> int:
        """Wait for its end; its exit code, or less than none the signal that ended it."""


def spawned(threads: int, memory: int | None) -> Process:
    """A fresh process that runs `ldt.inference.worker.main` with the modules of this one.

    Args:
        threads: that it computes with; torch and MKL read them when they are imported.
        memory: a descriptor that it has under the same number.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from ldt.inference.worker import main; main()"
    with signals_blocked():
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | thread_variables(threads),
            pass_fds=() if memory is None else (memory,),
        )


def forked(threads: int, memory: int | None) -> Process:
    """A process that goes on from this one with `ldt.inference.worker.main`.

    It can where `ldt.system.can_fork`.

    Args:
        threads, memory: as `spawned` has them.

    Raises:
        OSError: the system starts no more processes.
    """
    (read, to), (of, write) = os.pipe(), os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # else both processes would write what waits there
    with signals_blocked(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from 3.12 on: numpy has threads, and takes care of them
        pid = os.fork()
        if not pid:
            _go_on(read, write, threads, memory)
    for theirs in (read, write):
        os.close(theirs)
    return _Forked(pid, os.fdopen(to, "wb"), os.fdopen(of, "rb"))


class _Forked:
    """A `Process` that `forked` has started."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]):
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._code: int | None = None
        self._waiting = threading.Lock()

    def kill(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        with self._waiting:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def _go_on(read: int, write: int, threads: int, memory: int | None) -> NoReturn:
    """What a forked process does to its end, with nothing of the other one but its modules.

    Args:
        read, write: ends of its pipes.
    """
    try:
        gc.freeze()  # what the other one has is never freed, as its files are closed here
        os.dup2(read, 0)
        os.dup2(write, 1)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number != memory:
                with suppress(OSError):  # that of the list itself
                    os.close(number)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        for logger in (logging.getLogger(), logging.getLogger("ldt")):
            logger.handlers.clear()
        use_threads(threads)
        main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
