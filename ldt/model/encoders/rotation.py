"""Rotary positions (Su et al. 2021, arXiv:2104.09864): queries and keys are turned by angles that
grow with the place of their token, so that scores depend on distances.

The form is that of LLaMA and GPT-NeoX: number i of a head's first half makes a pair with number i
of its second half.
"""

from itertools import pairwise

import torch
from torch.nn import functional as F
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ldt.attention.derivatives import transformed


def frequencies(config, kind):
    """[dim / 2] float32 on the CPU, by how much the angle of each pair grows from token to token;
    and what the tables are multiplied by (YaRN's temperature, else 1).

    Args:
        config: a `transformers.ModernBertConfig`.
        kind: of a layer, ``full_attention`` or ``sliding_attention``.

    Source: transformers' `ModernBertRotaryEmbedding` and `ROPE_INIT_FUNCTIONS`.
    """
    parameters = config.rope_parameters[kind]
    if parameters["rope_type"] != "default":
        make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        return make(config, torch.device("cpu"), layer_type=kind)
    dim = config.hidden_size // config.num_attention_heads
    places = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu")
    return 1.0 / parameters["rope_theta"] ** (places / dim), 1.0


def tables(positions, growth, scale, dtype):
    """(cos, sin), [total, 1, dim / 2] each.

    Angles are products in float32, whatever the dtype: so they were in training, and in float64
    those of token 5,000 differ by 2e-4.

    Args:
        positions: [total] int64, the place of each token.
        growth, scale: of `frequencies`.
        dtype: of queries and keys. The tables are in float32 at least.
    """
    angles = (positions.float()[:, None] * growth.to(positions.device))[:, None]
    dtype = torch.promote_types(dtype, torch.float32)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rotated(x, cos, sin):
    """``x`` [total, parts, heads, dim] with its first two parts, queries and keys, turned.

    In place: whoever made x gives it away. Nothing but the tables is kept for the backward pass,
    which turns the gradient back.
    """
    if torch.compiler.is_compiling() or transformed():
        return torch.cat([turned(x[:, :2], cos[:, None], sin[:, None]), x[:, 2:]], 1)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rotate.apply(x, cos, sin)
    return _turn(x, cos, sin)


def turned(x, cos, sin):
    """``x`` [..., dim] turned, as a new tensor."""
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
        return rotated(grad.clone(), cos, -sin), None, None


def edge_bias(turned_parts, parts, layout, reach, cos, sin):
    """Bias that clips the distance of a global token and another to the edge of a window: scores at
    the edge less those at the true distance, 0 for pairs that are no farther.

    In proportion to the length times the number of global tokens.

    Args:
        turned_parts: queries and keys [total, heads, dim], turned by the places of their tokens.
        parts: the same before they were turned.
        layout: of the packed tokens, some of them global.
        reach: distance of the edge, in tokens.
        cos, sin: `tables` of that distance, [1, 1, dim / 2].

    Returns:
        (columns, rows), the ``bias`` of sliding windows and of global tokens, see
        `ldt.attention.reference`.
    """
    spans = list(pairwise(layout.cu_seqlens_host))
    numbers = list(pairwise(layout.cu_globals_host))
    columns, rows = [], []
    for (start, stop), (first, last) in zip(spans, numbers, strict=True):
        tokens = torch.arange(start, stop, device=cos.device)
        marked = layout.global_index[first:last]
        for tokens_of_side, asking, seen in ((columns, tokens, marked), (rows, marked, tokens)):
            distance = seen - asking[:, None]
            near = _scores(turned_parts[0][asking], turned_parts[1][seen])
            q, k = parts[0][asking], parts[1][seen]
            ahead, behind = (_scores(q, turned(k, cos, side)) for side in (sin, -sin))
            far = torch.where((distance > 0)[:, None], ahead, behind)
            tokens_of_side.append(torch.where((distance.abs() > reach)[:, None], far - near, 0.0))
    return _together(columns), _together(rows)


def _together(parts):
    """Biases of all documents, with as many keys as the most."""
    most = max(part.shape[2] for part in parts)
    return torch.cat([F.pad(part, (0, most - part.shape[2])) for part in parts])


def _scores(q, k):
    """[queries, heads, keys]."""
    return torch.einsum("qhd,khd->qhk", q, k)
