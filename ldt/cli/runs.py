"""ldt runs: the runs of a folder side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ldt.cli import json_result
from ldt.cli.console import say, stdout
from ldt.errors import plain

if TYPE_CHECKING:
    from ldt.report.runs import Summary

# Columns from left to right, and those that a narrow terminal has no room for, the first ones
# first. Names longer than `NAME` go on a line of their own before one goes.
COLUMNS = ("name", "date", "task", "model", "metric", "length", "time", "size", "state")
SPARE = ("model", "size", "task", "length", "time")
FIGURES = ("length", "time", "size")
NAME, GAP = 16, 2


def runs(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER",
            help="Folders of runs, or runs; by default the folder runs.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        Literal["name", "date", "task", "model", "metric", "length", "time", "size", "state"],
        typer.Option(help="Column to sort by: names from a to z, else the newest or best first."),
    ] = "date",
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File for the runs as JSON; - prints JSON instead of the table."
        ),
    ] = None,
) -> None:
    """List runs: task, model, metric, length, time, size, state.

    One that was stopped is told with the command that goes on with it, one that is damaged with
    what is wrong. A narrow terminal shows fewer columns; a pipe gets all of them.

    Example: ldt runs --sort metric
    """
    from ldt.io import files
    from ldt.report.runs import listed

    if json and json != "-":
        files.check_result(Path(json), "--json")
    places = folders or ["runs"]
    found = listed(places, sort)
    json_result.tell(lambda: [run.facts() for run in found], json, lambda: _show(found, places))


def _show(found: "list[Summary]", places: list[str]) -> None:
    """A line a run on standard output; what there is to say about one on standard error."""
    if not found:
        say(f"no runs in {', '.join(places)}; ldt finetune RECIPE makes one")
        return
    rows = [_cells(run) for run in found]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in COLUMNS}
    shown = list(COLUMNS)
    if stdout.is_terminal:
        shown, widths["name"] = _fitting(widths)
    for row in ({name: name for name in shown}, *rows):
        cells = [
            row[name].rjust(widths[name]) if name in FIGURES else row[name].ljust(widths[name])
            for name in shown[1:]
        ]
        name = row["name"]
        if len(name) > widths["name"]:  # it has a line of its own, and can be copied
            say(name, console=stdout)
            name = ""
        line = (" " * GAP).join([name.ljust(widths["name"]), *cells])
        say(line.rstrip(), console=stdout)
    hidden = [name for name in COLUMNS if name not in shown]
    if hidden:
        say(f"a wider terminal or --json shows {', '.join(hidden)} too")
    for run in found:
        if run.note:
            say(f"{run.name}: {run.note}")


def _fitting(widths: dict[str, int]) -> tuple[list[str], int]:
    """The columns that the terminal has room for, and the width of the names."""
    shown = list(COLUMNS)
    for spare in ("", *SPARE):
        shown = [name for name in shown if name != spare]
        rest = stdout.width - sum(widths[name] + GAP for name in shown[1:])
        if rest >= min(widths["name"], NAME):
            break
    return shown, max(len("name"), min(widths["name"], rest))


def _cells(run: "Summary") -> dict[str, str]:
    """A run as text, a dash where something is not known."""
    from ldt.io.progress import duration
    from ldt.metrics.numbers import metric_text

    value = "-" if run.value is None else metric_text(run.metric or "", run.value)
    cells = {
        "name": run.name,
        "date": run.date.astimezone().strftime("%Y-%m-%d %H:%M") if run.date else "-",
        "task": run.task or "-",
        "model": run.model or "-",
        "metric": f"{run.metric} {value}" if run.metric else "-",
        "length": "-" if run.length is None else f"{run.length:,}",
        "time": "-" if run.time is None else duration(run.time),
        "size": _bytes(run.size),
        "state": run.state,
    }
    return {name: " ".join(plain(cell).split()) for name, cell in cells.items()}


def _bytes(size: int) -> str:
    """``812 kB``, ``107 MB``, ``1.3 GB``."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if size >= scale:
            return (
                f"{size / scale:,.1f} {unit}"
                if size < 10 * scale
                else f"{size / scale:,.0f} {unit}"
            )
    return f"{-(-size // 1000)} kB"
