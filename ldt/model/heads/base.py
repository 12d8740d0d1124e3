"""Base of the heads: makes an encoder by the table, calls it, and has the layers of an answer.

With it stand what several heads do with the rows of a document, and with inputs without a mask of
global tokens.
"""

from functools import partial, wraps
from inspect import Parameter, signature

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init
from transformers.activations import gelu
from transformers.utils import can_return_tuple

from ldt.attention.matmul import Linear
from ldt.model.base import LdtPreTrainedModel
from ldt.model.encoders import encoder_class, encoder_classes
from ldt.model.heads.losses import cross_entropy
from ldt.model.outputs import LdtHeadOutput
from ldt.model.packing import real_tokens

KINDS = ("words", "document", "tokens", "spans", "choice")
INPUTS = ("input_ids", "attention_mask", "global_attention_mask", "token_type_ids")


def takes_inputs(forward):
    """Decorator of a head's ``forward(self, *, …, **inputs)``; see `Head`.

    The signature names the inputs that may come by position: transformers' Trainer drops what a
    signature does not name.
    """

    @can_return_tuple
    @wraps(forward)
    def named(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        **inputs,
    ):
        if global_attention_mask is None and self.has_global_attention:
            words = input_ids, inputs.get("inputs_embeds")
            global_attention_mask = self.default_globals(*words, attention_mask)
        values = input_ids, attention_mask, global_attention_mask, token_type_ids
        return forward(self, **dict(zip(INPUTS, values, strict=True)), **inputs)

    me, *others = signature(forward).parameters.values()
    inputs = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in INPUTS]
    named.__signature__ = signature(forward).replace(parameters=[me, *inputs, *others])
    return named


class Head(LdtPreTrainedModel):
    """A head and the encoder of its config's ``model_type``, held under the encoder's own name.

    Every head's ``forward`` takes the inputs of `ldt.model.LdtModel.forward`, which go to the
    encoder as they are; any other keyword is a TypeError, unlike in transformers, whose models
    take ``label=`` for ``labels=`` without a word. Of what its own docstring names, labels give a
    loss, and ``num_items_in_batch`` divides it in place of the number of labels in this batch: it
    is `loss_items` of all batches of an optimizer step. A head returns its output, or the tuple of
    what is not None in it.

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

    def default_globals(self, input_ids, inputs_embeds, attention_mask):
        """[b, n] bool, the global tokens where no mask is given; None: there are none."""
        return None

    def encode(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        **others,
    ):
        """(states, packing, rest) of the encoder for its inputs and ``read``, see
        `ldt.model.encoders`."""
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
        # By way of forward, so that hooks run: sharded training gathers weights in one.
        return self.base_model(*inputs, packed=True, **others)

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


def micro_batched(run, *args, **kwargs):
    """The results of ``run`` on each row alone, run again in the backward pass.

    Memory is that of the longest row, however many there are; training takes 4/3 of the time.

    Args:
        run: returns a tuple of tensors [rows, …], of which no row depends on another.
        args, kwargs: its arguments. Of tensors [rows, …] it gets one row at a time.

    Returns:
        The tuple of tensors for all rows.
    """
    if torch.is_grad_enabled():
        run = partial(checkpoint, run, use_reentrant=False)
    values = [*args, *kwargs.values()]
    rows = next(len(value) for value in values if isinstance(value, torch.Tensor))
    parts = []
    for row in range(rows):
        one = [x[row : row + 1] if isinstance(x, torch.Tensor) else x for x in values]
        names = zip(kwargs, one[len(args) :], strict=True)
        parts.append(run(*one[: len(args)], **dict(names)))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def same_document(example_ids):
    """True if two rows are of one example.

    Args:
        example_ids: [rows] int64, the example of each row; None: each row is one of its own.
    """
    return example_ids is not None and len(example_ids.unique()) < len(example_ids)


def rows_of_documents(example_ids):
    """[documents, rows] bool: the rows of each document, in the order of their ids.

    Args:
        example_ids: [rows] int64, the document of each row: any whole numbers.
    """
    return example_ids.unique()[:, None] == example_ids


def separators(config, input_ids, attention_mask, choices=1):
    """Real tokens and, among them, separators, both [b, n] bool, of ids [b, n].

    Raises:
        ValueError: a row with real tokens has no separator; with ``choices`` the rows are choices.
    """
    if input_ids is None or config.sep_token_id is None:
        lacking = "input_ids" if input_ids is None else "sep_token_id in the config"
        raise ValueError(
            f"without {lacking} there is no telling which tokens are global; "
            "give global_attention_mask"
        )
    real = real_tokens(tuple(input_ids.shape), attention_mask, input_ids.device)
    separator = real & (input_ids == config.sep_token_id)
    without = real.any(1) & ~separator.any(1)
    if not torch.compiler.is_compiling() and without.any():
        row, choice = divmod(int(without.nonzero()[0]), choices)
        where = f"row {row}" if choices == 1 else f"row {row}, choice {choice}"
        raise ValueError(
            f"{where}: no separator (id {config.sep_token_id}) tells which tokens are global; "
            "give global_attention_mask"
        )
    return real, separator


def before_first(config, input_ids, attention_mask):
    """[b, n] bool, the real tokens before the first separator of each row; raises as `separators`
    does."""
    real, separator = separators(config, input_ids, attention_mask)
    return real & ~after_first(separator, 0)


def after_first(separator, distance):
    """[b, n] bool: at least ``distance`` tokens after the first separator of the row."""
    position = torch.arange(separator.shape[1], device=separator.device)
    return position >= separator.int().argmax(1, keepdim=True) + distance
