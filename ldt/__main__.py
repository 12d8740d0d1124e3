"""`ldt` and `python -m ldt`: from the first instruction on a signal ends it with its exit code."""

import atexit
import os
import signal
import sys
import threading

ENDING = (signal.SIGINT, signal.SIGTERM)


def _end(number, frame):
    """End at once: nothing is written yet, or everything is."""
    if os.getpid() != _PROCESS:
        _default(number)
    os._exit(128 + number)


def _default(number):
    """Do in a process forked from this one what a signal does by itself."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _deaf():
    """Ignore signals while Python takes itself down, where no handler runs any more."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def main():
    """Run a command; see `ldt.cli.main`."""
    from ldt.cli import main

    main()


_PROCESS = os.getpid()
if threading.current_thread() is threading.main_thread():  # no other one can set handlers
    atexit.register(_deaf)  # the first to be registered is the last to run
    for _number in ENDING:
        if signal.getsignal(_number) is not signal.SIG_IGN:  # by nohup, or a shell's background
            signal.signal(_number, _end)

if __name__ == "__main__":
    sys.exit(main())
