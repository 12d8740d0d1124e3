"""Labelled documents: read, split into training and evaluation sets, and encoded."""

import multiprocessing
import os
import random
import signal
from array import array
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from ldt.benchmarks.formats import read
from ldt.data.features import (
    Drawn,
    Feature,
    Features,
    Items,
    Reshuffled,
    documents_there,
    reordered,
)
from ldt.data.findings import KINDS
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import DataSection
from ldt.errors import DataError, RecipeError, ResourceError, UserError
from ldt.io.progress import reported
from ldt.io.records import Example
from ldt.io.sources import Names, brief
from ldt.recipe.recipe import Recipe
from ldt.system import end_with_parent
from ldt.tasks.base import Drawing, Task, path_of, training_set
from ldt.tasks.deciding import Deciding, classes_of
from ldt.training.dataset_cache import Examples, LabelledSets

AT_ONCE = 64  # documents that a process gets at a time
Encode = Callable[[Example], list[Feature]]

_given: tuple[Sequence[Example], Encode]  # of a process of the pool


class Encoded(NamedTuple):
    """Inputs of documents under ``train`` and ``eval``, in order; notices about documents left out
    of training (`Task.subsample`) and about answers that cannot be learned."""

    features: dict[str, Features]
    thinned: list[str]
    doubts: list[str]


class _Mapped(Sequence):
    """Function values of documents, computed on access."""

    def __init__(self, function: Callable[[Example], Any], examples: Sequence[Example]):
        self.function, self.examples = function, examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index):
        return self.function(self.examples[index])


def golds_of(examples: Sequence[Example], task: Task, data: DataSection, config: Any) -> _Mapped:
    """Return the gold answers of documents (`Task.gold`) as a sequence that computes them on
    access."""
    return _Mapped(partial(task.gold, data=data, config=config), examples)


def ids_of(examples: Sequence[Example]) -> _Mapped:
    """Return the ids of documents as a sequence that reads them on access."""
    return _Mapped(lambda example: example.id, examples)


# -- the documents


def documents(
    recipe: Recipe, seed: int, every: int = 1, at: Path | None = None
) -> tuple[Examples, Examples]:
    """Read the training and the evaluation set: data.eval, or a share of the training set
    (``data.eval_fraction``), or empty.

    Args:
        recipe: the recipe.
        seed: seed of the split and of ``every``.
        every: one document at a random place of each ``every`` consecutive ones is read, of both
            sets; a shorter set may be empty then.
        at: folder to store them in; None for temporary files.

    Raises:
        UserError: or a subclass, if ``data.train`` is missing, files are missing or damaged, or an
            id occurs twice.
    """
    data = recipe.data
    if data.train is None or recipe.model.path is None:
        raise RecipeError(f"{recipe.where()}: finetune needs model.path and data.train")

    train = _read(data.train, data, every, at and at / "train")
    if data.eval:
        return train, _read(data.eval, data, every, at and at / "eval")
    return split(train, recipe.task, data, seed) if data.eval_fraction else (train, Examples())


def held_out(recipe: Recipe, seed: int) -> Examples:
    """Read the evaluation set; the training set is read only if the former is split from it.

    Raises:
        UserError: or a subclass, as `documents`, or if there is no evaluation set.
    """
    data = recipe.data
    if data.eval:
        return _read(data.eval, data)
    if not data.eval_fraction:
        raise UserError("the run had no evaluation set; --gold FILE names labelled documents")
    return documents(recipe, seed)[1]


def _read(source: Names, data: DataSection, every: int = 1, at: Path | None = None) -> Examples:
    examples = reported(read(source, data), f"reading {brief(source)}")
    return unique(_one_in(every, examples), at)


def _one_in(every: int, examples: Iterable[Example]) -> Iterator[Example]:
    """A random one of every ``every`` consecutive examples, since labels may alternate."""
    generator = random.Random(0)
    for number, example in enumerate(examples):
        if number % every == 0:
            chosen = generator.randrange(every)
        if number % every == chosen:
            yield example


def unique(examples: Iterable[Example], at: Path | None = None) -> Examples:
    """Store examples in a file, in order; DataError if an id occurs twice.

    Takes 8 bytes of memory per example beyond those of the store. ``at`` names the file; None: a
    temporary one.
    """
    hashes = array("q")

    def seen() -> Iterator[Example]:
        for example in examples:
            hashes.append(hash(example.id))
            yield example

    store = Examples(seen(), at)
    order = np.argsort(np.array(hashes), kind="stable")
    ordered = np.array(hashes)[order]
    alike = np.flatnonzero(ordered[1:] == ordered[:-1])
    for first, second in sorted(zip(order[alike + 1], order[alike], strict=True)):
        later, earlier = store[first], store[second]
        if later.id == earlier.id:
            where = f"{later.where}: id {later.id!r} stands at {earlier.where} too"
            raise DataError(where)
    return store


def split(
    examples: Examples, task: Task, data: DataSection, seed: int
) -> tuple[Examples, Examples]:
    """Split a training set into training documents and, ``data.eval_fraction`` of them, evaluation
    documents; return both.

    The split is stratified by class, every class keeps a training document, and documents that
    belong together, such as questions about one text, stay together (`ldt.tasks.base.SplitGroups`).
    Order is kept. Equal seeds give equal splits.

    Raises:
        DataError: there are too few documents for both sides.
    """
    assert data.eval_fraction is not None  # the share that was asked for
    generator = np.random.default_rng(seed)
    of, classes = _units(examples, task, data)
    counts = Counter(name for names in classes for name in names)
    ranks: Sequence[int] = range(max(counts, default=0) + 1)
    several = any(len(names) > 1 for names in classes)
    if several:  # or the same ones would be drawn by each seed
        ranks = generator.permutation(len(ranks)).tolist()
    groups: dict[tuple[int, ...], list[int]] = {}
    for unit, names in enumerate(classes):  # the rarest class leads
        rarest_first = sorted(names, key=lambda name: (counts[name], name))
        groups.setdefault(tuple(ranks[name] for name in rarest_first), []).append(unit)
    # One of each 1/fraction units of all groups laid end to end, each shuffled: the last, or that
    # by which the shares of all its classes come nearest to the fraction.
    order = [
        unit
        for key in sorted(groups)
        for unit in np.array(groups[key])[generator.permutation(len(groups[key]))].tolist()
    ]
    taken = np.diff(np.floor(np.arange(len(order) + 1) * data.eval_fraction + 0.5)) > 0
    chosen = np.zeros(len(order), bool)
    owed = dict.fromkeys(counts, 0.0)  # how many more of those of a class so far are to be chosen
    for block in np.split(np.array(order, int), np.flatnonzero(taken) + 1)[:-1]:
        unit = block[-1]
        if several:
            for name in chain.from_iterable(classes[each] for each in block):
                owed[name] += data.eval_fraction
            gains = [sum((owed[n] - 0.5) / counts[n] for n in classes[each]) for each in block]
            unit = block[int(np.argmax(gains))]
            owed |= {name: owed[name] - 1 for name in classes[unit]}
        chosen[unit] = True
    left = Counter(name for unit in np.flatnonzero(~chosen) for name in classes[unit])
    for unit in order:
        if chosen[unit] and any(not left[name] for name in classes[unit]):
            chosen[unit] = False
            left.update(classes[unit])
    lacking = int(taken.sum() - chosen.sum())
    for unit in generator.permutation(len(order)).tolist() if lacking else ():
        if (
            lacking
            and not chosen[unit]
            and all(
                left[name] > 1 and counts[name] - left[name] < data.eval_fraction * counts[name]
                for name in classes[unit]
            )
        ):
            chosen[unit], lacking = True, lacking - 1
            left.subtract(classes[unit])
    if not chosen.any():
        raise DataError(
            f"{training_set(data)}: data.eval_fraction={data.eval_fraction} of "
            f"{len(order):,} documents leaves none to evaluate on"
        )
    evaluated = chosen[of]
    return examples.only(np.flatnonzero(~evaluated)), examples.only(np.flatnonzero(evaluated))


def _units(
    examples: Examples, task: Task, data: DataSection
) -> tuple[np.ndarray, list[frozenset[int]]]:
    """Number of each example's group, and the numbers of the classes in each group; no class counts
    as a class."""
    hashes, which = array("Q"), array("q")
    numbers: dict[Hashable, int] = {}
    sets: dict[frozenset[int], int] = {}  # equal ones are one object
    for example in examples:
        unit, strata = task.groups(example, data)
        hashes.append(fingerprint(unit) if isinstance(unit, str) else hash(unit) % (1 << 64))
        names = strata or [None]
        strata_of = frozenset(numbers.setdefault(name, len(numbers)) for name in names)
        which.append(sets.setdefault(strata_of, len(sets)))
    _, firsts, of = np.unique(np.array(hashes), return_index=True, return_inverse=True)
    place = np.empty(len(firsts), int)
    place[np.argsort(firsts)] = np.arange(len(firsts))
    of, known = place[of], list(sets)
    classes = [frozenset[int]()] * len(firsts)
    for unit, number in zip(of.tolist(), which, strict=True):
        if not classes[unit] >= known[number]:
            classes[unit] = classes[unit] | known[number] if classes[unit] else known[number]
    return of, classes


# -- the inputs


@dataclass(frozen=True)
class DocumentEncoder:
    """Encodes documents for a task; with labels if the model's config is given."""

    task: Task
    tokenizer: Any
    data: DataSection
    max_length: int
    config: Any = None

    def __call__(self, example: Example, trained: bool = False) -> list[Feature]:
        """Encode a document; ``trained`` gives only what is trained on (`Task.training_features`).

        Raises:
            DataError: the document cannot be encoded.
        """
        options = {"data": self.data, "max_length": self.max_length, "config": self.config}
        parts: Sequence[Feature] = self.task.encode(example, self.tokenizer, **options)
        return list(self.task.training_features(parts) if trained else parts)


def encode_sets(
    examples: Mapping[str, Examples],
    encoder: DocumentEncoder,
    *,
    seed: int,
    at: Path | None = None,
    workers: int = 1,
) -> Encoded:
    """Encode the training and the evaluation set.

    Args:
        examples: documents under ``train`` and ``eval``; parts of ``train`` that the task does not
            train on are left out.
        encoder: encoder of the task.
        seed: seed for sampling inputs that are left out.
        at: folder to store the inputs in; None for temporary files.
        workers: number of encoding processes.

    Raises:
        DataError: a document cannot be encoded, none is left to train on, or no input has an
            answer.
        ResourceError: the disk is full, or a process died.
    """
    features = {
        name: encode_all(
            part,
            encoder,
            trained=name == "train",
            what=f"encoding {name}",
            at=at and at / f"{name}-inputs",
            workers=workers,
        )
        for name, part in examples.items()
    }
    task, data = encoder.task, encoder.data
    doubts = _beyond(features["train"], task, data)
    trained, thinned = task.subsample(features["train"], seed)
    if trained is not None:
        features["train"] = features["train"].only(trained)
    if not len(features["train"]):
        raise DataError(f"{training_set(data)}: no document is left to train on")
    return Encoded(features, thinned, doubts)


def _beyond(features: Features, task: Task, data: DataSection) -> list[str]:
    """Notices about answers of a training set that cannot be learned or given."""
    counts, longest, answered = Counter[str](), dict[str, int](), 0
    for rows in features.by_document():
        parts = [features[row] for row in rows]
        answered += any("answer_tokens" in part or "target" in part for part in parts)
        if unlearnt := parts[0].get("unlearnt"):
            kind, tokens = unlearnt
            counts[kind] += 1
            longest[kind] = max(tokens, longest.get(kind, 0))
    lines = [
        f"train: of {answered:,} {task.reads.noun} with an answer {count:,} {KINDS[kind].what}, of "
        f"up to {longest[kind]:,} tokens: {KINDS[kind].would_do} would do"
        for kind, count in counts.items()
    ]
    if answered and counts["answer_in_no_input"] == answered:
        raise DataError(
            f"{training_set(data)}: none of {len(features):,} inputs has an answer: all of "
            f"{answered:,} are longer than what an input holds of a document, up to "
            f"{longest['answer_in_no_input']:,} tokens; a larger data.max_length would do"
        )
    return lines


def items(sets: LabelledSets, encoder: DocumentEncoder, seed: int) -> dict[str, Sequence[Any]]:
    """Sequences under ``train`` and ``eval`` from which batches are collated: an item is an input
    (dict), or the list of a document's inputs if the task needs them together.

    Training items that a task samples or shuffles anew in every epoch depend on ``seed``.
    """
    task = encoder.task
    batches: dict[str, Sequence[Any]] = {
        name: Items(part) if task.inputs.loss_per_document else part
        for name, part in sets.features.items()
    }
    if isinstance(task, Drawing):
        batches["train"] = Drawn(sets.features["train"], task.draw, seed)
    if task.inputs.shuffled:
        numbers = np.unique(sets.features["train"].documents).tolist()
        lists = [path_of(task, name, encoder.data) for name in task.inputs.shuffled]
        shuffle = partial(reordered, lists=lists)
        batches["train"] = Reshuffled(sets.examples["train"], numbers, shuffle, encoder, seed)
    return batches


def encode_all(
    examples: Iterable[Example],
    encoder: DocumentEncoder,
    *,
    trained: bool = False,
    what: str = "encoding",
    at: Path | None = None,
    workers: int = 1,
) -> Features:
    """Encode each example once, and store its inputs in a file.

    Args:
        examples: the documents.
        encoder: encoder of the task.
        trained: True gives only what the task trains on.
        what: description of the work for the log.
        at: path without suffix of the files to store the inputs in; where an earlier call with the
            same arguments left some, it goes on after them. None for temporary ones.
        workers: number of encoding processes; more than one need `Examples`.

    Raises:
        DataError: the task cannot encode an example.
        ResourceError: the disk is full, or a process died.
    """
    encode = partial(encoder, trained=trained)
    first = documents_there(at) if at else 0

    def features() -> Iterator[Feature]:
        inputs = _encoded(examples, first, encode, workers)
        total = len(examples) if isinstance(examples, Sized) else None
        for number, parts in enumerate(reported(inputs, what, first=first, total=total), first):
            yield from (part | {"document": number} for part in parts)

    return Features(features(), at)


def _encoded(
    examples: Iterable[Example], first: int, encode: Encode, workers: int
) -> Iterator[list[Feature]]:
    if not isinstance(examples, Examples):
        return map(encode, islice(examples, first, None))
    left = examples.only(range(first, len(examples)))
    several = workers > 1 and len(left) > AT_ONCE
    return _by_processes(left, encode, workers) if several else map(encode, left)


def _by_processes(
    examples: Sequence[Example], encode: Encode, workers: int
) -> Iterator[list[Feature]]:
    waiting: deque[Future[list[list[Feature]]]] = deque()
    # Started anew, not forked: threads of a library that are not there in a copy may hold locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _begin, (examples, encode))
    try:
        for start in range(0, len(examples), AT_ONCE):
            waiting.append(pool.submit(_encode, start, min(start + AT_ONCE, len(examples))))
            if len(waiting) > 4 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise ResourceError(
            "a process that encodes documents died, often for want of memory; fewer data.workers "
            "take less"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(examples: Sequence[Example], encode: Encode) -> None:
    global _given
    end_with_parent(signal.SIGINT)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _given = examples, encode


def _encode(start: int, end: int) -> list[list[Feature]]:
    examples, encode = _given
    return [encode(examples[number]) for number in range(start, end)]


# -- the order of the inputs


class Balanced(Sampler[int]):
    """Sampler that draws all classes equally often, in a new order each epoch.

    Each class gets an equal share (to within one) of the draws, without repetition until all of its
    inputs were drawn. Inputs without a class count as a class. An input with several classes is
    drawn for each, so classes that occur together are drawn more often.

    Args:
        classes: numbers of the classes of each input.
        seed: seed of the order, which with the epoch determines it in every process.
    """

    def __init__(self, classes: Sequence[Sequence[int]], seed: int):
        self.seed, self.epoch, self.size = seed, 0, len(classes)
        members: dict[int, list[int]] = {}
        for number, names in enumerate(classes):
            for name in names or [-1]:
                members.setdefault(name, []).append(number)
        self.members = [np.array(members[name]) for name in sorted(members)]

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, from 0, which changes the order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        shares = np.full(len(self.members), self.size // len(self.members))
        shares[generator.permutation(len(shares))[: self.size - shares.sum()]] += 1
        drawn = []
        for numbers, share in zip(self.members, shares.tolist(), strict=True):
            rounds = range(-(-share // len(numbers)))
            if share:
                again = [generator.permutation(numbers) for _ in rounds]
                drawn.append(np.concatenate(again)[:share])
        yield from generator.permutation(np.concatenate(drawn)).tolist()


def sampler(task: Task, items: Sequence[Any], seed: int) -> Balanced | None:
    """Sampler that draws all classes equally often, if ``task.sample`` asks for it; None otherwise,
    which shuffles. ``items`` are training inputs with ``labels``."""
    if not (isinstance(task, Deciding) and task.balanced):
        return None
    return Balanced([classes_of(item["labels"]) for item in items], seed)
