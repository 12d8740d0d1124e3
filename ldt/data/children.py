"""Processes that end with the one that started them."""

import ctypes
import signal
import sys
from contextlib import suppress

_PDEATHSIG = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


def end_with_parent() -> None:
    """Let the system kill this process as the thread ends that started it; on Linux alone."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
