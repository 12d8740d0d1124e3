"""The layers between the states of an encoder and the logits of a head: those of Longformer's."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import gelu

from ldt.attention.matmul import Linear

KINDS = ("words", "document", "tokens", "spans", "choice")


class ClassificationHead(nn.Module):
    """Dropout, dense, tanh, dropout, projection to the labels."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.out_proj = Linear(config.hidden_size, config.num_labels)

    def forward(self, x):
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(x)))))


class LMHead(nn.Module):
    """Dense, gelu, LayerNorm, and the transposed word embeddings."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def begin(self):
        """The bias of a new head is zero."""
        init.zeros_(self.bias)

    @property
    def weight(self):
        """[vocabulary, width], the decoder's."""
        return self.decoder.weight

    def forward(self, x):
        return self.decoder(self.layer_norm(gelu(self.dense(x))))


def answers(config, kind, outputs):
    """{name of an attribute of the head: layer}, in the order in which they are called.

    Args:
        config: of the encoder.
        kind: a name in `KINDS`. ``words`` ends in a layer ``decoder`` that is tied to the word
            embeddings; ``choice`` begins with what the encoder gives for ``read="pooled"``.
        outputs: logits a token or row.
    """
    if kind == "words":
        return {"lm_head": LMHead(config)}
    if kind == "document":
        return {"classifier": ClassificationHead(config)}
    linear = Linear(config.hidden_size, outputs)
    if kind == "spans":
        return {"qa_outputs": linear}
    return {"dropout": nn.Dropout(config.hidden_dropout_prob), "classifier": linear}
