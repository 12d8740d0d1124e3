"""The second level in time and memory linear in the length, on any device."""

from functools import lru_cache

import torch
from torch.nn import functional as F

from ldt.attention.block import BLOCK, Block, wide
from ldt.attention.blocked import Blocked, true_places
from ldt.attention.derivatives import first_order
from ldt.attention.dropout import Dropout
from ldt.attention.pooled.cells import Cells
from ldt.attention.pooled.poolings import POOLINGS


def pool(pooling: str, k, v, weight, cells: Cells):
    """`reference.pool` by strided views of the tokens, one for each place in a cell."""
    is_real = cells.layout.key_padding_mask
    padding = None if is_real is None else ~is_real[:, None, None]
    if POOLINGS[pooling].maximum:
        return _max(k, padding, cells), _max(v, padding, cells)
    if padding is not None:
        k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
    shares = POOLINGS[pooling].shares(k, v, weight, cells)
    if len(shares) == 1:  # keys and values alike: one pass over the weights sums both
        return _Weighted.apply(shares.squeeze(0), cells, k, v)
    return *_Weighted.apply(shares[0], cells, k), *_Weighted.apply(shares[1], cells, v)


def cell_attention(q, k, v, cells: Cells, *, window, dropout=0.0, seed=0):
    """`reference.cell_attention`, a block of queries and the cells they reach at a time."""
    layout = cells.layout
    dtype = wide(q[:0]).dtype
    key = ("cell blocks", cells.size, cells.stride, window, dtype)
    blocks = layout.cached(key, lambda: list(_blocks(cells, window, dtype)))
    drop = None
    if dropout:
        rows = torch.arange(layout.total_tokens, device=q.device)
        heads = torch.arange(q.shape[1], device=q.device)
        drop = Dropout(layout, rows, cells.tokens(0)[0], heads, dropout, seed)
    return Blocked.apply(q, k, v, blocks, None, drop)


def _blocks(cells, window, dtype):
    """The `Block`s of all documents: tokens as queries, rows of the table of cells as keys."""
    begin, end = cells.reach(window)
    before = F.pad(cells.valid.cumsum(0), (1, 0))
    silent = before[begin] == before[end]  # no cell in reach
    if cells.layout.masked_queries is not None:
        silent = silent | cells.layout.masked_queries
    for row, first, last in cells.spans:
        count = -(-(last - first) // cells.stride)
        for start in range(first, last, BLOCK):
            stop = min(start + BLOCK, last)
            low = max(cells.lowest(start - first, window), 0)
            high = min(cells.highest(stop - 1 - first, window) + 1, count)
            muted = true_places(silent[start:stop])
            if low >= high or (muted is not None and len(muted) == stop - start):
                continue
            keys = slice(row + low, row + high)
            place = start - first - low * cells.stride  # of the first query, from the first cell on
            shape = stop - start, high - low
            edges = _edges(cells.size, cells.stride, window, place, shape, dtype, begin.device)
            hidden = true_places(~cells.valid[keys])
            yield Block(slice(start, stop), keys, hidden=hidden, muted=muted, edges=edges)


@lru_cache(maxsize=64)
def _edges(size, stride, window, place, shape, dtype, device):
    """(first column, [queries, columns] to add to the scores) left and right of what all see."""
    query, cell = (torch.arange(n, device=device) for n in shape)
    outside = (2 * (cell * stride - place - query[:, None]) + size - 1).abs() > window
    seen = (~outside.any(0)).nonzero().squeeze(1).tolist() or [shape[1]]
    parts = slice(0, seen[0]), slice(seen[-1] + 1, shape[1])
    bias = outside.to(dtype) * (torch.finfo(dtype).min / 4)
    return tuple((part.start, bias[:, part]) for part in parts if part.start < part.stop)


class _Weighted(torch.autograd.Function):
    """Sums over the places of each cell of weight times token, of all ``tokens`` in one pass."""

    @staticmethod
    def forward(ctx, weight, cells, *tokens):
        """[cells, heads, dim] of each of the [total, heads, dim]; the weight is [cells or 1, heads
        or 1, dim or 1, size]. A place behind the document's end adds nothing."""
        ctx.save_for_backward(weight, *tokens)
        ctx.cells = cells
        sums = [wide(x[:0]).new_zeros(cells.count, *x.shape[1:]) for x in tokens]
        for offset, lane in enumerate(cells.lanes):
            for rows, places in lane:
                part = _part(weight, rows, offset)
                for total, x in zip(sums, tokens, strict=True):
                    total[rows].addcmul_(x[places], part)
        return tuple(total.to(x.dtype) for total, x in zip(sums, tokens, strict=True))

    @staticmethod
    @first_order
    def backward(ctx, *grads):
        weight, *tokens = ctx.saved_tensors
        share_grad = torch.zeros_like(wide(weight)) if ctx.needs_input_grad[0] else None
        token_grads = [torch.zeros_like(x) for x in tokens]
        for offset, lane in enumerate(ctx.cells.lanes):
            for rows, places in lane:
                part = _part(weight, rows, offset)
                for token_grad, x, grad in zip(token_grads, tokens, grads, strict=True):
                    up = grad[rows]
                    token_grad[places].addcmul_(up, part)
                    if share_grad is not None:
                        place = _part(share_grad, rows, offset)
                        place += (wide(x[places]) * up).sum_to_size(part.shape)
        if share_grad is not None:
            share_grad = share_grad.to(weight.dtype)
        return share_grad, None, *token_grads


def _part(weight, rows, offset):
    """A view of the weights of one place, in the cells of ``rows``."""
    return (weight if len(weight) == 1 else weight[rows])[..., offset]


def _max(x, padding, cells):
    if padding is None:
        return _Max.apply(x, cells)
    largest = _Max.apply(x.masked_fill(padding, torch.finfo(x.dtype).min), cells)
    return largest.masked_fill(~cells.valid[:, None, None], 0)


class _Max(torch.autograd.Function):
    """The largest value of each feature in each cell; its first place gets the gradient."""

    @staticmethod
    def forward(ctx, x, cells):
        """[cells, heads, dim] of [total, heads, dim]; zeros in rows without a cell."""
        largest = x.new_zeros(cells.count, *x.shape[1:])
        place = torch.zeros_like(largest, dtype=torch.int16) if ctx.needs_input_grad[0] else None
        for offset, lane in enumerate(cells.lanes):
            for rows, places in lane:
                best, new = largest[rows], x[places]
                if not offset:
                    best.copy_(new)
                    continue
                if place is not None:
                    place[rows].masked_fill_(new > best, offset)
                torch.maximum(best, new, out=best)
        ctx.save_for_backward(place)
        ctx.rest = x.shape, cells
        return largest

    @staticmethod
    @first_order
    def backward(ctx, grad):
        (place,) = ctx.saved_tensors
        shape, cells = ctx.rest
        dx = grad.new_zeros(shape)
        for offset, lane in enumerate(cells.lanes):
            for rows, places in lane:
                dx[places] += grad[rows] * (place[rows] == offset)
        return dx, None
