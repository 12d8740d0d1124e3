"""Training for the commands that do it: the results of each phase, printed."""

from typing import Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ldt.cli.console import say, stderr, stdout
from ldt.errors import plain
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import metric_text
from ldt.recipe.recipe import Recipe
from ldt.training import TrainingResult, train_in_phases


def train(recipe: Recipe, **options: bool) -> TrainingResult:
    """Train as a recipe says: progress to standard error, results to standard output.

    Args:
        recipe: what is trained.
        options: of `ldt.training.train`.

    Returns:
        The result of the last phase.
    """
    from ldt.training.processes import leave_group

    try:
        for result in train_in_phases(recipe, **options, console=stderr):
            if result.closing:
                show_metrics(result.metrics, result.table, result.baselines)
                if result.decides:
                    say(f"decides by {result.decides}", console=stdout)
                say(result.closing)
    finally:
        leave_group()
    return result


def show_metrics(
    metrics: dict[str, float], rows: list[dict[str, Any]], baselines: Baselines
) -> None:
    """Print metrics, each with its baseline, and the table of further ones if it has rows."""
    for key, value in metrics.items():
        name = key.removeprefix("eval_")
        answer, figure = baselines.get(name, ("", 0.0))
        beside = f" ({answer}: {metric_text(name, figure)})" if answer else ""
        say(f"{name}  {metric_text(name, value)}{beside}", console=stdout)
    if rows:
        stdout.print(_table(rows))


def _table(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table, as wide as the console or, where heads would be cut, a line a value."""
    broken = [name.replace("_", "_\n") for name in rows[0]]
    endless = stdout.options.update(width=10_000)
    for heads in (list(rows[0]), broken):
        table = Table(box=None)
        for head, name in zip(heads, rows[0], strict=True):
            is_text = any(isinstance(row[name], str) for row in rows)
            table.add_column(Text(plain(head)), no_wrap=not is_text, overflow="fold")
        for row in rows:
            table.add_row(*(_cell(*item) for item in row.items()))
        if Measurement.get(stdout, endless, table).minimum <= stdout.width:
            return table
    table = Table(box=None, show_header=False)
    for number, row in enumerate(rows):
        if number:
            table.add_row()
        for name, value in row.items():
            table.add_row(Text(plain(name), overflow="fold"), _cell(name, value))
    return table


def _cell(name: str, value: Any) -> Text:
    is_figure = isinstance(value, float)
    return Text(metric_text(name, value) if is_figure else plain(str(value)), overflow="fold")
