"""The head of masked language modelling."""

from typing import Unpack

from transformers.utils import can_return_tuple

from ldt.model.base import EncoderInputs
from ldt.model.heads.base import Head
from ldt.model.heads.losses import cross_entropy
from ldt.model.outputs import LdtHeadOutput


class LdtForMaskedLM(Head):
    """Masked language model; ``logits`` are [b, n, vocabulary].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForMaskedLM, besides those of `LdtModel`: logits at padding are zero, labels at
    padding do not count, and a batch without any label has the loss 0 instead of nan.
    """

    accepts_loss_kwargs = True  # the Trainer counts the labels of all batches of a step

    def __init__(self, config):
        super().__init__(config)
        self.add_answer("words", config.vocab_size)
        names = [name for name, _ in self.named_modules()]
        self._decoder = next(name for name in names if name.split(".")[-1] == "decoder")
        holder = self._decoder.rpartition("decoder")[0]
        words = self.get_input_embeddings().weight
        tied = next(name for name, weight in self.named_parameters() if weight is words)
        self._tied_weights_keys = {f"{self._decoder}.weight": tied}
        if holder:  # a bias that two names have
            self._tied_weights_keys[f"{self._decoder}.bias"] = f"{holder}bias"
        self.post_init()

    def get_output_embeddings(self):
        return self.get_submodule(self._decoder)

    def set_output_embeddings(self, new_embeddings):
        self.set_submodule(self._decoder, new_embeddings)

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
        at_labels=False,
        **kwargs: Unpack[EncoderInputs],
    ):
        """`LdtModel.forward` and the loss of masked tokens.

        Args:
            labels: [b, n] int64, -100 where there is none.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.
            at_labels: compute the logits only where there is a label, which costs a seventh:
                ``logits`` are [labels, vocabulary], in the order of the labels.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.
        """
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
        x, packing, others = self.encode(*inputs, **kwargs)
        if not at_labels:
            logits = self.answer(x)
            return self.token_output(logits, packing, labels, others, num_items_in_batch)
        labels = packing.pack(labels.to(x.device).masked_fill(~packing.real(), -100))
        places = (labels != -100).nonzero().squeeze(1)
        logits = self.answer(x[places])
        loss = cross_entropy(logits, labels[places], num_items_in_batch)
        return LdtHeadOutput(loss, logits, **others)
