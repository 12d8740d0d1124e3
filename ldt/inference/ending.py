"""The ending of a run: its exit code, and what is kept where a signal or an error ended it."""

import logging
import signal
import threading

from ldt.errors import (
    EXIT_OK,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    DataError,
    ModelError,
    ResourceError,
    Terminated,
    plural,
)
from ldt.inference.answer_file import AnswerFile, AnswerStream

log = logging.getLogger("ldt")


class Ending:
    """Context of a run: signals give an exit code, and answers that are kept are named.

    Attributes:
        sink: where the answers go, once it is open.
        code: exit code, of the run or of the signal that ended it.
    """

    def __init__(self) -> None:
        self.sink: AnswerFile | AnswerStream | None = None
        self.code = EXIT_OK

    def __enter__(self):
        self._handler = None
        # The command line has a handler already; only the main thread can set one.
        alone = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if alone and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, kind, error, trace):
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        kept = ""
        if isinstance(self.sink, AnswerFile) and self.sink.count:
            kept = (
                f"{plural(self.sink.count, 'answer')} kept in {self.sink.partial}; the same "
                "command with --resume goes on there"
            )
        if isinstance(error, KeyboardInterrupt):
            terminated = isinstance(error, Terminated)
            self.code = EXIT_SIGTERM if terminated else EXIT_SIGINT
            log.info("%s: %s", "SIGTERM" if terminated else "SIGINT", kept or "stopped")
            return True
        if kept and isinstance(error, DataError | ModelError | ResourceError):
            log.info("%s", kept)
        return False

    @staticmethod
    def _terminate(*_):
        raise Terminated
