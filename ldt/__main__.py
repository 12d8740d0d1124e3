"""`ldt` and `python -m ldt`: from the first instruction on a signal ends it with its exit code."""

import atexit
import contextlib
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


def _last():
    """End one of several processes here; else ignore signals while Python takes itself down.

    No handler runs any more then. And a thread of torch that asks for the interpreter meanwhile
    aborts the process, and with it a training that is saved.
    """
    if "torch.distributed" in sys.modules and os.environ.get("WORLD_SIZE", "1") != "1":
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_code)
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def main():
    """Run a command; see `ldt.cli.main`."""
    global _code
    from ldt.cli import main

    try:
        main()
    except SystemExit as ended:
        _code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except BaseException:
        _code = 1
        raise


_PROCESS = os.getpid()
_code = 0
if threading.current_thread() is threading.main_thread():  # no other one can set handlers
    atexit.register(_last)  # the first to be registered is the last to run
    for _number in ENDING:
        if signal.getsignal(_number) is not signal.SIG_IGN:  # by nohup, or a shell's background
            signal.signal(_number, _end)

if __name__ == "__main__":
    sys.exit(main())
