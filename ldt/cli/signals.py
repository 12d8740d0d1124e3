"""SIGINT and SIGTERM while a command works: an exception that lets go of what it holds."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ldt.errors import Stopped, Terminated

AGAIN = 0.2  # seconds after which a signal is raised again that some library has swallowed
TWICE = 1.0  # seconds within which a second signal is the same wish, sent to a group and to us


class Signals:
    """The first signal that came while `raised`; its ``number`` is 0 before.

    An exception that comes in the middle of an import or of a callback may be swallowed there, or
    turned into another one. So it is raised again until `raised` is left, except where it is being
    handled; and ``number`` says what ended the command, whatever exception arrives.
    """

    def __init__(self) -> None:
        self.number = 0
        self._process = os.getpid()
        self._came = 0.0
        self._over = False

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise `Stopped` or `Terminated` for a signal; a second one ends the process.

        Only the main thread can do so; in another one signals act as before. A signal that the
        process ignores is ignored still.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [n for n in (signal.SIGINT, signal.SIGTERM) if _heard(n)]
        before = {number: signal.signal(number, self._come) for number in wanted}
        hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            yield
        finally:
            self._over = True
            self._repeat(0)
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _come(self, number, frame):
        if os.getpid() != self._process:  # a worker, forked from the process of the command
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        if self.number:
            if time.monotonic() - self._came > TWICE:
                os._exit(128 + number)
            return
        self.number, self._came = number, time.monotonic()
        self._repeat(AGAIN)
        self._raise()

    def _again(self, number, frame):
        if self._over:
            return
        handled = sys.exception()
        while handled is not None:
            if isinstance(handled, KeyboardInterrupt | SystemExit | GeneratorExit):
                return
            handled = handled.__context__
        self._raise()

    def _raise(self):
        raise Terminated if self.number == signal.SIGTERM else Stopped

    def _repeat(self, seconds):
        if not hasattr(signal, "setitimer"):  # Windows
            return
        if seconds:
            signal.signal(signal.SIGALRM, self._again)
        if self.number:
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)

    def _unraisable(self, unraisable):
        """Say nothing of a signal that came in a destructor; it is raised again."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)


def _heard(number: int) -> bool:
    return signal.getsignal(number) is not signal.SIG_IGN
