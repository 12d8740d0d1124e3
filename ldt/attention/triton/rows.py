"""The global rows in Triton: few queries, all keys of their document, forward and backward.

`reference.global_attention` on CUDA. Where few tokens are global, the projections of the document
are folded away: the key weight goes into the queries, which then meet the layer's input itself, and
the value weight is applied to what they gathered. Else the document is projected as usual.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton

from ldt.attention.derivatives import first_order
from ldt.attention.triton.devices import OPTIONS, Tile, find, limits, tile
from ldt.attention.triton.dropout import least, token_codes
from ldt.attention.triton.rows_backward import pull, push
from ldt.attention.triton.rows_kernels import attend, merge
from ldt.attention.triton.rows_plan import plan
from ldt.attention.triton.tiles import check, padded
from ldt.attention.triton.tiles import rows as _rows

HEAD = 128  # dims of a head at most
CHUNKS = {2: 128, 4: 32}  # bytes of a number -> columns at a time; fp32 has no matrix units
ITEMS = 16  # parts that `merge` reads at a time


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
    run = folded_rows if folds(q, x, layout) else plain_rows
    return run(q, x, key, value, layout, dropout=dropout, seed=seed)


def folds(q, x, layout):
    """True if folding costs no more than projecting: rows a document, on average, <= width."""
    few = len(q) * q.shape[1] <= x.shape[1] * (len(layout.cu_seqlens) - 1)
    return few and find("rows few", q.dtype, x.shape[1], False, limits(q.device)) is not None


def folded_rows(q, x, key, value, layout, *, dropout=0.0, seed=0):
    """`global_attention` in O(globals * heads * length * width): the document is not projected.

    What is folded is float32; see `blocked.folded_rows`.
    """
    heads, dim = q.shape[1:]
    width = x.shape[1]
    x = x.to(q.dtype)  # they differ under autocast
    check(q[..., :0], x[:, :0])  # of any width
    with torch.autocast(x.device.type, enabled=False):
        weights = (w.float().view(heads, dim, width) for w in (key[0], value[0]))
        folded = torch.einsum("ghd,hdw->ghw", q.float() * dim**-0.5, next(weights))
        rows = folded.reshape(-1, 1, width), x[:, None], None
        context, weight = _Rows.apply(*rows, layout, heads, 1.0, dropout, seed)
        out = torch.einsum("ghw,hdw->ghd", context.view(-1, heads, width), next(weights))
        return _biased(out, value[1], weight).to(q.dtype)


def plain_rows(q, x, key, value, layout, *, dropout=0.0, seed=0):
    """`global_attention` with keys and values of the whole document: O(length * width**2)."""
    k, v = (F.linear(x, weight).view(-1, *q.shape[1:]) for weight, _ in (key, value))
    out, weight = _attend(q, k, v, layout, dropout, seed)
    return _biased(out, value[1], weight)


def projected_global_attention(q, k, v, layout, *, dropout=0.0, seed=0):
    """`reference.projected_global_attention`, keys and values [total, heads, dim].

    Raises:
        ValueError: tensors that are not on CUDA, of float64 or of several dtypes.
    """
    return _attend(q, k, v, layout, dropout, seed)[0]


def _attend(q, k, v, layout, dropout, seed):
    check(q, k, v)
    return _Rows.apply(q, k, v, layout, 1, q.shape[2] ** -0.5, dropout, seed)


def _biased(out, bias, weight):
    """Adds the value bias [heads * dim], as often as a row's probabilities add up to.

    Nobody adds the key bias: it raises all scores of a row alike, which the softmax undoes.
    """
    bias = bias.view(out.shape[1:]).to(out.dtype)
    return out + (bias if weight is None else weight.view(*out.shape[:2], 1).to(out.dtype) * bias)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of the row kernels; programs of both directions own the same rows.

    Args:
        rows: of `attend` and `pull`, whose programs own rows.
        blocks: of `push`, whose programs own columns, which are tokens.
        chunk: columns of rows and tokens that are multiplied at a time.
    """

    rows: Tile
    blocks: Tile
    chunk: int


def tiles(k, rows, dropout):
    """`Tiles` for tokens like k [total, heads, width], and rows of a document on average.

    All sums of a tile live in registers, and its tokens in shared memory.
    """
    amount = "many" if rows > 16 else "few"
    owned = (tile(f"{kind} {amount}", k, dropout) for kind in ("rows", "blocks"))
    return Tiles(*owned, CHUNKS[k.itemsize])


class _Rows(torch.autograd.Function):
    """Softmax attention of rows q [rows, heads, width] over k, v [total, heads, width].

    q may be float32 where k is of half precision, v None stands for k. Returns the output, in q's
    dtype, and [rows, heads] float32, the sums of the rows' probabilities after dropout; None
    without.
    """

    @staticmethod
    def forward(ctx, q, k, v, layout, per, scale, dropout, seed):
        call = Call(q, k, v, layout, per, scale, dropout, seed)
        out, weight, lse = call.forward()
        ctx.save_for_backward(q, k, v, out, weight, lse)
        ctx.rest = layout, per, scale, dropout, seed
        return out.to(q.dtype), weight

    @staticmethod
    @first_order
    def backward(ctx, grad, weight_grad):
        q, k, v, *found = ctx.saved_tensors
        dq, dk, dv = Call(q, k, v, *ctx.rest).backward(grad, weight_grad, *found)
        return dq, dk, dv, None, None, None, None, None


def split(q, dtype):
    """``q`` as the sum of two tensors of another dtype, the second one None where it is q's."""
    if q.dtype == dtype:
        return _rows(q), None
    high = q.contiguous().to(dtype)
    return high, (q - high).to(dtype)


class Call:
    """One pass: what its kernels share."""

    def __init__(self, q, k, v, layout, per, scale, dropout, seed):
        self.count, self.heads, self.width = q.shape
        self.dtype = q.dtype
        self.q, self.low = split(q, k.dtype)
        self.k, self.v = _rows(k), None if v is None else _rows(v)
        self.layout, self.scale, self.dropout = layout, scale, dropout
        keep = layout.key_padding_mask
        self.key_padding_mask = None if keep is None else keep.view(torch.uint8)
        rows = self.count / (len(layout.cu_seqlens) - 1)
        self.tiles = cut = tiles(k, rows, dropout)
        shape = {"rows": cut.rows.rows, "columns": cut.blocks.columns}
        shape |= {"per": per, "heads": self.heads}
        key = "rows", *shape.values()
        self.plan = layout.cached(key, lambda: plan(layout, **shape))
        self.codes = token_codes(layout, self.heads * per, seed) if dropout else (None, None)
        chunk = min(cut.chunk, padded(self.width))
        self.sizes = {"WIDTH": self.width, "CHUNK": chunk, "PER": per}

    def forward(self):
        stats = self.parts(3)
        part = self.parts(self.width)
        q, k, v = self.q, self.k, self.v
        attend[self.grid(self.plan.items)](
            *(q, self.low, k, v, self.key_padding_mask, *self.codes, self.layout.global_index),
            *(self.plan.items, part, stats, *self.strides(q, k, k if v is None else v)),
            *(self.layout.total_tokens, self.scale, least(self.dropout)),
            **self.sizes,
            **self.tiles.rows.launch,
        )
        out = q.new_zeros(q.shape, dtype=torch.float32)
        lse = q.new_empty(self.heads, self.count, dtype=torch.float32)
        weight = torch.zeros_like(lse) if self.dropout else None
        self.merge(part, stats, out, lse, weight, 1 / (1 - self.dropout))
        return out, None if weight is None else weight.T, lse

    def backward(self, grad, weight_grad, out, weight, lse):
        delta = (grad * out).sum(2)
        grad, q, k, v = _rows(grad.to(self.k.dtype)), self.q, self.k, self.v
        if weight is not None:
            delta += weight_grad * weight
            weight_grad = weight_grad.T.contiguous()
        shared = (
            *(q, self.low, k, v, grad, lse, delta.T.contiguous(), weight_grad),
            *(self.key_padding_mask, *self.codes, self.layout.global_index),
        )
        rest = (
            *self.strides(q, k, k if v is None else v, grad),
            *(self.count, self.layout.total_tokens, self.scale),
            *(1 / (1 - self.dropout), least(self.dropout)),
        )
        part = self.parts(self.width)
        pull[self.grid(self.plan.items)](
            *shared, self.plan.items, part, *rest, **self.sizes, **self.tiles.rows.launch
        )
        dq = q.new_zeros(q.shape, dtype=self.dtype)
        self.merge(part, None, dq, None, None, self.scale)
        dk = k.new_empty(k.shape)
        dv = None if v is None else v.new_empty(v.shape)
        push[self.grid(self.plan.blocks)](
            *shared, self.plan.blocks, dk, dv, *rest, **self.sizes, **self.tiles.blocks.launch
        )
        return dq, dk, dv

    def merge(self, part, stats, out, lse, weight, factor):
        rows, chunk = self.tiles.rows.rows, min(HEAD, padded(self.width))
        merge[len(self.plan.tiles) * rows, self.heads, triton.cdiv(self.width, chunk)](
            *(part, stats, self.plan.tiles, out, lse, weight, len(self.plan.items), self.count),
            *(factor, self.width, chunk, rows, ITEMS),
            **OPTIONS,
        )

    def grid(self, table):
        return len(table), self.heads

    def parts(self, size):
        """Float32 memory of ``size`` numbers for each row of each item."""
        return self.q.new_empty(
            size * len(self.plan.items) * self.heads * self.tiles.rows.rows, dtype=torch.float32
        )

    def strides(self, *tensors):
        return [stride for x in tensors for stride in x.stride()[:2]]
