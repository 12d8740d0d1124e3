"""ldt finetune and ldt pretrain: train a model as a recipe says."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ldt.cli.console import say, stdout
from ldt.cli.options import Overrides

if TYPE_CHECKING:
    from ldt.recipe.recipe import Recipe as LoadedRecipe
    from ldt.training import TrainingResult


def finetune(
    recipe: Annotated[Path, "RECIPE"],
    overrides: Overrides = None,
    resume: bool = False,
    overwrite: bool = False,
    keep_checkpoints: bool = False,
    dry_run: bool = False,
) -> None:
    """Fine-tune a model as a recipe says, and evaluate it.

    Example: ldt finetune wikihop data.train=train.json

    Args:
        resume: Continue the run from its newest checkpoint.
        overwrite: Replace an older run in the run folder; files that ldt did not write stay.
        dry_run: Check recipe, data and model, show one encoded example, and stop.
    """
    _train("finetune", **locals())


def pretrain(
    recipe: Annotated[Path, "RECIPE"],
    overrides: Overrides = None,
    resume: bool = False,
    overwrite: bool = False,
    keep_checkpoints: bool = False,
    dry_run: bool = False,
) -> None:
    """Train a masked LM or a character model on plain text.

    Training starts from scratch or from an existing model, as the recipe says.

    Example: ldt pretrain recipes/pretrain.yaml data.train=books/*.txt

    Args:
        resume: Continue the run from its newest checkpoint.
        overwrite: Replace an older run in the run folder; files that ldt did not write stay.
        dry_run: Check everything on a little of the text, and stop.
    """
    _train("pretrain", **locals())


def _train(command: str, recipe: Path, overrides: list[str] | None, **options: bool) -> None:
    from ldt.recipe.recipe import load

    train(load(recipe, overrides or (), command=command), **options)


def train(recipe: "LoadedRecipe", **options: bool) -> "TrainingResult":
    """Train as a recipe says: progress to standard error, results to standard output. At the end
    the process group of a distributed training is left.

    Args:
        recipe: the recipe of the training.
        options: True or False by the names of `ldt.training.train`, such as resume and dry_run.

    Returns:
        The result of the last phase.
    """
    from ldt import training
    from ldt.cli.results import show_metrics
    from ldt.training.processes import leave_group

    try:
        for result in training.train_in_phases(recipe, **options):
            if result.closing:
                show_metrics(result.metrics, result.table, result.baselines)
                if result.decides:
                    say(f"decision: {result.decides}", console=stdout)
                say(result.closing)
    finally:
        leave_group()
    return result
