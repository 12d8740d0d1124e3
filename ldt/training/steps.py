"""Optimizer steps whose result does not depend on how inputs are divided into batches, processes
and micro-batches."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sized
from itertools import accumulate, islice
from typing import Any, cast

import torch
import transformers
from accelerate.utils import (  # type: ignore[import-untyped]  # has no hints
    DistributedType,
    recursively_apply,
)
from transformers import TrainerCallback

from ldt.data.features import NO_POSITION, TOKEN_TYPES
from ldt.errors import ResourceError, out_of_memory, plural
from ldt.model.heads.rows import by_tokens
from ldt.model.layers import UNUSED_PASSES

log = logging.getLogger("ldt")

_TOKENS = {*TOKEN_TYPES, "attention_mask"}  # inputs with a number for each token


class DocumentIdCollator:
    """Collator that adds two keys to batches, removed before the model sees them.

    ``document`` [inputs] int64: number of each input's document; ``rows`` [inputs] int64: number of
    rows of each input.
    """

    def __init__(self, collator):
        self.collator = collator

    def __call__(self, features):
        parts = [item if isinstance(item, list) else [item] for item in features]
        documents = torch.tensor([part[0]["document"] for part in parts])
        rows = torch.tensor([len(part) for part in parts])
        return {**self.collator(features), "document": documents, "rows": rows}


class _DropUnusedGradients(TrainerCallback):
    """Removes the gradients of parameters that no process used in a step.

    DistributedDataParallel needs a gradient for them, so the model gives zeros, which would make an
    optimizer apply weight decay.
    """

    def __init__(self, trainer: ItemTrainer):
        self._trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, *, model, **kwargs):
        parameters = [p for p in model.parameters() if p.grad is not None]
        passes = [vars(p).pop(UNUSED_PASSES, 0) for p in parameters]
        unused = torch.tensor([n >= self._trainer.passes for n in passes], device=args.device)
        everywhere = self._trainer.accelerator.reduce(unused.int()) == args.world_size
        for parameter, is_unused in zip(parameters, everywhere.tolist(), strict=True):
            if is_unused:
                parameter.grad = None


class ItemTrainer(transformers.Trainer):
    """Trainer whose loss is the mean over the items of a step (``loss_items`` of the model).

    Items are counted over the accumulated batches and all processes, and each batch contributes its
    sum divided by that count. (transformers weighs all batches equally, or counts ``labels`` only.)
    So a batch can be run in micro-batches: when memory runs out, their size is halved and the step
    is repeated; inputs, loss and gradient are the same up to rounding and dropout. With several
    processes, or a single input at a time, running out of memory is an error.

    All processes get equally many inputs; inputs that accelerate repeats for this in the last
    batches of an epoch are left out. Evaluation does so too, where transformers would take rows for
    inputs.

    ``micro_batch``: inputs per micro-batch; None: all. ``micro_batch_tokens``: largest number of
    tokens per micro-batch, with padding, unless a single input is longer; inputs of similar length
    run together; None: no limit. ``train_sampler``: order of the training items; None: random.
    ``answer``: computes the outputs of an evaluation batch from the model, the batch and its
    documents' numbers, in place of those computed with the loss
    (`ldt.training.evaluation.ByExample`).
    """

    model: torch.nn.Module  # never None, as transformers' may be before its training
    train_sampler: Any = None
    answer: Callable[..., Mapping[str, torch.Tensor]] | None = None
    micro_batch: int | None = None
    micro_batch_tokens: int | None = None

    def __init__(self, *, data_collator, model, args, **kwargs):
        if model.whole_batch_loss:
            args._n_gpu = min(args.n_gpu, 1)  # DataParallel would cut the batch
        super().__init__(
            data_collator=DocumentIdCollator(data_collator), model=model, args=args, **kwargs
        )
        self.model_accepts_loss_kwargs = True
        if self.args.world_size > 1 and not self.is_fsdp_enabled:  # where gradients are in parts
            self.add_callback(_DropUnusedGradients(self))
        self.passes = 0  # of the model in a step
        self._batches: list[tuple[dict, torch.Tensor]] = []  # of this step, and their rows
        self._loss = torch.zeros(())  # of this step, up to the batch before
        self._random: list[torch.Tensor] = []  # state at the step's beginning
        self._rows = torch.zeros(1)  # [1] int64, of this process in an evaluation batch
        self._documents: list[int] = []  # of these
        self._loss_comes = False  # before the outputs of the batch

    @property
    def parts_batches(self) -> bool:
        """True in a training of one process, where a batch can be run in micro-batches."""
        return self.accelerator.distributed_type == DistributedType.NO

    def _without_repeated(self, batch: dict, data: Any) -> dict:
        """A batch of ``data`` without the inputs that accelerate repeats at its end.

        The last batches are filled with the first inputs until each process has as many. A process
        with no other input keeps one, with ``document`` set to none.
        """
        size = len(batch["document"])  # the same in all processes
        together = size * self.args.world_size
        if together == size or not self.accelerator.gradient_state.end_of_dataloader:
            return batch
        last = len(cast(Sized, data)) % together or together
        count = min(max(last - size * self.args.process_index, 0), size)
        rows = int(batch["rows"][: max(count, 1)].sum())
        cut = {name: value[:rows] for name, value in batch.items()}
        return cut | {name: batch[name][:count] for name in ("document", "rows")}

    # -- training

    def _get_train_sampler(self, train_dataset=None):
        if self.train_sampler is not None:
            return self.train_sampler
        return super()._get_train_sampler(train_dataset)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Return the batches of the next step, without repeated inputs, and their number of loss
        items (None if there are none); begins the step's counts."""
        batches = list(islice(epoch_iterator, num_batches))
        self.passes = len(batches)
        self._batches, self._loss = [], torch.zeros((), device=device)
        # Whole batches are left out, or are made by sizes of their own.
        strategy = getattr(self.args, "train_sampling_strategy", "random")
        if batches and not (self.args.dataloader_drop_last or strategy == "batch_rebalance"):
            batches[-1] = self._without_repeated(batches[-1], self.train_dataset)
        return batches, self.count_items(batches, device) if batches else None

    def count_items(self, batches: list[dict], device: torch.device) -> torch.Tensor:
        """Number of items, such as labels or tokens, in the loss of a step (``loss_items`` of the
        model), scalar or [parts of the loss], over all processes; with several GPUs in a process
        expanded to [GPUs, ...]."""
        counts = []
        for batch in batches:
            items = cast(Any, self.model).loss_items(**batch)
            counts.append(items if len(batch["document"]) else torch.zeros_like(items))
        count = torch.stack(counts).sum(0).to(device)
        if self.args.world_size > 1:
            count = self.accelerator.reduce(count)
        if self.args.n_gpu > 1:  # DataParallel gives each device a part
            count = count.expand(self.args.n_gpu, *count.shape)
        return count

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Loss of a batch, [], whose gradients are accumulated.

        When memory runs out, the step's batches are run again in smaller micro-batches. ``rows`` is
        removed from ``inputs``.
        """
        if not self._batches:
            self._random = random_state(self.args.device)
        self._batches.append((inputs, inputs.pop("rows")))
        loss = self._run(model, self._batches[-1:], num_items_in_batch)
        while loss is None:
            # The graph of the pass that failed is gone with its exception. Some gradients may have
            # come before that, so the step begins anew.
            model.zero_grad()
            free_memory(self.args.device)
            set_random_state(self._random, self.args.device)
            whole = self._run(model, self._batches, num_items_in_batch)
            loss = None if whole is None else whole - self._loss
        self._loss = self._loss + loss
        return loss

    def _run(self, model, batches, items) -> torch.Tensor | None:
        """Return the sum of the batches' losses; None, with a smaller micro-batch, out of
        memory."""
        total = torch.zeros((), device=self.args.device)
        try:
            for inputs, rows in batches:
                parts = self._parts(inputs, rows)
                for part in parts[:-1]:  # other processes have other numbers of them
                    with self.accelerator.no_sync(model):
                        total = total + super().training_step(model, part, items)
                total = total + super().training_step(model, parts[-1], items)
        except Exception as error:
            most = max(len(rows) for _, rows in batches)
            size = min(self.micro_batch or most, most)
            # Of one input that is compared with itself alone, each row can still be run alone.
            least = self.micro_batch == 1 if self.model.whole_batch_loss else size == 1
            if least or not self.parts_batches or not out_of_memory(error):
                raise
        else:
            return total
        self.micro_batch = max(size // 2, 1)
        log.warning(
            "out of memory at step %d with %s at a time: from here on it is %d at a time, "
            "and a step has the same inputs as before",
            self.state.global_step + 1,
            plural(size, "input"),
            self.micro_batch,
        )
        return None

    def _parts(self, inputs: dict, rows: torch.Tensor) -> list[dict]:
        """Micro-batches of a batch; for a loss over the whole batch one, with its groups
        of rows."""
        sizes = self.micro_batch, self.micro_batch_tokens
        if not self.model.whole_batch_loss:
            parts = list(micro_batches(inputs, rows, *sizes))
            self.passes += len(parts) - 1
            return parts
        groups = _row_groups(inputs["attention_mask"], rows, *sizes)
        self.passes += len(groups) - 1
        return [inputs | {"groups": groups}]

    def too_little_memory(self) -> ResourceError:
        """Error to raise for a run out of memory, with advice for training or evaluation."""
        step = self.state.global_step
        if not self.model.training:
            return ResourceError(
                f"out of memory in the evaluation at step {step}: a smaller "
                "training.per_device_eval_batch_size needs less; --resume goes on"
            )
        batch = self.micro_batch or self.args.train_batch_size
        size = f"{batch} inputs" if batch > 1 else "one input"
        smaller = "a smaller training.per_device_train_batch_size or " if batch > 1 else ""
        return ResourceError(
            f"out of memory at step {step + 1} with {size} at a time: "
            "training.gradient_checkpointing=true needs less, and --resume goes on with it; "
            f"{smaller}a shorter data.max_length is another run: --overwrite begins it"
        )

    # -- evaluation

    def get_eval_dataloader(self, eval_dataset=None):
        """DataLoader of all items in order, whatever the training arguments say, since rows are
        matched to documents by position."""
        args = self.args
        training = {"dataloader_drop_last": False, "train_sampling_strategy": "random"}
        before = {name: getattr(args, name) for name in training if hasattr(args, name)}
        vars(args).update({name: training[name] for name in before})
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            vars(args).update(before)

    def evaluation_loop(self, *args, **kwargs):
        """Evaluate as transformers does, with outputs gathered without rows of repeated inputs."""
        self.gather_function = self._gathered  # for this loop, then transformers' own again
        return super().evaluation_loop(*args, **kwargs)

    def model_inputs(self, batch: dict) -> dict:
        """Inputs of the model from an evaluation batch: without the keys ``document`` and ``rows``
        and the inputs that accelerate repeats to fill the last batch, with ``groups`` of rows if
        the loss is over the whole batch. Remembers the count of rows and the documents' numbers
        for gathering."""
        batch = self._without_repeated(batch, self.eval_dataset)
        rows = batch["rows"]
        self._rows, self._loss_comes = rows.sum()[None], False
        self._documents = batch["document"].tolist()
        inputs = {name: batch[name] for name in batch if name not in ("document", "rows")}
        return self._parts(inputs, rows)[0] if self.model.whole_batch_loss else inputs

    def prediction_step(self, model, inputs, *args, **kwargs):
        """Return loss, outputs and labels of an evaluation batch with the keys ``document`` and
        ``rows``."""
        loss, logits, labels = super().prediction_step(
            model, self.model_inputs(inputs), *args, **kwargs
        )
        self._loss_comes = loss is not None
        return loss, logits, labels

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Loss of a batch: in training, the sum over items divided by ``num_items_in_batch``; with
        ``return_outputs``, in evaluation, the batch's mean, and the outputs, those of ``answer``
        if it is set."""
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if self.label_smoother is not None and shift is not None:
            # The loss is made here, of logits, and the model does not see the labels.
            inputs = inputs | {"decoder_input_ids": shift(inputs["labels"])}
        if return_outputs:  # an evaluation, where each batch has its own mean
            num_items_in_batch = None
        computed = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not return_outputs or self.answer is None:
            return computed
        loss, computed = computed[0], None  # its logits need no memory any more
        whole = self.accelerator.unwrap_model(model)
        return loss, {"loss": loss, **self.answer(whole, inputs, self._documents)}

    def _gathered(self, values):
        """Outputs or labels [rows, ...] of all processes, without rows of repeated inputs."""
        if self._loss_comes:  # once for each input, and first
            self._loss_comes = False
            return self.accelerator.gather_for_metrics(values)
        counts = self.accelerator.gather(self._rows).tolist()

        def joined(rows):
            parts = zip(rows.chunk(len(counts)), counts, strict=True)
            return torch.cat([part[:count] for part, count in parts])

        padded = self.accelerator.pad_across_processes(values)
        return recursively_apply(joined, self.accelerator.gather(padded))


def micro_batches(
    batch: dict, rows: torch.Tensor, size: int | None, tokens: int | None = None
) -> Iterator[dict]:
    """Divide a batch into micro-batches of whole inputs.

    Args:
        batch: tensors [rows, ...].
        rows: [inputs] int64, number of rows of each input.
        size: inputs per micro-batch; None: all.
        tokens: largest number of tokens, with padding, unless a single input is longer; the longest
            inputs come first then, and padding is cut. None: no limit.
    """
    size = size or len(rows)
    ends = list(accumulate(rows.tolist()))
    inputs = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if tokens is not None:
        yield from _by_length(batch, inputs, size, tokens)
    elif size >= len(inputs):
        yield dict(batch)
    else:
        for first in range(0, len(inputs), size):
            part = slice(inputs[first].start, inputs[first : first + size][-1].stop)
            yield {name: value[part] for name, value in batch.items()}


def _row_groups(
    mask: torch.Tensor, rows: torch.Tensor, size: int | None, tokens: int | None = None
) -> list[list[int]]:
    """Groups of row numbers that are run together, longest first, each with as many tokens as
    ``size`` of the longest inputs (1: each row alone) and at most ``tokens``; None: no limit."""
    lengths = mask.count_nonzero(1)
    most = [tokens] if tokens else []
    if size is not None:
        inputs = sorted(int(part.sum()) for part in lengths.split(rows.tolist()))
        most.append(sum(inputs[-size:]) if size > 1 else 1)
    return by_tokens(lengths.tolist(), min(most, default=None))


def _by_length(batch: dict, inputs: list[range], size: int, tokens: int) -> Iterator[dict]:
    mask = batch.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(batch["input_ids"])
    # A row ends with its last token; an input is as long as its longest row.
    ends = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1).cpu()
    lengths = {rows: int(ends[list(rows)].max()) for rows in inputs}
    group: list[range] = []
    for rows in sorted(inputs, key=lambda rows: -lengths[rows]):
        count = sum(map(len, [*group, rows]))
        if group and (len(group) == size or count * lengths[group[0]] > tokens):
            yield _cut(batch, group, lengths[group[0]])
            group = []
        group.append(rows)
    yield _cut(batch, group, lengths[group[0]])


def _cut(batch: dict, inputs: list[range], longest: int) -> dict:
    """Some inputs of a batch, without superfluous padding."""
    rows = [row for each in inputs for row in each]
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
    """Collect garbage, and release cached memory of a CUDA device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def random_state(device: torch.device) -> list[torch.Tensor]:
    """State of torch's random generators on the CPU and, for a CUDA device, on the device."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def set_random_state(states: list[torch.Tensor], device: torch.device) -> None:
    """Restore a `random_state` of the same device."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
