"""Fine-tuning: a model that answers, by labelled documents."""

import logging
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers import set_seed

from ldt import files
from ldt.data.collate import Collator
from ldt.data.features import Features, Items, Reshuffled
from ldt.data.formats import read
from ldt.data.records import Example
from ldt.errors import DataError, RecipeError
from ldt.model import load, load_tokenizer, usable_length
from ldt.model.config import layer_windows
from ldt.model.loading import find_folder, read_config
from ldt.model.vocabulary import add_tokens, draw_embeddings
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import Task
from ldt.training.arguments import arguments
from ldt.training.evaluation import Scorer, check_metric
from ldt.training.job import (
    Job,
    Ready,
    early_stopping,
    evaluated,
    how_attention,
    longest_input,
    progress,
)
from ldt.training.loop import train
from ldt.training.model_card import card
from ldt.training.summary import describe, length_report
from ldt.training.trainer import Trainer

if TYPE_CHECKING:
    from ldt.data.options import DataSection


def documents(recipe: Recipe, seed: int) -> tuple[list[Example], list[Example]]:
    """The training and the evaluation set, the second one maybe empty.

    Raises:
        UserError: or a subclass, where files are missing, damaged or have an id twice.
    """
    data = recipe.data
    if data.train is None or recipe.model.path is None:
        raise RecipeError(f"{recipe.where()}: finetune needs model.path and data.train")
    train = list(unique(read(data.train, data)))
    if data.eval:
        return train, list(unique(read(data.eval, data)))
    return split(train, recipe.task, data, seed) if data.eval_fraction else (train, [])


def prepare(
    recipe: Recipe,
    seed: int,
    train: list[Example],
    evaluation: list[Example],
    checkpoint: Path | None = None,
) -> Ready:
    """Learn, encode and load; what can be wrong with the data is found before weights are read.

    Args:
        seed: of the weights of a new head and new tokens.
        train, evaluation: the `documents`.
        checkpoint: where to take model and tokenizer from instead of ``recipe.model.path``.

    Raises:
        UserError: or a subclass, with where and what would do.
    """
    task, data = recipe.task, recipe.data
    attention = how_attention(recipe)
    changes = task.learn(train, data) | attention
    folder = find_folder(checkpoint or recipe.model.path)
    config = read_config(folder, **changes)
    max_length = longest_input(recipe, usable_length(config))
    if data.eval or data.eval_fraction:
        task.check(evaluation, data, config)
    tokenizer = load_tokenizer(folder, config)
    new = add_tokens(tokenizer, task.new_tokens)
    how = {"data": data, "max_length": max_length, "config": config}
    features = {
        "train": encode_all(train, task, tokenizer, **how, all=False),
        "eval": encode_all(evaluation, task, tokenizer, **how),
    }
    if not len(features["train"]):
        raise DataError(f"{data.train}: no document is left to train on")
    left_out = len(train) - len(set(features["train"].documents.tolist()))
    items = Items(features["train"]) if task.together else features["train"]
    if task.shuffles:
        kept = [(number, train[number]) for number in dict.fromkeys(features["train"].documents)]
        encode = partial(task.encode, tokenizer=tokenizer, **how)
        items = Reshuffled(kept, partial(task.shuffle, data=data), encode, seed)
    golds = {
        name: [task.gold(example, data, config) for example in examples]
        for name, examples in (("train", train), ("eval", evaluation))
    }
    window = max(layer_windows(config))
    set_seed(seed)
    model = load(folder, task.head(), **changes)
    draw_embeddings(model, new)
    return Ready(
        config=model.config,
        tokenizer=tokenizer,
        model=model,
        max_length=max_length,
        train=features["train"],
        items=items,
        evaluation=features["eval"],
        evaluation_items=Items(features["eval"]) if task.together else features["eval"],
        examples=evaluation,
        golds=golds["eval"],
        ids=[example.id for example in train],
        reports={
            name: length_report(found, max_length=max_length, window=window)
            for name, found in features.items()
            if len(found)
        },
        labels={name: _count(found) for name, found in golds.items()},
        remarks=task.remarks(features["train"], left_out),
    )


def _count(golds) -> Counter:
    """How often each label occurs; nothing where golds are not labels."""
    counts = Counter()
    for gold in golds:
        counts.update(
            name for name in (gold if isinstance(gold, list) else [gold]) if isinstance(name, str)
        )
    return counts


log = logging.getLogger("ldt")


def finetune(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, dry_run: bool = False
) -> dict[str, float]:
    """`train` a model that answers, by labelled documents."""
    return train(Finetuning(recipe), resume=resume, overwrite=overwrite, dry_run=dry_run)


class Finetuning(Job):
    """A model that answers, by labelled documents."""

    def hashes(self, training, *, dry_run):
        data = self.recipe.data
        self._hashes = {key: _sha256(getattr(data, key)) for key in ("train", "eval")}
        return self._hashes

    def prepare(self, training, newest):
        seed = training["seed"]
        train, evaluation = documents(self.recipe, seed)
        return prepare(self.recipe, seed, train, evaluation, newest)

    def trainer(self, ready, training, run, first):
        score, metric, callbacks = None, None, []
        if ready.golds:
            metric = self.recipe.task.default_metric(ready.config)
            score = Scorer(self.recipe.task, ready)
            callbacks.append(score)
        trainer = Trainer(
            model=ready.model,
            args=arguments(self.recipe, training, run, len(ready.items), metric),
            train_dataset=ready.items,
            eval_dataset=ready.evaluation_items if ready.golds else None,
            data_collator=Collator(ready.config.pad_token_id),
            compute_metrics=score,
            callbacks=[*callbacks, *early_stopping(training)],
            tokenizer=ready.tokenizer,
            ids=ready.ids,
            progress=progress(run, first),
        )
        if ready.golds:
            check_metric(self.recipe, trainer, ready)
        return trainer

    def describe(self, ready, trainer, run):
        describe(ready, trainer, run)

    def evaluate(self, trainer, ready):
        if not ready.golds:
            return {"train_loss": trainer.train_loss}, []
        metrics, table = evaluated(trainer)
        own = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        ready.config.update(self.recipe.task.settle(own))
        return metrics | {"train_loss": trainer.train_loss}, table

    def results(self, ready):
        return {
            "problem": ready.config.problem_type,
            "base_model": self.recipe.model.path,
            "max_length": ready.max_length,
            "data": _data_report(self.recipe, ready, self._hashes),
        }

    def card(self, results, ready, training):
        return card(results, ready.config, training)

    def after(self, run):
        return f"ldt predict --input FILE --model {run}"


def _sha256(source: str | None) -> str | None:
    return files.digest(Path(source)) if source and os.path.isfile(source) else None


def _data_report(recipe: Recipe, ready: Ready, hashes: dict) -> dict[str, dict]:
    """For metrics.json: where the documents came from, how many there are and how long."""
    found = {}
    for name, report in ready.reports.items():
        source = getattr(recipe.data, name)
        if source is None:
            source = f"{recipe.data.eval_fraction} of {recipe.data.train}"
        counts = {k: v for k, v in asdict(report).items() if k not in ("lines", "warnings")}
        found[name] = {"source": source, "sha256": hashes[name]} | counts
        found[name]["labels"] = dict(ready.labels[name])
    return found


def unique(examples: Iterable[Example]) -> Iterator[Example]:
    """Pass examples on, and raise DataError at an id that another one had before.

    Takes memory per example: for training and evaluation sets, not for endless input.
    """
    seen: dict[str | int, str] = {}
    for example in examples:
        if example.id in seen:
            raise DataError(f"{example.where}: id {example.id!r} stands at {seen[example.id]} too")
        seen[example.id] = example.where
        yield example


def split(
    examples: Sequence[Example], task: Task, data: "DataSection", seed: int
) -> tuple[list[Example], list[Example]]:
    """Part a training set into one to train on and ``data.eval_fraction`` of it to evaluate on.

    Classes (``task.stratum``) keep their proportions, and each keeps a document to train on; what
    belongs together (``task.unit``) stays together. Both parts keep the order of the whole. The
    same seed gives the same parts.

    Raises:
        DataError: too few documents for one on both sides.
    """
    generator = np.random.default_rng(seed)
    units: dict[Hashable, Example] = {}  # and the first example of each
    strata: dict[Hashable, list[Hashable]] = {}
    of = [task.unit(example, data) for example in examples]
    for unit, example in zip(of, examples, strict=True):
        if units.setdefault(unit, example) is example:
            strata.setdefault(task.stratum(example, data), []).append(unit)
    # Every 1/fraction-th unit of all strata laid end to end, each shuffled.
    groups = [
        [group[place] for place in generator.permutation(len(group))] for group in strata.values()
    ]
    order = [unit for group in groups for unit in group]
    taken = np.diff(np.floor(np.arange(len(order) + 1) * data.eval_fraction + 0.5)) > 0
    chosen = {unit for unit, taken in zip(order, taken, strict=True) if taken}
    for group in groups:
        if chosen.issuperset(group):
            chosen.remove(group[0])
    if not chosen:
        raise DataError(
            f"{data.train or 'the training set'}: data.eval_fraction={data.eval_fraction} of "
            f"{len(units):,} documents leaves none to evaluate on"
        )
    parts: tuple[list[Example], list[Example]] = [], []
    for unit, example in zip(of, examples, strict=True):
        parts[unit in chosen].append(example)
    return parts


def encode_all(
    examples: Iterable[Example],
    task: Task,
    tokenizer,
    *,
    data: "DataSection",
    max_length: int,
    config=None,
    all: bool = True,
) -> Features:
    """Encode every example once; with labels if there is a config.

    Args:
        all: False leaves out what the task does not train on (`Task.keeps`).

    Raises:
        DataError: an example that the task cannot encode.
        ResourceError: the disk of temporary files is full.
    """

    def features():
        for number, example in enumerate(examples):
            found = task.encode(example, tokenizer, data=data, max_length=max_length, config=config)
            if all or task.keeps(found):
                yield from (feature | {"document": number} for feature in found)

    return Features(features())
