"""Results of commands: metrics and tables for people, JSON for programs."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ldt.cli.console import say, stdout
from ldt.errors import escaped, without_controls

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger("ldt")

TARGETS = ("target", "with 90 % certainty")  # columns of targets, in a table of their own


def check(target: str | Path | None, *inputs: Any, option: str = "--json") -> None:
    """Raise UserError if a results file cannot be written or is an input; called before anything is
    computed.

    Args:
        target: the file; None and "-" are none.
        inputs: files that the command reads, None for none.
        option: name of the option that names it.
    """
    from ldt.io import files

    if target and target != "-":
        files.check_result(Path(target), option, inputs)


def tell(facts: Callable[[], Any], target: str | None, show: Callable[[], None]) -> None:
    """Show a result and write it to a file, or print it as JSON instead.

    Args:
        facts: function that makes the whole result as JSON values.
        target: the file of --json; "-" for JSON on standard output, None for neither.
        show: function that prints the result for people.

    Raises:
        UserError: the file cannot be written.
    """
    from ldt.io import files

    text = json.dumps(facts(), ensure_ascii=False, indent=2) if target else ""
    if target == "-":
        typer.echo(escaped(text) if stdout.is_terminal else text)
        return
    show()
    if target:
        files.write_result(Path(target), f"{text}\n")
        log.info("%s: written", target)


def show_metrics(
    metrics: dict[str, float],
    rows: list[dict[str, Any]],
    baselines: Mapping[str, tuple[str, float]],
) -> None:
    """Print metrics on standard output, each with its baseline, and a table of further ones.

    Args:
        metrics: values by name, with or without ``eval_``.
        rows: rows of the table by column name; none if empty.
        baselines: (trivial answer, value) by name without ``eval_``.
    """
    from ldt.metrics.numbers import metric_text

    for key, value in metrics.items():
        name = key.removeprefix("eval_")
        answer, figure = baselines.get(name, ("", 0.0))
        beside = f" ({answer}: {metric_text(name, figure)})" if answer else ""
        say(f"{name}  {metric_text(name, value)}{beside}", console=stdout)
    if rows:
        stdout.print(table([{k: v for k, v in row.items() if k not in TARGETS} for row in rows]))
    with_target = [row for row in rows if row.get("target")]
    if with_target:
        columns = (next(iter(rows[0])), *TARGETS)
        stdout.print(table([{k: row[k] for k in columns if k in row} for row in with_target]))


def table(rows: list[dict[str, Any]]) -> "Table":
    """Make a table to print of rows {column: value}.

    Rows may have different keys; what one lacks, None and NaN are empty cells.
    """
    from rich.table import Table
    from rich.text import Text

    from ldt.metrics.numbers import columns, is_defined, metric_text

    def cell(name: str, value: Any) -> Text:
        if not is_defined(value):
            return Text()
        return Text(
            metric_text(name, value) if isinstance(value, float) else without_controls(str(value))
        )

    names, grid = columns(rows), Table(box=None)
    for name in names:
        grid.add_column(Text(without_controls(name)), overflow="fold")
    for row in rows:
        grid.add_row(*(cell(name, row.get(name)) for name in names))
    return grid
