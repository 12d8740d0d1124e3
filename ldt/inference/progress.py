"""How far a run is: a line that counts on a terminal, and one every 30 seconds elsewhere."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from ldt.inference.stream import Counts

log = logging.getLogger("ldt")

PERIOD = 30  # seconds between two lines of the log


@contextmanager
def progress(shown: bool) -> Iterator[Callable[[Counts], None]]:
    """Yield what is told the counts after every batch.

    On a terminal a line counts and is gone at the end, with ``shown``, which is False where answers
    appear there. What is no terminal gets a line of the log every `PERIOD` seconds.
    """
    if not sys.stderr.isatty():
        yield lambda counts: log.info("%s", counts.rate()) if counts.due(PERIOD) else None
    elif not shown:
        yield lambda counts: None
    else:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
        console = Console(stderr=True, highlight=False)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
            line = bar.add_task("", total=None)
            yield lambda counts: bar.update(line, description=counts.rate())
