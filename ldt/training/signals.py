"""SIGINT and SIGTERM while a model trains: the first one is noted, the second one ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(SystemExit):
    """Ends the process after a signal, with code 130 (SIGINT) or 143 (SIGTERM)."""


class StopSignal:
    """The first signal that came in `noted`; its ``number`` is 0 before."""

    def __init__(self):
        self.number = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the first signal and raise `Interrupted` at the second.

        Only the main thread can do so; in another one signals act as before.
        """

        def note(number, frame):
            if self.number:
                raise Interrupted(128 + number)
            self.number = number
            # print is not safe inside a signal handler
            os.write(2, b"\nfinishing the step and saving a checkpoint; once more stops at once\n")

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
