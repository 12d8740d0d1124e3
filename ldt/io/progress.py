"""Progress of long work: a log line every half minute, or a live line on a terminal."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

log = logging.getLogger("ldt")

EVERY = 30.0  # seconds

ItemT = TypeVar("ItemT")


class Heartbeat:
    """Log progress every half minute: ``encoding train: 120 of 400 documents, ETA 1:10``.

    Args:
        what: description of the work, the start of the line.
        total: total count; None if unknown.
        unit: plural name of what is counted.
        first: count already done before.
    """

    def __init__(
        self, what: str, total: int | None = None, unit: str = "documents", first: int = 0
    ):
        self.what, self.total, self.unit, self.first = what, total, unit, first
        self.began = self.last = time.monotonic()

    def due(self) -> bool:
        """True if the last line is half a minute old; the caller then logs one, and the time starts
        anew."""
        now = time.monotonic()
        if now - self.last < EVERY:
            return False
        self.last = now
        return True

    def heard(self) -> None:
        """Restart the half minute, because another line was logged."""
        self.last = time.monotonic()

    def __call__(self, done: int) -> None:
        """Log a line if one is due; ``done`` includes the count done before."""
        if not self.due():
            return
        taken = self.last - self.began
        amount, left = f"{done:,} {self.unit}", f"after {duration(taken)}"
        if self.total is not None:
            amount = f"{done:,} of {self.total:,} {self.unit}"
            each = taken / max(done - self.first, 1)
            left = f"ETA {duration(each * max(self.total - done, 0))}"
        log.info("%s", f"{self.what}: {amount}, {left}")


def reported(
    items: Iterable[ItemT],
    what: str,
    unit: str = "documents",
    first: int = 0,
    total: int | None = None,
) -> Iterator[ItemT]:
    """Yield the items unchanged, and log progress every half minute (`Heartbeat`).

    Args:
        items: items to pass on.
        what: description of the work, the start of the line.
        unit: plural name of what is counted.
        first: count already done before, included in what is shown.
        total: total count; None takes the length of ``items`` if it has one.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    heartbeat = Heartbeat(what, total, unit, first)
    for number, item in enumerate(items, first + 1):
        yield item
        heartbeat(number)


def duration(seconds: float) -> str:
    """Seconds as minutes or hours: ``3:07`` or ``1:02:03``."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


@contextmanager
def progress_line(shown: bool) -> Iterator[tuple[Callable[[Any], None], float]]:
    """Context manager for showing the progress of long work on standard error.

    Yields a function to call with the running work, any object whose ``rate()`` is a line of text,
    and the interval of calls in seconds. On a terminal it updates a live line that disappears at
    the end, or does nothing if ``shown`` is False, as when answers are printed there. Elsewhere it
    logs the line.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    if not sys.stderr.isatty():
        yield lambda work: log.info("%s", work.rate()), EVERY
    elif not shown:
        yield lambda work: None, EVERY
    else:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
        console = Console(stderr=True, highlight=False)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
            line = bar.add_task("", total=None)
            yield lambda work: bar.update(line, description=work.rate()), 1.0
