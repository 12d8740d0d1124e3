"""The dense parts of a layer on CUDA, each one function of autograd with a backward pass by hand.

Both end with dropout, the sum with the residual stream and its normalisation, in one kernel. They
keep what their backward pass needs and compute the rest again: what the activation gives, and their
input where it is the output of such an end. The modules of `ldt.model.layers` run wherever these do
not, and say what is right.
"""

import weakref
from contextlib import nullcontext
from functools import cache, wraps
from operator import attrgetter, is_
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from transformers.activations import GELUActivation

from ldt.attention import choose
from ldt.attention.derivatives import second_derivative, transformed
from ldt.attention.matmul import Linear
from ldt.model.recompute import kept_by_others, recomputed, recomputes, save, saved

STREAMS = {torch.float32, torch.bfloat16, torch.float16}  # dtypes of a residual stream
PARAMETERS = {nn.Parameter}  # classes of weights that are each one piece of memory
LARGEST = 4096  # columns of a residual stream
MADE, GATE = "_ldt_made", "_ldt_gate"  # attributes of an output and of a module
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
DTYPE = attrgetter("dtype")
LINEAR = Linear, nn.Linear
# Parts of modules that are used without being called, with their classes; None: a class that says
# itself, by ``uncalled``, that it may be. What sharding makes of it, a subclass, does not.
ENDS = {"dense": LINEAR, "LayerNorm": (nn.LayerNorm,), "dropout": (nn.Dropout,)}
FEED_FORWARD = {
    "intermediate": None,
    "intermediate.dense": LINEAR,
    "intermediate.activation": (GELUActivation,),
    "output": None,
    **{f"output.{name}": classes for name, classes in ENDS.items()},
}


def residual(module, x, stream):
    """``module(x, stream)`` of an `ldt.model.layers.Residual`; None where its modules must run."""
    products = products_dtype(module.backend, stream)
    gate = products and gate_of(module, ENDS, stream)
    end = gate and gate.end(products, module.copies)
    if end is None or x.dtype not in (stream.dtype, products):
        return None
    return _run(_Residual, gate.norm, x, stream, *gate.weights, end)


def feed_forward(layer, x):
    """``layer.output(layer.intermediate(x), x)`` of an `ldt.model.layers.LdtLayer`; None where
    these modules must run."""
    products = products_dtype(layer.backend, x)
    gate = products and gate_of(layer, FEED_FORWARD, x)
    end = gate and gate.end(products, not layer.is_last)
    if end is None:
        return None
    return _run(_FeedForward, gate.norm, x, *gate.weights, end, product_input(x, products))


class End(NamedTuple):
    """The end of a half of a layer: dropout, sum, normalisation.

    Args:
        eps: of the normalisation.
        dropout: probability.
        products: dtype of the products before and behind it.
        copies: True to have a copy of the output in that dtype, if the output has another.
    """

    eps: float
    dropout: float
    products: torch.dtype
    copies: bool

    def forward(self, y, stream, weight, bias, keep, notes):
        """The output; with ``keep`` sum and seed (None without dropout), else two of None.

        Args:
            y, stream: [n, width], what a product gave and the residual stream.
            notes: list that gets the copy, or None, and a weak reference to the sum, or None.
        """
        from ldt.attention.triton.norms import norm

        # From torch's generator, whose state gradient checkpointing restores.
        seed = torch.randint(2**31, (), device=y.device) if self.dropout else None
        low = self.products if self.copies and self.products != stream.dtype else None
        settings = {"dropout": self.dropout, "seed": seed, "keep": keep, "low": low}
        out, copy, total = norm(y, stream, weight, bias, self.eps, **settings)
        notes += [copy, total if total is None else weakref.ref(total)]
        return out, total, seed

    def backward(self, dout, total, weight, seed):
        """Gradients of the stream, y, weight and bias, and the sum of y's."""
        from ldt.attention.triton.norms import norm_backward

        settings = {"dropout": self.dropout, "seed": seed}
        return norm_backward(dout.contiguous(), total, weight, self.eps, self.products, **settings)


class _Made:
    """Sources from which an output is computed again, and its copy for the next product.

    Args:
        out: the output.
        copy: of it in the dtype of products, or None.
        total: weak reference to the sum, which whoever normalised it keeps; or None.
        norm: the torch.nn.LayerNorm.
    """

    __slots__ = "copy", "norm", "total", "version"

    def __init__(self, out, copy, total, norm):
        self.version = out._version
        self.copy, self.total, self.norm = copy, total, (norm.weight, norm.bias, norm.eps)


def product_input(x, dtype):
    """``x`` for a product, and (sum, weight, bias, eps) to compute it again from, or None."""
    sources = getattr(x, MADE, None)
    if sources is None or sources.version != x._version or kept_by_others():
        return _as(dtype, x), None
    copy, sources.copy = sources.copy, None
    total = sources.total and sources.total()
    low = _as(dtype, x) if copy is None or copy.dtype != dtype else copy
    return low, None if total is None else (total, *sources.norm)


def _run(function, norm, *arguments):
    """Output of a function, with its `_Made`."""
    notes = []
    if torch.is_grad_enabled():
        out = function.apply(*arguments, notes)
    else:
        out = function.forward(None, *arguments, notes)
    copy, total = notes
    # An output that gradient checkpointing keeps is to cost no more than itself.
    if (copy is None and total is None) or out.is_inference() or kept_by_others():
        return out
    setattr(out, MADE, _Made(out, copy, total, norm))
    if total is not None and recomputes():
        _recomputed(out, total(), norm)
    return out


def _recomputed(out, total, norm):
    """Have modules that keep an output compute it again."""
    from ldt.attention.triton.norms import again

    weights, eps = (norm.weight, norm.bias), norm.eps
    if dist.is_initialized():  # sharding takes weights away before the next layer's backward pass
        weights = [weight.detach().clone() for weight in weights]
    recomputed(
        out,
        lambda total, *weights: again(total, *weights, eps, total.dtype),
        total,
        *weights,
        of=norm,
    )


def by_hand(backward):
    """The ``backward`` of a function: in the dtypes of its tensors, and no second derivative.

    As the input is not kept, there is nothing to refuse a second derivative by but the first.
    Autograd itself casts gradients of weights that were cast.
    """

    @wraps(backward)
    def run(ctx, dout):
        if torch.is_grad_enabled():
            raise second_derivative()
        kind = dout.device.type
        plain = nullcontext() if _autocast(kind) is None else torch.autocast(kind, enabled=False)
        with plain:
            return backward(ctx, dout)

    return run


class _Residual(torch.autograd.Function):
    """A product and an `End`."""

    @staticmethod
    def forward(ctx, x, stream, weight, bias, scale, shift, end, notes):
        keep = ctx is not None and any(ctx.needs_input_grad)
        low = _as(end.products, x)
        weight, bias = _cast(end.products, weight, bias)
        y = F.linear(low, weight, bias)
        out, total, seed = end.forward(y, stream, scale, shift, keep, notes)
        if keep:
            low = low if ctx.needs_input_grad[2] else None
            save(ctx, low, weight, scale, total, seed)
            ctx.end = end
        return out

    @staticmethod
    @by_hand
    def backward(ctx, dout):
        x, weight, scale, total, seed = saved(ctx)
        needed = ctx.needs_input_grad
        dstream, dy, dscale, dshift, dbias = ctx.end.backward(dout, total, scale, seed)
        dx = dy @ weight if needed[0] else None
        dweight = dy.t() @ x if needed[2] else None
        return dx, dstream, dweight, dbias, dscale, dshift, None, None


class _FeedForward(torch.autograd.Function):
    """A product, GELU, a product and an `End`, whose residual stream is the input."""

    @staticmethod
    def forward(ctx, x, first, bias, second, bias2, scale, shift, end, given, notes):
        keep = ctx is not None and any(ctx.needs_input_grad)
        low, sources_of_x = given
        first, bias, second, bias2 = _cast(end.products, first, bias, second, bias2)
        wide = F.linear(low, first, bias)
        active = F.gelu(wide) if keep else torch.ops.aten.gelu_(wide)
        y = F.linear(active, second, bias2)
        out, total, seed = end.forward(y, x, scale, shift, keep, notes)
        if keep:
            *sources, eps = (low, None, None, None) if sources_of_x is None else sources_of_x
            if not ctx.needs_input_grad[1]:
                sources = None, None, None
            save(ctx, *sources, wide, first, second, scale, total, seed)
            ctx.end, ctx.eps = end, eps
        return out

    @staticmethod
    @by_hand
    def backward(ctx, dout):
        from ldt.attention.triton.norms import again, gelu_backward

        *sources, wide, first, second, scale, total, seed = saved(ctx)
        needed, end = ctx.needs_input_grad, ctx.end
        dx, dy, dscale, dshift, dbias2 = end.backward(dout, total, scale, seed)
        dwide = dy @ second
        active, dbias = gelu_backward(wide, dwide, scale.dtype, needed[3])
        dsecond = dy.t() @ active if needed[3] else None
        del active
        dfirst = None
        if needed[1]:
            x, *norm = sources
            x = x if ctx.eps is None else again(x, *norm, ctx.eps, end.products)
            dfirst = dwide.t() @ x
        if needed[0]:
            dx = dx.addmm_(dwide, first) if dx.dtype == first.dtype else dx.add_(dwide @ first)
        return dx, dfirst, dbias, dsecond, dbias2, dscale, dshift, None, None, None


def _as(dtype, x):
    """``x`` in a dtype."""
    return x if x.dtype == dtype else x.to(dtype)


def _cast(dtype, *weights):
    """Weights in the dtype of products.

    At each call, as autocast does: there is no telling that a weight has not changed. What changes
    it through ``.data`` is not counted, nor is torch's own fused AdamW.
    """
    if weights[0].dtype == dtype:
        return weights
    copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    torch._foreach_copy_(copies, weights)
    return copies


def products_dtype(backend, stream):
    """The dtype of products with a residual stream; None where functions do not run on it."""
    if torch.compiler.is_compiling():
        return None
    dtype, device = stream.dtype, stream.device
    if dtype not in STREAMS or not _runs(backend, device, dtype) or not stream.is_contiguous():
        return None
    if transformed() or _has_any_global_hook():
        return None
    low = _autocast(device.type)
    if low is None:
        return dtype
    return low if dtype == torch.float32 and low in STREAMS else None  # norms give float32 there


@cache
def _runs(backend, device, dtype):
    """True where an attention backend is that of the kernels."""
    if backend != "triton":
        return backend == "auto" and choose(device, dtype)[0] == "triton"
    from ldt.attention.triton.tiles import PLACES

    return device.type in PLACES


def _autocast(kind):
    """The dtype of autocast on a type of devices, None where there is none."""
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def gate_of(root, wanted, x):
    """The `Gate` of a module, None where its parts must be called."""
    gate = vars(root).get(GATE)
    if gate is None or not gate.holds(root, x):
        vars(root)[GATE] = gate = Gate.of(root, wanted, x)
    return gate


class Gate:
    """The parts of a module that are used without being called.

    They are looked up once: to see that they still are what they were takes less time.

    Args:
        root: the module.
        parts: (modules of the whole, name, part) of each.
        x: [n, width], a residual stream.
    """

    def __init__(self, root, parts, x):
        self.kind, self.modules = type(root), root._modules
        self.dtype, self.place = x.dtype, x.get_device()
        self.parts = [part for *_, part in parts]
        self.kinds = list(map(type, self.parts))
        named = {name: part for _, name, part in parts}
        self.norm, self.dropout = named.get("LayerNorm"), named.get("dropout")
        self.activation = named.get("activation")
        owners = [part._parameters for part in self.parts if part._parameters]
        weights = [(own, name, own.get(name)) for own in owners for name in ("weight", "bias")]
        self.weights = [weight for *_, weight in weights]
        self.dtypes = [x.dtype] * len(weights)
        self.hooks = [getattr(part, name) for part in self.parts for name in HOOKS]
        forwards = [(vars(part), "forward", None) for part in self.parts]
        # Dictionaries, keys and what stands there.
        self.entries = list(zip(*parts, *weights, *forwards, strict=True))

    @classmethod
    def of(cls, root, wanted, x):
        """The gate of a module, None where there is none.

        Args:
            wanted: the parts, `ENDS` or `FEED_FORWARD`.
        """
        if "uncalled" not in vars(type(root)):
            return None
        modules_by_name, parts = {"": root}, []
        for path, classes in wanted.items():
            above, _, name = path.rpartition(".")
            modules = modules_by_name[above]._modules
            modules_by_name[path] = part = modules.get(name)
            kind = type(part)
            if not (kind in classes if classes else "uncalled" in vars(kind)):
                return None
            parts.append((modules, name, part))
        gate = cls(root, parts, x)
        return gate if gate._fits(x) and gate.holds(root, x) else None

    def _fits(self, x):
        """True where the functions take the weights."""
        for weight in self.weights:
            if type(weight) not in PARAMETERS or weight.device != x.device:
                return False
        if self.norm and (self.norm.normalized_shape != x.shape[1:] or x.shape[1] > LARGEST):
            return False
        return all(weight.is_contiguous() for weight in self.weights)

    def holds(self, root, x):
        """True where the parts are what they were, and to call one runs its class's ``forward``."""
        owners, names, values = self.entries
        return (
            x.dtype is self.dtype
            and x.get_device() == self.place
            and root._modules is self.modules
            and type(root) is self.kind
            and not any(self.hooks)
            and all(map(is_, map(dict.get, owners, names), values))
            and all(map(is_, map(type, self.parts), self.kinds))
            and all(map(is_, map(DTYPE, self.weights), self.dtypes))
            and {self.place}.issuperset(map(torch.Tensor.get_device, self.weights))
        )

    def end(self, products, copies):
        """The `End`, None where the activation or the dropout is not the functions'."""
        dropout = self.dropout
        probability = dropout.p if dropout.training else 0.0
        if probability >= 1 or (self.activation and self.activation.act is not F.gelu):
            return None
        return End(self.norm.eps, probability, products, copies)

    def __reduce__(self):
        return type(None), ()  # a copy of the module looks up its own parts
