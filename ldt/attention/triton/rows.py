"""Attention of global tokens in Triton, with the projections of its keys and values.

`reference.global_attention` on CUDA. Where few tokens are global, the projections of the document
are folded away: the key weight goes into the queries, which then meet the layer's input itself, and
the value weight is applied to what they gathered. Else the document is projected as usual.
"""

from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ldt.attention.derivatives import first_order
from ldt.attention.layout import Layout
from ldt.attention.triton import pattern
from ldt.attention.triton import rows_products as products
from ldt.attention.triton.attention import projected_global_attention
from ldt.attention.triton.devices import OPTIONS, find, limits, precision, tile
from ldt.attention.triton.dropout import least, on_device
from ldt.attention.triton.launch import Launch, room
from ldt.attention.triton.rows_kernels import attend, bwd_dq, bwd_dx, merge
from ldt.attention.triton.rows_plan import plan
from ldt.attention.triton.tiles import cdiv, check, padded, rows

CHUNKS = {2: 128, 4: 32}  # bytes of a number -> columns at a time; fp32 has no matrix units
CHUNK, ITEMS = 128, 16  # columns that `merge` writes, and parts that it reads at a time
BLOCK, COLUMNS = 64, 32  # of a program that multiplies by a weight, and of one that makes some
ROWS = products.ROWS.value


def global_attention(q, x, key, value, layout: Layout, *, dropout=0.0, seed=0):
    """Attention [globals, heads, dim] of the global tokens, each to all of its document, without a
    score in memory, no wait for the device, no atomics.

    Args:
        q: [globals, heads, dim], queries of the tokens at ``layout.global_index``; those past
            ``layout.cu_globals[-1]`` stand for nothing and gather nothing.
        x: [total, width], the layer's input.
        key, value: (weight [heads * dim, width], bias [heads * dim]).
        layout, dropout, seed: as in `reference.global_attention`.

    Raises:
        ValueError: tensors that are not on CUDA, of float64 or of several dtypes.
    """
    run = folded_rows if folds(q.shape, x, layout, q.dtype) else plain_rows
    return run(q, x, key, value, layout, dropout=dropout, seed=seed)


def folds(shape: tuple[int, int, int], x, layout: Layout, dtype: torch.dtype) -> bool:
    """True if documents have no more rows (global tokens times heads) on average than x has
    columns, so that `folded_rows` costs no more than `plain_rows`, and the device has kernels for
    it.

    Args:
        shape: (globals, heads, dim).
        x: [total, width].
        layout: layout of the packed tokens.
        dtype: type of the products.
    """
    few = shape[0] * shape[1] <= x.shape[1] * (len(layout.cu_seqlens) - 1)
    return few and find("rows", dtype, x.shape[1], False, limits(x.device)) is not None


def folded_rows(q, x, key, value, layout: Layout, *, dropout=0.0, seed=0):
    """`global_attention`, with its arguments, in O(globals * heads * length * width): the document
    is not projected.

    What is folded is float32; see `blocked.folded_rows`. Nobody adds the key bias: it raises all
    scores of a row alike, which the softmax undoes.
    """
    x = x.to(q.dtype)  # they differ under autocast
    check(q[..., :0], x[:, :0])  # of any width
    seed = on_device(seed, x.device) if dropout else None
    return _Rows.apply(q, x, key[0], *value, seed, layout, dropout)


def plain_rows(q, x, key, value, layout: Layout, *, dropout=0.0, seed=0):
    """`global_attention`, with its arguments, by keys and values of the whole document: O(length *
    width**2)."""
    k, v = F.linear(x, key[0]), F.linear(x, *value)
    k, v = (y.view(-1, *q.shape[1:]) for y in (k, v))
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, x, key, value, bias, seed, layout, dropout):
        q, x, out = q.contiguous(), rows(x), q.new_empty(q.shape)
        weights = Weights(None, None, key.contiguous(), None, value.contiguous(), bias.contiguous())
        work = RowsWork.of(layout, x, *q.shape[1:], dropout, False, key.dtype)
        saved = work.forward(x, q, weights, out, seed)
        ctx.save_for_backward(x, seed, *saved, weights.key, *weights[4:])
        ctx.work = work
        return out

    @staticmethod
    @first_order
    def backward(ctx, dout):
        x, seed, q, *saved, key, value, bias = ctx.saved_tensors
        weights = Weights(None, None, key, None, value, bias)
        needed = ctx.needs_input_grad[2:5]
        needed = False, False, needed[0], False, *[any(needed[1:])] * 2
        dx, dq, grads = ctx.work.backward(dout.contiguous(), x, (q, *saved), weights, needed, seed)
        return dq.to(q.dtype), dx, grads.key, *grads[4:], None, None, None


class Weights(NamedTuple):
    """Weights [heads * dim, width] and biases [heads * dim] of a layer's global projections,
    contiguous; or their gradients. The query's are None where its rows are there already. Nothing
    reads the key's bias."""

    query: torch.Tensor | None
    query_bias: torch.Tensor | None
    key: torch.Tensor
    key_bias: torch.Tensor | None
    value: torch.Tensor
    value_bias: torch.Tensor


class RowsWork:
    """Plan and launches that all layers share in both passes over the global rows of a batch.

    Sums of a tile stay in registers, its tokens in shared memory.
    """

    @classmethod
    def of(cls, layout: Layout, x, heads: int, dim: int, dropout: float, placed: bool, dtype):
        """Get the work of a layout, made once and cached there.

        Args:
            layout: layout of the packed tokens.
            x: [total, width], of the products' dtype.
            heads, dim: heads of a global token, and dims of one.
            dropout: probability of dropping an attention probability.
            placed: True to compute queries from x, and to write a row where its token is.
            dtype: type of the weights.
        """
        key = "rows", x.shape[1], x.stride(0), x.dtype, dtype, heads, dim, dropout, placed
        return layout.cached(key, lambda: cls(layout, x, *key[5:]))

    def __init__(self, layout, x, heads, dim, dropout, placed):
        (total, width), keep, self.placed = x.shape, layout.key_padding_mask, placed
        # What no layer keeps, made at the first call.
        self.room = self.room_of_gradients = self.sums = None
        places, gathered = pattern.tokens(layout)
        place = gathered[0]
        keep = None if keep is None else keep.view(torch.uint8)
        self.count, self.heads, self.dim = len(place), heads, dim
        lines = self.count * heads
        shapes = (self.count, heads, dim), (lines, width), (lines,)
        self.shapes = [room(x, shape) for shape in shapes]  # of what a layer keeps
        self.factor, gain, least_kept = dim**-0.5, 1 / (1 - dropout), least(dropout)
        of_rows, of_blocks = (tile(kind, x, dropout) for kind in ("rows", "blocks"))
        shape = {"rows": of_rows.rows, "columns": of_blocks.columns, "per": heads}
        plans = layout.cached(("plan", *shape.values()), lambda: plan(layout, **shape))
        self.parts, items, tiles = cdiv(width, BLOCK), len(plans.items), len(plans.tiles)
        self.lines = items * of_rows.rows  # of partial sums
        tables = keep, places, place
        sizes = {"WIDTH": width, "CHUNK": min(CHUNKS[x.itemsize], padded(width)), "PER": heads}
        numbers = x.stride(0), total, least_kept
        by_rows, by_blocks = (sizes | one.launch for one in (of_rows, of_blocks))
        self.attend = Launch(attend, (items,), (*tables, plans.items, *numbers), by_rows)
        numbers, more = (x.stride(0), total, gain, least_kept), {"PARTS": self.parts}
        self.bwd_dq = Launch(bwd_dq, (items,), (*tables, plans.items, *numbers), by_rows | more)
        fixed = *tables, plans.blocks, *numbers
        dx = partial(Launch, bwd_dx, (len(plans.blocks),), fixed, by_blocks | more)

        sizes = {"WIDTH": width, "CHUNK": min(CHUNK, padded(width)), "ITEMS": ITEMS}
        sizes |= {"BLOCK_M": of_rows.rows, **OPTIONS}
        grid = tiles * of_rows.rows, cdiv(width, sizes["CHUNK"])
        self.merge = Launch(merge, grid, (plans.tiles, items, gain), sizes)
        self.add = Launch(merge, grid, (plans.tiles, items, 1.0), sizes)

        sizes = {"WIDTH": width, "DIM": dim, "BLOCK_D": padded(dim), "PLACED": placed, **OPTIONS}
        sizes["PRECISION"] = precision(x.new_empty(0, dtype=torch.float32))
        fixed, chunk, blocks = (place, self.count, total), {"CHUNK": BLOCK}, cdiv(self.count, ROWS)
        grid, by_place = (heads, blocks), (*fixed, 1.0, heads * dim)
        self.unfold = Launch(products.unfold, grid, by_place, sizes | chunk)
        fixed = *fixed, self.factor
        not_placed = sizes | chunk | {"PLACED": False}
        self.unfold_dq = Launch(products.unfold, grid, (*fixed, heads * dim), not_placed)
        fixed, grid = (*fixed, x.stride(0), heads * dim), (self.parts, heads, blocks)
        fold = partial(Launch, products.fold, grid, fixed, {"BLOCK": BLOCK, **chunk, **sizes})
        self.fold, self.fold_both = fold(), fold()  # of queries; of gradients besides
        grid = cdiv(width, COLUMNS), heads, 4 if placed else 2
        weights = partial(Launch, products.weights, grid, fixed, {"BLOCK": COLUMNS, **sizes})
        self.ends = cache(lambda *needed: (dx(), weights()))  # by what is there and asked for

    def forward(self, x, q, weights, out, seed, keep=True):
        """Write the attention of the global tokens to ``out``; return a tuple that `backward`
        needs.

        Args:
            x: [total, width].
            q: [globals, heads, dim], contiguous; None where the rows are ``placed``: made by the
                weights.
            weights: `Weights`, of which the query's are read only where rows are ``placed``.
            out: [.., heads, dim], contiguous, with a row for each token if they are ``placed``,
                else for each global one.
            seed: seed of dropout, int64 [], or None.
            keep: False where no backward pass follows.
        """
        made, sums = (None, None, None), self.sums
        if keep or sums is None:
            made_q, context, lse = map(torch.empty_like, self.shapes)
            sums = made_q, context, lse, None if seed is None else torch.empty_like(lse)
            self.sums = None if keep else sums
        made_q, context, lse, share = sums
        if self.placed:
            q, made = made_q, (x, *weights[:2])
        high, low, part, stats = self.room or self._room(x)
        self.fold(q, *made, weights.key, high, low, *[None] * 8)
        self.attend(high, low, x, part, stats, seed)
        self.merge(part, stats, context, lse, share)
        self.unfold(context, weights.value, weights.value_bias, share, out)
        return q, context, lse, share

    def backward(self, dout, x, kept, weights, needed, seed, dx=None):
        """Gradients (of x [total, width], of q in float32, the `Weights` of weights, None where not
        needed).

        Args:
            dout: gradient of what `forward` wrote to ``out``, contiguous.
            x, weights, seed: as `forward` took them.
            kept: tuple that `forward` returned.
            needed: True for each of the weights whose gradient is wanted; the same for weight and
                bias of the value, and of the query.
            dx: [total, width], to which the gradient of x is added in place; None: a new tensor.
        """
        (q, context, lse, share), sums = kept, {"dtype": torch.float32}
        high, low, part, _ = self.room or self._room(x)
        dcontext, dshare, delta, dfolded = self.room_of_gradients or self._room_of_gradients(x)
        dshare = None if share is None else dshare
        gradients = dout, *weights[4:], context, share, dcontext, dshare, delta
        self.fold_both(q, None, None, None, weights.key, high, low, *gradients)
        dq, base, dx = torch.empty_like(q, **sums), dx, x.new_empty(x.shape) if dx is None else dx
        shared = high, low, x, dcontext, lse, delta, dshare, seed
        self.bwd_dq(*shared, part)
        bwd_dx, of_weights = self.ends(base is None, *needed)
        bwd_dx(*shared, base, dx)
        self.add(part, None, dfolded, None, None)
        self.unfold_dq(dfolded, weights.key, None, None, dq)
        grads = Weights(*map(_like, weights, needed))
        if self.placed or any(needed):
            of_x = (dq, x, *grads[:2], weights.query, dx) if self.placed else (None,) * 6
            of_weights(q, dfolded, *grads[2:4], dout, context, share, *grads[4:], *of_x)
        return dx, dq, grads

    def _room(self, x):
        """Tensors that no layer keeps: folded queries, what rounding leaves of them, partial sums,
        statistics."""
        high, sums = x.new_empty((self.count * self.heads, x.shape[1])), {"dtype": torch.float32}
        low = None if x.dtype == torch.float32 else torch.empty_like(high)
        part = x.new_empty((self.lines, x.shape[1]), **sums)
        self.room = high, low, part, x.new_empty((3 * self.lines,), **sums)
        return self.room

    def _room_of_gradients(self, x):
        """Scratch of gradients: of context, of its sums of probabilities, delta, and of folded
        queries."""
        (rows, width), sums = (self.count * self.heads, x.shape[1]), {"dtype": torch.float32}
        dshare, delta = x.new_empty((rows,), **sums), x.new_empty((rows, self.parts), **sums)
        dfolded = x.new_empty((rows, width), **sums)
        self.room_of_gradients = x.new_empty((rows, width)), dshare, delta, dfolded
        return self.room_of_gradients


def _like(weight, needed):
    return torch.empty_like(weight) if needed else None
