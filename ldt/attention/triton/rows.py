"""Attention of global tokens in Triton, with the projections of its keys and values.

`reference.global_attention` on CUDA. Where few tokens are global, the projections of the document
are folded away: the key weight goes into the queries, which then meet the layer's input itself, and
the value weight is applied to what they gathered. Else the document is projected as usual.
"""

import torch
import torch.nn.functional as F
import triton

from ldt.attention.derivatives import first_order
from ldt.attention.triton.attention import projected_global_attention
from ldt.attention.triton.devices import OPTIONS, find, limits, tile
from ldt.attention.triton import pattern
from ldt.attention.triton.dropout import least, on_device
from ldt.attention.triton.rows_backward import bwd_dq, bwd_dx
from ldt.attention.triton.rows_kernels import attend, merge
from ldt.attention.triton.rows_plan import plan
from ldt.attention.triton.tiles import check, padded, rows

CHUNKS = {2: 128, 4: 32}  # bytes of a number -> columns at a time; fp32 has no matrix units
CHUNK, ITEMS = 128, 16  # columns that `merge` writes, and parts that it reads at a time


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
    return few and find("rows", q.dtype, x.shape[1], False, limits(q.device)) is not None


def folded_rows(q, x, key, value, layout, *, dropout=0.0, seed=0):
    """`global_attention` in O(globals * heads * length * width): the document is not projected.

    What is folded is float32; see `blocked.folded_rows`. Nobody adds the key bias: it raises all
    scores of a row alike, which the softmax undoes.
    """
    heads, dim = q.shape[1:]
    width = x.shape[1]
    x = x.to(q.dtype)  # they differ under autocast
    check(q[..., :0], x[:, :0])  # of any width
    with torch.autocast(x.device.type, enabled=False):
        weights = (w.float().view(heads, dim, width) for w in (key[0], value[0]))
        folded = torch.einsum("ghd,hdw->ghw", q.float() * dim**-0.5, next(weights))
        context, weight = _Folded.apply(folded.reshape(-1, width), x, layout, heads, dropout, seed)
        out = torch.einsum("ghw,hdw->ghd", context.view(-1, heads, width), next(weights))
        bias = value[1].view(heads, dim).to(out.dtype)
        if weight is not None:  # the bias as often as a row's probabilities add up to
            bias = weight.view(-1, heads, 1) * bias
        return (out + bias).to(q.dtype)


def plain_rows(q, x, key, value, layout, *, dropout=0.0, seed=0):
    """`global_attention` with keys and values of the whole document: O(length * width**2)."""
    k, v = F.linear(x, key[0]), F.linear(x, *value)
    k, v = (y.view(-1, *q.shape[1:]) for y in (k, v))
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


class _Folded(torch.autograd.Function):
    """Softmax attention of rows q [rows, width] over x [total, width], keys and values in one.

    q is float32, x maybe of half precision. Returns the output, float32, and [rows] float32, the
    sums of the rows' probabilities after dropout; None without.
    """

    @staticmethod
    def forward(ctx, q, x, layout, per, dropout, seed):
        out, weight, lse = Call(q, x, layout, per, dropout, seed).forward()
        ctx.save_for_backward(q, x, out, weight, lse)
        ctx.rest = layout, per, dropout, seed
        return out, weight

    @staticmethod
    @first_order
    def backward(ctx, dout, weight_grad):
        q, x, *found = ctx.saved_tensors
        call = Call(q, x, *ctx.rest)
        return *call.backward(dout, weight_grad, *found), None, None, None, None


def split(q, dtype):
    """``q`` as the sum of two tensors of another dtype, the second one None where it is q's."""
    q = q.contiguous()
    if q.dtype == dtype:
        return q, None
    high = q.to(dtype)
    return high, (q - high).to(dtype)


class Call:
    """One pass: what its kernels share. Sums of a tile live in registers, its tokens in shared
    memory."""

    def __init__(self, q, x, layout, per, dropout, seed):
        self.count, self.width = q.shape
        self.q, self.low = split(q, x.dtype)
        self.x, self.layout, self.dropout = rows(x), layout, dropout
        keep = layout.key_padding_mask
        self.keep = None if keep is None else keep.view(torch.uint8)
        self.rows, self.blocks = (tile(kind, x, dropout) for kind in ("rows", "blocks"))
        shape = {"rows": self.rows.rows, "columns": self.blocks.columns, "per": per}
        self.plan = layout.cached(("rows", *shape.values()), lambda: plan(layout, **shape))
        self.seed = on_device(seed, x.device) if dropout else None
        self.tokens = pattern.places(layout) if dropout else None
        chunk = min(CHUNKS[x.itemsize], padded(self.width))
        self.sizes = {"WIDTH": self.width, "CHUNK": chunk, "PER": per}

    def forward(self):
        stats, part = self.parts(3), self.parts(self.width)
        attend[(len(self.plan.items),)](
            self.q, self.low, self.x, self.keep, self.seed, self.tokens, self.layout.global_index,
            self.plan.items, part, stats, self.x.stride(0), self.layout.total_tokens,
            least(self.dropout), **self.sizes, **self.rows.launch,
        )  # fmt: skip
        out = torch.zeros_like(self.q, dtype=torch.float32)
        lse = out.new_empty(self.count)
        weight = torch.zeros_like(lse) if self.dropout else None
        self.merge(part, stats, out, lse, weight, 1 / (1 - self.dropout))
        return out, weight, lse

    def backward(self, dout, weight_grad, out, weight, lse):
        delta = (dout * out).sum(1)
        if weight is not None:
            weight_grad = weight_grad.contiguous()
            delta += weight_grad * weight
        shared = (
            self.q, self.low, self.x, dout.to(self.x.dtype).contiguous(), lse, delta, weight_grad,
            self.keep, self.seed, self.tokens, self.layout.global_index,
        )  # fmt: skip
        gain = 1 / (1 - self.dropout)
        rest = self.x.stride(0), self.layout.total_tokens, gain, least(self.dropout)
        part = self.parts(self.width)
        bwd_dq[(len(self.plan.items),)](
            *shared, self.plan.items, part, *rest, **self.sizes, **self.rows.launch
        )
        dq = torch.zeros_like(self.q, dtype=torch.float32)
        self.merge(part, None, dq, None, None, 1.0)
        dx = self.x.new_empty(self.x.shape)
        bwd_dx[(len(self.plan.blocks),)](
            *shared, self.plan.blocks, dx, *rest, **self.sizes, **self.blocks.launch
        )
        return dq, dx

    def merge(self, part, stats, out, lse, weight, factor):
        size, chunk = self.rows.rows, min(CHUNK, padded(self.width))
        merge[len(self.plan.tiles) * size, triton.cdiv(self.width, chunk)](
            part, stats, self.plan.tiles, out, lse, weight, len(self.plan.items), factor,
            self.width, chunk, size, ITEMS, **OPTIONS,
        )  # fmt: skip

    def parts(self, size):
        """Float32 memory of ``size`` numbers for each row of each item."""
        return self.q.new_empty(size * len(self.plan.items) * self.rows.rows, dtype=torch.float32)
