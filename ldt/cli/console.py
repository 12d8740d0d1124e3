"""Results go to `stdout`, everything else to `stderr`; no text from outside can style or steer."""

import logging
import re
import sys
from contextlib import suppress

from rich.console import Console
from rich.text import Text

stdout = Console(highlight=False, emoji=False)
stderr = Console(stderr=True, highlight=False, emoji=False)

# Escape sequences of terminals (colours, titles, links), then what is left of control characters
# (tab and newline are not) and the marks that turn the direction of writing round.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)|\x1b.?", re.S)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The text without what a terminal would obey."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def say(text: str, prefix: str = "", style: str = "", console: Console = stderr) -> None:
    """Print each line as it is, unwrapped, behind the prefix in that style (``bold red``)."""
    for line in plain(text).splitlines() or [""]:
        console.print(Text.assemble((prefix, style), line), soft_wrap=True)


class LogLines(logging.Handler):
    """Log records as lines of `stderr`: warnings behind ``warning:``, the rest bare."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            say(record.getMessage())
        else:
            say(record.getMessage(), "warning: ", "bold yellow")


def settle() -> None:
    """Make both streams take any text, and send the log of ldt to `stderr`."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # not a text file, or closed
            stream.reconfigure(errors="backslashreplace")
    log = logging.getLogger("ldt")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, LogLines) for handler in log.handlers):
        log.addHandler(LogLines())
