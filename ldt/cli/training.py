"""Training for the commands that do it: the results of each phase, printed."""

from typing import Any

from rich.table import Table
from rich.text import Text

from ldt.cli.console import say, stderr, stdout
from ldt.errors import plain
from ldt.metrics.baseline import Baselines
from ldt.recipe.recipe import Recipe
from ldt.training import TrainingResult, train_in_phases


def train(recipe: Recipe, *, resume: bool, overwrite: bool, dry_run: bool) -> TrainingResult:
    """Train as a recipe says: progress to standard error, results to standard output.

    Returns:
        The result of the last phase.
    """
    from ldt.training.loop import leave_process_group

    options = {"resume": resume, "overwrite": overwrite, "dry_run": dry_run}
    try:
        for result in train_in_phases(recipe, **options, console=stderr):
            if result.closing:
                show_metrics(result.metrics, result.table, result.baselines)
                say(result.closing)
    finally:
        leave_process_group()
    return result


def show_metrics(
    metrics: dict[str, float], rows: list[dict[str, Any]], baselines: Baselines
) -> None:
    """Print metrics, each with its baseline, and the table of further ones if it has rows."""
    for key, value in metrics.items():
        name = key.removeprefix("eval_")
        answer, figure = baselines.get(name, ("", 0.0))
        beside = f" ({answer}: {figure:.4f})" if answer else ""
        say(f"{name}  {value:.4f}{beside}", console=stdout)
    if rows:
        table = Table(box=None)
        for name in rows[0]:
            table.add_column(Text(plain(name)))
        for row in rows:
            cells = [f"{v:.4f}" if isinstance(v, float) else plain(str(v)) for v in row.values()]
            table.add_row(*[Text(cell) for cell in cells])
        stdout.print(table)
