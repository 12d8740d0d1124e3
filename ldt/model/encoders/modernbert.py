"""LdtModernBertModel: ModernBERT (Warner et al. 2024, arXiv:2412.13663) on packed tokens.

Its positions are rotary (Su et al. 2021, arXiv:2104.09864): queries and keys are turned by angles
that grow with the place of their token, so that scores depend on distances. The form is that of
LLaMA and GPT-NeoX: number i of a head's first half makes a pair with number i of its second half.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN, GELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ldt.attention import (
    Layout,
    fill_projected_rows,
    full_attention,
    parallel,
    sliding_window_attention,
)
from ldt.attention.derivatives import transformed
from ldt.attention.matmul import Linear, divisible, hooked
from ldt.attention.ops import shared
from ldt.model.base import PackedEncoder, check_ids, check_length
from ldt.model.config import LdtModernBertConfig
from ldt.model.layers import attention_options, in_chunks
from ldt.model.recompute import cast_once, layer_norm, recomputed, recomputing


def _norm(config):
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)


def _linear(config, inputs, outputs, bias, narrow=False):
    deviation = config.initializer_range
    if narrow:
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    return _drawn(Linear(inputs, outputs, bias=bias), config, deviation)


def _drawn(module, config, deviation):
    """Module whose weights in a new model are of a normal distribution without its tails."""
    module.drawn = deviation, (config.initializer_cutoff_factor or 3) * deviation
    return module


class WordEmbeddings(nn.Module):
    """Word embeddings, normalised."""

    def __init__(self, config):
        super().__init__()
        width, pad = config.hidden_size, config.pad_token_id
        words = nn.Embedding(config.vocab_size, width, padding_idx=pad)
        self.tok_embeddings = _drawn(words, config, config.initializer_range)
        self.norm = _norm(config)
        self.drop = nn.Dropout(config.embedding_dropout)

    def forward(self, words: torch.Tensor):
        """Embed packed words (ids [total] or embeddings [total, width]) and normalise: [total,
        width]."""
        if not words.is_floating_point():
            words = self.tok_embeddings(words)
        return self.drop(self.norm(words))


class RotaryAttention(nn.Module):
    """Attention by rotary positions, with a window or to the whole document."""

    def __init__(self, config, index):
        super().__init__()
        self.config = config
        width = config.hidden_size
        full = config.layer_types[index] == "full_attention"
        self.window = config.attention_window[index]
        self.clips = config.clip_global_distances and not full
        if full and config.full_attention_window is None:
            self.window = None
        self.Wqkv = _linear(config, width, 3 * width, config.attention_bias)
        self.Wo = _linear(config, width, width, config.attention_bias, narrow=True)
        self.out_drop = nn.Dropout(config.attention_dropout)

    def forward(self, x: torch.Tensor, layout: Layout, cos, sin):
        """Attend and project the output, [total, width] -> the same; arguments as of `attend`."""
        return self.out_drop(self.Wo(self.attend(x, layout, cos, sin)))

    def attend(self, x: torch.Tensor, layout: Layout, cos, sin):
        """Attention output before the output projection `Wo`, [total, width].

        Args:
            x: [total, width].
            layout: layout of the packed tokens with the layer's own global ones; without a window
                those are all but padding.
            cos, sin: of the layer's angles, [total, 1, dim / 2].
        """
        qkv = self.Wqkv(cast_once(x, self.Wqkv)())
        if hooked(self.Wqkv):  # a hook may hold what is to be changed in place
            qkv = qkv.clone()
        qkv = qkv.unflatten(1, (3, self.config.num_attention_heads, -1))
        clips = self.clips and layout.is_global is not None
        parts = qkv[:, :2].clone().unbind(1) if clips else None
        q, k, v = _rotated(qkv, cos, sin).unbind(1)
        config = self.config
        options = attention_options(self, x, config.attention_dropout, config.attention_backend)
        if self.window is None:
            return full_attention(q, k, v, layout, **options).flatten(1)
        if clips:
            return self._clipped(q, k, v, parts, layout, options)
        out = sliding_window_attention(q, k, v, layout, window=self.window, **options)
        if layout.is_global is not None:
            out = fill_projected_rows(out, q, k, v, layout, **options)
        return out.flatten(1)

    @torch.compiler.disable
    def _clipped(self, q, k, v, parts, layout, options):
        """Attend with global tokens no farther than the window's edge; see `attend`."""
        reach = self.window // 2
        angles = _frequencies(self.config, "sliding_attention")
        edge = _tables(torch.tensor([reach], device=q.device), *angles, q.dtype)
        columns, rows = _edge_bias((q, k), parts, layout, reach, *edge)
        pattern = options | {"window": self.window}
        out = sliding_window_attention(q, k, v, layout, bias=columns, **pattern)
        return fill_projected_rows(out, q, k, v, layout, bias=rows, **options).flatten(1)


class GatedFeedForward(nn.Module):
    """Feed-forward network with two wide maps, the activation of the first times the second
    (GeGLU)."""

    def __init__(self, config):
        super().__init__()
        width, wide = config.hidden_size, config.intermediate_size
        self.Wi = _linear(config, width, 2 * wide, config.mlp_bias)
        self.act = ACT2FN[config.hidden_activation]
        self.known = type(self.act)  # gives the same numbers each time; others may not
        self.drop = nn.Dropout(config.mlp_dropout)
        self.Wo = _linear(config, wide, width, config.mlp_bias, narrow=True)

    def forward(self, x: torch.Tensor, in_place=False):
        """Apply the network to tokens: [total, width] -> the same. ``in_place`` True overwrites
        intermediate values, where no gradient is needed."""
        wide = self.Wi(cast_once(x, self.Wi)())
        hot, gate = wide.chunk(2, -1)
        gelu = type(self.act) is GELUActivation and self.act.act is F.gelu
        if in_place and gelu:
            return self.Wo(torch.ops.aten.gelu_(hot).mul_(gate))
        if type(self.act) is not self.known:
            return self.Wo(self.drop(self.act(hot) * gate))
        # Of three tensors that the backward pass reads, the first is kept.
        active = recomputed(self.act(hot), self.act.forward, hot, of=self.act)
        both = recomputed(active * gate, self._gated, wide, of=self.act)
        return self.Wo(self.drop(both))

    def _gated(self, wide):
        hot, gate = wide.chunk(2, -1)
        return self.act.forward(hot) * gate


class ModernBertLayer(GradientCheckpointingLayer):
    """Attention and feed-forward network, each after a norm of its own; of the first layer's
    attention the norm is that of the embeddings."""

    def __init__(self, config, index):
        super().__init__()
        self.attn_norm = _norm(config) if index else nn.Identity()
        self.attn = RotaryAttention(config, index)
        self.mlp_norm = _norm(config)
        self.mlp = GatedFeedForward(config)

    def forward(self, x: torch.Tensor, layout: Layout, cos, sin):
        """Run the layer on packed tokens [total, width] -> the same; arguments as of
        `RotaryAttention.attend`."""
        normal = layer_norm(self.attn_norm, x)
        if divisible(self, x):
            out = self.attn.attend(normal, layout, cos, sin)
            return parallel.by_rows(self._after_attention, out, x)
        x = x + self.attn(normal, layout, cos, sin)
        return in_chunks(self._feed_forward, x)

    def _after_attention(self, out, x):
        x = self.attn.Wo(out).add_(x)
        return self.mlp(self.mlp_norm(x), in_place=True).add_(x)

    def _feed_forward(self, x):
        return x + self.mlp(layer_norm(self.mlp_norm, x))

    def products(self):
        """Tuple of modules whose linear layers `ldt.model.precision` may run in a lower
        precision."""
        return self.attn, self.mlp


class PredictionHead(nn.Module):
    """Dense, activation, norm: trained with the masked LM, and the first layers of all heads."""

    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.dense = _linear(config, width, width, config.classifier_bias, narrow=True)
        self.act = ACT2FN[config.classifier_activation]
        self.norm = _norm(config)

    def forward(self, x: torch.Tensor):
        """Apply dense, activation and norm: [..., width] -> the same."""
        return self.norm(self.act(self.dense(x)))


def answers(config, kind, outputs):
    """Make the output layers of a kind of answer with ``outputs`` logits: {attribute name, as in
    transformers' ModernBERTs: layer}; see `ldt.model.base.answers`."""
    head, width = PredictionHead(config), config.hidden_size
    if kind == "words":
        return {"head": head, "decoder": Linear(width, outputs, bias=config.decoder_bias)}
    drop, linear = nn.Dropout(config.classifier_dropout), Linear(width, outputs)
    return {"head": head, "drop": drop, "classifier": _drawn(linear, config, width**-0.5)}


class LdtModernBertModel(PackedEncoder):
    """ModernBERT, equal to transformers' at real tokens.

    Local layers see ``config.local_attention`` tokens, as windows that cost time and memory in
    proportion to the length; full layers all tokens of the document, or a window of
    ``config.full_attention_window``. Global tokens see all and are seen by all with the layer's own
    projections, in the layers that ``config.global_layers`` names.

    ``global_attention_mask=None`` means no global tokens. Differences from transformers'
    ModernBertModel, all on purpose:

    - outputs at padding are zero; padding costs nothing;
    - positions count from the first real token of a row, which changes nothing but rounding;
    - a 2 in either mask means what it means in `ldt.model.LdtModel`; ``token_type_ids`` change
      nothing;
    - an input that is empty or longer than ``max_position_embeddings`` raises ValueError;
    - attention probabilities are not given, and asking for them raises ValueError; the last of the
      hidden states is that after the final norm.

    Args:
        add_pooling_layer: changes nothing, there is none; what a head reads of a row is by
            ``config.classifier_pooling``.
    """

    config: LdtModernBertConfig  # type: ignore[assignment]
    base_model_prefix = "model"
    _input_embed_layer = "tok_embeddings"
    has_global_attention = False  # of heads that are called without a mask
    answers = staticmethod(answers)
    _no_split_modules = ["ModernBertLayer"]

    def __init__(self, config, add_pooling_layer=False):
        super().__init__(config)
        self.embeddings = WordEmbeddings(config)
        self.layers = nn.ModuleList(
            ModernBertLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.final_norm = _norm(config)
        self.post_init()

    def _encode(self, words, packing, ids, read, output_attentions, output_hidden_states):
        self._check_inputs(ids[0], packing)
        hidden = []
        x = self.embeddings(packing.pack(words))
        seen = self._seen(x, packing, ids[2])
        with recomputing(self):
            for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
                hidden.append(x if output_hidden_states else None)
                x = layer(x, *seen[kind])
            x = layer_norm(self.final_norm, x)
        packing = packing.to(x.device)
        others = {}
        if output_hidden_states:
            others = {"hidden_states": packing.unpack_each([*hidden, x])}
        pooling = {"all": None, "first": "cls"}.get(read, self.config.classifier_pooling)
        if pooling:
            x = packing.first(x) if pooling == "cls" else packing.reduce(x, pooling)
        return x, packing, others

    def _seen(self, x, packing, position_ids):
        """{kind of layer: (layout with its global tokens, cos, sin)}."""
        config, layout = self.config, packing.layout
        if position_ids is None:
            total, borders = layout.total_tokens, layout.cu_seqlens
            begin = borders[:-1].repeat_interleave(borders.diff(), output_size=total)
            positions = torch.arange(total, device=begin.device) - begin
        else:
            positions = packing.pack(position_ids.expand(packing.shape))
        everywhere, none = layout, layout.none_global()
        layouts = {
            "full_attention": none if config.global_layers == "none" else everywhere,
            "sliding_attention": everywhere if config.global_layers == "all" else none,
        }
        if config.full_attention_window is None:
            layouts["full_attention"] = layout.all_global()
        if torch.compiler.is_compiling():
            layouts = {kind: shared(each) for kind, each in layouts.items()}
        return {
            kind: (layouts[kind], *_tables(positions, *_frequencies(config, kind), x.dtype))
            for kind in set(config.layer_types)
        }

    def _check_inputs(self, input_ids, packing):
        """Raise a ValueError where an embedding would raise an IndexError, or CUDA an assertion,
        and for an input that is longer than any in training."""
        if torch.compiler.is_compiling():
            return
        count = packing.layout.cu_seqlens.diff().max
        check_length(packing.shape, self.config.longest_input, count, "model's longest input")
        if input_ids is not None:
            check_ids("input_ids", input_ids, self.config.vocab_size, packing.shape)


def _frequencies(config, kind):
    """([dim / 2] float32 on the CPU, growth of the angle of each pair from token to token; factor
    of the tables: YaRN's temperature, else 1).

    ``kind`` is that of a layer, ``full_attention`` or ``sliding_attention``. Source: transformers'
    `ModernBertRotaryEmbedding` and `ROPE_INIT_FUNCTIONS`.
    """
    parameters = config.rope_parameters[kind]
    if parameters["rope_type"] != "default":
        make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        return make(config, torch.device("cpu"), layer_type=kind)
    dim = config.hidden_size // config.num_attention_heads
    places = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu")
    return 1.0 / parameters["rope_theta"] ** (places / dim), 1.0


def _tables(positions, growth, scale, dtype):
    """(cos, sin), [total, 1, dim / 2] each.

    Angles are products in float32, whatever the dtype: so they were in training, and in float64
    those of token 5,000 differ by 2e-4.

    Args:
        positions: [total] int64, the place of each token.
        growth, scale: of `_frequencies`.
        dtype: type of queries and keys. The tables are in float32 at least.
    """
    angles = (positions.float()[:, None] * growth.to(positions.device))[:, None]
    dtype = torch.promote_types(dtype, torch.float32)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def _rotated(x, cos, sin):
    """Rotate the first two parts of ``x`` [total, parts, heads, dim], queries and keys, in place.

    Nothing but the tables is kept for the backward pass, which turns the gradient back.
    """
    if torch.compiler.is_compiling() or transformed():
        return torch.cat([_turned(x[:, :2], cos[:, None], sin[:, None]), x[:, 2:]], 1)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rotate.apply(x, cos, sin)
    return _turn(x, cos, sin)


def _turned(x, cos, sin):
    """Rotate ``x`` [..., dim] by the angles of ``cos`` and ``sin``, as a new tensor."""
    first, second = x.to(cos.dtype).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def _turn(x, cos, sin):
    for part in x[:, :2].unbind(1):
        first, second = part.chunk(2, -1)
        ahead = second * sin
        up = first * sin
        first.copy_((first * cos).sub_(ahead))
        second.copy_((second * cos).add_(up))
    return x


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(x)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return _rotated(grad.clone(), cos, -sin), None, None


def _edge_bias(turned_parts, parts, layout, reach, cos, sin):
    """Bias that clips the distance of a global token and another to the edge of a window: scores at
    the edge less those at the true distance, 0 for pairs that are no farther.

    Args:
        turned_parts: queries and keys [total, heads, dim], turned by the places of their tokens.
        parts: the same before they were turned.
        layout: layout of the packed tokens, some of them global.
        reach: distance of the edge, in tokens.
        cos, sin: `_tables` of that distance, [1, 1, dim / 2].

    Returns:
        (columns, rows), the ``bias`` of sliding windows and of global tokens, see
            `ldt.attention.reference`.
    """
    columns, rows = [], []
    for start, stop, globals_ in layout.documents:
        tokens = torch.arange(start, stop, device=cos.device)
        marked = layout.global_index[globals_]
        for tokens_of_side, asking, seen in ((columns, tokens, marked), (rows, marked, tokens)):
            distance = seen - asking[:, None]
            near = _scores(turned_parts[0][asking], turned_parts[1][seen])
            q, k = parts[0][asking], parts[1][seen]
            ahead, behind = (_scores(q, _turned(k, cos, side)) for side in (sin, -sin))
            far = torch.where((distance > 0)[:, None], ahead, behind)
            tokens_of_side.append(torch.where((distance.abs() > reach)[:, None], far - near, 0.0))
    return _together(columns), _together(rows)


def _together(parts):
    most = max(part.shape[2] for part in parts)
    return torch.cat([F.pad(part, (0, most - part.shape[2])) for part in parts])


def _scores(q, k):
    return torch.einsum("qhd,khd->qhk", q, k)
