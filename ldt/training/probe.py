"""Steps of a training that are run to measure them; model and random state stay as they are."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from ldt.training.micro_batches import free_memory, random_state, set_random_state
from ldt.training.progress import ProgressReport, memory
from ldt.training.trainer import Trainer

EVERY = 0.002  # seconds between two looks at the memory of this process

_FORWARD = ("forward", "_original_forward")  # what mixed precision sets in a model

# What the arguments of a training become for its steps to be measured: each batch is a step, no
# weight is moved far, and nothing is evaluated, logged or saved.
MEASURED = {
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


class Step(NamedTuple):
    """Cost of a batch: seconds with its collation, of them in the optimizer, and bytes of the
    process, or of the GPU, at its beginning and at the peak."""

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
    """Take an optimizer step for each batch, as the training would.

    Args:
        trainer: of the training, which has not begun.
        batches: of training items. The first one makes the optimizer's state, and takes longer.
        evaluated: items of an evaluation batch, which is answered last.
        micro_batch: inputs that are run at a time.

    Returns:
        The steps, the evaluation batch, and the inputs that were run at a time in the end; None:
        all of a batch.

    Raises:
        ResourceError: not even one input at a time fits.
        TrainingDiverged: a loss is not finite.
    """
    with _as_it_was(trainer) as copied, Peak(trainer.args.device) as peak:
        watch = _Watch(peak, copied)
        twin = _twin(trainer, batches, watch)
        twin.micro_batch = micro_batch
        try:
            twin.run()
            answered = None
            if evaluated:
                peak.reset()
                begun = time.monotonic()
                twin.prediction_step(twin.model, trainer.data_collator(evaluated), False)
                peak.wait()
                base = peak.base - copied
                answered = Step(time.monotonic() - begun, 0.0, base, peak.bytes - copied)
        finally:
            twin.accelerator.free_memory()
        return watch.steps, answered, twin.micro_batch


class _Given(IterableDataset):
    """Batches in order."""

    def __init__(self, batches: Sequence[list]):
        self.batches = batches

    def __iter__(self) -> Iterator[list]:
        return iter(self.batches)


def _twin(trainer: Trainer, batches: Sequence[list], watch: TrainerCallback) -> Trainer:
    """A Trainer of the same model and kind, whose steps are these batches."""
    args = copy.copy(trainer.args)
    for name, value in (MEASURED | {"max_steps": len(batches)}).items():
        setattr(args, name, value)
    twin = type(trainer)(
        model=trainer.model,
        args=args,
        train_dataset=_Given(batches),
        data_collator=None,
        callbacks=[watch],
        tokenizer=None,
        ids=trainer.ids,
        progress=ProgressReport(None, None, "measuring what the training will take"),
    )
    twin.data_collator = lambda batch: trainer.data_collator(batch[0])
    if trainer.answer is not None:
        twin.answer = partial(trainer.answer, every=True)
    return twin


class _Watch(TrainerCallback):
    """Measures each step, from the end of the one before.

    Args:
        copied: bytes that are there for the sake of the measurement alone.
    """

    def __init__(self, peak: Peak, copied: int):
        self.peak, self.copied = peak, copied
        self.steps: list[Step] = []

    def _now(self) -> float:
        self.peak.wait()
        return time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):
        self._ended = self._now()
        self.peak.reset()

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self._stepped = self._now()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self._stepped = self._now() - self._stepped

    def on_step_end(self, args, state, control, **kwargs):
        ended = self._now()
        peak = self.peak.bytes - self.copied
        base = self.peak.base - self.copied
        self.steps.append(Step(ended - self._ended, self._stepped, base, peak))
        self.peak.reset()
        self._ended = self._now()


@contextmanager
def _as_it_was(trainer: Trainer) -> Iterator[int]:
    """Have weights, forward and random state at the end as they are now; yields the bytes of the
    copy."""
    device, own = trainer.args.device, vars(trainer.model)
    wrapped = {name: own[name] for name in _FORWARD if name in own}
    states = random_state(device), random.getstate(), np.random.get_state()  # noqa: NPY002
    kept = [(p, p.detach().clone()) for p in trainer.model.parameters() if p.requires_grad]
    try:
        yield sum(copy.numel() * copy.element_size() for _, copy in kept)
    finally:
        trainer.model.zero_grad()
        # accelerate's way back would take off what the class wraps its forward in as well.
        for name in _FORWARD:
            own.pop(name, None)
        own.update(wrapped)
        with torch.no_grad():
            for parameter, copied in kept:
                parameter.copy_(copied)
        set_random_state(states[0], device)
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002
        free_memory(device)


class Peak:
    """Context that knows the most bytes in use since `reset`: allocated on a CUDA device, else
    resident in this process, by looking every other millisecond."""

    def __init__(self, device: torch.device):
        self.device = device
        self.base = self._most = 0
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

    def wait(self) -> None:
        """Wait for what the device still does."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def reset(self) -> None:
        """Begin anew; ``base`` is what is in use now."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.base = self._most = memory(self.device)

    @property
    def bytes(self) -> int:
        """At the peak."""
        return max(self._most, memory(self.device))
