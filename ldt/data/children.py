"""How many threads a process computes with, and that it ends with the one that started it."""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PDEATHSIG = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


def end_with_parent() -> None:
    """Let the system kill this process as the thread ends that started it; on Linux alone."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def thread_variables(number: int) -> dict[str, str]:
    """Variables by which torch and numpy take so many threads, where they are imported later."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(number))
    return counts | {"MKL_DYNAMIC": "FALSE"}  # else MKL takes fewer, as set_num_threads knows


def use_threads(number: int) -> None:
    """Have this process compute with so many threads."""
    os.environ.update(thread_variables(number))
    if torch := sys.modules.get("torch"):  # it has read them already
        torch.set_num_threads(number)
