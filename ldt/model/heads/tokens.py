"""Head for a label for each token."""

from typing import Unpack

from transformers.utils import can_return_tuple

from ldt.model.base import EncoderInputs
from ldt.model.heads.base import Head
from ldt.model.heads.losses import class_items, class_weights


class LdtForTokenClassification(Head):
    """A label for each token; ``logits`` are [b, n, num_labels].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForTokenClassification: those that `LdtForMaskedLM` names.
    """

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.add_answer("tokens", config.num_labels)
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
        """`LdtModel.forward` and the loss of labelled tokens.

        Args:
            labels: [b, n] int64, -100 where there is none.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.
        """
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
        x, packing, others = self.encode(*inputs, **kwargs)
        logits = self.answer(x)
        weighing = class_weights(self.config, logits.device), self.config.focal_gamma
        return self.token_output(logits, packing, labels, others, num_items_in_batch, *weighing)

    def loss_items(self, *, labels, **inputs):
        """Labels, or the sum of their weights."""
        return class_items(labels, class_weights(self.config, labels.device))
