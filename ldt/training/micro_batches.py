"""Batches that memory does not hold, run in smaller ones; a step learns the same."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from itertools import accumulate

import torch
from accelerate.utils import DistributedType  # type: ignore[import-untyped]  # has no hints

from ldt.data.features import NO_POSITION, TOKEN_TYPES
from ldt.errors import ResourceError, out_of_memory
from ldt.training.whole_steps import WholeSteps

log = logging.getLogger("ldt")

_TOKENS = {*TOKEN_TYPES, "attention_mask"}  # inputs with a number for each token


class MicroBatches(WholeSteps):
    """A Trainer that halves what it runs at a time where memory ends, and repeats the step.

    The loss of a step is a mean over its items however they lie in batches (`WholeSteps`), so the
    inputs of a step, its loss and its gradient stay those that they were, but for rounding and for
    what dropout draws.

    Several processes would have to halve together, while each waits for the gradients of the
    others: there memory that ends is an error, as it is with a single input at a time.

    ``micro_batch``: inputs of a batch that are run at a time; None: all of them.
    ``micro_batch_tokens``: tokens, with padding, that are run at a time where an input has no more;
    inputs of like length are run together then. None: any.
    """

    model: torch.nn.Module  # never None, as transformers' may be before its training

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.micro_batch: int | None = None
        self.micro_batch_tokens: int | None = None
        self._passed: list[tuple[dict, torch.Tensor]] = []  # batches of this step, and their rows
        self._given = torch.zeros(())  # the loss of this step, up to the batch before
        self._random: list[torch.Tensor] = []  # state at the step's beginning

    @property
    def parts_batches(self) -> bool:
        """True if a batch can be run in smaller ones."""
        single = self.accelerator.distributed_type == DistributedType.NO
        return single and self._loss_items is not None

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        self._passed, self._given = [], torch.zeros((), device=device)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def training_step(self, model, inputs, num_items_in_batch=None):
        """The loss of a batch [], whose gradients are added to those of the batches before."""
        if not self._passed:
            self._random = random_state(self.args.device)
        self._passed.append((inputs, inputs.pop("rows")))
        loss = self._run(model, self._passed[-1:], num_items_in_batch)
        while loss is None:
            # The graph of the pass that failed is gone with its exception. Some gradients may have
            # come before that, so the step begins anew.
            model.zero_grad()
            free_memory(self.args.device)
            set_random_state(self._random, self.args.device)
            whole = self._run(model, self._passed, num_items_in_batch)
            loss = None if whole is None else whole - self._given
        self._given = self._given + loss
        return loss

    def _run(self, model, batches, items) -> torch.Tensor | None:
        """Passes through batches, the sum of their losses; None, and less at a time, if memory
        ends."""
        total = torch.zeros((), device=self.args.device)
        try:
            for inputs, rows in batches:
                limits = self.micro_batch, self.micro_batch_tokens
                parts = list(micro_batches(inputs, rows, *limits))
                self.passes += len(parts) - 1
                for part in parts[:-1]:  # other processes have other numbers of them
                    with self.accelerator.no_sync(model):
                        total = total + super().training_step(model, part, items)
                total = total + super().training_step(model, parts[-1], items)
        except Exception as error:
            most = max(len(rows) for _, rows in batches)
            size = min(self.micro_batch or most, most)
            if size == 1 or not self.parts_batches or not out_of_memory(error):
                raise
        else:
            return total
        self.micro_batch = size // 2
        log.warning(
            "out of memory at step %d with %d inputs at a time: from here on it is %d at a time, "
            "and a step has the same inputs as before",
            self.state.global_step + 1,
            size,
            self.micro_batch,
        )
        return None

    def too_little_memory(self) -> ResourceError:
        """The error that ends a run where memory ended."""
        if self.model is not None and not self.model.training:
            return ResourceError(
                f"out of memory in the evaluation at step {self.state.global_step}: a smaller "
                "training.per_device_eval_batch_size needs less; --resume goes on"
            )
        batch = self.micro_batch or self.args.train_batch_size
        size = f"{batch} inputs" if batch > 1 else "one input"
        smaller = ", a smaller training.per_device_train_batch_size" if batch > 1 else ""
        return ResourceError(
            f"out of memory at step {self.state.global_step + 1} with {size} at a time: "
            f"training.gradient_checkpointing=true{smaller} or a shorter data.max_length needs "
            "less; --resume goes on"
        )


def micro_batches(
    batch: dict, rows: torch.Tensor, size: int | None, tokens: int | None = None
) -> Iterator[dict]:
    """Cut a batch into smaller ones.

    Args:
        batch: tensors [rows, ...].
        rows: [inputs] int64, how many rows of the batch each input is.
        size: inputs of a smaller one; None: all.
        tokens: of a smaller one, with padding, where an input alone has no more; the longest inputs
            come first then, and rows are cut to the longest of a batch. None: any.
    """
    size = size or len(rows)
    if tokens is not None:
        yield from _by_length(batch, rows, size, tokens)
        return
    if size >= len(rows):
        yield dict(batch)
        return
    ends = [0, *rows.cumsum(0).tolist()]
    for first in range(0, len(rows), size):
        start, end = ends[first], ends[min(first + size, len(rows))]
        yield {name: value[start:end] for name, value in batch.items()}


def _by_length(batch: dict, rows: torch.Tensor, size: int, tokens: int) -> Iterator[dict]:
    mask = batch.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(batch["input_ids"])
    # A row ends with its last token; an input is as long as its longest row.
    ends = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1).cpu()
    counts = rows.tolist()
    of = [range(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)]
    lengths = [int(ends[list(own)].max()) for own in of]
    group: list[int] = []
    for number in sorted(range(len(of)), key=lambda number: -lengths[number]):
        longest = lengths[group[0]] if group else 0
        count = sum(len(of[each]) for each in [*group, number])
        if group and (len(group) == size or count * longest > tokens):
            yield _cut(batch, [row for each in group for row in of[each]], longest)
            group = []
        group.append(number)
    yield _cut(batch, [row for each in group for row in of[each]], lengths[group[0]])


def _cut(batch: dict, rows: list[int], longest: int) -> dict:
    """Some rows of a batch, without what only fills them up."""
    width = batch["input_ids"].shape[1]
    part = {}
    for name, value in batch.items():
        value = value[rows]
        wide = value.ndim > 1 and value.shape[1] == width
        # What is no row of tokens may be as wide by chance.
        if wide and (name in _TOKENS or bool((value[:, longest:] == NO_POSITION).all())):
            value = value[:, :longest]
        part[name] = value
    return part


def free_memory(device: torch.device) -> None:
    """Give back what nothing refers to."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def random_state(device: torch.device) -> list[torch.Tensor]:
    """The state of the generators that a model draws from on a device."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def set_random_state(states: list[torch.Tensor], device: torch.device) -> None:
    """Bring the generators back to a `random_state`."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
