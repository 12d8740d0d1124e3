"""Progress of long work: a line of the log every half minute, or one that counts on a terminal."""

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
    """Logs how far a piece of work is, every half minute: ``encoding train: 120 of 400 documents,
    ETA 1:10``.

    Args:
        what: the work, as the line begins.
        total: how many there are in all; None where nobody knows.
        unit: what is counted, in the plural.
        first: how many were done before it began.
    """

    def __init__(
        self, what: str, total: int | None = None, unit: str = "documents", first: int = 0
    ):
        self.what, self.total, self.unit, self.first = what, total, unit, first
        self.began = self.last = time.monotonic()

    def due(self) -> bool:
        """True where half a minute has gone by without a line; the caller logs one then."""
        now = time.monotonic()
        if now - self.last < EVERY:
            return False
        self.last = now
        return True

    def heard(self) -> None:
        """Another line has just been logged."""
        self.last = time.monotonic()

    def __call__(self, done: int) -> None:
        """Log where it is due; ``done`` is how many, with those of before."""
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
    """Pass items on, with a `Heartbeat` of the work that is done on them.

    Args:
        total: how many there are in all; None: as many as ``items``, if these know.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    heartbeat = Heartbeat(what, total, unit, first)
    for number, item in enumerate(items, first + 1):
        yield item
        heartbeat(number)


def duration(seconds: float) -> str:
    """``3:07`` or ``1:02:03``."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


@contextmanager
def progress_line(shown: bool) -> Iterator[tuple[Callable[[Any], None], float]]:
    """Yield a function to call with the work, whose ``rate()`` is its progress, and the seconds
    from one call to the next.

    On a terminal a line counts and is gone at the end, with ``shown``, which is False where answers
    appear there. What is no terminal gets a line of the log every half minute.
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
