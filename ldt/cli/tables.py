"""Rows of figures as a table that fits any width."""

from typing import Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ldt.cli.console import stdout
from ldt.errors import plain
from ldt.metrics.numbers import columns, is_defined, metric_text


def table(rows: list[dict[str, Any]], width: int | None = None) -> Table:
    """The rows as a table, as wide as the console or, where heads would be cut, a line a value.

    Rows may have different keys; what one lacks, None and NaN are empty cells.

    Args:
        width: width that there is; None for that of the console.
    """
    width = width or stdout.width
    names = columns(rows)
    broken = [name.replace("_", "\n") for name in names]
    endless = stdout.options.update(width=10_000)
    for heads in (names, broken):
        grid = Table(box=None)
        for head, name in zip(heads, names, strict=True):
            is_text = any(isinstance(row.get(name), str) for row in rows)
            grid.add_column(Text(plain(head)), no_wrap=not is_text, overflow="fold")
        for row in rows:
            grid.add_row(*(_cell(name, row.get(name)) for name in names))
        if Measurement.get(stdout, endless, grid).minimum <= width:
            return grid
    grid = Table(box=None, show_header=False)
    for number, row in enumerate(rows):
        if number:
            grid.add_row()
        for name, value in row.items():
            grid.add_row(Text(plain(name), overflow="fold"), _cell(name, value))
    return grid


def _cell(name: str, value: Any) -> Text:
    if not is_defined(value):
        return Text()
    is_figure = isinstance(value, float)
    return Text(metric_text(name, value) if is_figure else plain(str(value)), overflow="fold")
