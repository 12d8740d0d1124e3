"""A job is what a kind of training adds to `train`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import EarlyStoppingCallback

from ldt.attention import BACKENDS
from ldt.cli.console import stderr
from ldt.data.features import Features
from ldt.data.records import Example
from ldt.errors import RecipeError
from ldt.recipe.recipe import Recipe
from ldt.training.progress import ProgressReport
from ldt.training.summary import LengthReport
from ldt.training.trainer import Trainer


@dataclass
class Ready:
    """All that a Trainer needs.

    ``train`` and ``evaluation`` hold every feature, ``items`` and ``evaluation_items`` what a
    batch is made of; ``examples`` are those of the evaluation, ``ids`` of the training documents.
    """

    config: Any
    tokenizer: Any
    model: Any
    max_length: int
    train: Features
    items: Sequence
    evaluation: Features
    evaluation_items: Sequence
    examples: list[Example]
    golds: list
    ids: list
    reports: dict[str, LengthReport]
    labels: dict[str, Counter]
    remarks: list[str]


def how_attention(recipe: Recipe) -> dict[str, Any]:
    """What the model section changes in a model's config.

    Raises:
        RecipeError: there is no such backend.
    """
    if recipe.model.attention not in ("auto", *BACKENDS):
        names = ", ".join(["auto", *BACKENDS])
        raise RecipeError(f"{recipe.where('model', 'attention')}: expected one of {names}")
    changes = {"attention_backend": recipe.model.attention}
    if recipe.model.window is not None:
        changes["attention_window"] = recipe.model.window
    return changes


def longest_input(recipe: Recipe, longest: int) -> int:
    """``data.max_length``, or that of the model where there is none.

    Args:
        longest: tokens that the model reads.

    Raises:
        RecipeError: the model's position table is too short.
    """
    max_length = recipe.data.max_length or longest
    if max_length > longest:
        path = recipe.model.path.rstrip("/")
        raise RecipeError(
            f"{recipe.where('data', 'max_length')}: {max_length:,} tokens, {path} reads "
            f"{longest:,}; ldt convert {path} {path}-{max_length} --max-length {max_length} "
            "makes a model that reads them"
        )
    return max_length


log = logging.getLogger("ldt")


class Job(ABC):
    """What a command trains; `train` does what all have in common.

    Args:
        recipe: where a model and training data are named.
    """

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @abstractmethod
    def hashes(self, training: dict[str, Any], *, dry_run: bool) -> dict[str, str | None]:
        """What the data are, by key of the data section, for `ldt.training.run_folder.identity`.

        Args:
            training: the `settings`.
            dry_run: whether it is enough to look at the data.
        """

    @abstractmethod
    def prepare(self, training: dict[str, Any], newest: Path | None) -> Any:
        """Everything that a Trainer needs: an object with model, tokenizer, config and items.

        Args:
            training: the `settings`.
            newest: a checkpoint to take model and tokenizer from instead of the recipe's.
        """

    @abstractmethod
    def trainer(self, ready: Any, training: dict[str, Any], run: Path, first: bool) -> Trainer:
        """The Trainer of what is ready; ``first``: whether this process writes."""

    @abstractmethod
    def describe(self, ready: Any, trainer: Trainer, run: Path) -> None:
        """Say what goes in, before the first step."""

    @abstractmethod
    def evaluate(self, trainer: Trainer, ready: Any) -> tuple[dict[str, float], list[dict]]:
        """Metrics and table of the weights that the model holds when training is over."""

    @abstractmethod
    def results(self, ready: Any) -> dict[str, Any]:
        """What metrics.json says of model and data, beside what `train` knows."""

    @abstractmethod
    def card(self, results: dict[str, Any], ready: Any, training: dict[str, Any]) -> str:
        """The model card."""

    @abstractmethod
    def after(self, run: Path) -> str:
        """The command that comes next."""


# -- what jobs share


def progress(run: Path, first: bool) -> ProgressReport:
    """Reports on standard error, of the process that writes."""
    return ProgressReport(stderr if first else Console(quiet=True), run)


def early_stopping(training: dict[str, Any]) -> list[EarlyStoppingCallback]:
    """The callback that the settings ask for, if they do."""
    patience = training.get("early_stopping_patience")
    if not patience:
        return []
    return [EarlyStoppingCallback(patience, training.get("early_stopping_threshold", 0.0))]


def evaluated(trainer: Trainer) -> tuple[dict[str, float], list[dict]]:
    """Metrics and table of the weights that the model holds now; ``compute_metrics`` remembers
    them by step in ``found``."""
    found = trainer.compute_metrics.found
    if trainer.weights_step not in found:  # evaluated in an earlier session, or not at all
        trainer.remove_callback(trainer.progress)  # it is no step of the run
        trainer.evaluate()
        found[trainer.weights_step] = found.pop(trainer.state.global_step)
    return found[trainer.weights_step]
