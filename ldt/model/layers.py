"""LdtModel, the encoder of Longformer and Poolingformer on packed tokens, and its layers."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN, GELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer

from ldt.attention import (
    Layout,
    band_probabilities,
    choose,
    fill_global_rows,
    global_attention,
    global_probabilities,
    parallel,
    sliding_window_attention,
)
from ldt.attention.derivatives import transformed
from ldt.attention.matmul import Linear, divisible, foldable, project_each
from ldt.attention.ops import shared
from ldt.model.base import PackedEncoder, check_ids, check_length
from ldt.model.config import LdtConfig, layer_dilations, layer_windows, usable_length
from ldt.model.gates import products_dtype
from ldt.model.graphs import Graphs
from ldt.model.pooling import SecondLevel
from ldt.model.recompute import cast_once, layer_norm, recomputed, recomputing

UNUSED_PASSES = "unused_passes"  # attribute of a parameter: backward passes that gave it zeros
GRAPHS = 16  # at most, of layers of one pattern
CHUNK = 1024  # tokens of a part of `in_chunks`; from 256 on each takes the same time


class _Attach(torch.autograd.Function):
    """Identity on x that puts parameters into its graph with zero gradients, and counts
    the passes."""

    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.shapes = [(p.shape, {"dtype": p.dtype, "device": p.device}) for p in parameters]
        ctx.parameters = () if torch.compiler.is_compiling() else parameters
        return x.detach()  # not a view, which a hook could not change in place

    @staticmethod
    def backward(ctx, grad):
        for parameter in ctx.parameters:
            setattr(parameter, UNUSED_PASSES, getattr(parameter, UNUSED_PASSES, 0) + 1)
        needed = ctx.needs_input_grad[1:]
        zeros = [
            torch.zeros(shape, **kind) if need else None
            for need, (shape, kind) in zip(needed, ctx.shapes, strict=True)
        ]
        return grad, *zeros


def _attach_unused_parameters(x, *parameters):
    """``x`` unchanged; the parameters get zero gradients instead of none."""
    if not parameters or not torch.is_grad_enabled() or transformed():
        return x
    return _Attach.apply(x, *parameters)


def _unused_parameters(*modules):
    """Parameters of modules that a batch does not use, for distributed training, which waits for
    every gradient; else none, since an optimizer decays parameters with a gradient of zero."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    return [p for module in modules for p in module.parameters()]


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, normalised."""

    def __init__(self, config):
        super().__init__()
        width, pad = config.hidden_size, config.pad_token_id
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=pad)
        self.position_embeddings = nn.Embedding(
            config.max_position_embeddings, width, padding_idx=pad
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: torch.Tensor, position_ids, token_type_ids):
        """Embed packed words (ids [total] or embeddings [total, width]) at positions [total] with
        token types [total], and normalise: [total, width]."""
        if not words.is_floating_point():
            words = self.word_embeddings(words)
        types = self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(words + self.position_embeddings(position_ids) + types))


def attention_options(module, x: torch.Tensor, dropout, backend):
    """Keyword arguments of attention functions: ``dropout``, 0 unless the module is in training;
    ``seed`` of torch's generator, whose state gradient checkpointing restores; ``backend``."""
    dropout = dropout if module.training else 0.0
    seed = torch.randint(2**31, (), device=x.device) if dropout else 0
    return {"dropout": dropout, "seed": seed, "backend": backend}


class SelfAttention(nn.Module):
    """Sliding-window attention with global tokens, which have their own projections; in pooling
    layers with a `SecondLevel`."""

    uncalled = True  # see `ldt.model.gates`

    def __init__(self, config, index):
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.pattern = {
            "window": layer_windows(config)[index],
            "dilation": layer_dilations(config)[index],
            "causal": config.causal,
        }
        self.backend = config.attention_backend
        self.dropout = config.attention_probs_dropout_prob
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.query_global = Linear(width, width)
        self.key_global = Linear(width, width)
        self.value_global = Linear(width, width)
        self.pooled = SecondLevel(config) if index in config.pooling_layers else None

    def forward(self, x: torch.Tensor, layout: Layout, output_attentions=False):
        """Attend, by windows and global tokens, from packed tokens x [total, width]: (output of
        that shape, before its projection; probabilities of windows, those of global tokens, both
        of the first level and None unless ``output_attentions``)."""
        out = self._levels(x, layout)
        return out, *(self._probabilities(x, layout) if output_attentions else (None, None))

    def attach_global(self, x: torch.Tensor, layout: Layout):
        """Return ``x``; if no token is global, with zero gradients for the global projections while
        training is distributed, which waits for all."""
        if layout.is_global is not None:
            return x
        return _attach_unused_parameters(x, *_unused_parameters(*self._global()))

    def _levels(self, x, layout):
        options = self._options(x)
        cast = cast_once(x, *self._local(), *self._global())
        # A generator: nothing here holds the projections, whose memory the second level needs.
        heads = map(self._split, project_each(self._local(), cast))
        out = sliding_window_attention(*heads, layout, **self.pattern, **options)
        unused = _unused_parameters(*self._global())
        if layout.is_global is not None and not self.pattern["causal"]:
            query, key, value = map(foldable, self._global())
            out = fill_global_rows(out, cast(), query, key, value, layout, **options)
            unused = _left_out(key)
        if self.pooled is not None:
            # Not the modules themselves: accelerate's hooks move what they are given.
            local = [project.__call__ for project in self._local()]
            out = self.pooled(out, x, layout, local, **self._options(x))
        return _attach_unused_parameters(out.flatten(1), *unused)

    def _probabilities(self, x, layout):
        q, k = (self._split(project(x)) for project in (self.query, self.key))
        local = band_probabilities(q, k, layout, **self.pattern)
        if layout.is_global is None:
            return local, None
        q = self._split(self.query_global(x.index_select(0, layout.global_index)))
        return local, global_probabilities(q, x, self.key_global, layout)

    def global_attention(self, x: torch.Tensor, layout: Layout):
        """Attend from the global tokens alone: x [total, width] -> their rows of the output of
        `forward`, [globals, width]."""
        query, key, value = self._global()
        q = self._split(query(x.index_select(0, layout.global_index)))
        key, value = foldable(key), foldable(value)
        rows = global_attention(q, x, key, value, layout, **self._options(x))
        unused = _unused_parameters(*self._local(), *filter(None, [self.pooled]))
        return _attach_unused_parameters(rows.flatten(1), *_left_out(key), *unused)

    def _options(self, x):
        return attention_options(self, x, self.dropout, self.backend)

    def _local(self):
        return self.query, self.key, self.value

    def _global(self):
        return self.query_global, self.key_global, self.value_global

    def _split(self, x):
        return x.unflatten(1, (self.heads, -1))


def _left_out(key):
    """Bias of a key projection, which folding leaves out: the same in all scores of a row."""
    return [] if callable(key) else [key[1]]


class Residual(nn.Module):
    """Projection, dropout, residual sum, normalisation."""

    uncalled = True

    def __init__(self, config, width_in):
        super().__init__()
        self.dense = Linear(width_in, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: torch.Tensor, residual: torch.Tensor):
        """Project x [n, width_in] and add it to ``residual`` [n, width]: [n, width], normalised."""
        return layer_norm(self.LayerNorm, self.dropout(self.dense(x)) + residual)


class Attention(nn.Module):
    """Self-attention with its residual."""

    uncalled = True

    def __init__(self, config, index):
        super().__init__()
        self.self = SelfAttention(config, index)
        self.output = Residual(config, config.hidden_size)

    def forward(self, x: torch.Tensor, layout: Layout, output_attentions=False, globals_only=False):
        """Attend from packed tokens x [total, width], and add the residual: (output [total, width],
        or [globals, width] with ``globals_only``; two probabilities or None, see
        `SelfAttention.forward`)."""
        if globals_only:
            out = self.self.global_attention(x, layout)
            return self.output(out, x.index_select(0, layout.global_index)), None, None
        out, *probs = self.self(x, layout, output_attentions)
        return self.output(out, x), *probs


class Intermediate(nn.Module):
    """First half of the feed-forward network."""

    uncalled = True

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.known = type(self.activation)  # gives the same numbers each time; others may not

    def forward(self, x: torch.Tensor, in_place=False):
        """Apply dense and activation: [total, width] -> [total, intermediate width]. ``in_place``
        True overwrites what only a backward pass would need."""
        wide = self.dense(cast_once(x, self.dense)())
        if in_place and type(self.activation) is GELUActivation and self.activation.act is F.gelu:
            return torch.ops.aten.gelu_(wide)
        return activated(self.activation, wide, self.known)


def activated(activation: nn.Module, wide: torch.Tensor, known: type):
    """Return ``activation(wide)``, which the backward pass recomputes within `recomputing`.

    Args:
        known: class of activations that are deterministic; others are not recomputed.
    """
    out = activation(wide)
    if type(activation) is not known:
        return out
    return recomputed(out, activation.forward, wide, of=activation)


class LdtLayer(GradientCheckpointingLayer):
    """Attention and feed-forward network."""

    uncalled = True

    def __init__(self, config, index):
        super().__init__()
        self.backend = config.attention_backend
        self.attention = Attention(config, index)
        self.intermediate = Intermediate(config)
        self.output = Residual(config, config.intermediate_size)
        self.is_last = index + 1 == config.num_hidden_layers

    def forward(self, x: torch.Tensor, layout: Layout, output_attentions=False, globals_only=False):
        """Run the layer on packed tokens x [total, width]: (output [total, width], or [globals,
        width], the rows of global tokens, with ``globals_only``; two probabilities or None, see
        `SelfAttention.forward`)."""
        products = None
        if x.is_cuda or self.backend == "triton":
            products = products_dtype(self.backend, x)
        if products is not None:
            out = _fused().layer(self, x, layout, products, output_attentions, globals_only)
            if out is not None:
                return out
        if not globals_only and divisible(self, x):
            out, *probs = self.attention.self(x, layout, output_attentions)
            return parallel.by_rows(self._after_attention, out, x), *probs
        x, *probs = self.attention(x, layout, output_attentions, globals_only)
        return in_chunks(self._feed_forward, x), *probs

    def products(self):
        """Tuple of modules whose linear layers `ldt.model.precision` may run in a lower
        precision."""
        return self.attention.self, self.attention.output, self.intermediate, self.output

    def _after_attention(self, out, x):
        return self._feed_forward(self.attention.output(out, x), in_place=True)

    def _feed_forward(self, x, in_place=False):
        return self.output(self.intermediate(x, in_place), x)


@cache
def _fused():
    """Module that needs triton."""
    from ldt.model import fused

    return fused


def in_chunks(feed_forward, x: torch.Tensor):
    """Return ``feed_forward(x)`` of x [total, width], in parts of `CHUNK` tokens if that saves
    memory.

    On a CPU without a backward pass, the intermediate activations dominate memory, and parts are as
    fast as the whole.
    """
    free = x.device.type == "cpu" and not torch.is_grad_enabled()
    if not free or torch.compiler.is_compiling() or len(x) <= CHUNK:
        return feed_forward(x)
    return torch.cat([feed_forward(part) for part in x.split(CHUNK)])


class Encoder(nn.Module):
    """Stack of layers."""

    compiled = False  # whether each layer is a graph by itself

    def __init__(self, config):
        super().__init__()
        self.layer = nn.ModuleList(
            LdtLayer(config, index) for index in range(config.num_hidden_layers)
        )

    def compile_layers(self, **options):
        """Compile each layer by torch.compile for any length, in place; raises torch's limit of
        recompilations for the whole process.

        Layers of one pattern share graphs: for batches with and without global tokens, with and
        without padding inside documents, for training and evaluation. Parameter names are
        unchanged. Packing runs outside the graphs, so padding costs nothing, unlike in a graph of
        the whole model.

        Args:
            options: options of torch.compile.
        """
        patterns = {repr(layer.attention.self.pattern) for layer in self.layer}
        limits = torch.compiler.config  # of the whole process, and of all layers together
        limits.recompile_limit = max(limits.recompile_limit, GRAPHS * len(patterns))
        for layer in self.layer:
            layer.compile(dynamic=True, **options)
        self.compiled = True


class Pooler(nn.Module):
    """Dense layer and tanh on the first real token of each row."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: torch.Tensor):
        """Apply dense and tanh to the states of first tokens: [b, width] -> the same."""
        return torch.tanh(self.dense(first))


class LdtModel(PackedEncoder):
    """Longformer's encoder (Beltagy et al. 2020, arXiv:2004.05150), equal to transformers' at
    real tokens; with ``config.pooling_layers`` Poolingformer's (`ldt.model.pooling.SecondLevel`),
    with ``attention_dilation`` and ``causal`` that of Longformer's character models.

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerModel, all on purpose:

    - any even window >= 2 and any mixture over the layers; inputs are not padded to the window;
    - outputs at padding are zero; padding costs nothing;
    - the pooler reads the first real token of a row, not position 0 (which is padding under left
      padding);
    - a 2 in ``global_attention_mask`` counts as 1; a 2 in ``attention_mask`` is a real token with
      global attention, whatever the other mask says;
    - with ``inputs_embeds``, positions count as with the ids that they are of;
    - ``global_attentions`` are n long, and ``attentions`` are those before dropout;
    - with torch.distributed, parameters that a batch does not use get a gradient of zero; else
      none, as there;
    - an input that is empty or too long for the position table raises ValueError.

    Args:
        add_pooling_layer: False: no pooler, and no ``pooler_output``.
    """

    config: LdtConfig
    base_model_prefix = "longformer"
    _input_embed_layer = "word_embeddings"
    has_global_attention = has_attentions = True
    graphs: Graphs | None = None  # see `ldt.model.graphs.use_graphs`
    _no_split_modules = ["LdtLayer"]

    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config)
        self.max_length = usable_length(config)
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    @property
    def position_table(self):
        """Position embeddings, [rows, d]."""
        return self.embeddings.position_embeddings.weight

    def global_projections(self):
        """Pairs of query, key and value layers for local and for global tokens, layer by layer."""
        for layer in self.encoder.layer:
            attention = layer.attention.self
            for name in ("query", "key", "value"):
                yield getattr(attention, name), getattr(attention, f"{name}_global")

    def _encode(self, words, packing, ids, read, output_attentions, output_hidden_states):
        x, others = self._layers(
            self._inputs(words, *ids),
            packing,
            output_attentions,
            output_hidden_states,
            first_only=read != "all",
        )
        return self.pooler(x) if read == "pooled" else x, packing.to(x.device), others

    def _pooled(self, x, packing):
        if self.pooler is None:
            return x, None
        pooled = self.pooler(packing.first(x))
        return _attach_unused_parameters(x, *_unused_parameters(self.pooler)), pooled

    def _inputs(self, words, input_ids, token_type_ids, position_ids):
        """Words, positions and, unless all 0, token types of a padded batch."""
        shape = tuple(words.shape[:2])
        if position_ids is None:
            position_ids = self.position_ids_of(words)
        self._check_ids(input_ids, position_ids, token_type_ids, shape)
        others = position_ids, token_type_ids
        return words, *(ids.expand(shape) for ids in others if ids is not None)

    def _embed(self, words, positions, types=None):
        types = torch.zeros_like(positions) if types is None else types
        return self.embeddings(words, positions, types)

    def _layers(self, inputs, packing, output_attentions, output_hidden_states, first_only):
        """Packed states [total, d], or [b, d] with ``first_only``; and a dict of the other
        outputs."""
        # Only the first tokens, all of them global, are read of the last layer.
        plain = not (output_attentions or output_hidden_states)
        short = first_only and packing.first_is_global and plain
        first = packing.first_index() if short else None
        hidden, probs, global_probs = None, [], []

        def note(x, local, everywhere):
            if hidden is not None:
                hidden.append(x)
            if output_attentions:
                there = packing.to(x.device)
                probs.append(there.unpack(local).transpose(1, 2))
                if everywhere is not None:
                    global_probs.append(there.unpack_global_probabilities(everywhere))

        x = self._by_graph(inputs, packing, first) if plain else None
        if x is None:
            x = self._embed(*map(packing.pack, inputs))
            hidden = [x] if output_hidden_states else None
            with recomputing(self):
                x = self._through(x, packing.layout, first, output_attentions, note)
        if first_only and not short:
            x = packing.to(x.device).first(x)
        return x, {
            "hidden_states": None if hidden is None else packing.unpack_each(hidden),
            "attentions": tuple(probs) if output_attentions else None,
            "global_attentions": tuple(global_probs) if global_probs else None,
        }

    def _through(self, x, layout, first=None, output_attentions=False, note=None):
        """Packed states [total, d] after all layers.

        Args:
            x, layout, output_attentions: as for `LdtLayer.forward`.
            first: [documents] int64, packed indices of tokens; only their states are returned,
                [documents, d], with the last layer computed as if no other token were global.
            note: called with each layer's outputs.
        """
        layers = self.encoder.layer
        if torch.compiler.is_compiling() or self.encoder.compiled:
            layout = shared(layout)
        for layer in layers[: None if first is None else -1]:
            x, *probs = layer(x, layout, output_attentions=output_attentions)
            if note is not None:
                note(x, *probs)
        if first is not None:
            # Its call but for a compiled form: so few rows, with no operator of their own.
            x, *_ = layers[-1]._call_impl(x, layout.global_at(first), globals_only=True)
        return x

    def _by_graph(self, inputs, packing, first):
        """Output of `_through` for embedded ``inputs`` by a CUDA graph; None if there is none."""
        if self.graphs is None or self.encoder.compiled or torch.compiler.is_compiling():
            return None
        backend, config = self.config.attention_backend, self.config
        if backend == "auto":
            kind = inputs[0].device, self.position_table.dtype
            backend = choose(*kind, config.hidden_size // config.num_attention_heads)[0]
        if backend != "triton":  # the others look at the borders of documents on the host
            return None
        modules = self.embeddings, self.encoder.layer
        return self.graphs(modules, self._from_words, inputs, packing, first)

    def _from_words(self, inputs, layout, first=None):
        return self._through(self._embed(*inputs), layout, first)

    def train(self, mode=True):
        """Set training mode, as in torch; ``mode`` True also releases all captured CUDA graphs."""
        if mode and self.graphs is not None:
            self.graphs.clear()
        return super().train(mode)

    def position_ids_of(self, words):
        """Positions [b, n] int64 of ``words``, ids [b, n] or embeddings [b, n, d]: pad_token_id + 1
        for the first counted token, + 2 for the second, and so on.

        Ids other than pad_token_id are counted, whatever the attention mask, as in transformers;
        and embeddings other than that of pad_token_id or zeros. The others get pad_token_id.
        """
        pad = self.config.pad_token_id
        counted = words != pad
        if words.dim() == 3:
            padding = self.embeddings.word_embeddings.weight[pad].to(words.dtype)
            counted = (words != padding).any(-1) & words.any(-1)
        return counted.cumsum(1) * counted + pad

    def _check_ids(self, input_ids, position_ids, token_type_ids, shape):
        """Raise ValueError instead of an embedding's IndexError or CUDA's assertion."""
        if torch.compiler.is_compiling():
            return
        pad = self.config.pad_token_id
        check_length(shape, self.max_length, lambda: position_ids.max() - pad, "position table")
        for name, ids, rows in (
            ("input_ids", input_ids, self.config.vocab_size),
            ("position_ids", position_ids, self.config.max_position_embeddings),
            ("token_type_ids", token_type_ids, self.config.type_vocab_size),
        ):
            if ids is not None:
                check_ids(name, ids, rows, shape)
