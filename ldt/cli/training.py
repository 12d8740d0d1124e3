"""Training for the commands that do it: the results of each phase, printed."""

from typing import Any

from ldt.cli.console import say, stderr, stdout
from ldt.cli.tables import table
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
                    say(f"decision: {result.decides}", console=stdout)
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
        first = next(iter(rows[0]))
        of_targets = {"target", "with 90 % certainty"} & rows[0].keys()  # in a table of their own
        stdout.print(table([{k: v for k, v in row.items() if k not in of_targets} for row in rows]))
        targets = [{k: v for k, v in row.items() if k in of_targets | {first}} for row in rows]
        targets = [row for row in targets if row.get("target")]
        if targets:
            stdout.print(table(targets))
