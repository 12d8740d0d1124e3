"""Pretraining of a character model on plain text, in phases of increasing length."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from transformers import set_seed

from ldt.data.characters import Alphabet, Overlapping, Stretches, part_texts
from ldt.data.features import Collator
from ldt.data.options import LONGEST
from ldt.errors import ModelError, RecipeError, without_controls
from ldt.io import files
from ldt.model import LdtCausalConfig, LdtForCausalLM, load
from ldt.model.char_lm.model import read_causal_config
from ldt.model.config import layer_windows, reaches
from ldt.model.loading import read_tokenizer
from ldt.model.weights import require_memory
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import Run
from ldt.tasks.language_models import Phase, character_lm_metrics
from ldt.training import processes
from ldt.training.arguments import is_automatic
from ldt.training.evaluation import BySum
from ldt.training.job import Inputs, Job, Prepared, config_changes, new_config, source_of
from ldt.training.summary import Notice
from ldt.training.trainer import LanguageModelTrainer

LENGTH = 512  # of an input where data.max_length does not say
WINDOW = 512  # where model.window does not say
WARMUP = 0.1, 10_000  # of the steps, and at most so many: the paper's
# Where the defaults are not those of `ldt.training.arguments`.
DEFAULTS: dict[str, Any] = {
    "learning_rate": 2.5e-4,
    "lr_scheduler_type": "constant_with_warmup",
}
ELSEWHERE = {
    "vocab_size": "task.vocabulary",
    "attention_window": "model.window",
    "attention_backend": "model.attention",
}
SHOWN = 60  # characters of the first input


class _CharacterTrainer(LanguageModelTrainer):
    unit = "character"


class CharacterTraining(Job[Inputs]):
    """One phase of training a character model.

    The last phase writes the run folder; earlier ones are runs of their own in its subfolders
    ``phase-1`` and so on. Finished phases are kept when the run is resumed.

    Args:
        recipe: one of `phases`.
        earlier: recipes of the phases before, for the table of results.
    """

    trainer = _CharacterTrainer

    def __init__(self, recipe: Recipe, earlier: Sequence[Recipe] = ()):
        super().__init__(recipe)
        self.earlier = earlier
        self.unit = recipe.task.vocabulary.removesuffix("s")

    @classmethod
    def phases(cls, recipe: Recipe) -> list[Job]:
        recipes = phases(recipe)
        return [cls(phase, recipes[:number]) for number, phase in enumerate(recipes)]

    @property
    def title(self) -> str:
        """Input length, windows and learning rate of the phase, for the log; also of a
        single one."""
        recipe = self.recipe
        return (
            f"inputs of {recipe.data.max_length:,}, windows {_windows(recipe.model.window)}, "
            f"learning rate {recipe.training['learning_rate']:.3g}"
        )

    def open(self, training: dict[str, Any], scratch: Path | None) -> Inputs:
        """Hash the local files by set, one text of space-separated SHA-256; ``scratch`` is not
        used. They are read in `prepare`, once the vocabulary is known: a resumed run uses that
        of the checkpoint."""
        hashes: dict[str, str | None] = {}
        for part in ("train", "eval", "test"):
            names = getattr(self.recipe.data, part)
            names = [names] if isinstance(names, str) else names or []
            digests = [files.digest(Path(name)) for name in names if os.path.isfile(name)]
            if digests:
                hashes[part] = " ".join(digests)
        return Inputs(training, hashes)

    def prepare(self, inputs: Inputs, checkpoint: Path | None) -> Prepared:
        """Read the texts of the data section, encode them by the vocabulary of the checkpoint, else
        of the recipe's model, else of the training text, and load or make the model; arguments
        as for `Job.prepare`."""
        recipe, task, seed = self.recipe, self.recipe.task, inputs.training["seed"]
        folder = checkpoint or recipe.model.path
        known = task.vocabulary
        if folder:
            known = Alphabet.of_tokenizer(read_tokenizer(folder), folder)
        if isinstance(known, Alphabet) and known.unit != self.unit:
            where = recipe.where("task", "vocabulary")
            raise RecipeError(f"{where}: {task.vocabulary}, {folder} is a model of {known.unit}s")
        alphabet, parts = part_texts(recipe.data, known)
        # The seed decides the weights of a new model.
        set_seed(seed)
        model = self._model(folder, alphabet)
        length = recipe.data.max_length
        items = Stretches(parts["train"], length, seed)
        evaluation = measure = None
        if "eval" in parts:
            whole, ids = task.eval_length or length, parts["eval"]
            evaluation = Overlapping(ids, whole, task.eval_step or max(1, whole // 2))
            sizes = {"characters": len(ids), "size": alphabet.bytes_of(ids)}
            measure = BySum(partial(character_lm_metrics, **sizes))
        data = {
            part: {
                "source": source_of(recipe, part),
                "characters": len(ids),
                "bytes": alphabet.bytes_of(ids),
                "sha256": inputs.hashes.get(part),
            }
            for part, ids in parts.items()
        }
        tokenizer = alphabet.tokenizer()
        first = tokenizer.decode(items[0]["input_ids"][:SHOWN])
        return Prepared(
            tokenizer=tokenizer,
            model=model,
            max_length=length,
            train_items=items,
            eval_items=evaluation,
            collate=Collator(0, type(model)),
            names=range(len(items)),
            measure=measure,
            metric="loss",
            facts={
                "problem": None,
                "base_model": recipe.model.path,
                "max_length": length,
                "unit": self.unit,
                "data": data,
            },
            notices=self._notices(data, len(alphabet), first, model.config, evaluation),  # type: ignore[arg-type]
        )

    def _model(self, folder: str | Path | None, alphabet: Alphabet) -> LdtForCausalLM:
        if folder:
            changes = config_changes(self.recipe)
            model = load(folder, LdtForCausalLM, **changes)
        else:
            config = _config(self.recipe)
            config.vocab_size = len(alphabet)
            require_memory(LdtForCausalLM, config, self.recipe.where("model", "config"))
            model = LdtForCausalLM(config)
        if model.config.vocab_size != len(alphabet):
            raise ModelError(
                f"{folder}: the model has {model.config.vocab_size} characters, its tokenizer "
                f"{len(alphabet)}; they are of different models"
            )
        return model

    def _notices(
        self,
        data: dict[str, dict[str, Any]],
        letters: int,
        first: str,
        config: LdtCausalConfig,
        evaluation: Overlapping | None,
    ) -> list[Notice]:
        lines = [
            f"{part}: {facts['characters']:,} {self.unit}s, {facts['bytes']:,} bytes"
            for part, facts in data.items()
        ]
        lines += [
            f"{letters} different ones; the first input begins {without_controls(first)!r}",
            f"windows {_windows(layer_windows(config))}: the last layer sees "
            f"{sum(reaches(config)):,} {self.unit}s back",
        ]
        if evaluation is not None:
            lines.append(
                f"eval: sequences of {evaluation.length:,}, the last {evaluation.step:,} of each "
                "are scored"
            )
        return [Notice(line) for line in lines]

    def table(self, metrics: dict[str, float], rows: list[dict]) -> list[dict]:
        """Rows of phase, length, windows, learning rate and bits per character (if evaluated),
        those of earlier phases from their run folders; empty for a training without phases."""
        if not self.earlier:
            return []
        before = [Run.of(recipe).results() for recipe in self.earlier]
        recipes = [*self.earlier, self.recipe]
        results = [*(result["metrics"] for result in before), metrics]
        return [
            _row(number, phase, phase_metrics)
            for number, phase, phase_metrics in zip(count(1), recipes, results, strict=False)
        ]

    def next_command(self, run: Path) -> str:
        return f"ldt predict --input PROMPTS --model {run}"


def phases(recipe: Recipe) -> list[Recipe]:
    """Return a recipe for each phase of ``task.phases``, or for one, with every value resolved.

    Raises:
        RecipeError: numbers contradict each other; the message names the phase.
        ModelError: the initial model cannot be read.
    """
    run, data = Run.of(recipe).folder, recipe.data
    base = _config(recipe)
    training = DEFAULTS | recipe.training
    length, window = data.max_length or LENGTH, base.attention_window
    rate = training["learning_rate"]
    stages = recipe.task.phases or [Phase()]
    for key in ("max_steps", "num_train_epochs"):
        if key in recipe.training and (stages[0].steps or stages[0].epochs):
            raise RecipeError(
                f"{recipe.where('training', key)}: task.phases say it for each phase; leave it out"
            )
    task = recipe.task.model_copy(update={"phases": []})
    recipes: list[Recipe] = []
    for number, phase in enumerate(stages):
        # What a phase leaves out follows from the phase before: twice as long, at half the rate.
        factor = 2 if number else 1
        length = phase.length or factor * length
        window = phase.window or _times(factor, window)
        rate = phase.learning_rate or rate / factor
        if length > LONGEST:
            place = recipe.where("task", "phases", number)
            raise RecipeError(f"{place}: inputs of {length:,}, at most {LONGEST:,} are possible")
        if phase.steps:
            training = training | {"max_steps": phase.steps}
            training.pop("num_train_epochs", None)
        if phase.epochs:
            training = training | {"num_train_epochs": phase.epochs}
            training.pop("max_steps", None)
        if phase.batch:
            training = training | _accumulation(recipe, training, phase.batch, number)

        # Each phase is a run of its own and begins with the model of the run before.
        folder = run if number == len(stages) - 1 else run / f"phase-{number + 1}"
        resolved = training | {"learning_rate": rate, "output_dir": str(folder)}
        usual = training["lr_scheduler_type"] == DEFAULTS["lr_scheduler_type"]
        if usual and "warmup_steps" not in training and resolved.get("max_steps", 0) > 0:
            resolved["warmup_steps"] = min(math.ceil(WARMUP[0] * resolved["max_steps"]), WARMUP[1])
        model = {"window": window}
        if recipes:
            model |= {"config": None, "path": str(Run.of(recipes[-1]))}

        # All phases are checked before the first one is trained.
        several = len(stages) > 1
        where = recipe.where("task", "phases", number) if several else recipe.where("model")
        try:
            LdtCausalConfig.from_dict(base.to_dict() | {"attention_window": window}).check()
        except ValueError as error:
            raise RecipeError(f"{where}: {error}") from error
        if task.eval_step and task.eval_step >= (task.eval_length or length):
            raise RecipeError(
                f"{recipe.where('task', 'eval_step')}: {task.eval_step:,} of inputs of "
                f"{task.eval_length or length:,}; it must be smaller"
            )
        recipes.append(
            replace(
                recipe,
                task=task,
                model=recipe.model.model_copy(update=model),
                data=data.model_copy(update={"max_length": length}),
                training=resolved,
            )
        )
    return recipes


def _config(recipe: Recipe) -> LdtCausalConfig:
    model = recipe.model
    if model.path is not None:
        return read_causal_config(model.path, **config_changes(recipe))
    if model.config is None:
        raise RecipeError(
            f"{recipe.where('model')}: path, a folder of a character model, or config of a new one"
        )
    return new_config(recipe, LdtCausalConfig, {"attention_window": WINDOW}, ELSEWHERE)


def _accumulation(recipe: Recipe, training: dict, batch: int, number: int) -> dict[str, int]:
    """Setting that gives phase ``number`` a step of ``batch`` inputs."""
    size = 1 if is_automatic(recipe) else training.get("per_device_train_batch_size", 1)
    together = size * processes.count()
    if batch % together:
        raise RecipeError(
            f"{recipe.where('task', 'phases', number, 'batch')}: {batch} inputs a step, "
            f"{together} are run at a time (training.per_device_train_batch_size, times "
            "processes); it must be a multiple"
        )
    return {"gradient_accumulation_steps": batch // together}


def _times(factor: int, window: int | list[int]) -> int | list[int]:
    return [factor * size for size in window] if isinstance(window, list) else factor * window


def _windows(window: int | list[int]) -> str:
    sizes = window if isinstance(window, list) else [window]
    return f"{sizes[0]:,}" if len(set(sizes)) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


def _row(number: int, recipe: Recipe, metrics: dict[str, float]) -> dict[str, Any]:
    row = {
        "phase": number,
        "length": recipe.data.max_length,
        "windows": _windows(recipe.model.window),
        "learning_rate": recipe.training["learning_rate"],
    }
    bits = metrics.get("eval_bits_per_character")
    return row if bits is None else row | {"bits_per_character": bits}
