"""LdtModernBertModel: ModernBERT (Warner et al. 2024, arXiv:2412.13663) on packed tokens."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN, GELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer

from ldt.attention import (
    fill_projected_rows,
    full_attention,
    parallel,
    sliding_window_attention,
)
from ldt.attention.matmul import Linear, divisible, hooked
from ldt.attention.ops import shared
from ldt.model.base import PackedEncoder, check_ids
from ldt.model.config import LdtModernBertConfig
from ldt.model.encoders.longformer import in_chunks
from ldt.model.encoders.rotation import edge_bias, frequencies, rotated, tables
from ldt.model.recompute import cast_once, layer_norm, recomputed, recomputing


def _norm(config):
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)


def _linear(config, inputs, outputs, bias, narrow=False):
    """A linear layer; ``narrow`` where outputs of all layers are added up."""
    deviation = config.initializer_range
    if narrow:
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    return _drawn(Linear(inputs, outputs, bias=bias), config, deviation)


def _drawn(module, config, deviation):
    """The module, whose weights in a new model are of a normal distribution without its tails."""
    module.drawn = deviation, (config.initializer_cutoff_factor or 3) * deviation
    return module


class Embeddings(nn.Module):
    """Word embeddings, normalised."""

    def __init__(self, config):
        super().__init__()
        width, pad = config.hidden_size, config.pad_token_id
        words = nn.Embedding(config.vocab_size, width, padding_idx=pad)
        self.tok_embeddings = _drawn(words, config, config.initializer_range)
        self.norm = _norm(config)
        self.drop = nn.Dropout(config.embedding_dropout)

    def forward(self, words):
        """[total, width] from packed words (ids [total] or embeddings [total, width])."""
        if not words.is_floating_point():
            words = self.tok_embeddings(words)
        return self.drop(self.norm(words))


class Attention(nn.Module):
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

    def forward(self, x, layout, cos, sin):
        """[total, width] -> the same."""
        return self.out_drop(self.Wo(self.attend(x, layout, cos, sin)))

    def attend(self, x, layout, cos, sin):
        """[total, width], what `Wo` then takes.

        Args:
            x: [total, width].
            layout: of the packed tokens, with the layer's own global tokens; of a layer without a
                window those are all but padding.
            cos, sin: of the layer's angles, [total, 1, dim / 2].
        """
        qkv = self.Wqkv(cast_once(x, self.Wqkv)())
        if hooked(self.Wqkv):  # a hook may hold what is to be changed in place
            qkv = qkv.clone()
        qkv = qkv.unflatten(1, (3, self.config.num_attention_heads, -1))
        clips = self.clips and layout.is_global is not None
        parts = qkv[:, :2].clone().unbind(1) if clips else None
        q, k, v = rotated(qkv, cos, sin).unbind(1)
        dropout = self.config.attention_dropout if self.training else 0.0
        # From torch's generator, whose state gradient checkpointing restores.
        seed = torch.randint(2**31, (), device=x.device) if dropout else 0
        options = {"dropout": dropout, "seed": seed, "backend": self.config.attention_backend}
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
        angles = frequencies(self.config, "sliding_attention")
        edge = tables(torch.tensor([reach], device=q.device), *angles, q.dtype)
        columns, rows = edge_bias((q, k), parts, layout, reach, *edge)
        pattern = options | {"window": self.window}
        out = sliding_window_attention(q, k, v, layout, bias=columns, **pattern)
        return fill_projected_rows(out, q, k, v, layout, bias=rows, **options).flatten(1)


class GatedFeedForward(nn.Module):
    """Two wide maps, the activation of the first times the second, and a map back (GeGLU)."""

    def __init__(self, config):
        super().__init__()
        width, wide = config.hidden_size, config.intermediate_size
        self.Wi = _linear(config, width, 2 * wide, config.mlp_bias)
        self.act = ACT2FN[config.hidden_activation]
        self.known = type(self.act)  # gives the same numbers each time; others may not
        self.drop = nn.Dropout(config.mlp_dropout)
        self.Wo = _linear(config, wide, width, config.mlp_bias, narrow=True)

    def forward(self, x, in_place=False):
        """[total, width] -> the same; ``in_place`` where no graph needs what is between."""
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
        self.attn = Attention(config, index)
        self.mlp_norm = _norm(config)
        self.mlp = GatedFeedForward(config)

    def forward(self, x, layout, cos, sin):
        """[total, width] -> the same; arguments as of `Attention.attend`."""
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
        """The modules whose linear layers `ldt.model.precision` may lower."""
        return self.attn, self.mlp


class PredictionHead(nn.Module):
    """Dense, activation, norm: trained with the masked LM, and where all heads begin."""

    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.dense = _linear(config, width, width, config.classifier_bias, narrow=True)
        self.act = ACT2FN[config.classifier_activation]
        self.norm = _norm(config)

    def forward(self, x):
        return self.norm(self.act(self.dense(x)))


def answers(config, kind, outputs):
    """Layers under the names of transformers' ModernBERTs; see `ldt.model.base.answers`."""
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
        config: LdtModernBertConfig.
        add_pooling_layer: changes nothing, there is none; what a head reads of a row is by
            ``config.classifier_pooling``.
    """

    config: LdtModernBertConfig  # type: ignore[assignment]
    base_model_prefix = "model"
    has_global_attention = False  # of heads that are called without a mask
    answers = staticmethod(answers)
    _no_split_modules = ["ModernBertLayer"]

    def __init__(self, config, add_pooling_layer=False):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            ModernBertLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.final_norm = _norm(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.tok_embeddings

    def set_input_embeddings(self, value):
        self.embeddings.tok_embeddings = value

    def _encode(self, words, packing, ids, read, output_attentions, output_hidden_states):
        if output_attentions:
            raise ValueError(
                "a ModernBERT has no output_attentions here: probabilities are never stored"
            )
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
            states = (packing.to(state.device).unpack(state) for state in (*hidden, x))
            others = {"hidden_states": tuple(states)}
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
            kind: (layouts[kind], *tables(positions, *frequencies(config, kind), x.dtype))
            for kind in set(config.layer_types)
        }

    def _check_inputs(self, input_ids, packing):
        """Raise a ValueError where an embedding would raise an IndexError, or CUDA an assertion,
        and for an input that is longer than any in training."""
        if torch.compiler.is_compiling():
            return
        longest = self.config.longest_input
        if packing.shape[1] > longest:
            length = int(packing.layout.cu_seqlens.diff().max())
            if length > longest:
                raise ValueError(
                    f"input has {length} tokens, the model reads {longest}; "
                    f"ldt convert SOURCE --max-length {length} makes one that reads them"
                )
        if input_ids is not None:
            check_ids("input_ids", input_ids, self.config.vocab_size, packing.shape)
