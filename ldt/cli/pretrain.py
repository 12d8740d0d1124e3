"""ldt pretrain: train a masked LM or a character model on plain text."""

from typing import Annotated

import typer

from ldt.cli.options import KeepCheckpoints, Overrides, Overwrite, Recipe, Resume


def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    keep_checkpoints: KeepCheckpoints = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything on a little of the text, and stop."),
    ] = False,
) -> None:
    """Train a masked LM or a character model on plain text.

    Training starts from scratch or from an existing model, as the recipe says.

    Example: ldt pretrain recipes/pretrain.yaml data.train=books/*.txt
    """
    from ldt.cli.training import train
    from ldt.recipe.recipe import load

    loaded = load(recipe, overrides or (), command="pretrain")
    train(
        loaded,
        resume=resume,
        overwrite=overwrite,
        keep_checkpoints=keep_checkpoints,
        dry_run=dry_run,
    )
