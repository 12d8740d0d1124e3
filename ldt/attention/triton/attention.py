"""Operators of the kernels that attend by a `Pattern`, with their gradients."""

import torch

from ldt.attention.cells import Cells
from ldt.attention.derivatives import first_order, once
from ldt.attention.layout import Layout, per_head
from ldt.attention.triton import pattern as patterns
from ldt.attention.triton.backward import backward
from ldt.attention.triton.dropout import on_device
from ldt.attention.triton.forward import forward
from ldt.attention.triton.tiles import check


def sliding_window_attention(
    q, k, v, layout: Layout, *, window, dilation=1, causal=False, dropout=0.0, seed=0
):
    """Sliding-window attention [total, heads, dim] of CUDA tensors, in fused kernels, as
    `ldt.attention.sliding_window_attention` describes it.

    Sums are kept in float32, and float32 inputs are rounded as `devices.precision` says. Memory is
    that of the output and 4 bytes per token and head; two runs give the same bits, gradients
    included.

    Raises:
        ValueError: for other devices, dtypes, or heads of more than 128 dims.
    """
    check(q, k, v)
    dilations = per_head(dilation, q.shape[1])
    pattern = patterns.windows(layout, window, dilations, causal)
    return _attend(q, k, v, pattern, dropout, seed)


def cell_attention(q, k, v, cells: Cells, *, window: int, dropout=0.0, seed=0):
    """Attention [total, heads, dim] of every token to the cells in its window, whose k and v are
    [cells.count, heads, dim], as `reference.cell_attention` defines it, for CUDA tensors.
    Precision, memory and errors are those of `sliding_window_attention`."""
    check(q, k, v)
    return _attend(q, k, v, patterns.of_cells(cells, window), dropout, seed)


def projected_global_attention(q, k, v, layout: Layout, *, dropout=0.0, seed=0):
    """Attention [globals, heads, dim] of the global tokens to the keys and values [total, heads,
    dim] of their documents, for CUDA tensors. Rows of q past the last global token are padding
    and get zeros. Precision, memory and errors are those of `sliding_window_attention`."""
    check(q, k, v)
    return _attend(q, k, v, patterns.of_globals(layout), dropout, seed)


def _attend(q, k, v, pattern, dropout, seed):
    seed = on_device(seed, q.device) if dropout else None
    return _Attention.apply(q, k, v, seed, pattern, dropout)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, seed, pattern, dropout):
        out, lse = once(forward, q, k, v, pattern, dropout, seed)
        ctx.save_for_backward(q, k, v, out, lse, seed)
        ctx.pattern, ctx.dropout = pattern, dropout
        return out.to(q.dtype)

    @staticmethod
    @first_order
    def backward(ctx, dout):
        *tensors, seed = ctx.saved_tensors
        return *backward(dout, *tensors, ctx.pattern, ctx.dropout, seed), *[None] * 3
