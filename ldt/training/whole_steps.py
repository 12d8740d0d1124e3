"""Optimizer steps and evaluations that count each input once, however inputs lie in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from itertools import islice
from typing import Any, cast

import torch
import transformers
from accelerate.utils import recursively_apply  # type: ignore[import-untyped]  # has no hints
from transformers import TrainerCallback

from ldt.model.layers import UNUSED_PASSES


class _UnusedAlone(TrainerCallback):
    """Parameters that no process has used in a step have no gradient, as in one process.

    DistributedDataParallel waits for one, so that the model gives zeros (`ldt.model.layers`); with
    these an optimizer would decay them.
    """

    def __init__(self, trainer):
        self._trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, *, model, **kwargs):
        parameters = [p for p in model.parameters() if p.grad is not None]
        passes = [vars(p).pop(UNUSED_PASSES, 0) for p in parameters]
        unused = torch.tensor([n >= self._trainer.passes for n in passes], device=args.device)
        everywhere = self._trainer.accelerator.reduce(unused.int()) == args.world_size
        for parameter, alone in zip(parameters, everywhere.tolist(), strict=True):
            if alone:
                parameter.grad = None


class WholeSteps(transformers.Trainer):
    """A Trainer of models that count what their loss is a mean over (``loss_items``).

    The items of a step are counted over its accumulated batches and all processes, and each batch's
    loss is its sum divided by that count. transformers' gives each batch the same weight, however
    few items it has, and counts none but ``labels``. Other models are trained as there.

    Several processes take equally many inputs at a time; what accelerate repeats to that end in the
    last batches of an epoch is left out. In evaluation too, where transformers' takes each row for
    an input, and loses rows of inputs that have several.

    Batches have the keys of `ldt.training.flow.NamingDocuments`.
    """

    train_sampler: Any = None  # in place of a random order
    # Makes the outputs of an evaluation batch, in place of those that came with its loss: of the
    # model, the batch, and the numbers of its documents (`ldt.training.evaluation.ByExample`).
    answer: Callable[..., Mapping[str, torch.Tensor]] | None = None

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._loss_items = getattr(self.model, "loss_items", None)
        if self._loss_items is not None:
            self.model_accepts_loss_kwargs = True
        if self.args.world_size > 1 and not self.is_fsdp_enabled:  # where gradients are in parts
            self.add_callback(_UnusedAlone(self))
        self.passes = 0  # of the model in a step
        self._rows = torch.zeros(1)  # [1] int64, of this process in an evaluation batch
        self._documents: list[int] = []  # of these
        self._loss_comes = False  # before the outputs of the batch

    def _without_repeated(self, batch: dict, data: Any) -> dict:
        """A batch of ``data``; if it is the last one, without what accelerate repeats in it.

        The last batches go on with the first inputs until each process has as many. A process that
        has no other keeps one, whose ``document`` is left out.
        """
        size = len(batch["document"])  # the same in all processes
        together = size * self.args.world_size
        if together == size or not self.accelerator.gradient_state.end_of_dataloader:
            return batch
        last = len(cast(Sized, data)) % together or together
        kept = min(max(last - size * self.args.process_index, 0), size)
        rows = int(batch["rows"][: max(kept, 1)].sum())
        cut = {name: value[:rows] for name, value in batch.items()}
        return cut | {name: batch[name][:kept] for name in ("document", "rows")}

    # -- training

    def _get_train_sampler(self, train_dataset=None):
        if self.train_sampler is not None:
            return self.train_sampler
        return super()._get_train_sampler(train_dataset)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches = list(islice(epoch_iterator, num_batches))
        self.passes = len(batches)
        # Whole batches are left out, or are made by sizes of their own.
        cut = self.args.dataloader_drop_last or self._strategy == "batch_rebalance"
        if batches and not cut and self._loss_items is not None:
            batches[-1] = self._without_repeated(batches[-1], self.train_dataset)
        if not batches or self._loss_items is None:
            return batches, self._get_num_items_in_batch(batches, device)
        return batches, self._items_of(batches, device)

    @property
    def _strategy(self) -> str:
        return getattr(self.args, "train_sampling_strategy", "random")

    def _items_of(self, batches: list[dict], device) -> torch.Tensor:
        """Number of items in the loss of a step, scalar or [parts], over all processes."""
        count = torch.stack([self._items(batch) for batch in batches]).sum(0).to(device)
        if self.args.world_size > 1:
            count = self.accelerator.reduce(count)
        if self.args.n_gpu > 1:  # DataParallel gives each device a part
            count = count.expand(self.args.n_gpu, *count.shape)
        return count

    def _items(self, batch: dict) -> torch.Tensor:
        """Number of items in the loss of a batch, 0 without a document."""
        assert self._loss_items is not None  # or it is not called
        items = self._loss_items(**batch)
        return items if len(batch["document"]) else torch.zeros_like(items)

    # -- evaluation

    def get_eval_dataloader(self, eval_dataset=None):
        asked, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:  # that is for training: of an evaluation nothing may be missing
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = asked

    def _get_num_items_in_batch(self, batch_samples, device):
        if self._loss_items is not None:
            return None  # in evaluation each batch has its own mean
        return super()._get_num_items_in_batch(batch_samples, device)

    def evaluation_loop(self, *args, **kwargs):
        self.gather_function = self._gathered  # for this loop, then transformers' own again
        return super().evaluation_loop(*args, **kwargs)

    def _without_names(self, inputs: dict) -> dict:
        """Inputs of the model of an evaluation batch; its rows are counted."""
        inputs = self._without_repeated(inputs, self.eval_dataset)
        self._rows, self._loss_comes = inputs["rows"].sum()[None], False
        self._documents = inputs["document"].tolist()
        return {name: inputs[name] for name in inputs if name not in ("document", "rows")}

    def prediction_step(self, model, inputs, *args, **kwargs):
        inputs = self._without_names(inputs)
        loss, logits, labels = super().prediction_step(model, inputs, *args, **kwargs)
        self._loss_comes = loss is not None
        return loss, logits, labels

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if self.label_smoother is not None and shift is not None:
            # The loss is made here, of logits, and the model does not see the labels.
            inputs = inputs | {"decoder_input_ids": shift(inputs["labels"])}
        made = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not return_outputs or self.answer is None:
            return made
        loss, made = made[0], None  # its logits need no memory any more
        whole = self.accelerator.unwrap_model(model)
        return loss, {"loss": loss, **self.answer(whole, inputs, self._documents)}

    def _gathered(self, values):
        """Outputs or labels [rows, ...] of all processes, without the rows of repeated inputs."""
        if self._loss_comes:  # once for each input, and first
            self._loss_comes = False
            return self.accelerator.gather_for_metrics(values)
        counts = self.accelerator.gather(self._rows).tolist()

        def joined(rows):
            parts = zip(rows.chunk(len(counts)), counts, strict=True)
            return torch.cat([part[:count] for part, count in parts])

        padded = self.accelerator.pad_across_processes(values)
        return recursively_apply(joined, self.accelerator.gather(padded))
