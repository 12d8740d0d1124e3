"""Base of the heads: makes an encoder by the table, calls it, and has the layers of an answer."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import gelu

from ldt.attention.matmul import Linear
from ldt.model.base import LdtPreTrainedModel
from ldt.model.encoders import encoder_class, encoder_classes
from ldt.model.heads.losses import cross_entropy
from ldt.model.outputs import LdtHeadOutput
from ldt.model.packing import real_tokens

KINDS = ("words", "document", "tokens", "spans", "choice")


class Head(LdtPreTrainedModel):
    """A head and the encoder of its config's ``model_type``, held under the encoder's own name.

    Args:
        config: of any encoder in `ldt.model.encoders.ENCODERS`.
        add_pooling_layer: True where the head reads the encoder's pooler.
    """

    def __init__(self, config, add_pooling_layer=False):
        super().__init__(config)
        encoder = encoder_class(config.model_type)
        self.base_model_prefix = encoder.base_model_prefix
        self.has_global_attention = encoder.has_global_attention
        setattr(self, self.base_model_prefix, encoder(config, add_pooling_layer=add_pooling_layer))
        self._answers = encoder.answers if hasattr(encoder, "answers") else answers
        self._answer_names = ()

    def add_answer(self, kind, outputs):
        """Give the head its layers for a kind of answer, under the encoder's names.

        Args:
            kind: a name in `KINDS`.
            outputs: logits a token or row.
        """
        layers = self._answers(self.config, kind, outputs)
        self._answer_names = tuple(layers)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def answer(self, x):
        """[..., d] -> [..., outputs], through the layers of `add_answer`."""
        for name in self._answer_names:
            x = getattr(self, name)(x)
        return x

    @classmethod
    def config_classes(cls):
        """The config classes of all encoders."""
        return tuple(encoder.config_class for encoder in encoder_classes())

    @classmethod
    def of(cls, encoder):
        """This head as a class that names the config of ``encoder``, for the Auto classes."""
        if cls.config_class is encoder.config_class:
            return cls
        names = {"config_class": encoder.config_class, "__module__": cls.__module__}
        return type(cls.__name__, (cls,), names)

    def encode(self, *inputs, **kwargs):
        """(states, packing, rest) of the encoder, see `ldt.model.encoders`.

        Args:
            inputs: input_ids, attention_mask, global_attention_mask, token_type_ids.
            kwargs: `ldt.model.base.EncoderInputs`, and ``read``.
        """
        # By way of forward, so that hooks run: sharded training gathers weights in one.
        return self.base_model(*inputs, packed=True, **kwargs)

    def loss_items(self, *, labels, attention_mask=None, **inputs):
        """The number of items that the loss of a batch is a mean over.

        The sum of these numbers over all batches of an optimizer step, given to each as
        ``num_items_in_batch``, has their losses add up to the mean over all their items.

        Args:
            labels, attention_mask, inputs: the batch, as the keywords of `forward`.

        Returns:
            Scalar int64, here the labels of real tokens; [parts] int64 of a loss with parts, each
            a mean of its own.
        """
        real = real_tokens(tuple(labels.shape), attention_mask, labels.device)
        return (real & (labels != -100)).sum()

    def token_output(self, logits, packing, labels, rest, count=None, weights=None, gamma=0.0):
        """`LdtHeadOutput` of packed logits [total, classes] and padded labels [b, n].

        Args:
            count: the loss is divided by it in place of the number of labels here.
            weights, gamma: of the loss, see `cross_entropy`.
        """
        loss = None
        if labels is not None:
            labels = labels.to(logits.device).masked_fill(~packing.real(), -100)
            loss = cross_entropy(logits, packing.pack(labels), count, weights, gamma)
        return LdtHeadOutput(loss, packing.unpack(logits), **rest)


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
