"""The ending of a run: its exit code, and what is kept where a signal or an error ended it."""

import logging
import signal
from contextlib import ExitStack

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
from ldt.system import handled, raise_stopped

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
        self._open = ExitStack()

    def __enter__(self):
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:  # the command line has a handler
            self._open.enter_context(handled(raise_stopped, [signal.SIGTERM]))
        return self

    def __exit__(self, kind, error, trace):
        self._open.close()
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
