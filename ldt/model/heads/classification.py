"""Head for one answer a document: a class, several, or a number."""

from typing import Unpack

import torch
from torch.nn import functional as F
from transformers.utils import can_return_tuple

from ldt.model.base import EncoderInputs
from ldt.model.heads.base import Head
from ldt.model.heads.default_globals import first_real, words_of
from ldt.model.heads.losses import (
    binary_cross_entropy,
    class_items,
    class_weights,
    cross_entropy,
    exact,
    mean,
)
from ldt.model.outputs import LdtHeadOutput


class LdtForSequenceClassification(Head):
    """Labels or numbers for each row; ``logits`` are [b, num_labels].

    ``global_attention_mask=None`` means global attention on the first real token of each row, with
    ``inputs_embeds`` too. Differences from transformers' LongformerForSequenceClassification,
    besides those of `LdtModel`:

    - the answer is read from the first real token; transformers reads position 0, and under left
      padding its answer does not depend on the text;
    - with ``config.classifier_pooling`` mean or max it is read from all real tokens instead;
    - where the config has no ``problem_type``, it is guessed from the labels of each batch, and
      never stored: one label is regression; floats, or labels of the logits' shape, are
      multi_label_classification; else single_label_classification.
    """

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.add_answer("document", config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        *,
        labels=None,
        num_items_in_batch=None,
        **kwargs: Unpack[EncoderInputs],
    ):
        """`LdtModel.forward` and the loss of labelled rows.

        Args:
            labels: [b] int64, -100 where there is none; or [b, num_labels]; or [b] numbers.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.
        """
        if global_attention_mask is None and self.has_global_attention:
            words = words_of(input_ids, kwargs.get("inputs_embeds"))
            global_attention_mask = first_real(words, attention_mask)
        pooling = self.config.classifier_pooling
        x, packing, others = self.encode(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            read="first" if pooling == "cls" else "all",
            **kwargs,
        )
        logits = self.answer(x if pooling == "cls" else packing.reduce(x, pooling))
        loss = None
        if labels is not None:
            loss = self._loss(logits, labels.to(logits.device), num_items_in_batch)
        return LdtHeadOutput(loss, logits, **others)

    def loss_items(self, *, labels, **inputs):
        """Rows that have a class, or the sum of its weights; of regression and of several labels a
        row, all numbers."""
        if self._problem(labels) == "single_label_classification":
            return class_items(labels, class_weights(self.config, labels.device))
        return torch.tensor(labels.numel(), device=labels.device)

    def _loss(self, logits, labels, count):
        problem = self._problem(labels)
        weighing = class_weights(self.config, logits.device), self.config.focal_gamma
        if problem == "single_label_classification":
            return cross_entropy(logits, labels.flatten(), count, *weighing)
        logits = exact(logits)
        labels = labels.to(logits.dtype)
        if problem == "regression":
            total = F.mse_loss(logits.flatten(), labels.flatten(), reduction="sum")
        else:
            total = binary_cross_entropy(logits, labels, *weighing)
        return mean(total, self.loss_items(labels=labels), count)

    def _problem(self, labels):
        if self.config.problem_type:
            return self.config.problem_type
        if self.num_labels == 1:
            return "regression"
        if labels.is_floating_point() or labels.shape == (len(labels), self.num_labels):
            return "multi_label_classification"
        return "single_label_classification"
