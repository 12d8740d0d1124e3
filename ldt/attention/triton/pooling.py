"""Pooling of keys and values to cells in one pass, forward and backward.

A program of the forward pass owns some cells of one head and walks over their places; one of the
backward pass owns some tokens, and gathers from the few cells that each of them is in. So nothing
is added up by two programs at once, but for the gradients of a weight, of which each program has
its own sum.
"""

from dataclasses import dataclass

import torch

from ldt.attention import blocked
from ldt.attention.cells import Cells
from ldt.attention.derivatives import first_order
from ldt.attention.triton.devices import OPTIONS, tile
from ldt.attention.triton.pooling_kernels import collect, filters, scores, spread
from ldt.attention.triton.tiles import cdiv, check, padded, rows

# Poolings whose shares the kernels compute themselves, which saves memory; those of others, and
# their sums, go the way of the backend `blocked`, which runs on any device.
FUSED = ("ldconv", "ldconv_separate", "mean", "max", "conv")
PARTS = 128  # sums, at most, that the gradient of a weight is split into


def pool(pooling: str, k, v, weight, cells: Cells):
    """Pooled keys and values of cells, [cells.count, heads, dim] each, as
    `ldt.attention.reference.pool` defines them, for CUDA tensors, or any under TRITON_INTERPRET=1.

    Sums are kept in float32; the weight may be of another dtype than the tokens. For the backward
    pass ldconv keeps 4 bytes for each place of a cell and head, max 4 for each of its dims. Of
    several equal maxima the first gets the gradient. Two runs give the same bits, gradients
    included.

    Raises:
        ValueError: for other devices, dtypes, or heads of more than 128 dims.
    """
    check(k, v)
    if pooling not in FUSED:
        return blocked.pool(pooling, k, v, weight, cells)
    if pooling == "conv":
        weight = weight.transpose(2, 3)  # [2, heads, size, dim]; of ldconv: [heads, size, dim]
    tables = Tables.of(cells)
    if pooling == "ldconv_separate":
        pairs = zip((k, v), weight, strict=True)
        return tuple(_Pool.apply(x, x, one, "ldconv", tables)[0] for x, one in pairs)
    return _Pool.apply(k, v, weight, pooling, tables)


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of the cells of a batch that kernels read, made once for it, on its device.

    Args:
        start: [count] int32, the first token of each cell; anything where there is none.
        share: [count, size] float32, of each place in a mean; zero where it has no kept token.
        place: [total] int32, a token's distance from its document's first kept one; -1 at padding.
        row: [total] int32, the row of the first cell of a token's document.
        stride: tokens from the start of a cell to that of the next.
    """

    start: torch.Tensor
    share: torch.Tensor
    place: torch.Tensor
    row: torch.Tensor
    stride: int

    @classmethod
    def of(cls, cells: Cells) -> "Tables":
        """The tables of `Cells`, cached by their layout."""
        key = "pool tables", cells.size, cells.stride
        return cells.layout.cached(key, lambda: cls._make(cells))

    @classmethod
    def _make(cls, cells):
        layout, inside = cells.layout, cells.inside
        document = layout.document_of
        place = torch.arange(layout.total_tokens, device=document.device) - cells.first[document]
        if layout.key_padding_mask is not None:
            place = place.masked_fill(~layout.key_padding_mask, -1)
        share = inside.float() / inside.sum(1, keepdim=True).clamp(min=1)
        row = cells.row[document]
        start, place, row = (x.to(torch.int32) for x in (cells.start, place, row))
        return cls(start, share, place, row, cells.stride)

    @property
    def sizes(self):
        """The constants of the kernels that own cells, by name: SIZE, PLACES and CENTRE."""
        size = self.share.shape[1]
        return {"SIZE": size, "PLACES": padded(size), "CENTRE": (size - 1) // 2}


class _Pool(torch.autograd.Function):
    """The weight is [heads, size, dim] of ldconv, [2, heads, size, dim] of conv, else None."""

    @staticmethod
    def forward(ctx, k, v, weight, pooling, tables):
        keys, values, *saved = forward(k, v, weight, pooling, tables, any(ctx.needs_input_grad))
        tokens = (None, None) if weight is None else (k, v)
        ctx.save_for_backward(*tokens, weight, *saved)
        ctx.pooling, ctx.tables = pooling, tables
        return keys, values

    @staticmethod
    @first_order
    def backward(ctx, *grads):
        gradients = backward(*grads, *ctx.saved_tensors, ctx.pooling, ctx.tables)
        return *gradients, None, None


def _options(k):
    """Launch options for tokens or cells like k [.., heads, dim]."""
    cut, dim = tile("pool", k), k.shape[-1]
    return {
        "DIM": dim,
        "BLOCK_D": padded(dim),
        "BLOCK_M": cut.rows,
        "num_warps": cut.warps,
    } | OPTIONS


def forward(k, v, weight, pooling: str, tables: Tables, keep: bool = True):
    """Pooled keys and values of the cells, and what the backward pass needs.

    Args:
        k, v: [total, heads, dim].
        weight: [heads, size, dim] of ldconv, [2, heads, size, dim] of conv, else None.
        pooling: "ldconv", "mean", "max" or "conv".
        tables: `Tables` of where the cells lie.
        keep: True if there will be a backward pass.

    Returns:
        [count, heads, dim] twice; the shares [heads, count, size] float32 of ldconv or None; the
            places [2, count, heads, dim] int16 of the maxima or None.
    """
    k, v, weight = rows(k), rows(v), None if weight is None else weight.contiguous()
    count, (heads, dim) = len(tables.share), k.shape[1:]
    keys, values = k.new_empty(2, count, heads, dim)
    shares = winners = None
    if keep and pooling == "ldconv":
        shares = k.new_empty(heads, *tables.share.shape, dtype=torch.float32)
    if keep and pooling == "max":
        winners = k.new_empty(2, *keys.shape, dtype=torch.int16)
    launch = _options(k)
    collect[cdiv(count, launch["BLOCK_M"]), heads](
        k, v, weight, tables.start, tables.share, keys, values, shares, winners,
        count, *k.stride()[:2], *v.stride()[:2], POOLING=pooling, **tables.sizes, **launch,
    )  # fmt: skip
    return keys, values, shares, winners


def backward(key_grad, value_grad, k, v, weight, shares, winners, pooling, tables):
    """Gradients (dk, dv [total, heads, dim], weight_grad or None).

    Args:
        key_grad, value_grad: [count, heads, dim], of the cells.
        k, v, weight, pooling, tables: as `forward` took them; only a weight needs k and v.
        shares, winners: as it returned them.
    """
    up_k, up_v = key_grad.contiguous(), value_grad.contiguous()
    count, heads, dim = up_k.shape
    total, size = len(tables.place), tables.share.shape[1]
    launch = _options(up_k)
    slopes = weight_grad = None
    if weight is not None:
        k, v, weight = rows(k), rows(v), weight.contiguous()
        block = launch["BLOCK_M"]
        part = cdiv(cdiv(count, PARTS), block) * block  # cells of a program
        sums = weight.new_empty(cdiv(count, part), *weight.shape, dtype=torch.float32)
        inputs = k, v, up_k, up_v, tables.start, tables.share
        ints = count, part, *k.stride()[:2], *v.stride()[:2]
        if pooling == "ldconv":
            slopes = torch.empty_like(shares)
            scores[len(sums), heads](*inputs, shares, slopes, sums, *ints, **tables.sizes, **launch)
        else:
            filters[len(sums), heads, size](*inputs, sums, *ints, SIZE=size, **launch)
        weight_grad = sums.sum(0).to(weight.dtype)
    dk, dv = up_k.new_empty(2, total, heads, dim)
    spread[cdiv(total, launch["BLOCK_M"]), heads](
        up_k, up_v, weight, tables.place, tables.row,
        tables.share if shares is None else shares, slopes, winners, dk, dv, total, count,
        POOLING=pooling, STRIDE=tables.stride, CELLS=cdiv(size, tables.stride),
        **tables.sizes, **launch,
    )  # fmt: skip
    return dk, dv, weight_grad
