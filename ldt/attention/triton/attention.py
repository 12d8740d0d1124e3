"""The operators of the kernels that attend by a `Pattern`, with their gradients."""

import torch

from ldt.attention.derivatives import first_order, once
from ldt.attention.layout import per_head
from ldt.attention.triton import pattern as patterns
from ldt.attention.triton.backward import backward
from ldt.attention.triton.dropout import token_codes
from ldt.attention.triton.forward import forward
from ldt.attention.triton.tiles import check


def sliding_window_attention(
    q, k, v, layout, *, window, dilation=1, causal=False, dropout=0.0, seed=0
):
    """`reference.sliding_window_attention` for CUDA tensors.

    Sums are kept in float32, and float32 inputs are rounded as `devices.precision` says. Memory is
    that of the output and 4 bytes per token and head (12 with dropout); two runs give the same
    bits, gradients included.

    Raises:
        ValueError: for other devices, dtypes, or heads of more than 128 dims.
    """
    check(q, k, v)
    dilations = per_head(dilation, q.shape[1])
    pattern = patterns.windows(layout, window, dilations, causal)
    return _attend(q, k, v, layout, pattern, dropout, seed)


def cell_attention(q, k, v, cells, *, window, dropout=0.0, seed=0):
    """`ldt.attention.pooled.reference.cell_attention` for CUDA tensors.

    Memory is that of the output and 4 bytes per token and head (8 and 4 per cell with dropout);
    all else is as of `sliding_window_attention`.
    """
    check(q, k, v)
    return _attend(q, k, v, cells.layout, patterns.of_cells(cells, window), dropout, seed)


def projected_global_attention(q, k, v, layout, *, dropout=0.0, seed=0):
    """`reference.projected_global_attention`, keys and values [total, heads, dim].

    Rows of q past the last global token stand for nothing and gather nothing. All else is as of
    `sliding_window_attention`.
    """
    check(q, k, v)
    return _attend(q, k, v, layout, patterns.of_globals(layout), dropout, seed)


def _attend(q, k, v, layout, pattern, dropout, seed):
    codes = None, None
    if dropout:
        places = pattern.query_places, pattern.key_places
        codes = token_codes(layout, q.shape[1], seed)
        codes = (
            x if place is None else x.index_select(1, place)
            for x, place in zip(codes, places, strict=True)
        )
    return _Attention.apply(q, k, v, pattern, dropout, *codes)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, pattern, dropout, query_codes, key_codes):
        out, lse = once(forward, q, k, v, pattern, dropout, query_codes, key_codes)
        ctx.save_for_backward(q, k, v, out, lse, query_codes, key_codes)
        ctx.pattern, ctx.dropout = pattern, dropout
        return out.to(q.dtype)

    @staticmethod
    @first_order
    def backward(ctx, dout):
        q, k, v, out, lse, *codes = ctx.saved_tensors
        return *backward(dout, q, k, v, out, lse, ctx.pattern, ctx.dropout, *codes), *[None] * 4
