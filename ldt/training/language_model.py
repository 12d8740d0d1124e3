"""The Trainer of language models, masked or causal."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ldt.data.lm_inputs import Stream
from ldt.training.trainer import Trainer


class InputNumbers:
    """Names of inputs for messages: inputs of a language model have no ids of their own."""

    def __getitem__(self, index: int) -> str:
        return f"input {index}"


class LanguageModelTrainer(Trainer):
    """The Trainer of language models: logits at labels only, exact evaluation, streams."""

    unit = "token"  # what is predicted

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if self.is_fsdp_enabled and hasattr(self.model, "lm_head"):
            # accelerate shards what this returns together with the embeddings, which share its
            # weight; the head and its decoder share a bias, which must not lie in two shards.
            self.model.get_output_embeddings = lambda: self.model.lm_head

    def compute_loss(self, model, inputs, *args, **kwargs):
        return super().compute_loss(model, inputs | {"at_labels": True}, *args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Loss in nats and number of predicted tokens of each row, in place of logits and labels.

        Their sums give the exact mean; the logits of an evaluation set would not fit into memory.
        """
        inputs = self.on_device(self._without_names(inputs))
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs, at_labels=True).logits
        labels = inputs["labels"]
        places = labels != -100
        nats = F.cross_entropy(logits.float(), labels[places], reduction="none").double()
        rows = places.nonzero()[:, 0]
        sums = nats.new_zeros(len(labels)).index_add(0, rows, nats)
        return None, sums, places.sum(1)

    def get_train_dataloader(self):
        if not isinstance(self.train_dataset, Stream):
            return super().get_train_dataloader()
        return DataLoader(  # each process reads its own part: accelerate must not split it again
            self.train_dataset,
            batch_size=self.batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs[f"bits_per_{self.unit}"] = logs["loss"] / math.log(2)
        super().log(logs, start_time)
