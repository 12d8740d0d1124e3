"""ldt finetune: train a model for a task as a recipe says."""

from typing import Annotated

import typer

from ldt.cli.options import KeepCheckpoints, Overrides, Overwrite, Recipe, Resume


def finetune(
    recipe: Recipe,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    keep_checkpoints: KeepCheckpoints = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check recipe, data and model, show one encoded example, and stop."
        ),
    ] = False,
) -> None:
    """Fine-tune a model as a recipe says, and evaluate it.

    Example: ldt finetune wikihop data.train=train.json
    """
    from ldt.cli.training import train
    from ldt.recipe.recipe import load

    loaded = load(recipe, overrides or (), command="finetune")
    train(
        loaded,
        resume=resume,
        overwrite=overwrite,
        keep_checkpoints=keep_checkpoints,
        dry_run=dry_run,
    )
