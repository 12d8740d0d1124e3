"""Rows of figures as a table that fits any width."""

from typing import Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ldt.cli.console import stdout
from ldt.errors import plain
from ldt.metrics.numbers import metric_text


def table(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table, as wide as the console or, where heads would be cut, a line a value."""
    broken = [name.replace("_", "_\n") for name in rows[0]]
    endless = stdout.options.update(width=10_000)
    for heads in (list(rows[0]), broken):
        made = Table(box=None)
        for head, name in zip(heads, rows[0], strict=True):
            is_text = any(isinstance(row[name], str) for row in rows)
            made.add_column(Text(plain(head)), no_wrap=not is_text, overflow="fold")
        for row in rows:
            made.add_row(*(_cell(*item) for item in row.items()))
        if Measurement.get(stdout, endless, made).minimum <= stdout.width:
            return made
    made = Table(box=None, show_header=False)
    for number, row in enumerate(rows):
        if number:
            made.add_row()
        for name, value in row.items():
            made.add_row(Text(plain(name), overflow="fold"), _cell(name, value))
    return made


def _cell(name: str, value: Any) -> Text:
    is_figure = isinstance(value, float)
    return Text(metric_text(name, value) if is_figure else plain(str(value)), overflow="fold")
