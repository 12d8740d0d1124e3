"""`ldt` and `python -m ldt`: from the first instruction on a signal ends it with its exit code."""

import atexit
import contextlib
import os
import signal
import sys

from ldt import system


def _last():
    """End one of several processes here; else ignore signals while Python takes itself down. No
    handler runs any more then, and a thread of torch that asks for the interpreter meanwhile
    aborts the process, and with it a training that is saved."""
    if "torch.distributed" in sys.modules and os.environ.get("WORLD_SIZE", "1") != "1":
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_code)
    system.handle(signal.SIG_IGN)


def main():
    """Run a command by `ldt.cli.main`, and keep its exit code for the end of the process."""
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


_code = 0
# Nothing is written yet, or everything is.
system.handle(system.Signals(system.exit_at_once).come)
atexit.register(_last)  # the first to be registered is the last to run

if __name__ == "__main__":
    sys.exit(main())
