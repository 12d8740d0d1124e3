"""Fine-tuning: a model that answers, by labelled documents."""

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import set_seed

from ldt.data.collate import Collator
from ldt.data.corpus import fingerprint
from ldt.data.features import Features, Items, Reshuffled
from ldt.data.formats import read
from ldt.data.heartbeat import reported
from ldt.data.options import DataSection
from ldt.data.records import Example
from ldt.data.sources import Names, digest, named
from ldt.data.spool import Examples
from ldt.errors import DataError, RecipeError, UserError, plain
from ldt.model import load, load_tokenizer, usable_length
from ldt.model.config import layer_windows
from ldt.model.loading import find_folder, read_config
from ldt.model.vocabulary import add_tokens, draw_embeddings
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import Task, training_set
from ldt.tasks.generation import configure
from ldt.training import lora
from ldt.training.arguments import check_smoothing
from ldt.training.check import first_look
from ldt.training.evaluation import ByExample, Measured
from ldt.training.job import (
    Inputs,
    Job,
    Prepared,
    config_changes,
    longest_input,
    source_of,
)
from ldt.training.sampling import sampler
from ldt.training.summary import (
    LengthReport,
    Notice,
    encoded_input,
    inputs_a_step,
    labelled_data,
    length_report,
    training_plan,
    warnings,
)


@dataclass
class Encoded:
    """The labelled documents by set (train, eval) as inputs.

    Args:
        examples: the documents.
        golds: their answers, as `Task.gold` has them.
        features: their inputs, in order.
        items: what a batch is made of.
        thinned: lines about inputs that are not trained on (`Task.thin`).
    """

    examples: Mapping[str, Examples]
    golds: dict[str, list]
    features: dict[str, Features]
    items: dict[str, Sequence]
    thinned: list[str]


class Finetuning(Job[Inputs]):
    """A model that answers, by labelled documents.

    Args:
        recipe: what is trained.
        every: of so many documents one is read, in a check.
    """

    def __init__(self, recipe: Recipe, every: int = 1):
        super().__init__(recipe)
        self.every = every

    def open(self, training, scratch):
        """Hash the files. Reading them is left to `prepare`: a run that is refused need not wait
        for it, and the tokenizer of a resumed run is the checkpoint's."""
        data = self.recipe.data
        return Inputs(training, {name: _digest(getattr(data, name)) for name in ("train", "eval")})

    def prepare(self, inputs, checkpoint):
        task, data, seed = self.recipe.task, self.recipe.data, inputs.training["seed"]
        train, evaluation = documents(self.recipe, seed, self.every)
        # The task learns its labels from the documents, and the config takes them from it.
        attention = config_changes(self.recipe)
        changes = task.learn(train, data) | attention
        adapter = inputs.training.get("lora")
        # A checkpoint of an adapter has no base; the Trainer reads it.
        folder = find_folder((None if adapter else checkpoint) or self.recipe.model.path)
        config = read_config(folder, **changes)
        check_smoothing(self.recipe, config)
        max_length = longest_input(self.recipe, usable_length(config))
        if data.eval or data.eval_fraction:
            task.check(evaluation, data, config)
        # All is encoded before weights are read: faults of the data come to light at once.
        tokenizer = load_tokenizer(folder, config)
        new_tokens = add_tokens(tokenizer, task.new_tokens)
        options = {"data": data, "max_length": max_length, "config": config}
        sets = {"train": train, "eval": evaluation}
        encoded = encode_sets(sets, task, tokenizer, seed=seed, **options)
        weighing, weights = task.weigh(encoded.features["train"], config)
        changes |= weighing
        # The seed decides the weights of a new head and of new tokens, whatever was drawn before.
        set_seed(seed)
        model, facts = _load(folder, task, **changes)
        draw_embeddings(model, new_tokens)
        if adapter:
            model = lora.adapt(model, self.recipe, adapter, new_tokens)
            facts["lora"] = adapter
        reports = {
            name: length_report(features, max_length=max_length, window=max(layer_windows(config)))
            for name, features in encoded.features.items()
            if len(features)
        }
        labels = {name: _count(golds) for name, golds in encoded.golds.items()}
        measure, baselines = None, {}
        if evaluation:
            golds = encoded.golds["eval"]
            measure = ByExample(task, model.config, encoded.features["eval"], evaluation, golds)
            baselines = task.baseline(encoded.golds["train"], golds, model.config)
        return Prepared(
            tokenizer=tokenizer,
            model=model,
            max_length=max_length,
            train_items=encoded.items["train"],
            eval_items=encoded.items["eval"],
            collate=Collator(model.config.pad_token_id, task.head(), task.extras),
            names=[example.id for example in train],
            measure=measure,
            metric=task.default_metric(model.config),
            facts={
                "problem": model.config.problem_type,
                "base_model": self.recipe.model.path,
                "max_length": max_length,
                "overflow": data.overflow,
                "max_windows": data.max_windows,
                "data": self._facts(reports, labels, inputs.hashes),
            }
            | facts,
            notices=[
                *self._notices(encoded, reports, labels, tokenizer),
                *map(Notice, weights),
            ],
            sampler=sampler(task, encoded.items["train"], seed),
            baselines=baselines,
            every=self.every,
            finish=partial(settle, self.recipe, model.config),
        )

    def _facts(
        self,
        reports: dict[str, LengthReport],
        labels: dict[str, Counter],
        hashes: dict[str, str | None],
    ) -> dict[str, dict[str, Any]]:
        """Source, hash, lengths and labels of each set, for metrics.json."""
        return {
            name: {"source": source_of(self.recipe, name), "sha256": hashes[name]}
            | report.facts()
            | {"labels": dict(labels[name])}
            for name, report in reports.items()
        }

    def _notices(
        self,
        encoded: Encoded,
        reports: dict[str, LengthReport],
        labels: dict[str, Counter],
        tokenizer,
    ) -> list[Notice]:
        """Lengths and labels of the documents, and the first one as the model gets it."""
        examples, features = encoded.examples["train"], encoded.features["train"]
        left_out = len(examples) - len(set(features.documents.tolist()))
        remarks = [*self.recipe.task.remarks(features, left_out), *encoded.thinned]
        name = plain(str(examples[features[0]["document"]].id))
        heading = f"document {name!r}, global tokens in stars:"
        shown = encoded_input(heading, features[0], tokenizer)
        doubts = first_look(self.recipe, encoded.examples)
        return [*labelled_data(reports, labels, remarks), *warnings(doubts), shown]

    def plan(self, prepared, args):
        # Groups of inputs and documents encoded anew are items of their own; else inputs are.
        items = "inputs" if isinstance(prepared.train_items, Features) else "documents"
        trained = ""
        if "lora" in prepared.facts:
            trained = f"{prepared.model.num_parameters(only_trainable=True):,} of them trained, "
        return training_plan(
            args,
            f"{len(prepared.train_items):,} {items}, {inputs_a_step(args)} a step",
            f"{prepared.facts['parameters']:,} parameters, {trained}"
            f"inputs of up to {prepared.max_length:,} tokens",
        )

    def next_command(self, run):
        return f"ldt predict --input FILE --model {run}"


def _load(
    folder: Path, task: Task, *, generation: dict[str, Any] | None = None, **changes: Any
) -> tuple[Any, dict[str, Any]]:
    """The model of a task with changes of its config, and facts about it.

    Args:
        generation: settings of a model that writes.
    """
    model = load(folder, task.head(), **changes)
    facts: dict[str, Any] = {"parameters": model.num_parameters()}
    if generation is not None:
        configure(model, generation)
        facts["generation"] = generation
    return model, facts


def documents(recipe: Recipe, seed: int, every: int = 1) -> tuple[Examples, Examples]:
    """The training and the evaluation set; the second one may be empty.

    Args:
        seed: of the split.
        every: of so many documents one is read.

    Raises:
        UserError: or a subclass, where files are missing, damaged or have an id twice.
    """
    data = recipe.data
    if data.train is None or recipe.model.path is None:
        raise RecipeError(f"{recipe.where()}: finetune needs model.path and data.train")

    train = _read(data.train, data, every)
    if data.eval:
        return train, _read(data.eval, data, every)
    return split(train, recipe.task, data, seed) if data.eval_fraction else (train, Examples())


def held_out(recipe: Recipe, seed: int) -> Examples:
    """The evaluation set; the training set is read only where it is a part of it.

    Raises:
        UserError: or a subclass, as `documents` does, or there is none.
    """
    data = recipe.data
    if data.eval:
        return _read(data.eval, data)
    if not data.eval_fraction:
        raise UserError("the run had no evaluation set; --data FILE names labelled documents")
    return documents(recipe, seed)[1]


def _read(source: Names, data: DataSection, every: int = 1) -> Examples:
    """The documents of a file or of several, one of each ``every``."""
    found = reported(read(source, data), f"reading {named(source)}")
    return Examples(unique(_one_in(every, found)))


def _one_in(every: int, examples: Iterable[Example]) -> Iterator[Example]:
    """One of each ``every`` examples, at random: labels may come in turn."""
    generator = random.Random(0)
    for number, example in enumerate(examples):
        if number % every == 0:
            chosen = generator.randrange(every)
        if number % every == chosen:
            yield example


def encode_sets(
    examples: Mapping[str, Examples],
    task: Task,
    tokenizer,
    *,
    data: DataSection,
    max_length: int,
    config,
    seed: int,
) -> Encoded:
    """Encode the sets to train and to evaluate on, and list their answers.

    Args:
        examples: the documents by set; what the task does not train on of ``train`` is left out.
        seed: of the inputs that are left out, and of what a task draws anew in every epoch.

    Raises:
        DataError: a document that cannot be encoded, or none is left to train on.
        ResourceError: the disk of temporary files is full.
    """
    options = {"data": data, "max_length": max_length, "config": config}
    features = {
        name: encode_all(
            reported(part, f"encoding {name}"), task, tokenizer, **options, all=name != "train"
        )
        for name, part in examples.items()
    }
    kept, thinned = task.thin(features["train"], seed)
    if kept is not None:
        features["train"] = features["train"].only(kept)
    if not len(features["train"]):
        raise DataError(f"{training_set(data)}: no document is left to train on")
    items: dict[str, Sequence[Any]] = {
        name: Items(part) if task.together else part for name, part in features.items()
    }
    if task.shuffles:
        numbers = np.unique(features["train"].documents).tolist()
        encode = partial(task.encode, tokenizer=tokenizer, **options)
        shuffle = partial(task.shuffle, data=data)
        items["train"] = Reshuffled(examples["train"], numbers, shuffle, encode, seed)
    golds = {
        name: [task.gold(example, data, config) for example in part]
        for name, part in examples.items()
    }
    return Encoded(examples, golds, features, items, thinned)


def _count(golds: Iterable) -> Counter:
    """Number of documents by label; empty where golds are not labels."""
    counts: Counter = Counter()
    for gold in golds:
        counts.update(
            name for name in (gold if isinstance(gold, list) else [gold]) if isinstance(name, str)
        )
    return counts


def settle(recipe: Recipe, config, measured: Measured) -> None:
    """Put into the config what the evaluation set decided, such as a threshold."""
    changes = dict(measured.changes)
    if changes.get("decisions"):
        changes["decisions"]["measured"]["source"] = source_of(recipe, "eval")
    config.update(changes)


def _digest(source: Names | None) -> str | None:
    return digest(source) if source else None


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
    examples: Examples, task: Task, data: DataSection, seed: int
) -> tuple[Examples, Examples]:
    """Part a training set into one to train on and ``data.eval_fraction`` of it to evaluate on.

    Classes (``task.stratum``) keep their proportions, and each keeps a document to train on; what
    belongs together (``task.unit``) stays together. Both parts keep the order of the whole. The
    same seed gives the same parts.

    Raises:
        DataError: too few documents for one on both sides.
    """
    assert data.eval_fraction is not None  # the share that was asked for
    generator = np.random.default_rng(seed)
    of: list[Hashable] = []  # the unit of each example
    units: set[Hashable] = set()
    strata: dict[Hashable, list[Hashable]] = {}
    for example in examples:
        unit = task.unit(example, data)
        unit = fingerprint(unit) if isinstance(unit, str) else unit  # it may be a long text
        if unit not in units:
            strata.setdefault(task.stratum(example, data), []).append(unit)
        units.add(unit)
        of.append(unit)
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
            f"{training_set(data)}: data.eval_fraction={data.eval_fraction} of "
            f"{len(units):,} documents leaves none to evaluate on"
        )
    evaluated = np.array([unit in chosen for unit in of], bool)
    return examples.only(np.flatnonzero(~evaluated)), examples.only(np.flatnonzero(evaluated))


def encode_all(
    examples: Iterable[Example],
    task: Task,
    tokenizer,
    *,
    data: DataSection,
    max_length: int,
    config=None,
    all: bool = True,
) -> Features:
    """Encode each example once; with labels if there is a config.

    Args:
        all: False leaves out what the task does not train on (`Task.keeps`), and gives what it
            makes of the rest to train on (`Task.instances`).

    Raises:
        DataError: an example that the task cannot encode.
        ResourceError: the disk of temporary files is full.
    """

    def features():
        for number, example in enumerate(examples):
            parts = task.encode(example, tokenizer, data=data, max_length=max_length, config=config)
            if not all:
                parts = task.instances(parts) if task.keeps(parts) else []
            yield from (part | {"document": number} for part in parts)

    return Features(features())
