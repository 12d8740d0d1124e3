"""Self-attention of a layer on CUDA up to its output, one function of autograd.

Query, key and value are one product with a copy of their weights below each other; windows and
global rows write to one tensor, and so do the gradients of query, key and value.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional as F

from ldt.attention.layout import per_head
from ldt.model.fused import LINEAR, by_hand, gate_of, product_input, products_dtype
from ldt.model.recompute import save, saved

if TYPE_CHECKING:  # triton may not be there
    from ldt.attention.triton.pattern import Pattern
    from ldt.attention.triton.rows import Work

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
    """Settings and tables that layers of one kind share in a batch.

    Args:
        heads: their number.
        products: dtype of the products.
        dropout: probability.
        pattern: `Pattern` of the sliding windows.
        work: `Work` on the tokens that attend to their whole document, None without any.
    """

    heads: int
    products: torch.dtype
    dropout: float
    pattern: "Pattern"
    work: "Work | None"

    @classmethod
    def of(cls, module, layout, x, products):
        """The call of a module, which the layout caches; None where it is not the kernels'."""
        heads, (window, dilation, causal) = module.heads, module.pattern.values()
        windows = window, per_head(dilation, heads), causal
        settings = heads, products, module.dropout if module.training else 0.0
        key = "fused", *windows, *settings, x.shape[1]
        return layout.cached(key, lambda: cls._of(layout, x, windows, *settings))

    @classmethod
    def _of(cls, layout, x, windows, heads, products, dropout):
        from ldt.attention.triton import pattern, rows, tiles

        tiles.check(low := x.new_empty(0, heads, x.shape[1] // heads, dtype=products))
        work, causal = None, windows[-1]
        if layout.is_global is not None:
            shape = len(layout.global_index), *low.shape[1:]
            if causal or not rows.folds(shape, x, layout, products):
                return None
            work = rows.Work.of(layout, x.to(products), *shape[1:], dropout)
        return cls(heads, products, dropout, pattern.windows(layout, *windows), work)

    def split(self, x):
        """[total, heads, dim] of [total, width]."""
        return x.view(len(x), self.heads, -1)


class _Attention(torch.autograd.Function):
    """Projections, windows and global rows."""

    @staticmethod
    def forward(ctx, x, *arguments):
        from ldt.attention.triton.forward import forward
        from ldt.attention.triton.rows import Weights

        *weights, seed, call, (low, sources_of_x) = arguments
        width = low.shape[1]
        weight, bias = joined(call.products, weights[:6])
        qkv = F.linear(low, weight, bias).view(len(low), 3, call.heads, -1)
        out, lse = forward(*qkv.unbind(1), call.pattern, call.dropout, seed)
        of_work = ()
        if call.work is not None:
            of_work = call.work.forward(low, None, Weights(*weights[6:]), out, seed)
        out = out.view(len(low), width)
        if ctx is not None and any(ctx.needs_input_grad):
            *sources, eps = (low, None, None, None) if sources_of_x is None else sources_of_x
            save(ctx, *sources, weight, qkv, out.detach(), lse, seed, *weights[6:], *of_work)
            ctx.call, ctx.eps = call, eps
        return out

    @staticmethod
    @by_hand
    def backward(ctx, dout):
        from ldt.attention.triton import backward
        from ldt.attention.triton.norms import again
        from ldt.attention.triton.rows import Weights

        low, *norm = (tensors := saved(ctx))[:3]
        weight, qkv, out, lse, seed = tensors[3:8]
        of_rows, of_work = Weights(*tensors[8:14]), tensors[14:]
        del tensors
        call, needed = ctx.call, ctx.needs_input_grad
        if ctx.eps is not None:
            low = again(low, *norm, ctx.eps, call.products)
        dout, out = call.split(dout.contiguous()), call.split(out)
        dqkv, settings = torch.empty_like(qkv), (call.pattern, call.dropout, seed)
        into = dqkv[:, 0], dqkv[:, 1:].transpose(0, 1)
        backward.fill(*into, dout, *qkv.unbind(1), out, lse, *settings)
        dqkv, dx, of_global = dqkv.view(len(low), -1), None, [None] * 6
        if call.work is not None:
            of_query, of_value = any(needed[7:9]), any(needed[11:13])
            wanted = of_query, of_query, *needed[9:11], of_value, of_value
            dx, _, of_global = call.work.backward(dout, low, of_work, of_rows, wanted, seed)
        if needed[0]:
            dx = dqkv @ weight if dx is None else dx.addmm_(dqkv, weight)
        of_weights, of_biases = [None] * 3, [None] * 3
        if any(needed[1:7:2]):
            of_weights = (dqkv.t() @ low).split(low.shape[1])
        if any(needed[2:7:2]):
            of_biases = dqkv.sum(0).split(low.shape[1])
        of_local = (x for pair in zip(of_weights, of_biases, strict=True) for x in pair)
        return dx if needed[0] else None, *of_local, *of_global, None, None, None


def joined(dtype, weights):
    """Weights below each other and biases behind each other, in a dtype, by one operation.

    Args:
        weights: pairs of a weight [out, in] and a bias [out], all alike.
    """
    (out, width), count = weights[0].shape, len(weights) // 2
    weight = weights[0].new_empty(count * out, width, dtype=dtype)
    bias = weights[0].new_empty(count * out, dtype=dtype)
    places = zip(weight.split(out), bias.split(out), strict=True)
    torch._foreach_copy_([place for pair in places for place in pair], weights)
    return weight, bias
