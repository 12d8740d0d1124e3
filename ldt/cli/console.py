"""Results go to `stdout`, everything else to `stderr`; no text from outside can style or steer."""

import logging
import sys
from contextlib import suppress
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from ldt.errors import without_controls

stdout = Console(highlight=False, emoji=False)
stderr = Console(stderr=True, highlight=False, emoji=False)


def say(text: str, prefix: str = "", style: str = "", console: Console = stderr) -> None:
    """Print each line as it is, unwrapped, without control characters, behind the prefix in that
    style (``bold red``); by default on standard error."""
    for line in without_controls(text).splitlines() or [""]:
        console.print(Text.assemble((prefix, style), line), soft_wrap=True)


class LogLines(logging.Handler):
    """Log records as lines of `stderr`: warnings behind ``warning:``, the others bare."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record's message to `stderr`, a warning or an error behind ``warning:``."""
        if record.levelno < logging.WARNING:
            say(record.getMessage())
        else:
            say(record.getMessage(), "warning: ", "bold yellow")


def configure_streams() -> None:
    """Make both streams take any text, and send the log of ldt to `stderr`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(ValueError):  # closed
                stream.reconfigure(errors="backslashreplace")
    log = logging.getLogger("ldt")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, LogLines) for handler in log.handlers):
        log.addHandler(LogLines())
