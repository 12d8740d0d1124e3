"""Attention of global tokens in Triton, with the projections of its keys and values.

`reference.global_attention` on CUDA. Where few tokens are global, the projections of the document
are folded away: the key weight goes into the queries, which then meet the layer's input itself, and
the value weight is applied to what they gathered. Else the document is projected as usual.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from ldt.attention.derivatives import first_order
from ldt.attention.triton import pattern, rows_products
from ldt.attention.triton.attention import projected_global_attention
from ldt.attention.triton.devices import OPTIONS, find, limits, precision, tile
from ldt.attention.triton.dropout import least, on_device
from ldt.attention.triton.rows_kernels import attend, bwd_dq, bwd_dx, merge
from ldt.attention.triton.rows_plan import plan
from ldt.attention.triton.tiles import cdiv, check, padded, rows

CHUNKS = {2: 128, 4: 32}  # bytes of a number -> columns at a time; fp32 has no matrix units
CHUNK, ITEMS = 128, 16  # columns that `merge` writes, and parts that it reads at a time
BLOCK, COLUMNS = 64, 32  # of a program that multiplies by a weight, and of one that makes some
ROWS = rows_products.ROWS.value


def global_attention(q, x, key, value, layout, *, dropout=0.0, seed=0):
    """`reference.global_attention` without a score in memory, no wait for the device, no atomics.

    Args:
        q: [globals, heads, dim], queries of the tokens at ``layout.global_index``; those past
            ``layout.cu_globals[-1]`` stand for nothing and gather nothing.
        x: [total, width]. key, value: (weight [heads * dim, width], bias [heads * dim]).
        layout, dropout, seed: as in the definition.

    Returns:
        [globals, heads, dim].

    Raises:
        ValueError: tensors that are not on CUDA, of float64 or of several dtypes.
    """
    run = folded_rows if folds(q.shape, x, layout, q.dtype) else plain_rows
    return run(q, x, key, value, layout, dropout=dropout, seed=seed)


def folds(shape, x, layout, dtype):
    """True if folding costs no more than projecting: rows a document, on average, <= width.

    Args:
        shape: (globals, heads, dim).
        x: [total, width].
        layout: of the packed tokens.
        dtype: of the products.
    """
    few = shape[0] * shape[1] <= x.shape[1] * (len(layout.cu_seqlens) - 1)
    return few and find("rows", dtype, x.shape[1], False, limits(x.device)) is not None


def folded_rows(q, x, key, value, layout, *, dropout=0.0, seed=0):
    """`global_attention` in O(globals * heads * length * width): the document is not projected.

    What is folded is float32; see `blocked.folded_rows`. Nobody adds the key bias: it raises all
    scores of a row alike, which the softmax undoes.
    """
    x = x.to(q.dtype)  # they differ under autocast
    check(q[..., :0], x[:, :0])  # of any width
    seed = on_device(seed, x.device) if dropout else None
    return _Rows.apply(q, x, key[0], *value, seed, layout, dropout)


def plain_rows(q, x, key, value, layout, *, dropout=0.0, seed=0):
    """`global_attention` with keys and values of the whole document: O(length * width**2)."""
    k, v = F.linear(x, key[0]), F.linear(x, *value)
    k, v = (y.view(-1, *q.shape[1:]) for y in (k, v))
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, x, key, value, bias, seed, layout, dropout):
        q, x, out = q.contiguous(), rows(x), q.new_empty(q.shape)
        weights = Weights(None, None, key.contiguous(), None, value.contiguous(), bias.contiguous())
        work = Work.of(layout, x, *q.shape[1:], dropout)
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
        dx, dq, grads = ctx.work.backward(rows(dout), x, (q, *saved), weights, needed, seed)
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


class Work:
    """Plan and sizes that both passes over the global rows of a batch share, in all layers.

    Sums of a tile live in registers, its tokens in shared memory.
    """

    @classmethod
    def of(cls, layout, x, heads, dim, dropout):
        """The work of a layout, which caches it.

        Args:
            x: [total, width], of the products' dtype.
            heads, dim: of the rows.
            dropout: probability.
        """
        key = "rows", x.shape[1], x.dtype, heads, dim, dropout
        return layout.cached(key, lambda: cls(layout, x, heads, dim, dropout))

    def __init__(self, layout, x, heads, dim, dropout):
        (total, width), keep = x.shape, layout.key_padding_mask
        self.place = pattern.Gathered.of(layout).table[0]
        self.tokens = pattern.places(layout)
        self.keep = None if keep is None else keep.view(torch.uint8)
        self.count, self.total, self.heads, self.dim = len(self.place), total, heads, dim
        self.factor, self.dropout, self.gain = dim**-0.5, dropout, 1 / (1 - dropout)
        tiles = [tile(kind, x, dropout) for kind in ("rows", "blocks")]
        self.rows, self.blocks = (one.launch for one in tiles)
        shape = {"rows": tiles[0].rows, "columns": tiles[1].columns, "per": heads}
        self.plan = layout.cached(("plan", *shape.values()), lambda: plan(layout, **shape))
        self.parts = cdiv(width, BLOCK)
        self.lines = len(self.plan.items) * tiles[0].rows  # of partial sums
        chunk = min(CHUNKS[x.itemsize], padded(width))
        self.sizes = {"WIDTH": width, "CHUNK": chunk, "PER": heads}
        self.merging = {"WIDTH": width, "CHUNK": min(CHUNK, padded(width)), "ITEMS": ITEMS}
        self.merging |= {"BLOCK_M": tiles[0].rows, **OPTIONS}
        self.products = {"WIDTH": width, "DIM": dim, "BLOCK_D": padded(dim), **OPTIONS}
        self.products["PRECISION"] = precision(x.new_empty(0, dtype=torch.float32))

    def forward(self, x, q, weights, out, seed):
        """Write the rows to ``out``; return what `backward` needs.

        Args:
            x: [total, width].
            q: [globals, heads, dim], contiguous; None: made by the weights.
            out: [.., heads, dim], with a row for each token; for each global one where there is q.
            seed: of dropout, or None.
        """
        source, sums = x if q is None else None, {"dtype": torch.float32}
        if q is None:
            q = x.new_empty(self.count, self.heads, self.dim, **sums)
        high, low = self.fold(source, q, weights, x)
        stats, part = (
            x.new_empty(3 * self.lines, **sums),
            x.new_empty(self.lines * x.shape[1], **sums),
        )
        attend[(len(self.plan.items),)](
            high, low, x, self.keep, seed, self.tokens, self.place, self.plan.items, part, stats,
            x.stride(0), self.total, least(self.dropout), **self.sizes, **self.rows,
        )  # fmt: skip
        context, lse = x.new_empty(high.shape, **sums), x.new_empty(len(high), **sums)
        share = None if seed is None else torch.empty_like(lse)
        self.merge(part, stats, context, lse, share, self.gain)
        merged = context, weights.value, weights.value_bias, share, out, 1.0
        self.unfold(*merged, placed=source is not None)
        return q, context, lse, share

    def backward(self, dout, x, kept, weights, needed, seed):
        """Gradients of x [total, width], of q in float32, and the `Weights` of weights.

        Args:
            dout: like what `forward` wrote to, with the numbers of each token contiguous.
            x, weights, seed: as `forward` took them.
            kept: what it returned.
            needed: for each of the weights, whether its gradient is wanted; as much of the two of
                the value, and of the two of the query.
        """
        q, context, lse, share = kept
        placed, sums = weights.query is not None, {"dtype": torch.float32}
        dcontext, dshare = (
            x.new_empty(context.shape),
            None if share is None else torch.empty_like(lse),
        )
        delta = x.new_empty(len(lse) * self.parts, **sums)
        gradients = context, share, dcontext, dshare, delta
        high, low = self.fold(None, q, weights, x, dout, *gradients)
        shared = (
            high, low, x, dcontext, lse, delta, dshare, self.keep, seed, self.tokens, self.place,
        )  # fmt: skip
        ints = x.stride(0), self.total, self.gain, least(self.dropout)
        part = x.new_empty(self.lines * x.shape[1], **sums)
        bwd_dq[(len(self.plan.items),)](
            *shared, self.plan.items, part, *ints, PARTS=self.parts, **self.sizes, **self.rows
        )
        dx = x.new_empty(x.shape)
        bwd_dx[(len(self.plan.blocks),)](
            *shared, self.plan.blocks, dx, *ints, PARTS=self.parts, **self.sizes, **self.blocks
        )
        dfolded, dq = torch.empty_like(context), torch.empty_like(q, **sums)
        self.merge(part, None, dfolded, None, None, 1.0)
        self.unfold(dfolded, weights.key, None, None, dq, self.factor, placed=False)
        grads = Weights(*map(_like, weights, needed))
        if any(needed) or placed:
            of_x = (dq, x, *grads[:2], weights.query, dx) if placed else (None,) * 6
            ints = self.count, self.total, self.factor, dout.stride(0), x.stride(0)
            columns = cdiv(x.shape[1], COLUMNS)
            rows_products.weights[columns, self.heads, 4 if placed else 2](
                self.place, q, dfolded, *grads[2:4], dout, context, share, *grads[4:], *of_x, *ints,
                PLACED=placed, BLOCK=COLUMNS, **self.products,
            )  # fmt: skip
        return dx, dq, grads

    def fold(self, made, q, weights, x, dout=None, *gradients):
        """The folded queries in the dtype of x, and what that leaves of them or None; q before, if
        it is ``made``, and the gradients of what they gather, if there is a ``dout``."""
        high = x.new_empty(self.count * self.heads, x.shape[1])
        low = None if x.dtype == torch.float32 else torch.empty_like(high)
        query, bias = (None, None) if made is None else weights[:2]
        values = (None, None) if dout is None else weights[4:]
        stride = 0 if dout is None else dout.stride(0)
        rows_products.fold[self.parts, self.heads, cdiv(self.count, ROWS)](
            self.place, made, query, bias, q, weights.key, high, low, dout, *values,
            *(gradients or (None,) * 5), self.count, self.total, self.factor, x.stride(0), stride,
            PLACED=weights.query is not None, BLOCK=BLOCK, CHUNK=BLOCK, **self.products,
        )  # fmt: skip
        return high, low

    def merge(self, part, stats, out, lse, share, factor):
        """Sum up what items found."""
        size, chunk = self.merging["BLOCK_M"], self.merging["CHUNK"]
        merge[len(self.plan.tiles) * size, cdiv(out.shape[1], chunk)](
            part, stats, self.plan.tiles, out, lse, share, len(self.plan.items), factor,
            **self.merging,
        )  # fmt: skip

    def unfold(self, rows, weight, bias, share, out, factor, placed):
        """Multiply wide rows by the transpose of their head's part of a weight."""
        rows_products.unfold[self.heads, cdiv(self.count, ROWS)](
            self.place, rows, weight, bias, share, out, self.count, self.total, factor,
            out.stride(0), PLACED=placed, CHUNK=BLOCK, **self.products,
        )  # fmt: skip


def _like(weight, needed):
    return torch.empty_like(weight) if needed else None
