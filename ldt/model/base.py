"""Base classes of the encoders and heads: strict loading, packing of a padded batch, one
signature."""

from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from itertools import pairwise

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import gelu
from transformers.utils import ModelOutput, can_return_tuple

from ldt.attention import BACKENDS, Layout
from ldt.attention.matmul import Linear
from ldt.attention.ops import count_globals
from ldt.model.config import LdtConfig
from ldt.model.encoders import encoder_class, encoder_classes
from ldt.model.heads.losses import cross_entropy

KINDS = ("words", "document", "tokens", "spans", "choice")
INPUTS = ("input_ids", "attention_mask", "global_attention_mask", "token_type_ids")


def takes_inputs(*names: str):
    """Decorator of a ``forward(self, *, …, **inputs)``: it takes the inputs of these names by
    position too, in this order, and ``return_dict=False``, which gives a tuple. The signature
    then names them: transformers' Trainer drops what it does not name."""
    shared = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in names]

    def decorator(forward):
        me, *others = signature(forward).parameters.values()

        @can_return_tuple
        @wraps(forward)
        def named(self, *args, **inputs):
            if len(args) > len(names):
                raise TypeError(f"forward takes {', '.join(names)} by position, got {len(args)}")
            return forward(self, **dict(zip(names, args, strict=False)), **inputs)

        named.__signature__ = signature(forward).replace(parameters=[me, *shared, *others])
        return named

    return decorator


class LdtPreTrainedModel(PreTrainedModel):
    """Base of all encoders and heads of ldt, which share strict loading.

    `from_pretrained` is strict, unlike in transformers: encoder weights that are missing, have
    another shape or have no place raise `ModelError`; a head that the file lacks is announced.
    Parameters are named as in transformers' Longformer.
    """

    config: LdtConfig
    base_model_prefix = "longformer"
    supports_gradient_checkpointing = True
    # transformers' Trainer counts labels, which are not the items of every loss; ldt's Trainer asks
    # the head (`Head.loss_items`).
    accepts_loss_kwargs = False

    # True where the loss of a batch compares its rows, so that it is no sum of those of smaller
    # batches; forward then takes ``groups``, the rows that are run at a time.
    whole_batch_loss = False

    position_table = None  # the weight [rows, d] of an encoder that learns positions

    # Names of the tensors that loading had to make anew, such as those of a new head.
    new_weights: tuple[str, ...] = ()

    def __init__(self, config, *args, **kwargs):
        if not isinstance(config, self.config_classes()):
            name = self.config_class.__name__
            raise TypeError(
                f"{type(self).__name__} needs an {name}, got {type(config).__name__}; "
                f"{name}.from_dict(config.to_dict()) makes one"
            )
        config.check()
        super().__init__(config, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention, is_init_check=False):
        """Return ``eager`` for None, ``eager`` and ``sdpa``, which all mean the backend that
        ``config.attention_backend`` names; ValueError for another name."""
        if requested_attention not in (None, "eager", "sdpa"):
            raise ValueError(
                "attn_implementation must be eager or sdpa, which both leave the choice to "
                f"attention_backend (auto, {', '.join(BACKENDS)}), got {requested_attention!r}"
            )
        return "eager"

    @classmethod
    def config_classes(cls):
        """Config classes, a tuple, of one of which the config given to ``__init__`` must be."""
        return (cls.config_class,)

    @staticmethod
    def fit_weights(weights, config):
        """Rename and reshape a file's ``weights``, {name without the base model's prefix: tensor},
        for a model of ``config``, and return them; here unchanged. May change both arguments in
        place."""
        return weights

    def global_projections(self):
        """Iterable of (linear layer for local tokens, the same for global ones); here none."""
        return []

    def _init_weights(self, module):
        """Draw the weights of a module, as transformers does; it may have ``drawn``, deviation and
        largest number of its weight, or a ``begin`` of its own."""
        super()._init_weights(module)
        if hasattr(module, "drawn"):
            deviation, most = module.drawn
            init.trunc_normal_(module.weight, std=deviation, a=-most, b=most)
        if hasattr(module, "begin"):
            module.begin()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Load a model as transformers does, but strictly: encoder weights that are missing,
        misshapen or without a place are errors. Warns of other weights, drawn at random, in the
        log.

        Raises:
            ModelError: the folder or its weights cannot be used, and why.
        """
        from ldt.model.loading import from_pretrained

        return from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs)


@dataclass
class LdtModelOutput(ModelOutput):
    """Output of the base model; n is the padded length, d the width.

    Args:
        last_hidden_state: [b, n, d], zeros at padding.
        pooler_output: [b, d], from the first real token of each row; None without a pooler.
        hidden_states: embeddings and each layer's output, layers + 1 of [b, n, d], zeros at
            padding.
        attentions: one of [b, heads, n, x + window + 1] a layer, x being the largest number of
            global tokens in a row: what a token gives to the global tokens in order of position,
            then to the offsets -window/2 to window/2. Global keys stand in front only; rows of
            global tokens and of padding are zero. Before dropout.
        global_attentions: one of [b, heads, n, x] a layer: what the x-th global token gives to
            each token. None without global tokens. Other than in transformers, the length is n
            without rounding, and the columns that a row does not use are zero. Before dropout.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    global_attentions: tuple[torch.Tensor, ...] | None = None


class PackedEncoder(LdtPreTrainedModel):
    """Base class of the encoders, which pack a padded batch, run the layers, and unpack
    the output."""

    has_attentions = False  # True where probabilities can be asked for

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        *,
        output_attentions=None,
        output_hidden_states=None,
        packing=None,
        packed=False,
        read="all",
    ):
        """Encode a padded batch.

        Args:
            input_ids: [b, n] int64; or ``inputs_embeds`` [b, n, d] in their place.
            attention_mask: [b, n], 0 at padding, 1 at real tokens, 2 at real tokens with global
                attention. None: all tokens are real.
            global_attention_mask: [b, n], 1 at tokens with global attention. None: none; of an LED
                the first real token of each row, unless there is a 2 in ``attention_mask``.
            token_type_ids: [b, n] int64. None: zeros. Only a Longformer has types.
            position_ids: [b, n] or [1, n] int64. None: counted from the first real token of a row
                on; of a Longformer as `LdtModel.position_ids_of` does.
            output_attentions, output_hidden_states, return_dict: None: as the config says.
            packing: the `Packing` of these masks, made before by `pack`; the masks are then not
                looked at, and on CUDA the host never waits (as a CUDA graph demands).
            packed: for heads: return (states, packing, dict of the other fields of the output).
            read: states of that triple. ``all`` gives packed tokens [total, d]; ``first`` and
                ``pooled`` give [b, d], the first real token of each row and what the pooler, or
                ``config.classifier_pooling``, makes of the row, and leave out what only others
                need.

        Returns:
            `LdtModelOutput`, or the tuple of what is not None in it.

        Raises:
            ValueError: an input that is empty, too long, or of the wrong shape or value.
        """
        self.refuse_attentions(output_attentions)
        words = given_words(input_ids, inputs_embeds)
        if packing is None:
            if input_ids is not None and attention_mask is None:
                self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
            if global_attention_mask is None:
                global_attention_mask = self._default_globals(words, attention_mask)
            masks = attention_mask, global_attention_mask
            packing = pack(tuple(words.shape[:2]), *masks, words.device)
        asked = [
            getattr(self.config, name) if value is None else value
            for name, value in (
                ("output_attentions", output_attentions),
                ("output_hidden_states", output_hidden_states),
            )
        ]
        ids = input_ids, token_type_ids, position_ids
        x, packing, others = self._encode(words, packing, ids, read, *asked)
        if packed:
            return x, packing, others
        x, pooled = self._pooled(x, packing)
        return LdtModelOutput(packing.unpack(x), pooled, **others)

    def refuse_attentions(self, asked: bool | None):
        """Raise a ValueError if attentions are ``asked`` for (None: as the config says) and this
        encoder does not compute them."""
        asked = self.config.output_attentions if asked is None else asked
        if asked and not self.has_attentions:
            raise ValueError(
                f"{type(self).__name__} has no output_attentions: probabilities are never stored"
            )

    def _default_globals(self, words, attention_mask):
        """Mask [b, n] of the global tokens if the caller gives none; None: there are none."""
        return None

    def _encode(self, words, packing, ids, read, output_attentions, output_hidden_states):
        """(states, packing, dict of the other fields); ``ids`` are input, type and position ids or
        None."""
        raise NotImplementedError

    def _pooled(self, x, packing):
        """States [total, d], and the pooler's output [b, d] of those with one."""
        return x, None


@dataclass
class LdtHeadOutput(ModelOutput):
    """Output of a head. Parts that it lacks are None; at padding, and where a row has fewer, logits
    are the dtype's least number. The last three are the encoder's.

    Args:
        loss: scalar, None without labels.
        start_logits, end_logits: [b, n], of the tokens.
        logits: the shape is in the head's docstring; of questions [b, num_labels], of the classes.
        passage_logits, sentence_logits: [b, k], at the markers.
        vectors: [b, c, dim] of embeddings, zeros where a row has fewer than c.
    """

    loss: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    passage_logits: torch.Tensor | None = None
    sentence_logits: torch.Tensor | None = None
    vectors: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    global_attentions: tuple[torch.Tensor, ...] | None = None


class Head(LdtPreTrainedModel):
    """Base class of a head: holds the encoder of its config's ``model_type`` under the encoder's
    own name.

    Every head's ``forward`` takes the inputs of `ldt.model.LdtModel.forward` and passes them to the
    encoder; any other keyword is a TypeError, unlike in transformers, whose models ignore
    ``label=`` for ``labels=``. The labels that its own docstring names give a loss, the mean over
    the labels of this batch, or the sum divided by ``num_items_in_batch``: the `loss_items` of all
    batches of an optimizer step. A head returns its output, or the tuple of what is not None in it.

    Args:
        config: config of any encoder in `ldt.model.encoders.ENCODERS`.
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

    def add_answer(self, kind: str, outputs: int):
        """Add the output layers for a kind of answer, a name in `KINDS`, with ``outputs`` logits
        for each token or row: as attributes, see `answers`."""
        layers = self._answers(self.config, kind, outputs)
        self._answer_names = tuple(layers)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def answer(self, x: torch.Tensor):
        """Apply the layers of `add_answer`: [..., d] -> [..., outputs]."""
        for name in self._answer_names:
            x = getattr(self, name)(x)
        return x

    @classmethod
    def config_classes(cls):
        """Config classes of all encoders of `ldt.model.encoders.ENCODERS`, a tuple."""
        return tuple(encoder.config_class for encoder in encoder_classes())

    @classmethod
    def of(cls, encoder):
        """Subclass of this head with the ``config_class`` of an encoder class, for the Auto
        classes."""
        if cls.config_class is encoder.config_class:
            return cls
        names = {"config_class": encoder.config_class, "__module__": cls.__module__}
        return type(cls.__name__, (cls,), names)

    def _default_globals(self, input_ids, inputs_embeds, attention_mask):
        """Mask [b, n] bool of the global tokens if the caller gives none, see the class; None:
        none."""
        return None

    def encode(self, **inputs):
        """Run the encoder on the inputs of `PackedEncoder.forward`; without a mask of global tokens
        on the head's own: (states, `Packing`, dict of the output's other fields). States are
        [total, d] of packed tokens, or [b, d] if ``read`` is ``first`` or ``pooled``."""
        first = {name: inputs.pop(name, None) for name in INPUTS}
        if first["global_attention_mask"] is None and self.has_global_attention:
            words = first["input_ids"], inputs.get("inputs_embeds")
            globals_ = self._default_globals(*words, first["attention_mask"])
            first["global_attention_mask"] = globals_
        # By way of forward, so that hooks run: sharded training gathers weights in one.
        return self.base_model(*first.values(), packed=True, **inputs)

    def loss_items(self, *, labels, attention_mask=None, **inputs):
        """Number of items that the loss of a batch is a mean over, scalar int64: here of labels
        other than -100 at real tokens. A loss with parts gives [parts], each a mean of its own.

        If the sum of these numbers over all batches of an optimizer step is given to each batch as
        ``num_items_in_batch``, the losses add up to the mean over all items.

        Args:
            labels, attention_mask, inputs: the batch, as the keywords of `forward`.
        """
        real = real_tokens(tuple(labels.shape), attention_mask, labels.device)
        return (real & (labels != -100)).sum()

    def token_output(self, logits, packing, labels, rest, count=None, weights=None, gamma=0.0):
        """Make the `LdtHeadOutput` with padded logits [b, n, classes], and their cross entropy as
        loss.

        Args:
            logits: [total, classes], of packed tokens.
            packing: `Packing` of the batch.
            labels: [b, n] int64, -100 where there is none; None: no loss.
            rest: dict of the output's other fields.
            count: divisor of the loss in place of the number of labels here.
            weights, gamma: of the loss, see `cross_entropy`.
        """
        loss = None
        if labels is not None:
            labels = labels.to(logits.device).masked_fill(~packing.real(), -100)
            loss = cross_entropy(logits, packing.pack(labels), count, weights, gamma)
        return LdtHeadOutput(loss, logits=packing.unpack(logits), **rest)


class ClassificationHead(nn.Module):
    """Dropout, dense, tanh, dropout, projection to the labels."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.out_proj = Linear(config.hidden_size, config.num_labels)

    def forward(self, x: torch.Tensor):
        """Compute logits by dense, tanh and projection: [..., width] -> [..., num_labels]."""
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
        """Set the bias of a new head to zero."""
        init.zeros_(self.bias)

    @property
    def weight(self):
        """Weight of the decoder, [vocabulary, width]."""
        return self.decoder.weight

    def forward(self, x: torch.Tensor):
        """Compute logits of the vocabulary for each token: [..., width] -> [..., vocabulary]."""
        return self.decoder(self.layer_norm(gelu(self.dense(x))))


def answers(config, kind: str, outputs: int):
    """Make the output layers of a kind of answer: {attribute name: layer}, in the order of their
    calls.

    Args:
        kind: a name in `KINDS`. ``words``, a logit for each in the vocabulary, ends in a layer
            ``decoder`` that is tied to the word embeddings; ``document`` has ``config.num_labels``
            logits; ``choice`` begins with what the encoder gives for ``read="pooled"``.
        outputs: logits a token or row, of ``tokens``, ``spans`` and ``choice``.
    """
    if kind == "words":
        return {"lm_head": LMHead(config)}
    if kind == "document":
        return {"classifier": ClassificationHead(config)}
    linear = Linear(config.hidden_size, outputs)
    if kind == "spans":
        return {"qa_outputs": linear}
    return {"dropout": nn.Dropout(config.hidden_dropout_prob), "classifier": linear}


@dataclass(frozen=True, eq=False)
class Packing:
    """Mapping between padded positions [b, n] and packed tokens [total].

    The document of a row spans from its first to its last real token; padding inside is masked. A
    row without any real token is a document of one masked token. Where no row begins or ends with
    padding, packing is a reshape.

    Args:
        layout: layout of the packed tokens.
        shape: (b, n) of the padded batch.
        index: [total] int64, the position of each packed token in the flattened batch; None when
            that is every position.
        first_is_global: True if the first real token of every row is known to be global.
    """

    layout: Layout
    shape: tuple[int, int]
    index: torch.Tensor | None = None
    first_is_global: bool = False

    def to(self, device: torch.device):
        """The packing with its tensors on a device; itself if they are there."""
        if device == self.layout.cu_seqlens.device:
            return self
        index = self.index if self.index is None else self.index.to(device)
        return replace(self, layout=self.layout.to(device), index=index)

    def pack(self, x: torch.Tensor, out=None):
        """Pack padded rows: [b, n, ...] -> [total, ...], written to ``out`` if given."""
        return _packed(x, self.index, out)

    def unpack(self, x: torch.Tensor, fill=0):
        """Unpack to padded rows: [total, ...] -> [b, n, ...], ``fill`` at all padding."""
        if self.layout.key_padding_mask is not None:
            padding = ~self.layout.key_padding_mask
            x = x.masked_fill(padding.view(-1, *[1] * (x.dim() - 1)), fill)
        if self.index is not None:
            room = x.new_full((self.shape[0] * self.shape[1], *x.shape[1:]), fill)
            x = room.index_copy(0, self.index, x)
        return x.unflatten(0, self.shape)

    def unpack_each(self, states):
        """Unpack each of several [total, d], which may lie on different devices: a tuple of [b, n,
        d]."""
        return tuple(self.to(x.device).unpack(x) for x in states)

    def real(self):
        """True at real tokens, [b, n] bool."""
        keep = self.layout.key_padding_mask
        if keep is None:
            keep = self.layout.cu_seqlens.new_ones(self.layout.total_tokens, dtype=torch.bool)
        return self.unpack(keep)

    def first(self, x: torch.Tensor):
        """Select the first real token of each row: [total, ...] -> [b, ...]."""
        return x.index_select(0, self.first_index())

    def first_index(self):
        """Packed index of the first real token of each row, [b] int64."""
        begin = self.layout.cu_seqlens[:-1]
        if self.index is not None or self.layout.key_padding_mask is None:
            return begin
        return begin + self.layout.key_padding_mask.unflatten(0, self.shape).int().argmax(1)

    def last_index(self):
        """Packed index of the last real token of each row, [b] int64."""
        end = self.layout.cu_seqlens[1:] - 1
        if self.index is not None or self.layout.key_padding_mask is None:
            return end
        return end - self.layout.key_padding_mask.unflatten(0, self.shape).flip(1).int().argmax(1)

    def reduce(self, x: torch.Tensor, reduction: str):
        """Pool the real tokens of each row by ``mean`` or ``max``: [total, d] -> [b, d]; zeros
        without any."""
        keep, rows = self.layout.key_padding_mask, self.layout.cu_seqlens.diff()
        dtype, count = x.dtype, rows
        x = x.to(torch.promote_types(dtype, torch.float32))  # long sums
        if keep is not None:
            x = x.masked_fill(~keep[:, None], 0 if reduction == "mean" else float("-inf"))
            count = torch.segment_reduce(keep.float(), "sum", lengths=rows, unsafe=True)
        if reduction == "mean":
            total = torch.segment_reduce(x, "sum", lengths=rows, unsafe=True)
            return (total / count.clamp(min=1)[:, None]).to(dtype)
        largest = torch.segment_reduce(x, reduction, lengths=rows, unsafe=True)
        return largest.masked_fill((count == 0)[:, None], 0).to(dtype)

    def unpack_global_probabilities(self, probs):
        """Unpack probabilities of global tokens: [globals, heads, longest document] -> [b, heads,
        n, x], x being the largest number of global tokens in a row; zeros at padding and in
        unused columns."""
        (b, n), layout = self.shape, self.layout
        x = max(after - before for before, after in pairwise(layout.cu_globals_host))
        out = probs.new_zeros(b, probs.shape[1], n, x)
        for row, (begin, end, globals_) in enumerate(layout.documents):
            start = 0 if self.index is None else int(self.index[begin]) - row * n
            mine = probs[globals_, :, : end - begin].permute(1, 2, 0)
            out[row, :, start : start + end - begin, : mine.shape[2]] = mine
        return out


def real_tokens(shape, attention_mask: torch.Tensor | None, device: torch.device):
    """Mask [b, n] bool of ``shape`` (b, n): True where an attention mask is not 0, everywhere if it
    is None. ValueError for a mask of another shape or, on the CPU, other values than 0, 1 and 2."""
    if attention_mask is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    return _checked("attention_mask", attention_mask, shape) != 0


def first_real(words: torch.Tensor, attention_mask: torch.Tensor | None):
    """True at the first real token of each row of ``words`` [b, n, …], or its first place if none
    is real: [b, n] bool."""
    real = real_tokens(tuple(words.shape[:2]), attention_mask, words.device)
    return torch.zeros_like(real).scatter(1, real.int().argmax(1, keepdim=True), True)


def check_positions(positions: torch.Tensor, length: int):
    """Raise a ValueError if a position [...] is ``length`` or more; negative ones stand for none.
    Looked for on the CPU only: a GPU would wait."""
    looked_at = positions.device.type == "cpu" and not torch.compiler.is_compiling()
    if looked_at and (positions >= length).any():
        last = int(positions.max())
        raise ValueError(f"positions must be below the input's length {length}, got {last}")


def at_positions(x: torch.Tensor, positions: torch.Tensor):
    """Select [b, k, d] from x [b, n, d] at positions [b, k]; the first token for a negative one."""
    return x.gather(1, positions.clamp(min=0).unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def pack(shape, attention_mask=None, global_attention_mask=None, device=None):
    """Make the `Packing` of a batch of ``shape`` (b, n) from its masks.

    Reads from the device once, how many tokens there are of each kind; not at all without masks. In
    a graph of torch.compile all padding stays in, masked: its lengths cannot be known there.

    Args:
        attention_mask: [b, n] bool, int or float: 0 at padding, 1 at real tokens, 2 at real tokens
            with global attention (the authors' way to say it). None: all tokens are real.
        global_attention_mask: [b, n]: 1 or 2 at tokens with global attention, else 0. None: none.
            At padding it is ignored, whatever a tokenizer puts there.
        device: of the packing if there is no ``attention_mask``.

    Raises:
        ValueError: a mask of another shape, or (looked at on the CPU only) with another value.
    """
    b, n = shape
    device = device if attention_mask is None else attention_mask.device
    cu_seqlens = torch.arange(0, b * n + 1, n, device=device)
    if attention_mask is None and global_attention_mask is None:
        return Packing(Layout(cu_seqlens, total=b * n, num_global=0), shape)
    keep = real_tokens(shape, attention_mask, device)
    is_global = _global_tokens(attention_mask, global_attention_mask, keep)
    if torch.compiler.is_compiling():
        # The number of tokens must not depend on the masks, so nothing is cut off.
        keep = None if attention_mask is None else keep.flatten()
        is_global = is_global.flatten()
        num_global = count_globals(is_global)
        return Packing(Layout(cu_seqlens, keep, is_global, b * n, num_global), shape)

    # A row is cut to the span from its first to its last real token. One without any keeps its
    # first position, since every document has a token.
    first = keep.view(torch.uint8).argmax(1, keepdim=True)
    last = (keep * torch.arange(n, device=keep.device)).amax(1, keepdim=True)
    counts = (mask.sum(1, keepdim=True) for mask in (keep, is_global))
    # All numbers together, so that the host waits for the device once.
    rows = torch.cat([first, last, *counts, is_global.gather(1, first)], 1).tolist()
    begin, end, real, num_global, leading = map(sum, zip(*rows, strict=True))
    total, index = end - begin + b, None
    if total < b * n:
        first, last = first.squeeze(1), last.squeeze(1)
        begin = cu_seqlens[:-1] + first  # of each document, in the flattened batch
        lengths = last - first + 1
        torch.cumsum(lengths, 0, out=cu_seqlens[1:])
        skipped = (begin - cu_seqlens[:-1]).repeat_interleave(lengths, output_size=total)
        index = torch.arange(total, device=keep.device) + skipped
    keep = _packed(keep, index) if real < total else None
    is_global = _packed(is_global, index) if num_global else None
    layout = Layout(cu_seqlens, keep, is_global, total, num_global)
    return Packing(layout, shape, index, first_is_global=leading == b)


def _packed(x, index, out=None):
    x = x.flatten(0, 1)
    if index is not None:
        return torch.index_select(x, 0, index, out=out)
    return x if out is None else out.copy_(x)


def _global_tokens(attention_mask, global_attention_mask, keep):
    """[b, n] bool, True at real tokens with global attention; arguments as of `pack`."""
    twos = attention_mask is not None and attention_mask.dtype != torch.bool
    if global_attention_mask is None:
        return attention_mask == 2 if twos else torch.zeros_like(keep)
    marked = _checked("global_attention_mask", global_attention_mask, keep.shape, keep) != 0
    return (marked | (attention_mask == 2) if twos else marked) & keep


def given_words(input_ids, inputs_embeds):
    """``input_ids`` [b, n] or ``inputs_embeds`` [b, n, d], whichever is not None; ValueError for
    both or neither, or one that is empty or of another shape."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give either input_ids or inputs_embeds, and not both")
    words = input_ids if inputs_embeds is None else inputs_embeds
    if words.dim() != (2 if inputs_embeds is None else 3) or 0 in words.shape[:2]:
        raise ValueError(
            "the input must be [batch, length] ids or [batch, length, width] embeddings, with "
            f"at least one token, got {[*words.shape]}"
        )
    return words


def check_length(shape, longest, count, what):
    """Raise a ValueError if a batch of ``shape`` (b, n) is longer than a model reads.

    Args:
        longest: largest number of tokens of an input.
        count: function that gives the tokens of the longest row; called if n, with padding, is
            larger.
        what: name of the config's limit for the message.
    """
    if shape[1] > longest and (length := int(count())) > longest:
        raise ValueError(
            f"input has {length} tokens, the {what} holds {longest}; "
            f"ldt convert SOURCE --max-length {length} makes a longer one"
        )


def check_ids(name: str, ids: torch.Tensor, rows: int, shape: tuple[int, int]):
    """Raise a ValueError for ids that are not integers [b, n] or [1, n], ``shape`` being (b, n), or
    (looked at on the CPU only) not from 0 to ``rows`` - 1; ``name`` is for the message."""
    if ids.shape not in (shape, (1, shape[1])) or ids.is_floating_point():
        raise ValueError(f"{name} must be {list(shape)} integers, got {[*ids.shape]}")
    if ids.device.type == "cpu":
        low, high = (int(value) for value in ids.aminmax())
        if low < 0 or high >= rows:
            raise ValueError(f"{name} must be 0 to {rows - 1}, got {low if low < 0 else high}")


def _checked(name, mask, shape, where=None):
    if mask.shape != torch.Size(shape):
        raise ValueError(f"{name} must have the input's shape {list(shape)}, got {[*mask.shape]}")
    looked_at = mask.device.type == "cpu" and not torch.compiler.is_compiling()
    looked_at = looked_at and mask.dtype != torch.bool
    if looked_at and (mask.is_floating_point() or mask.amin() < 0 or mask.amax() > 2):
        wrong = (mask != 0) & (mask != 1) & (mask != 2)
        wrong = wrong if where is None else wrong & where
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            value = mask[row, column].item()
            raise ValueError(f"{name} must hold 0, 1 or 2, got {value} in row {row}")
    return mask
