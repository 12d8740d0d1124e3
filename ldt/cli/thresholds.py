"""ldt thresholds: tune thresholds, calibration and abstention of a trained model."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ldt.cli.console import say, stdout

if TYPE_CHECKING:
    from ldt.recipe.recipe import Recipe

log = logging.getLogger("ldt")


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
            help="Metric that thresholds maximise, or bound that they keep: f1, f2, "
            "precision>=0.9 or recall>=0.9; by default the one in force.",
        ),
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="Class to find, where each document has one class: the answer from its threshold "
            "on; by default task.positive of the recipe.",
        ),
    ] = None,
    calibration: Annotated[
        Literal["none", "auto", "temperature", "platt", "beta"] | None,
        typer.Option(
            help="Method that calibrates the probabilities: auto takes the best one if it helps, "
            "none removes it; by default the one in force."
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of documents or questions to answer; on the others the model abstains.",
        ),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Highest share of answers that may be wrong."),
    ] = None,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Take the last change back; the files are then as before it."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Keep a decision that leaves no answer without asking."),
    ] = False,
) -> None:
    """Tune thresholds, calibration and abstention of a run.

    Nothing is trained. They are chosen on labelled documents and kept in the folder of the run, for
    ldt predict; what no option names stays as it is, and --undo takes the last change back. The
    figures of a document are those of a choice that was made without it.

    Example: ldt thresholds runs/contracts --data held_out.jsonl --target recall>=0.9
    """
    from ldt.cli.training import show_metrics
    from ldt.errors import UserError
    from ldt.recipe.run import Run
    from ldt.training.deciding import decide_anew, take_back

    if undo:
        if (data, target, positive, calibration, coverage, risk) != (None,) * 6:
            raise UserError("--undo: goes with no other option")
        folder = Run.find(run).folder
        say(f"decision: {take_back(folder) or 'none of its own'}", console=stdout)
        say(f"{folder}: as before the last change")
        return
    if coverage is not None and risk is not None:
        raise UserError("--coverage and --risk exclude each other")
    folder = Run.find(run).folder
    changes: dict[str, Any] = {"threshold_target": target, "calibration": calibration}
    changes |= {"positive": positive}
    changes = {key: value for key, value in changes.items() if value is not None}
    if coverage is not None or risk is not None:
        changes["abstain"] = {"risk": risk} if coverage is None else {"coverage": coverage}
    decided = decide_anew(folder, _recipe(folder, data), lambda why: yes or _agreed(why), **changes)
    show_metrics(decided.metrics, decided.table, decided.baselines)
    say(f"decision: {decided.decides or 'none of its own'}", console=stdout)
    for line in decided.warnings:
        log.warning("%s", line)
    say(
        f"{folder}: kept in config.json; --undo takes it back; "
        f"ldt predict --input FILE --model {folder}"
    )


def _agreed(nothing: str) -> bool:
    """The answer of somebody at a terminal to the question whether to keep a decision; else no."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    return typer.confirm(f"{nothing}; keep this decision?", err=True)


def _recipe(folder: Path, data: str | None) -> "Recipe":
    """The recipe of a run, evaluated on other documents if there are some."""
    from dataclasses import replace

    from ldt.inference.run_model import read_recipe
    from ldt.io.sources import is_hub_set
    from ldt.io.streams import opened

    recipe = read_recipe(folder)
    if data is None:
        return recipe
    if not is_hub_set(data):
        with opened(data):
            pass
    documents = recipe.data.model_copy(update={"eval": data, "eval_fraction": None})
    return replace(recipe, data=documents)
