"""The head of masked language modelling."""

from typing import Unpack

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import gelu
from transformers.utils import can_return_tuple

from ldt.attention.matmul import Linear
from ldt.model.base import EncoderInputs
from ldt.model.heads.base import Head
from ldt.model.heads.losses import cross_entropy
from ldt.model.outputs import LdtHeadOutput


class LMHead(nn.Module):
    """Dense, gelu, LayerNorm, and the transposed word embeddings."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    @property
    def weight(self):
        """[vocabulary, width], the decoder's."""
        return self.decoder.weight

    def forward(self, x):
        return self.decoder(self.layer_norm(gelu(self.dense(x))))


class LdtForMaskedLM(Head):
    """Masked language model; ``logits`` are [b, n, vocabulary].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForMaskedLM, besides those of `LdtModel`: logits at padding are zero, labels at
    padding do not count, and a batch without any label has the loss 0 instead of nan.
    """

    accepts_loss_kwargs = True  # the Trainer counts the labels of all batches of a step

    def __init__(self, config):
        super().__init__(config)
        self.lm_head = LMHead(config)
        words = self.get_input_embeddings().weight
        tied = next(name for name, weight in self.named_parameters() if weight is words)
        self._tied_weights_keys = {
            "lm_head.decoder.weight": tied,
            "lm_head.decoder.bias": "lm_head.bias",
        }
        self.post_init()

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, LMHead):
            init.zeros_(module.bias)

    def get_output_embeddings(self):
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings):
        self.lm_head.decoder = new_embeddings

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
        x, packing, rest = self.encode(*inputs, **kwargs)
        if not at_labels:
            logits = self.lm_head(x)
            return self.token_output(logits, packing, labels, rest, num_items_in_batch)
        labels = packing.pack(labels.to(x.device).masked_fill(~packing.real(), -100))
        places = (labels != -100).nonzero().squeeze(1)
        logits = self.lm_head(x[places])
        loss = cross_entropy(logits, labels[places], num_items_in_batch)
        return LdtHeadOutput(loss, logits, **rest)
