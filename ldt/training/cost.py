"""Forecast of a training's steps, time and memory, and of a batch that fits, by measured steps."""

from __future__ import annotations

import copy
import logging
import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from ldt import system
from ldt.errors import plural
from ldt.training.arguments import all_steps, steps_an_epoch
from ldt.training.job import Job, Prepared
from ldt.training.progress import ProgressReport, memory
from ldt.training.steps import free_memory, random_state, set_random_state
from ldt.training.summary import Notice, inputs_a_step
from ldt.training.trainer import Trainer

log = logging.getLogger("ldt")

ROOM = 0.9  # of the memory that is there: what a batch may fill
SAMPLED = 64  # items by which lengths are judged where nobody knows them
TYPICAL = 3  # batches by which time is judged
MOST = 1024  # inputs of a batch
MOST_SECONDS = 60  # that a measurement by whole batches may take; else single inputs are measured
EVERY = 0.002  # seconds between two looks at the memory of this process

_FORWARD = ("forward", "_original_forward")  # what mixed precision sets in a model
# What the arguments of a training become for its steps to be measured: each batch is a step, no
# weight is moved far, and nothing is evaluated, logged or saved.
_MEASURED = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.0,
    "lr_scheduler_type": "constant",
    "lr_scheduler_kwargs": {},
    "warmup_steps": 0,
    "eval_strategy": "no",
    "eval_on_start": False,
    "save_strategy": "no",
    "logging_strategy": "no",
    "logging_first_step": False,
    "load_best_model_at_end": False,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": None,
    "dataloader_persistent_workers": False,
}


@dataclass(frozen=True)
class Cost:
    """Forecast cost of a run.

    Args:
        steps: optimizer steps; None if a dry run does not know how many there will be.
        seconds: time of steps, evaluations and checkpoints; of one step where ``steps`` is None.
        memory: bytes of the process, or of the GPU, at the peak.
        limit: bytes of memory that are available.
        batch: inputs that the recipe runs at a time.
        fits: True if memory holds the batch with a margin.
        largest: most inputs that fit at a time, a power of two; 0 if one does not.
        longest: length of the longest input, in units.
        unit: ``token``, or another unit of the length of an input.
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
        """Line about the cost for the user; a warning if memory is too small."""
        size = f"{self.longest:,} {self.unit}s"
        needed, there = (f"{value / 2**30:,.1f} GiB" for value in (self.memory, self.limit))
        took = _minutes(self.seconds)
        length = f"{took} a step" if self.steps is None else f"{plural(self.steps, 'step')}, {took}"
        begin = f"about {length} on {self.device}"
        most = f"the largest batch that fits is {plural(self.largest, 'input')} of {size}"
        if self.fits:
            return Notice(f"{begin}, {needed} of memory at the peak; {most}")
        advice = "training.gradient_checkpointing=true or a shorter data.max_length needs less"
        if self.largest:
            advice = f"{most}: training.per_device_train_batch_size=auto takes it"
        return Notice(
            f"{begin}; {plural(self.batch, 'input')} of {size} at a time take {needed} of memory "
            f"at the peak, {there} are there: {advice}",
            logging.WARNING,
        )


def estimate(job: Job, prepared: Prepared, trainer: Trainer) -> Cost | None:
    """Measure steps of a training that has not begun, and forecast its cost.

    The longest input, two of them, the largest batch that an epoch is expected to have and three
    typical ones are trained on, each with an optimizer step, and an evaluation batch is answered;
    then weights and random state are restored. Where that would take longer than `MOST_SECONDS`,
    single inputs stand for the batches but for the two longest.

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
    items = _Sample(prepared.train_items, prepared.every)
    answered = _Sample(prepared.eval_items, prepared.every) if prepared.measure else None
    last = answered.longest(args.per_device_eval_batch_size) if answered else []

    # One at a time first: where two do not fit, they must not be tried.
    short, long = items.typical(1, 1)[0], items.longest(1)
    (_, one), *_ = measure(trainer, [short, long])
    line = _MemoryLine(one.peak, tokens(long), (one.peak - one.base) / tokens(long))

    def seconds_of(batches: Sequence[Sequence]) -> float:
        return one.seconds / line.longest * sum(map(tokens, batches))

    surely, room = max(line.largest(limit), 1), round(ROOM * limit)
    two, large, typical = items.longest(2), items.largest(batch), items.typical(TYPICAL, batch)
    pair, whole = ([each] if line.of(each) <= room else [] for each in (two, large))
    if seconds_of([short, *pair, *whole, *typical, last]) > MOST_SECONDS:
        whole, typical, last = [], items.typical(TYPICAL, 1), last[:1]
    batches = [short, *pair, *whole, *typical]
    steps, answer, micro = measure(trainer, batches, last, surely if surely < batch else None)
    if pair:
        further = tokens(two) - line.longest
        line = replace(line, a_token=max(steps[1].peak - one.peak, 0) / further)
    peak = max(step.peak for step in [one, *steps, *([answer] if answer else [])])
    if not whole:
        peak = max(peak, line.of(large))
    size, fits = line.largest(limit), peak <= room
    if micro is not None and micro < min(surely, batch):  # memory ended before that
        size, fits = min(size, micro), False

    # Time grows with the tokens, but for the optimizer's part of a step.
    optimizer = sum(step.optimizer for step in steps[-TYPICAL:]) / TYPICAL
    spent = sum(step.seconds - step.optimizer for step in steps[-TYPICAL:])
    an_item = items.mean * spent / sum(map(tokens, typical))
    count, seconds = None, inputs_a_step(args) * an_item + optimizer
    if prepared.whole or args.max_steps > 0:
        count = all_steps(vars(args), items.count)
        epochs = count / steps_an_epoch(vars(args), items.count)
        seconds = epochs * items.count * an_item + count * optimizer
        if answered and answer and prepared.measure:
            every = answer.seconds * answered.mean * answered.count / tokens(last)
            evaluations = _evaluations(args, epochs, count) * prepared.measure.share
            seconds += (evaluations + prepared.measure.rough) * every
    device = args.device.type
    return Cost(count, seconds, peak, limit, batch, fits, size, items.most, job.unit, device)


@dataclass(frozen=True)
class _MemoryLine:
    """Bytes at the peak by the tokens of a batch: of the longest input, and for each beyond."""

    one: int
    longest: int
    a_token: float

    def of(self, inputs: Sequence) -> int:
        return round(self.one + max(0, tokens(inputs) - self.longest) * self.a_token)

    def largest(self, limit: int) -> int:
        if (free := ROOM * limit - self.one) < 0:
            return 0
        number = 1 + int(min(MOST - 1, free / max(self.a_token * self.longest, 1)))
        return 1 << (number.bit_length() - 1)


def _evaluations(args, epochs: float, steps: int) -> int:
    if args.eval_strategy == "epoch":
        return math.ceil(epochs)
    if args.eval_strategy != "steps" or not (every := args.eval_steps):
        return 0
    return steps // math.ceil(every * steps if every < 1 else every)


def fitting_batch(prepared: Prepared, trainer: Trainer, cost: Cost) -> int | None:
    """Number of inputs that per_device_train_batch_size=auto runs at a time, for
    ``trainer.micro_batch``; None: all of a batch.

    The number forecast by `estimate` (``cost``) is tried by optimizer steps on the longest inputs,
    and halved until they fit; weights and random state are restored.

    Raises:
        ResourceError: not even one input fits.
        TrainingDiverged: a loss is not finite.
    """
    size, items = min(cost.largest or 1, cost.batch), _Sample(prepared.train_items)
    while size > 1:
        (_, step), _, fits = measure(trainer, [items.longest(1), items.longest(size)], None, size)
        if fits == size and step.peak <= ROOM * cost.limit:
            break
        size = min(fits or size, size // 2)
    return size if size < cost.batch else None


def memory_limit(device: torch.device) -> int:
    """Bytes of a device that this process can have, used or free: GPU memory, else main memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)
    return system.available_memory()


def tokens(inputs: Sequence) -> int:
    """Total number of tokens (``input_ids``) in inputs, each a dict or a list of dicts."""
    parts = [part for item in inputs for part in (item if isinstance(item, list) else [item])]
    return sum(len(part["input_ids"]) for part in parts)


def _minutes(seconds: float) -> str:
    """``4.2 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class _Sample:
    """Items by their tokens; of items of unknown lengths, a sample. ``count``: of all items."""

    def __init__(self, items: Any, every: int = 1):
        sized = isinstance(items, Sequence)
        self.count = len(items) * every if sized else MOST
        self._items = items if sized else list(islice(items, SAMPLED))
        lengths = getattr(items, "lengths", None)
        self._numbers = np.arange(len(self._items))
        if lengths is None:
            taken = min(SAMPLED, len(self._numbers))
            self._numbers = np.linspace(0, len(self._numbers) - 1, taken).astype(int)
            lengths = [tokens([self._items[n]]) for n in self._numbers]
        self._tokens = np.array(lengths)
        self._order = np.argsort(self._tokens, kind="stable")
        self.most, self.mean = int(self._tokens.max()), float(self._tokens.mean())

    def _at(self, places: np.ndarray) -> list:
        return [self._items[int(self._numbers[place])] for place in places]

    def longest(self, count: int) -> list:
        return self._at(np.resize(self._order[::-1], count))

    def typical(self, batches: int, size: int) -> list[list]:
        shares = (np.arange(batches * size) + 0.5) / (batches * size)
        places = self._order[(shares * len(self._order)).astype(int)]
        return [self._at(places[number::batches]) for number in range(batches)]

    def largest(self, size: int) -> list:
        """The batch with the most tokens of an epoch in a random order."""
        order = np.random.default_rng(0).permutation(len(self._tokens))
        order = np.resize(order, max(size, len(order) // size * size)).reshape(-1, size)
        return self._at(order[self._tokens[order].sum(1).argmax()])


# -- measured steps; model and random state stay as they are


class Step(NamedTuple):
    """Cost of a batch: seconds, of them in the optimizer; bytes of memory at its beginning and
    peak."""

    seconds: float
    optimizer: float
    base: int
    peak: int


def measure(
    trainer: Trainer,
    batches: Sequence[list],
    evaluated: list | None = None,
    micro_batch: int | None = None,
) -> tuple[list[Step], Step | None, int | None]:
    """Take an optimizer step for each batch, as the training would, and measure it; weights and
    random state are restored.

    Args:
        trainer: trainer whose training has not begun.
        batches: batches, each a list of training items: inputs, or lists of a document's inputs.
            The first one makes the optimizer's state, and takes longer.
        evaluated: items of an evaluation batch, which is answered last; None or empty: none.
        micro_batch: inputs that are run at a time; None: all of a batch.

    Returns:
        A `Step` for each batch, one for the evaluation batch (or None), and the inputs that were
            run at a time in the end; None: all of a batch.

    Raises:
        ResourceError: not even one input at a time fits in training.
        TrainingDiverged: a loss is not finite.
    """
    with _restored(trainer) as copied, Peak(trainer.args.device, copied) as peak:
        twin = _twin(trainer, batches, peak)
        twin.micro_batch = micro_batch
        try:
            twin.run()
            answer = None
            if evaluated:
                peak.begin()
                twin.prediction_step(twin.model, trainer.data_collator(evaluated), False)
                answer = peak.end()
        finally:
            twin.accelerator.free_memory()
        return peak.steps, answer, twin.micro_batch


def _twin(trainer: Trainer, batches: Sequence[list], peak: Peak) -> Trainer:
    args = copy.copy(trainer.args)
    vars(args).update(_MEASURED | {"max_steps": len(batches)})
    twin = type(trainer)(
        model=trainer.model,
        args=args,
        train_dataset=list(batches),
        data_collator=None,
        callbacks=[peak],
        tokenizer=None,
        ids=trainer.ids,
        progress=ProgressReport(None, "measuring what the training will take"),
    )
    twin.train_sampler = SequentialSampler(batches)
    twin.data_collator = lambda batch: trainer.data_collator(batch[0])
    if trainer.answer is not None:
        twin.answer = partial(trainer.answer, every=True)
    return twin


@contextmanager
def _restored(trainer: Trainer) -> Iterator[int]:
    """Restore weights, forward and random state at the end; yields the bytes of the copy."""
    device, attributes = trainer.args.device, vars(trainer.model)
    wrapped = {name: attributes[name] for name in _FORWARD if name in attributes}
    states = random_state(device), random.getstate(), np.random.get_state()  # noqa: NPY002
    weights = [(p, p.detach().clone()) for p in trainer.model.parameters() if p.requires_grad]
    try:
        yield sum(copied.numel() * copied.element_size() for _, copied in weights)
    finally:
        trainer.model.zero_grad()
        # accelerate's way back would take off what the class wraps its forward in as well.
        for name in _FORWARD:
            attributes.pop(name, None)
        attributes.update(wrapped)
        with torch.no_grad():
            for weight, copied in weights:
                weight.copy_(copied)
        set_random_state(states[0], device)
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002
        free_memory(device)


class Peak(TrainerCallback):
    """Context manager that measures the peak memory since `begin`, in bytes: allocated on a CUDA
    device, else resident in this process, by looking every other millisecond. As a Trainer's
    callback it measures each step, from the end of the one before.

    Args:
        device: where the model runs.
        copied: bytes that are there only for the measurement.
    """

    def __init__(self, device: torch.device, copied: int = 0):
        self.device, self.copied = device, copied
        self.steps: list[Step] = []
        self._base = self._most = 0
        self._began = self._optimizer = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peak:
        if self.device.type != "cuda":
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            self._most = max(self._most, memory(self.device))

    def _now(self) -> float:
        """The time, once the device has done what it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()

    def begin(self) -> None:
        """Begin a measurement of time and peak memory."""
        self._began = self._now()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._base = self._most = memory(self.device)

    def end(self) -> Step:
        """Seconds and memory since `begin`."""
        seconds, optimizer = self._now() - self._began, self._optimizer
        peak = max(self._most, memory(self.device)) - self.copied
        self._optimizer = 0.0
        return Step(seconds, optimizer, self._base - self.copied, peak)

    def on_train_begin(self, args, state, control, **kwargs):
        """Begin to measure the first step."""
        self.begin()

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        """Begin to measure the optimizer's part of a step."""
        self._optimizer = -self._now()

    def on_optimizer_step(self, args, state, control, **kwargs):
        """End the measurement of the optimizer's part."""
        self._optimizer += self._now()

    def on_step_end(self, args, state, control, **kwargs):
        """Append the step to ``steps``, and begin to measure the next."""
        self.steps.append(self.end())
        self.begin()
