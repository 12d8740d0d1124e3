"""Activations recomputed in the backward pass from tensors that are saved anyway.

With the environment variable LDT_CHECK_RECOMPUTE=1 they are saved too and compared.
"""

import os
import weakref
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from ldt.attention.derivatives import transformed
from ldt.attention.matmul import hooked

_known = ContextVar("_known", default=None)  # the `_Known` of the pass that runs

comparisons = 0  # that LDT_CHECK_RECOMPUTE has made in this process, none of which failed


class _Saved:
    """Saved tensor with its version. Autograd does not detect in-place changes when hooks
    are used."""

    __slots__ = "_version", "_x"

    def __init__(self, x):
        self._x, self._version = x, x._version

    def __call__(self):
        if self._x._version != self._version:
            raise _modified(self._x, self._version)
        return self._x


def _modified(x, version):
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {x.dtype} {list(x.shape)} is at version {x._version}; expected version "
        f"{version} instead"
    )


def save(ctx, others, tensors, own):
    """Keep tensors for the backward pass of a function that recomputes on its own, see `saved`.

    Avoids calling the hooks of `recomputing` for each tensor, unless other hooks are active.

    Args:
        ctx: context of the autograd function; attributes are set.
        others: result of `kept_by_others`.
        tensors: tensors or None. Outputs must be detached, or they would keep themselves alive.
        own: further tensors with no other reference, which nothing else can change in place.
    """
    ctx.saved, ctx.count = None, len(tensors)
    if others:
        ctx.save_for_backward(*tensors, *own)
    else:
        ctx.saved = tensors, _versions(tensors), own


def saved(ctx):
    """Return (tensors, own) of `save`. The last backward pass of a graph frees them, as autograd
    does; RuntimeError if one was changed in place or they were freed before."""
    packed = ctx.saved
    if packed is None:
        tensors = ctx.saved_tensors
        return tensors[: ctx.count], tensors[ctx.count :]
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.saved = ()
    if not packed:
        raise RuntimeError("trying to backward through the graph a second time: retain_graph=True")
    tensors, versions, others = packed
    if _versions(tensors) != versions:
        changed = zip(tensors, versions, strict=True)
        raise _modified(*next(pair for pair in changed if _versions(pair[:1]) != [pair[1]]))
    return tensors, others


def _versions(tensors):
    return [x is None or x._version for x in tensors]


class _Again:
    """Recomputation, run once for all operations that need its result."""

    def __init__(self, make, sources, device, name):
        self.make, self.sources, self.name = make, sources, name
        self.keepers = 0
        self._left = 0  # of them that have not asked yet
        self._result = None
        self._autocast = None
        if torch.amp.is_autocast_available(device):
            enabled = torch.is_autocast_enabled(device)
            self._autocast = device, torch.get_autocast_dtype(device), enabled

    def __call__(self):
        result = self._result
        if result is None:
            # As in the forward pass, wherever the backward pass is called.
            autocast = torch.autocast(*self._autocast) if self._autocast else nullcontext()
            with torch.no_grad(), autocast:
                result = self.make(*(source() for source in self.sources))
            self._result, self._left = result, self.keepers
        self._left -= 1
        if self._left <= 0:
            self._result = None  # the last one has it: its memory is free once that is done
        return result


class _View:
    """Saved view of a recomputed tensor."""

    def __init__(self, again, x):
        again.keepers += 1
        self.again = again
        self._place = x.shape, x.stride(), x.storage_offset()

    def __call__(self):
        return self.again().as_strided(*self._place)


class _Checked:
    """`_View` with a copy of its expected value, compared exactly: the same kernel runs on equal
    inputs of equal layout."""

    def __init__(self, view, x):
        self._view, self._copy = view, x.clone()

    def __call__(self):
        global comparisons
        view = self._view()
        try:
            torch.testing.assert_close(view, self._copy, rtol=0, atol=0, equal_nan=True)
        except AssertionError as err:
            name = self._view.again.name
            raise RuntimeError(
                f"{name}: computed again for the backward pass it is not what it was: {err}"
            ) from None
        comparisons += 1
        return view


class _Entry(NamedTuple):
    whole: weakref.ref  # the tensor
    version: int  # of it, when it was what ``again`` gives
    again: _Again


class _Known:
    """Tensors that can be recomputed, by storage."""

    def __init__(self, model):
        self.checks = os.environ.get("LDT_CHECK_RECOMPUTE") == "1"
        self._entries = {}
        self._names = {id(m): name for name, m in model.named_modules()} if self.checks else {}

    def add(self, x, make, sources, of):
        place = x.untyped_storage()._cdata
        name = of if isinstance(of, str) else self._names.get(id(of), type(of).__name__)
        again = _Again(make, sources, x.device.type, name)
        # With x goes what it is made of, and its place may be another tensor's.
        entries = self._entries
        whole = weakref.ref(x, lambda _: entries.pop(place, None))
        entries[place] = _Entry(whole, x._version, again)

    def view(self, x):
        """`_View` of x; None if x must be saved: it is unknown, or its storage has another type or
        was changed."""
        entry = None
        if x.layout == torch.strided:
            entry = self._entries.get(x.untyped_storage()._cdata)
        whole = entry and entry.whole()
        if whole is None or x.dtype != whole.dtype:
            return None
        # A view shares the version of the whole; what is taken by ``.data`` begins with its own.
        if not entry.version == whole._version == x._version:
            return None
        return _View(entry.again, x)

    def pack(self, x):
        """Packed saved tensor; calling it returns the tensor."""
        view = self.view(x)
        if view is None:
            return _Saved(x)
        return _Checked(view, x) if self.checks else view

    def clear(self):
        self._entries.clear()


def recomputing(model):
    """Context in which tensors marked by `recomputed` are not saved for the backward pass.

    It has no effect within other saved-tensor hooks, such as those of gradient checkpointing or
    `torch.autograd.graph.save_on_cpu`, since only the innermost hooks act and would defeat the
    others; nor where hooks are impossible, as in `torch.func`.

    Args:
        model: model whose module names appear in messages of LDT_CHECK_RECOMPUTE.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or transformed():
        return nullcontext()
    others = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return _recomputing(model) if others is None else nullcontext()


@contextmanager
def _recomputing(model):
    known = _Known(model)
    before = _known.set(known)
    try:
        with torch.autograd.graph.saved_tensors_hooks(known.pack, lambda packed: packed()):
            yield
    finally:
        _known.reset(before)
        known.clear()  # the graph holds on to ``pack``, and would to all that it knows


def recomputed(x: torch.Tensor, make, *sources, of):
    """Return x; within `recomputing` the backward pass recomputes it by ``make(*sources)``.

    Operations that would save x or a view of it then save nothing, unless x was changed in place
    before or shares its storage. A change through ``.data``, which autograd does not see either, is
    detected only with LDT_CHECK_RECOMPUTE.

    Args:
        x: result of ``make``.
        make: deterministic function, independent of torch's generator.
        sources: tensors that are saved anyway. The backward pass raises RuntimeError if they were
            changed in place, as autograd does.
        of: module that made x. If it has hooks, which may have changed x, x is saved.
    """
    known = _now()
    if known is None or hooked(of) or not _alone(x, sources):
        return x
    known.add(x, make, [_Saved(source.detach()) for source in sources], of)
    return x


class _As(torch.autograd.Function):
    """Identity on ``low``, a cast of x; sends the gradient to x in x's type."""

    @staticmethod
    def forward(ctx, x, low):
        ctx.dtype = x.dtype
        return low.view_as(low)  # it holds on to ``low``, which is known as long as it lives

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype), None


def cast_once(x: torch.Tensor, *modules):
    """Function without arguments that gives x for products, under autocast cast to autocast's type.

    Autocast would cast x for each product and save every copy. Here they share one, which is
    recomputed if x is. Gradients of the products are added in x's type, as in autocast.

    Args:
        x: [total, width].
        modules: modules of the products. They get x itself if a hook may change it.
    """
    device = x.device.type
    casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if not casts or torch.compiler.is_compiling() or transformed():
        return lambda: x
    dtype = torch.get_autocast_dtype(device)
    if x.dtype in (dtype, torch.float64) or any(map(hooked, modules)):
        return lambda: x
    low = x.detach().to(dtype)
    known = _now()
    view = known and known.view(x)
    if view and _alone(low, ()):
        known.add(low, lambda x: x.to(dtype), [view], f"{view.again.name} in {dtype}")
    return lambda: _As.apply(x, low)


def layer_norm(norm, x: torch.Tensor):
    """Return ``norm(x)`` of an nn.LayerNorm; within `recomputing` only x is kept for its backward
    pass."""
    out = norm(x)
    if _now() is None or type(norm) is not nn.LayerNorm:
        return out
    shape, eps = norm.normalized_shape, norm.eps
    # Copies: sharded training takes a layer's weights away before the next one's backward pass.
    weight, bias = (
        None if parameter is None else parameter.detach().clone()
        for parameter in (norm.weight, norm.bias)
    )
    return recomputed(out, lambda x: F.layer_norm(x, shape, weight, bias, eps), x, of=norm)


def recomputes():
    """True where `recomputing` is in effect, so that `recomputed` saves memory."""
    return _now() is not None


def kept_by_others():
    """True if saved-tensor hooks other than those of `recomputing` are active."""
    hooks, known = torch._C._autograd._top_saved_tensors_default_hooks(True), _now()
    return hooks is not None and (known is None or hooks[0] != known.pack)


def _alone(x, sources):
    """True if x occupies its whole storage and no source shares it."""
    storage = x.untyped_storage()
    others = (source.untyped_storage()._cdata for source in sources)
    whole = type(x) is torch.Tensor and x.is_contiguous() and storage.nbytes() == x.nbytes
    return whole and storage._cdata not in others


def _now():
    """`_Known` of the current pass; None outside `recomputing`."""
    return None if torch.compiler.is_compiling() else _known.get()
