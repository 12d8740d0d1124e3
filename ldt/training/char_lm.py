"""pretrain, for character models: plain text to a model, in phases of growing length."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import set_seed

from ldt import files
from ldt.cli.console import say
from ldt.data.characters import Alphabet, Overlapping, Stretches, collate, load_alphabet, part_texts
from ldt.errors import ModelError, RecipeError, UserError, plain
from ldt.model import LdtCausalConfig, LdtForCausalLM
from ldt.model.char_lm.config import check_causal, reaches, read_causal_config
from ldt.model.config import layer_windows
from ldt.recipe.recipe import Recipe
from ldt.tasks.char_lm import Phase, figures
from ldt.training import run_folder
from ldt.training.arguments import arguments
from ldt.training.from_scratch import check_keys
from ldt.training.job import Job, early_stopping, evaluated, how_attention, progress
from ldt.training.loop import train
from ldt.training.masked_lm import Pretrainer, Sums
from ldt.training.model_card import character_card
from ldt.training.summary import pretraining_plan

LENGTH = 512  # of an input where data.max_length does not say
WINDOW = 512  # where model.window does not say
WARMUP = 0.1, 10_000  # of the steps, and at most so many: the paper's
# Where the defaults are not those of `ldt.training.arguments`.
DEFAULTS = {"learning_rate": 2.5e-4, "lr_scheduler_type": "constant_with_warmup"}
ELSEWHERE = {
    "vocab_size": "task.vocabulary",
    "attention_window": "model.window",
    "attention_backend": "model.attention",
}
SHOWN = 60  # characters of the first input


def pretrain(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, dry_run: bool = False
) -> dict[str, float]:
    """`train` a character model, phase after phase.

    The last phase is the run of the folder; those before it lie in ``phase-1`` … in it, each a
    run of its own. What is finished stays as it is when the run is resumed.

    Args:
        recipe: of a `ldt.tasks.char_lm.CharacterLM`.
        resume, overwrite, dry_run: as `train` takes them; a dry run looks at the first phase.
    """
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other")
    plan = phases(recipe)
    places = [run_folder.place(own) for own in plan]
    if overwrite and not dry_run and os.environ.get("RANK", "0") == "0":
        for place in reversed(places[1:]):  # a later phase must not seem finished
            if found := run_folder.read_run(place):
                run_folder.clear(place, found)
    rows, metrics = [], {}
    for number, (own, place) in enumerate(zip(plan, places, strict=True)):
        if len(plan) > 1:
            say(f"phase {number + 1} of {len(plan)}: {_about(own)}")
        if dry_run and number:
            continue
        going_on = resume and (number == 0 or run_folder.read_run(place) is not None)
        job = CharacterTraining(own, rows)
        metrics = train(job, resume=going_on, overwrite=overwrite, dry_run=dry_run)
        if os.environ.get("WORLD_SIZE", "1") != "1":
            PartialState().wait_for_everyone()  # the next phase reads what one process writes
        rows.append(_row(len(rows) + 1, own, metrics))
    return metrics


def phases(recipe: Recipe) -> list[Recipe]:
    """A recipe for each phase of a staged training, all values resolved.

    Raises:
        RecipeError: numbers that do not go together, and which phase they are of.
        ModelError: the model to begin with cannot be read.
    """
    run, data = run_folder.place(recipe), recipe.data
    base = _config(recipe)
    training, made = DEFAULTS | recipe.training, []
    length, window = data.max_length or LENGTH, base.attention_window
    rate = training["learning_rate"]
    given = recipe.task.phases or [Phase()]
    for number, phase in enumerate(given):
        factor = 2 if number else 1
        length = phase.length or factor * length
        window = phase.window or _times(factor, window)
        rate = phase.learning_rate or rate / factor
        if phase.steps:
            training = _without(training, "num_train_epochs") | {"max_steps": phase.steps}
        if phase.epochs:
            training = _without(training, "max_steps") | {"num_train_epochs": phase.epochs}
        if phase.batch:
            training = training | _accumulation(recipe, training, phase.batch, number)
        last = number == len(given) - 1
        folder = run if last else run / f"phase-{number + 1}"
        own = training | {"learning_rate": rate, "output_dir": str(folder)}
        if "warmup_steps" not in training and own.get("max_steps", 0) > 0:
            own["warmup_steps"] = min(math.ceil(WARMUP[0] * own["max_steps"]), WARMUP[1])
        changes = {"window": window}
        if made:
            changes |= {"config": None, "path": str(run_folder.place(made[-1]))}
        task = recipe.task.model_copy(update={"phases": []})
        where = recipe.where("task", "phases", number) if len(given) > 1 else recipe.where("model")
        _check(base, window, where)
        if task.eval_step and task.eval_step >= (task.eval_length or length):
            raise RecipeError(
                f"{recipe.where('task', 'eval_step')}: {task.eval_step:,} of inputs of "
                f"{task.eval_length or length:,}; it must be smaller"
            )
        made.append(
            replace(
                recipe,
                task=task,
                model=recipe.model.model_copy(update=changes),
                data=data.model_copy(update={"max_length": length}),
                training=own,
            )
        )
    return made


def _config(recipe: Recipe) -> LdtCausalConfig:
    """That of the first phase, whose vocabulary is not known yet."""
    model = recipe.model
    changes = how_attention(recipe)
    if model.path is not None:
        return read_causal_config(model.path, **changes)
    if model.config is None:
        raise RecipeError(
            f"{recipe.where('model')}: path, a folder of a character model, or config of a new one"
        )
    check_keys(recipe, LdtCausalConfig, ELSEWHERE)
    try:
        return LdtCausalConfig(**{"attention_window": WINDOW} | model.config | changes)
    except (ValueError, TypeError) as error:
        what = str(error).strip().splitlines()[-1].strip()
        raise RecipeError(f"{recipe.where('model', 'config')}: {what}") from error


def _check(base: LdtCausalConfig, window: int | list[int], where: str) -> None:
    config = LdtCausalConfig.from_dict(base.to_dict() | {"attention_window": window})
    try:
        check_causal(config)
    except ValueError as error:
        raise RecipeError(f"{where}: {error}") from error


def _accumulation(recipe: Recipe, training: dict, batch: int, number: int) -> dict[str, int]:
    together = training.get("per_device_train_batch_size", 1) * int(os.environ.get("WORLD_SIZE", 1))
    if batch % together:
        raise RecipeError(
            f"{recipe.where('task', 'phases', number, 'batch')}: {batch} inputs a step, "
            f"{together} are run at a time (training.per_device_train_batch_size, times "
            "processes); it must be a multiple"
        )
    return {"gradient_accumulation_steps": batch // together}


def _times(factor: int, window: int | list[int]) -> int | list[int]:
    return [factor * size for size in window] if isinstance(window, list) else factor * window


def _without(training: dict, key: str) -> dict:
    return {name: value for name, value in training.items() if name != key}


def _windows(window: int | list[int]) -> str:
    """``32 to 512``, from the bottom to the top."""
    sizes = window if isinstance(window, list) else [window]
    return f"{sizes[0]:,}" if len(set(sizes)) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


def _about(own: Recipe) -> str:
    return (
        f"inputs of {own.data.max_length:,}, windows {_windows(own.model.window)}, learning rate "
        f"{own.training['learning_rate']:.3g}"
    )


def _row(number: int, own: Recipe, metrics: dict[str, float]) -> dict[str, Any]:
    row = {
        "phase": number,
        "length": own.data.max_length,
        "windows": _windows(own.model.window),
        "learning_rate": own.training["learning_rate"],
    }
    bits = metrics.get("eval_bits_per_character")
    return row if bits is None else row | {"bits_per_character": bits}


@dataclass
class Ready:
    """All that a Trainer needs, and what is told about the text."""

    config: LdtCausalConfig
    tokenizer: Any
    model: LdtForCausalLM
    alphabet: Alphabet
    max_length: int
    items: Stretches
    evaluation: Overlapping | None
    corpora: dict[str, dict[str, Any]]


class CharacterTraining(Job):
    """One phase of a character model, by plain text.

    Args:
        recipe: one of `phases`.
        before: rows of the phases before, for the table.
    """

    def __init__(self, recipe: Recipe, before: Sequence[dict] = ()):
        super().__init__(recipe)
        self.before = list(before)

    def hashes(self, training, *, dry_run):
        self._hashes = {}
        for part in ("train", "eval", "test"):
            names = getattr(self.recipe.data, part)
            names = [names] if isinstance(names, str) else names or []
            found = [files.digest(Path(name)) for name in names if os.path.isfile(name)]
            if found:
                self._hashes[part] = " ".join(found)
        return self._hashes

    def prepare(self, training, newest):
        recipe, task, seed = self.recipe, self.recipe.task, training["seed"]
        folder = newest or recipe.model.path
        known = load_alphabet(folder)[1] if folder else task.vocabulary
        if folder and known.unit != task.vocabulary.removesuffix("s"):
            where = recipe.where("task", "vocabulary")
            raise RecipeError(f"{where}: {task.vocabulary}, {folder} is a model of {known.unit}s")
        alphabet, parts = part_texts(recipe.data, known)
        set_seed(seed)
        if folder:
            changes = how_attention(recipe)
            model = LdtForCausalLM.from_pretrained(folder, dtype="float32", **changes)
        else:
            config = _config(recipe)
            config.vocab_size = len(alphabet)
            model = LdtForCausalLM(config)
        if model.config.vocab_size != len(alphabet):
            raise ModelError(
                f"{folder}: the model has {model.config.vocab_size} characters, its tokenizer "
                f"{len(alphabet)}; they are of different models"
            )
        length = recipe.data.max_length
        evaluation = None
        if "eval" in parts:
            whole = task.eval_length or length
            evaluation = Overlapping(parts["eval"], whole, task.eval_step or max(1, whole // 2))
        return Ready(
            config=model.config,
            tokenizer=alphabet.tokenizer(),
            model=model,
            alphabet=alphabet,
            max_length=length,
            items=Stretches(parts["train"], length, seed),
            evaluation=evaluation,
            corpora={
                part: {"characters": len(ids), "bytes": alphabet.bytes_of(ids)}
                for part, ids in parts.items()
            },
        )

    def trainer(self, ready, training, run, first):
        score = None
        if ready.evaluation is not None:
            score = CharacterSums(ready.corpora["eval"])
        return CharacterTrainer(
            model=ready.model,
            args=arguments(self.recipe, training, run, len(ready.items), score and "loss"),
            train_dataset=ready.items,
            eval_dataset=ready.evaluation,
            data_collator=collate,
            compute_metrics=score,
            callbacks=[*([score] if score else []), *early_stopping(training)],
            tokenizer=ready.tokenizer,
            ids=range(len(ready.items)),
            progress=progress(run, first),
        )

    def describe(self, ready, trainer, run):
        for part, facts in ready.corpora.items():
            say(f"{part}: {facts['characters']:,} {ready.alphabet.unit}s, {facts['bytes']:,} bytes")
        shown = ready.tokenizer.decode(ready.items[0]["input_ids"][:SHOWN])
        say(f"{len(ready.alphabet)} different ones; the first input begins {plain(shown)!r}")
        config = ready.config
        say(
            f"windows {_windows(layer_windows(config))}: the last layer sees "
            f"{sum(reaches(config)):,} {ready.alphabet.unit}s back"
        )
        if ready.evaluation is not None:
            whole = ready.evaluation
            say(f"eval: sequences of {whole.length:,}, the last {whole.step:,} of each are scored")
        say(f"{run}: {pretraining_plan(ready, trainer, ready.alphabet.unit)}")

    def evaluate(self, trainer, ready):
        metrics = {"train_loss": trainer.train_loss}
        if ready.evaluation is not None:
            metrics = evaluated(trainer)[0] | metrics
        if not self.before:
            return metrics, []
        return metrics, [*self.before, _row(len(self.before) + 1, self.recipe, metrics)]

    def results(self, ready):
        data = self.recipe.data
        about = {}
        for part, facts in ready.corpora.items():
            share = f"{getattr(data, f'{part}_fraction', None)} of {data.train}"
            source = {"source": str(getattr(data, part) or share)}
            about[part] = source | facts | {"sha256": self._hashes.get(part)}
        return {
            "problem": None,
            "base_model": self.recipe.model.path,
            "max_length": ready.max_length,
            "unit": ready.alphabet.unit,
            "data": about,
        }

    def card(self, results, ready, training):
        return character_card(results, ready.config, training)

    def after(self, run):
        return f"ldt predict --input PROMPTS --model {run}"


class CharacterTrainer(Pretrainer):
    """The Trainer of character models: logits at labels only, exact evaluation."""

    unit = "character"


class CharacterSums(Sums):
    """Makes figures of sums of nats, and remembers them by step.

    Args:
        facts: characters and bytes of the evaluation's text.
    """

    def __init__(self, facts: dict[str, int]):
        super().__init__(None)
        self.facts = facts

    def figures(self, nats, count):
        return figures(nats, count, self.facts["characters"], self.facts["bytes"])
