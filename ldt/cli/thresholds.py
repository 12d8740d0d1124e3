"""ldt thresholds: choose anew what a trained model decides by."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ldt.cli.console import say, stdout

if TYPE_CHECKING:
    from ldt.recipe.recipe import Recipe


def thresholds(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of the finished run, whose model is kept.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Labelled documents that nothing was trained on; by default those that the "
            "training was evaluated on.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="What the thresholds of classes are best for: f1, f2, precision>=0.9 or "
            "recall>=0.9; by default that of the recipe.",
        ),
    ] = None,
    calibration: Annotated[
        Literal["none", "auto", "temperature", "platt", "beta"] | None,
        typer.Option(
            help="How scores become probabilities that are as often right as they say; by default "
            "that of the recipe."
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of documents or questions to answer; the others are silent.",
        ),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Highest share of answers that may be wrong."),
    ] = None,
) -> None:
    """Choose anew what a trained model decides by.

    Nothing is trained. Thresholds, calibration and abstention are chosen on labelled documents and
    kept in the folder of the run, for ldt predict. The figures of a document are those of a choice
    that was made without it.

    Example: ldt thresholds runs/contracts --data held_out.jsonl --target recall>=0.9
    """
    from ldt.cli.training import show_metrics
    from ldt.errors import UserError
    from ldt.inference.run_folder import find_model
    from ldt.training.deciding import decide_anew

    if coverage is not None and risk is not None:
        raise UserError("--coverage and --risk exclude each other")
    folder = find_model(run)
    changes: dict[str, Any] = {"threshold_target": target, "calibration": calibration}
    changes = {key: value for key, value in changes.items() if value is not None}
    if coverage is not None or risk is not None:
        changes["abstain"] = {"risk": risk} if coverage is None else {"coverage": coverage}
    decided = decide_anew(folder, _recipe(folder, data), **changes)
    show_metrics(decided.metrics, decided.table, decided.baselines)
    if decided.decides:
        say(f"decides by {decided.decides}", console=stdout)
    say(f"{folder}: kept in config.json; ldt predict --input FILE --model {folder}")


def _recipe(folder: Path, data: str | None) -> "Recipe":
    """The recipe of a run, evaluated on other documents if there are some."""
    from dataclasses import replace

    from ldt.data.remote import is_hub_set
    from ldt.data.streams import opened
    from ldt.inference.run_folder import read_recipe

    recipe = read_recipe(folder)
    if data is None:
        return recipe
    if not is_hub_set(data):
        with opened(data):
            pass
    documents = recipe.data.model_copy(update={"eval": data, "eval_fraction": None})
    return replace(recipe, data=documents)
