"""The loss of an optimizer step: the mean over its items, however they are laid out in batches."""

from __future__ import annotations

from collections.abc import Sized
from itertools import islice
from typing import cast

import torch
import transformers


class WholeSteps(transformers.Trainer):
    """A Trainer of models that count what their loss is a mean over (``loss_items``).

    The items of a step are counted over its accumulated batches and all processes, and each batch's
    loss is its sum divided by that count. transformers' gives each batch the same weight, however
    few items it has, and counts none but ``labels``. Other models are trained as there.

    Several processes take equally many inputs at a time; what accelerate repeats to that end in the
    last batches of an epoch is left out.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._loss_items = getattr(self.model, "loss_items", None)
        if self._loss_items is not None:
            self.model_accepts_loss_kwargs = True

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches = list(islice(epoch_iterator, num_batches))
        if batches and self.accelerator.gradient_state.end_of_dataloader:
            batches[-1] = self._without_repeated(batches[-1])
        for batch in batches:
            del batch["rows"]
        return batches, self._get_num_items_in_batch(batches, device)

    def _without_repeated(self, batch: dict) -> dict:
        """The last batch of an epoch without inputs of its beginning. A process that has no other
        keeps one, whose ``document`` is left out."""
        alone = self.args.world_size == 1 or self._loss_items is None
        if alone or self.args.dataloader_drop_last:
            return batch
        size = len(batch["document"])  # the same in all processes
        last = len(cast(Sized, self.train_dataset)) % (size * self.args.world_size)
        if not last:
            return batch
        kept = min(max(last - size * self.args.process_index, 0), size)
        rows = int(batch["rows"][: max(kept, 1)].sum())
        cut = {name: value[:rows] for name, value in batch.items()}
        return cut | {"document": batch["document"][:kept]}

    def _get_num_items_in_batch(self, batch_samples, device):
        if not batch_samples or self._loss_items is None:
            return super()._get_num_items_in_batch(batch_samples, device)
        count = torch.stack([self._items(batch) for batch in batch_samples]).sum(0).to(device)
        if self.args.world_size > 1:
            count = self.accelerator.reduce(count)
        if self.args.n_gpu > 1:  # DataParallel gives each device a part
            count = count.expand(self.args.n_gpu, *count.shape)
        return count

    def _items(self, batch: dict) -> torch.Tensor:
        """What the loss of a batch is a mean over, nothing without a document; int64."""
        assert self._loss_items is not None  # or it is not called
        if self.label_smoother is not None and "labels" in batch:
            items = (batch["labels"] != -100).sum()  # as it counts itself
        else:
            items = self._loss_items(**batch)
        return items if len(batch.get("document", [None])) else torch.zeros_like(items)
