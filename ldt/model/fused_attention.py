"""Self-attention of a layer on CUDA up to its output, one function of autograd.

Query, key and value are one product with a copy of their weights below each other; windows and
global rows write to one tensor, and so do the gradients of query, key and value.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from ldt.attention import Layout
from ldt.attention.layout import per_head
from ldt.model.fused import LINEAR, by_hand, gate_of, product_input, products_dtype

LOCAL = ("query", "key", "value")
PROJECTIONS = dict.fromkeys((*LOCAL, *(f"{name}_global" for name in LOCAL)), LINEAR)


def attention(module, x, layout):
    """[total, width], what an `ldt.model.layers.SelfAttention` without a second level gives; None
    where its modules must run.

    Args:
        module: its windows, its global tokens, and its dropout.
        x: [total, width].
        layout: of the packed tokens.
    """
    products = products_dtype(module.backend, x)
    gate = products and gate_of(module, PROJECTIONS, x)
    if not gate or module.pooled is not None:
        return None
    call = Call.of(module, layout, x, products)
    if call is None:
        return None
    # From torch's generator, whose state gradient checkpointing restores.
    seed = torch.randint(2**31, (), device=x.device) if call.dropout else None
    arguments = x, *gate.weights, seed, call, product_input(x, products)
    if torch.is_grad_enabled():
        return _Attention.apply(*arguments)
    return _Attention.forward(None, *arguments)


class Call(NamedTuple):
    """Settings of a layer's attention for a batch.

    Args:
        heads: their number.
        window, dilations, causal: of the sliding window.
        dropout: probability.
        products: dtype of the products.
        layout: of the packed tokens.
        has_rows: whether some tokens attend to their whole document.
    """

    heads: int
    window: int
    dilations: tuple[int, ...]
    causal: bool
    dropout: float
    products: torch.dtype
    layout: Layout
    has_rows: bool

    @classmethod
    def of(cls, module, layout, x, products):
        """The call of a module; None where it is not the kernels'."""
        from ldt.attention.triton.rows import folds

        width, heads, pattern = x.shape[1], module.heads, module.pattern
        has_rows = layout.is_global is not None
        shape = len(layout.global_index), heads, width // heads
        if has_rows and (pattern["causal"] or not folds(shape, x, layout, products)):
            return None
        dilations = per_head(pattern["dilation"], heads)
        dropout = module.dropout if module.training else 0.0
        rest = dropout, products, layout, has_rows
        return cls(heads, pattern["window"], dilations, pattern["causal"], *rest)

    def pattern(self):
        """The windows' tables, which the layout caches."""
        from ldt.attention.triton.pattern import windows

        return windows(self.layout, self.window, self.dilations, self.causal)

    def work(self, x):
        """The `Work` on the global rows, which the layout caches; None without any."""
        from ldt.attention.triton.rows import Work

        if not self.has_rows:
            return None
        return Work.of(self.layout, x, self.heads, x.shape[1] // self.heads, self.dropout)

    def split(self, x):
        """[total, heads, dim] of [total, width]."""
        return x.view(len(x), self.heads, -1)


class _Attention(torch.autograd.Function):
    """Projections, windows and global rows."""

    @staticmethod
    def forward(ctx, x, *arguments):
        from ldt.attention.triton.forward import forward
        from ldt.attention.triton.rows import Weights
        from ldt.attention.triton.tiles import check

        *weights, seed, call, (low, made) = arguments
        width = low.shape[1]
        weight, bias = joined(call.products, weights[:6])
        qkv = F.linear(low, weight, bias).view(len(low), 3, call.heads, -1)
        check(qkv)
        out, lse = forward(*qkv.unbind(1), call.pattern(), call.dropout, seed)
        work, kept, of_rows = call.work(low), (), Weights(*weights[6:])
        if work is not None:
            kept = work.forward(low, None, of_rows, out, seed)
        out = out.view(len(low), width)
        if ctx is not None and any(ctx.needs_input_grad):
            *sources, eps = (low, None, None, None) if made is None else made
            ctx.save_for_backward(*sources, weight, qkv, out, lse, seed, *weights[6:], *kept)
            ctx.call, ctx.eps = call, eps
        return out

    @staticmethod
    @by_hand
    def backward(ctx, dout):
        from ldt.attention.triton import backward
        from ldt.attention.triton.norms import again
        from ldt.attention.triton.rows import Weights

        saved = ctx.saved_tensors
        low, *norm, weight, qkv, out, lse, seed = saved[:8]
        of_rows, kept = Weights(*saved[8:14]), saved[14:]
        call, needed = ctx.call, ctx.needs_input_grad
        if ctx.eps is not None:
            low = again(low, *norm, ctx.eps, call.products)
        dout, out = call.split(dout.contiguous()), call.split(out)
        dqkv, how = torch.empty_like(qkv), (call.pattern(), call.dropout, seed)
        into = dqkv[:, 0], dqkv[:, 1:].transpose(0, 1)
        backward.fill(*into, dout, *qkv.unbind(1), out, lse, *how)
        dqkv, dx, found = dqkv.view(len(low), -1), None, [None] * 6
        work = call.work(low)
        if work is not None:
            of_query, of_value = any(needed[7:9]), any(needed[11:13])
            wanted = of_query, of_query, *needed[9:11], of_value, of_value
            dx, _, found = work.backward(dout, low, kept, of_rows, wanted, seed)
        if needed[0]:
            dx = dqkv @ weight if dx is None else dx.addmm_(dqkv, weight)
        of_weights, of_biases = [None] * 3, [None] * 3
        if any(needed[1:7:2]):
            of_weights = (dqkv.t() @ low).split(low.shape[1])
        if any(needed[2:7:2]):
            of_biases = dqkv.sum(0).split(low.shape[1])
        of_local = (x for pair in zip(of_weights, of_biases, strict=True) for x in pair)
        return dx if needed[0] else None, *of_local, *found, None, None, None


def joined(dtype, weights):
    """Weights below each other and biases behind each other, in a dtype, by one operation.

    Args:
        weights: pairs of a weight [out, in] and a bias [out], all alike.
    """
    (out, width), count = weights[0].shape, len(weights) // 2
    room = weights[0].new_empty(count * out * (width + 1), dtype=dtype)
    weight = room[: count * out * width].view(count * out, width)
    bias = room[count * out * width :]
    places = zip(weight.split(out), bias.split(out), strict=True)
    torch._foreach_copy_([place for pair in places for place in pair], weights)
    return weight, bias
