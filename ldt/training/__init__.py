"""Training: from a recipe to a run folder."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ldt.metrics.baseline import Baselines
from ldt.recipe.recipe import Recipe

if TYPE_CHECKING:
    from ldt.training.cost import Cost

# kind of data that a task learns from -> the `ldt.training.job.Job` that trains on it, as
# module:class, so that torch is imported by who trains only
JOBS = {
    "examples": "ldt.training.finetune:Finetuning",
    "corpus": "ldt.training.masked_lm:Pretraining",
    "characters": "ldt.training.char_lm:CharacterTraining",
}


@dataclass(frozen=True)
class TrainingResult:
    """Outcome of a training.

    Args:
        metrics: metrics of the saved weights, such as ``eval_macro_f1`` (shares from 0 to 100), and
            ``train_loss``; empty after a dry run.
        table: rows of further metrics by column name, such as those of each class; may be empty.
        run: the run folder.
        closing: last line for the user; empty if nothing was trained (dry run, already finished)
            and in all processes but the first.
        baselines: metrics of trivial answers, without the prefix ``eval_``.
        decides: decision policy fitted on the evaluation set, in words; "" without one.
        cost: forecast of the cost, after a dry run in a single process.
    """

    metrics: dict[str, float]
    table: list[dict[str, Any]]
    run: Path
    closing: str = ""
    baselines: Baselines = field(default_factory=dict)
    decides: str = ""
    cost: Cost | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training beside its recipe.

    Args:
        resume: True continues from the newest valid checkpoint of the same run
            (`ldt.recipe.run.identity`); on the CPU the result equals that of an uninterrupted run
            bit by bit. A run killed before its first checkpoint starts again; a finished one is
            unchanged.
        overwrite: True replaces the run in the folder.
        dry_run: True stops before the first step, after checking everything and measuring a few
            steps; nothing is written.
        keep_checkpoints: True keeps the checkpoints of the finished run, as
            ``training.save_only_model`` does too.
    """

    resume: bool = False
    overwrite: bool = False
    dry_run: bool = False
    keep_checkpoints: bool = False


def train(recipe: Recipe, **options: bool) -> TrainingResult:
    """Train a model by a recipe and write a self-describing run folder.

    The folder contains the best weights (the last ones without an evaluation set), config,
    tokenizer, ``recipe.yaml``, ``metrics.json``, ``metrics.jsonl`` and ``README.md``, and
    checkpoints until it is finished. ``runs/latest`` points to it. Progress goes to the logger
    ``ldt``.

    Args:
        recipe: model, data and settings.
        options: True or False by the names of `TrainingOptions`: resume, overwrite, dry_run,
            keep_checkpoints.

    Returns:
        The result; for training in phases that of the last one.

    Raises:
        UserError: or a subclass, with its exit code.
        Interrupted: SIGINT or SIGTERM, after a checkpoint was saved.
    """
    *_, last = train_in_phases(recipe, **options)
    return last


def train_in_phases(recipe: Recipe, **options: bool) -> Iterator[TrainingResult]:
    """Train as `train` does, phase by phase as the iterator advances; yield the result of each
    phase, or the only result of a training without phases."""
    with redirect_stdout(io.StringIO()):  # transformers prints there that W&B is offline
        from ldt.training.loop import train_jobs

    module, _, name = JOBS[recipe.task.reads.kind].partition(":")
    jobs = getattr(import_module(module), name).phases(recipe)
    yield from train_jobs(jobs, TrainingOptions(**options))
