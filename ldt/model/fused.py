"""Layer on CUDA as one function of autograd, with a backward pass by hand.

Query, key and value are one product with a copy of their weights below each other; windows and
global rows write to one tensor, and so do the gradients of query, key and value. Both halves end
with dropout, the sum with the residual stream and its normalisation, in one kernel. What the
backward pass needs is kept; the output of the activation, and the input of a product where that is
the output of a normalisation, are computed again.

The modules of `ldt.model.layers` run wherever this does not; they are its definition.
"""

import weakref
from functools import cache, partial, wraps
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch.nn import functional as F

from ldt.attention.derivatives import second_derivative
from ldt.attention.layout import per_head
from ldt.attention.triton import pattern, rows
from ldt.attention.triton.backward import Backward
from ldt.attention.triton.forward import Forward
from ldt.attention.triton.launch import room
from ldt.attention.triton.norms import End, added, again, gelu, gelu_backward, sums_of
from ldt.model.gates import gate_of
from ldt.model.recompute import kept_by_others, recomputed, recomputes, save, saved

MADE = "_ldt_made"  # attribute of an output


def layer(module, x, layout, products, output_attentions=False, globals_only=False):
    """Compute ``module(x, layout, ...)`` of an `ldt.model.layers.LdtLayer` fused, with the
    arguments and results of its ``forward``; None where its modules must run.

    Its attention may still be run by its modules, and the rest fused.

    Args:
        products: dtype of the products, of `ldt.model.gates.products_dtype`.
    """
    gate, attend = gate_of(module, "whole", x), None
    if gate and not (output_attentions or globals_only):
        (attention,) = gate.attentions
        if attention.pooled is None and attention.backend == module.backend:
            attend = _Attend.of(attention, layout, x, products)
    gate = gate or gate_of(module, "dense", x)
    ends = gate and gate.ends()
    if not ends:
        return None
    weights, probs, others = gate.weights, (None, None), kept_by_others()
    if attend:
        low, sources = _product_input(x, products, others)
        out, x = None, attention.attach_global(x, layout)
    else:
        weights, attention = weights[-len(_Dense._fields) :], module.attention.self
        _recompute(x)
        if globals_only:
            out = attention.global_attention(x, layout)
            x = x.index_select(0, layout.global_index)
        else:
            out, *probs = attention(x, layout, output_attentions)
        low, sources = _as(products, out.detach()), None
    kind, wide = (x.shape, x.get_device(), x.dtype, products), weights[-5].shape[0]
    first = End(*kind, *ends[0], wide)
    second = End(*kind, *ends[1], wide, True, not module.is_last)
    call = _Call(attend, first, second, low, sources, others)
    if torch.is_grad_enabled():
        out = _apply(x, out, call, *weights)
    else:
        out = _Layer.forward(None, x, out, call, *weights)
    # An output that gradient checkpointing keeps is to cost no more than itself.
    made = call.total is not None or call.copy is not None
    if made and not (others or out.is_inference()):
        setattr(out, MADE, _Made(out, call, gate.norms[1], *weights[-2:], ends[1][0]))
        if module.is_last:
            _recompute(out)
    return out, *probs


class _Call:
    """Settings of one call of a layer, and what the next one gets besides its output.

    Args:
        attend: `_Attend`, None where modules gave the output of attention.
        first, second: the `End` of each half.
        low: input of the first product.
        sources: of it, see `_product_input`.
        others: True if others' hooks keep what the backward pass needs, see `kept_by_others`.
    """

    __slots__ = "attend", "copy", "first", "low", "others", "second", "sources", "total"

    def __init__(self, attend, first, second, low, sources, others):
        self.attend, self.first, self.second = attend, first, second
        self.low, self.sources, self.others = low, sources, others
        self.copy, self.total = None, None  # see `_Made`


class _Attend:
    """Windows and global rows of all layers of one kind in a batch.

    Args:
        x: [total, width].
        windows: window, dilations of the heads, and True for causal windows.
        products: dtype of the products.
    """

    @classmethod
    def of(cls, module, layout, x, products):
        """Make the attention of a `SelfAttention`, cached by the layout; None where its modules
        must run."""
        window, dilation, causal = module.pattern.values()
        windows = window, per_head(dilation, module.heads), causal
        settings = windows, products, module.dropout if module.training else 0.0
        key = "fused", x.shape[1], x.dtype, *settings
        attend = layout.cached(key, lambda: cls(layout, x, *settings))
        return attend if attend.runs else None

    def __init__(self, layout, x, windows, products, dropout):
        heads, causal = len(windows[1]), windows[-1]
        self.shape = len(x), 3, heads, x.shape[1] // heads  # of queries, keys and values
        self.dropout, self.work, self.runs = dropout, None, True
        self.forward_windows, self.backward_windows = None, None
        self.sums = cache(partial(sums_of, room(x, x.shape, x.dtype)))  # of a GELU's columns
        if layout.is_global is not None:
            shape = layout.global_count, *self.shape[2:]
            self.runs = not causal and rows.folds(shape, x, layout, products)
            if not self.runs:
                return
            pattern.windows(layout, *windows)  # fills what the rows read besides
            low = _as(products, x)
            self.work = rows.RowsWork.of(layout, low, *shape[1:], dropout, True, x.dtype)
        self.pattern = pattern.windows(layout, *windows)

    def forward(self, low, weight, bias, of_global, keep):
        """Attention output [total, width], and what `backward` needs, if ``keep``.

        Args:
            low: [total, width], in the dtype of products.
            weight, bias: [3 * width, width] and [3 * width] of query, key and value.
            of_global: weights and biases of the global projections.
        """
        qkv, kept = F.linear(low, weight, bias), ()
        seed = _drawn(self.dropout, low)
        if self.forward_windows is None:
            tensors = qkv.view(self.shape).unbind(1)
            self.forward_windows = Forward(*tensors, self.pattern, self.dropout, joined=True)
        out, lse = self.forward_windows(qkv, qkv, qkv, seed, torch.empty_like(low))
        if self.work is not None:
            kept = self.work.forward(low, None, rows.Weights(*of_global), out, seed, keep)
        return out, (weight, qkv, lse, seed, *kept)

    def backward(self, dout, out, x, kept, of_global, dx, needed):
        """Gradients of the weights and biases of the projections.

        Args:
            dout, out: [total, width], contiguous: the gradient of the output, and the output.
            x: [total, width], the input of `forward`.
            kept: second result of `forward`.
            of_global: as `forward` took it.
            dx: [total, width], to which the gradient of x is added; None if nobody wants it.
            needed: True for each of the weights and biases whose gradient is wanted.
        """
        weight, qkv, lse, seed, *kept = kept
        dqkv = torch.empty_like(qkv)
        if self.backward_windows is None:
            (q, *others), (dq, *_) = (y.view(self.shape).unbind(1) for y in (qkv, dqkv))
            dkv = dqkv.view(self.shape)[:, 1:].transpose(0, 1)
            tensors = dq, dkv, dout.view(q.shape), q, *others, out.view(q.shape)
            self.backward_windows = Backward(*tensors, self.pattern, self.dropout, joined=True)
        self.backward_windows(dqkv, dqkv, dout, qkv, qkv, qkv, out, lse, seed)
        of_weights, of_biases, of_rows = [None] * 3, [None] * 3, [None] * 6
        thirds = (x.shape[1],) * 3
        if self.work is not None:
            of_query, of_value = any(needed[6:8]), any(needed[10:])
            wanted = of_query, of_query, *needed[8:10], of_value, of_value
            weights = rows.Weights(*of_global)
            _, _, of_rows = self.work.backward(dout, x, kept, weights, wanted, seed, dx)
        if any(needed[0:6:2]):
            of_weights = torch.mm(dqkv.t(), x).split_with_sizes(thirds)
        if any(needed[1:6:2]):
            of_biases = dqkv.sum(0).split_with_sizes(thirds)
        if dx is not None:
            _plus_product(dx, dqkv, weight)
        (query, key, value), (of_query, of_key, of_value) = of_weights, of_biases
        return query, of_query, key, of_key, value, of_value, *of_rows


def _drawn(dropout, x):
    """Seed from torch's generator, whose state gradient checkpointing restores; None without
    dropout."""
    return torch.randint(2**31, (), device=x.device) if dropout else None


class _Made:
    """Sources from which an output is computed again, and its copy for the next product.

    Args:
        out: the output.
        call: that gave it. Whoever normalised the sum keeps that.
        of: the torch.nn.LayerNorm.
        norm: its weight, bias and epsilon.
    """

    __slots__ = "copy", "norm", "of", "total", "version"

    def __init__(self, out, call, of, *norm):
        self.version, self.copy, self.total = out._version, call.copy, call.total
        self.of, self.norm = of, norm


def _product_input(x, dtype, others):
    """Cast ``x`` for a product; and if it is the output of a normalisation that is still known,
    (sum, weight, bias, eps) to compute it again from, else None.

    A copy that the normalisation made in this dtype is taken, and forgotten.

    Args:
        x: [n, width], output of a layer.
        dtype: of the product.
        others: result of `kept_by_others`; True gives None, for their hooks keep the input.
    """
    made = getattr(x, MADE, None)
    if made is None or made.version != x._version or others:
        return _as(dtype, x), None
    copy, made.copy = made.copy, None
    total = made.total and made.total()
    low = _as(dtype, x) if copy is None or copy.dtype != dtype else copy
    return low, None if total is None else (total, *made.norm)


def _recompute(x):
    """Mark ``x`` so that modules that would keep it for their backward pass compute it again."""
    made = getattr(x, MADE, None) if recomputes() else None
    total = made and made.total and made.total()
    if total is None or made.version != x._version:
        return
    *weights, eps = made.norm
    if dist.is_initialized():  # sharding takes weights away before the next layer's backward pass
        weights = [weight.detach().clone() for weight in weights]
    recomputed(
        x,
        lambda total, *weights: again(total, *weights, eps, total.dtype),
        total,
        *weights,
        of=made.of,
    )


def _by_hand(backward):
    """Decorator of the ``backward`` of a function, which refuses second derivatives.

    As the input is not kept, a second derivative can be refused only by the first. Autograd itself
    casts gradients of weights that were cast.
    """

    @wraps(backward)
    def run(ctx, dout):
        if torch.is_grad_enabled():
            raise second_derivative()
        if not torch._C._is_any_autocast_enabled():
            return backward(ctx, dout)
        with torch.autocast(dout.device.type, enabled=False):
            return backward(ctx, dout)

    return run


class _Dense(NamedTuple):
    """Weights of a layer behind its attention, in the order of its parts; or their gradients."""

    out: torch.Tensor
    out_bias: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    wide: torch.Tensor
    wide_bias: torch.Tensor
    narrow: torch.Tensor
    narrow_bias: torch.Tensor
    scale2: torch.Tensor
    shift2: torch.Tensor


class _Layer(torch.autograd.Function):
    """Attention, unless modules gave its output, and both halves of products and ends."""

    @staticmethod
    def forward(ctx, x, attended, call, *weights):
        keep = ctx is not None and any(ctx.needs_input_grad)
        attend, first, second, low = call.attend, call.first, call.second, call.low
        local, of_global, dense = weights[:6], weights[6:-10], _Dense(*weights[-10:])
        of_attention, sources = (), (None,) * 4
        joined, dense = _cast(first.products, local if attend else (), dense)
        if attend:
            sources = call.sources or (low, None, None, None)
            low, of_attention = attend.forward(low, *joined, of_global, keep)
        # The kernel behind a product adds its bias.
        y = F.linear(low, dense.out)
        seed, seed2 = _drawn(first.dropout, y), _drawn(second.dropout, y)
        end = dense.scale, dense.shift, seed, keep
        middle, copy, total = first.forward(y, dense.out_bias, x, *end)
        wide = F.linear(middle if copy is None else copy, dense.wide)
        y = F.linear(gelu(wide, dense.wide_bias, in_place=not keep), dense.narrow)
        end = dense.scale2, dense.shift2, seed2, keep
        out, call.copy, total2 = second.forward(y, dense.narrow_bias, middle, *end)
        if keep:
            call.total = weakref.ref(total2)
            ctx.attend, ctx.first, ctx.second, ctx.eps = attend, first, second, sources[3]
            if not (attend or ctx.needs_input_grad[3]):
                low = None
            own = total, seed, wide, total2, seed2, *of_attention
            save(ctx, call.others, (low, *sources[:3], *dense, *of_global), own)
        return out

    @staticmethod
    @_by_hand
    def backward(ctx, dout):
        (low, x, scale, shift, *weights), own = saved(ctx)
        total, seed, wide, total2, seed2, *of_attention = own
        dense, of_global = _Dense(*weights[:10]), weights[10:]
        del own
        needed, first, dtype = ctx.needs_input_grad, ctx.first, dense.scale.dtype
        need, columns, attend = _Dense(*needed[-10:]), wide.shape[1], ctx.attend
        parts = attend.sums(columns) if attend else sums_of(total2, columns)
        end = total2, dense.scale2, dense.shift2, seed2, parts
        dmiddle, dy, _ = ctx.second.backward(dout.contiguous(), *end)
        dwide_out = torch.mm(dy, dense.narrow)
        active = gelu_backward(wide, dense.wide_bias, dwide_out, parts, need.narrow)
        dnarrow = torch.mm(dy.t(), active) if need.narrow else None
        del active, wide, total2, end, dy
        dmiddle = _plus_product(dmiddle, dwide_out, dense.wide)
        end = total, dense.scale, dense.shift, seed, parts
        dx, dy, middle = first.backward(dmiddle, *end, need.wide)
        dwide = torch.mm(dwide_out.t(), middle) if need.wide else None
        del dmiddle, dwide_out, middle
        sums = added(parts, *total.shape, dtype)
        dscale, dshift, dout_bias, dscale2, dshift2, dnarrow_bias, dwide_bias = sums
        dout_weight = torch.mm(dy.t(), low) if need.out else None
        of_end, of_end2 = (dout_weight, dout_bias, dscale, dshift), (dscale2, dshift2)
        grads = *of_end, dwide, dwide_bias, dnarrow, dnarrow_bias, *of_end2
        of_x, of_attended, _, *of_weights = needed[:-10]
        wanted = of_x or of_attended or any(of_weights)
        dlow = torch.mm(dy, dense.out) if wanted else None
        if attend is None:
            return dx, dlow, None, *grads
        if dlow is None:
            return None, None, None, *[None] * 12, *grads
        if ctx.eps is not None:
            x = again(x, scale, shift, ctx.eps, first.products)
        del dy
        dx = dx if of_x else None
        of_attention = attend.backward(dlow, low, x, of_attention, of_global, dx, of_weights)
        return dx, None, None, *of_attention, *grads


# Function.apply does no more than unwrap what transforms of torch.func wrapped; modules run there.
_apply = super(torch.autograd.Function, _Layer).apply


def _plus_product(total, x, weight):
    return total.addmm_(x, weight) if total.dtype == x.dtype else total.add_(x @ weight)


def _as(dtype, x):
    return x if x.dtype == dtype else x.to(dtype)


def _cast(dtype, local, dense):
    """Weights in the dtype of products: query, key and value's as one, and its bias, by each other;
    and those behind attention.

    At each call, as autocast does: there is no telling that a weight has not changed. What changes
    it through ``.data`` is not counted, nor is torch's own fused AdamW.
    """
    weights, biases = local[::2], local[1::2]
    if dense.out.dtype == dtype:
        return [torch.cat(part) for part in (weights, biases) if part], dense
    places = [dense.out, dense.out_bias, *dense[4:8]]
    copies = [torch.empty_like(weight, dtype=dtype) for weight in places]
    joined = []
    for part in filter(None, (weights, biases)):
        rows, *columns = part[0].shape
        joined.append(part[0].new_empty((len(part) * rows, *columns), dtype=dtype))
    parts = [x for whole in joined for x in whole.chunk(len(weights))]
    torch._foreach_copy_([*parts, *copies], [*weights, *biases, *places])
    return joined, _Dense(*copies[:2], *dense[2:4], *copies[2:], *dense[8:])
