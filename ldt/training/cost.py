"""Forecast of a training's steps, time and memory, by measured steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import TrainingArguments

from ldt import system
from ldt.errors import plural
from ldt.training.arguments import all_steps, steps_an_epoch
from ldt.training.job import Job, Prepared
from ldt.training.probe import Step, measure
from ldt.training.summary import Notice, inputs_a_step
from ldt.training.trainer import Trainer

log = logging.getLogger("ldt")

ROOM = 0.9  # of the memory that is there: what a batch may fill
SAID = 5  # seconds of a measurement from which on a line says how long it will be
SAMPLED = 64  # items by which lengths are judged where nobody knows them
TYPICAL = 3  # batches by which time is judged
MOST = 1024  # inputs of a batch
MOST_SECONDS = 60  # that a measurement by whole batches may take; else single inputs are measured


@dataclass(frozen=True)
class Cost:
    """Cost of a run.

    Args:
        steps: optimizer steps; None where a dry run does not know how many there will be.
        seconds: of steps, evaluations and checkpoints; of one step where ``steps`` is None.
        memory: bytes of the process, or of the GPU, at the peak.
        limit: bytes that are there for it.
        batch: inputs that the recipe runs at a time.
        fits: whether memory holds them, and some more.
        largest: most inputs that fit at a time, a power of two; 0 where one does not.
        longest: tokens of the longest input.
        unit: what these are.
        device: cpu or cuda.
    """

    steps: int | None
    seconds: float
    memory: int
    limit: int
    batch: int
    fits: bool
    largest: int
    longest: int
    unit: str
    device: str

    @property
    def notice(self) -> Notice:
        """The line for the user; a warning where memory will not do."""
        size = f"{self.longest:,} {self.unit}s"
        needed, there = (f"{value / 2**30:,.1f} GiB" for value in (self.memory, self.limit))
        took = _minutes(self.seconds)
        length = f"{took} a step" if self.steps is None else f"{plural(self.steps, 'step')}, {took}"
        most = f"the largest batch that fits is {plural(self.largest, 'input')} of {size}"
        if self.fits:
            return Notice(
                f"about {length} on {self.device}, {needed} of memory at the peak; {most}"
            )
        what = f"{plural(self.batch, 'input')} of {size} at a time"
        if self.largest:
            advice = f"{most}: training.per_device_train_batch_size=auto takes it"
        else:
            advice = "training.gradient_checkpointing=true or a shorter data.max_length needs less"
        return Notice(
            f"about {length} on {self.device}; {what} take {needed} of memory at the peak, "
            f"{there} are there: {advice}",
            level=logging.WARNING,
        )


def estimate(job: Job, prepared: Prepared, trainer: Trainer) -> Cost | None:
    """Measure steps of a training that has not begun, and say what it will take.

    The longest input, two of them, the largest batch that an epoch is expected to have and three
    typical ones are trained on, each with an optimizer step, and an evaluation batch is answered;
    then weights and random state are what they were. Where that would take longer than
    `MOST_SECONDS`, single inputs stand for the batches but for the two longest.

    Returns:
        The cost; None where a batch cannot be parted, as in a run of several processes.

    Raises:
        ResourceError: a single input does not fit.
        TrainingDiverged: a loss is not finite.
    """
    if not trainer.parts_batches:
        return None
    args, batch = trainer.args, trainer.args.train_batch_size
    limit = memory_limit(args.device)
    items = _Lengths(prepared.train_items, prepared.every)
    answered = _Lengths(prepared.eval_items, prepared.every) if prepared.measure else None
    last = answered.longest(args.per_device_eval_batch_size) if answered else None

    # One at a time first: where two do not fit, they must not be tried.
    short, long = items.typical(1, 1)[0], items.longest(1)
    (_, one), *_ = measure(trainer, [short, long])
    line = _Memory(one.peak, tokens(long), (one.peak - one.base) / tokens(long))
    surely, room = max(line.largest(limit, items.most), 1), round(ROOM * limit)
    two, large, typical = items.longest(2), items.largest(batch), items.typical(TYPICAL, batch)
    pair = [two] if line.of(two) <= room else []
    whole = [large] if line.of(large) <= room else []
    a_token = one.seconds / tokens(long)
    seconds = a_token * (sum(map(tokens, [short, *pair, *whole, *typical])) + tokens(last or ()))
    if seconds > MOST_SECONDS:
        whole, typical = [], items.typical(TYPICAL, 1)
        last = answered.longest(1) if answered else None
    batches = [short, *pair, *whole, *typical]
    seconds = a_token * (sum(map(tokens, batches)) + tokens(last or ()))
    if seconds > SAID:
        log.info("measuring what the training will take, nothing is trained: %s", _minutes(seconds))
    steps, answer, micro = measure(trainer, batches, last, surely if surely < batch else None)
    if pair:
        further = tokens(two) - tokens(long)
        line = replace(line, a_token=max(steps[1].peak - one.peak, 0) / further)
    peak = max(step.peak for step in [one, *steps, *([answer] if answer else [])])
    if not whole:
        peak = max(peak, line.of(large))
    largest, fits = line.largest(limit, items.most), peak <= room
    if micro is not None and micro < min(surely, batch):  # memory ended before that
        largest, fits = min(largest, micro), False

    count = None
    if prepared.whole or args.max_steps > 0:
        count = all_steps(vars(args), items.count)
    seconds = _seconds(args, items, typical, steps[-TYPICAL:], count)
    if count and answered and answer and last:
        assert prepared.measure is not None  # or nothing was answered
        times = _times(args.eval_strategy, args.eval_steps, args, items.count)
        evaluations = times * prepared.measure.share + prepared.measure.rough
        seconds += evaluations * answer.seconds * answered.mean * answered.count / tokens(last)
    device = args.device.type
    return Cost(count, seconds, peak, limit, batch, fits, largest, items.most, job.unit, device)


def fitting(prepared: Prepared, trainer: Trainer, cost: Cost) -> int | None:
    """The inputs that are run at a time with per_device_train_batch_size=auto; None: all of a
    batch. What the `estimate` says is tried with the longest ones."""
    size, items = min(cost.largest or 1, cost.batch), _Lengths(prepared.train_items)
    while size > 1:
        (_, step), _, fits = measure(trainer, [items.longest(1), items.longest(size)], None, size)
        if fits == size and step.peak <= ROOM * cost.limit:
            break
        size = min(fits or size, size // 2)
    return size if size < cost.batch else None


def memory_limit(device: torch.device) -> int:
    """Bytes that this process can have of a device: those it has and those that are free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)
    return system.available_memory()


def tokens(inputs: Sequence) -> int:
    """Number of tokens in items, each an input or a list of inputs."""
    parts = [part for item in inputs for part in (item if isinstance(item, list) else [item])]
    return sum(len(part["input_ids"]) for part in parts)


class _Lengths:
    """Items by their tokens; of items whose lengths are not known, a sample.

    ``count``: of all items; a stream has as many as a batch may have.

    Args:
        items: one of ``every`` so many.
    """

    def __init__(self, items: Any, every: int = 1):
        if isinstance(items, Sequence):
            self.count = len(items) * every
            numbers = np.arange(len(items))
            if not hasattr(items, "lengths"):
                most = min(SAMPLED, len(items))
                numbers = np.linspace(0, len(items) - 1, most).astype(int)
        else:
            self.count = MOST
            items = list(islice(items, SAMPLED))
            numbers = np.arange(len(items))
        self._items, self._numbers = items, numbers
        lengths = getattr(items, "lengths", None)
        self.tokens = np.array(
            [tokens([items[n]]) for n in numbers] if lengths is None else lengths
        )
        self._order = np.argsort(self.tokens, kind="stable")

    @property
    def most(self) -> int:
        """Tokens of the longest item."""
        return int(self.tokens.max())

    @property
    def mean(self) -> float:
        """Tokens of an item."""
        return float(self.tokens.mean())

    def _at(self, places: np.ndarray) -> list:
        return [self._items[int(self._numbers[place])] for place in places]

    def longest(self, count: int) -> list:
        """So many of the longest items; if there are fewer, again and again."""
        return self._at(np.resize(self._order[::-1], count))

    def typical(self, batches: int, size: int) -> list[list]:
        """Batches of items that stand for all: as many of each length, dealt out in turn."""
        total = batches * size
        shares = (np.arange(total) + 0.5) / total
        places = self._order[(shares * len(self._order)).astype(int)]
        return [self._at(places[number::batches]) for number in range(batches)]

    def largest(self, size: int) -> list:
        """The batch with the most tokens of an epoch in a random order."""
        order = np.random.default_rng(0).permutation(len(self.tokens))
        order = np.resize(order, max(size, len(order) // size * size)).reshape(-1, size)
        return self._at(order[self.tokens[order].sum(1).argmax()])


@dataclass(frozen=True)
class _Memory:
    """Bytes at the peak by the tokens of a batch: of one input, and for each further token."""

    one: int
    longest: int
    a_token: float

    def of(self, inputs: Sequence) -> int:
        return round(self.one + max(0, tokens(inputs) - self.longest) * self.a_token)

    def largest(self, limit: int, most: int) -> int:
        """The power of two of inputs of ``most`` tokens that fits into ``limit`` bytes."""
        room = ROOM * limit - self.one
        if room < 0:
            return 0
        number = 1 + int(min(MOST - 1, room / max(self.a_token * most, 1)))
        return 1 << (number.bit_length() - 1)


def _seconds(
    args: TrainingArguments,
    items: _Lengths,
    typical: list[list],
    steps: list[Step],
    count: int | None,
) -> float:
    """Seconds of so many optimizer steps, without evaluation; of one where they are not known.

    Args:
        typical, steps: batches, and what they took.
    """
    optimizer = sum(step.optimizer for step in steps) / len(steps)
    a_token = sum(step.seconds - step.optimizer for step in steps) / sum(map(tokens, typical))
    if count is None:
        return inputs_a_step(args) * items.mean * a_token + optimizer
    epochs = count / steps_an_epoch(vars(args), items.count)
    return epochs * items.count * items.mean * a_token + count * optimizer


def _times(strategy: str, every: float | None, args: TrainingArguments, inputs: int) -> int:
    """Number of times that a run does something by a strategy, such as evaluating."""
    count = all_steps(vars(args), inputs)
    if strategy == "epoch":
        return math.ceil(count / steps_an_epoch(vars(args), inputs))
    if strategy != "steps" or not every:
        return 0
    return count // math.ceil(every * count if every < 1 else every)


def _minutes(seconds: float) -> str:
    """``4.2 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
