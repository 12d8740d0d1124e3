"""Activations that the backward pass recomputes from tensors that are saved anyway."""

import weakref
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch.nn import functional as F

_known = ContextVar("_known", default=None)  # address of a storage -> its tensor, and `_Again`


class _Again:
    """A recomputation, run once for all operations that saved its result."""

    def __init__(self, make):
        self.make = make
        self.keepers = 0
        self._left = 0  # of them that have not asked yet
        self._result = None

    def __call__(self):
        if self._result is None:
            self._result, self._left = self.make(), self.keepers
        result = self._result
        self._left -= 1
        if not self._left:
            self._result = None  # the last one has it: its memory is free once that is done
        return result


def recomputing():
    """Context in which operations do not keep what `recomputed` marks for their backward pass.

    It does nothing within other hooks for saved tensors, such as those of gradient checkpointing or
    `torch.autograd.graph.save_on_cpu`: only the innermost act, and these would keep what the others
    mean to drop or move.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return nullcontext()
    others = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return _recomputing() if others is None else nullcontext()


@contextmanager
def _recomputing():
    known = {}

    def pack(saved):
        entry = known.get(saved.untyped_storage().data_ptr())
        if entry is None:
            return saved
        entry[1].keepers += 1
        return entry[1], (saved.shape, saved.stride(), saved.storage_offset())

    def unpack(kept):
        if isinstance(kept, torch.Tensor):
            return kept
        again, view = kept
        return again().as_strided(*view)

    before = _known.set(known)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        _known.reset(before)
        known.clear()  # the graph holds on to ``pack``, and would to all that it knows


def recomputed(x, again):
    """Return x, and in `recomputing` have the backward pass compute it by ``again()``.

    Operations that would save x or a view of it then save nothing of it.

    Args:
        x: contiguous, with a storage of its own, not changed in place afterwards.
        again: gives the same numbers from tensors that are kept anyway; it must not hold on to x.
    """
    known = _now()
    if known is not None:
        place = x.untyped_storage().data_ptr()
        # With x goes what it is made of, and its place may be another tensor's.
        known[place] = weakref.ref(x, lambda _: known.pop(place, None)), _Again(again)
    return x


class _As(torch.autograd.Function):
    """The identity on ``low``, x in another dtype; sends the gradient to x in x's own."""

    @staticmethod
    def forward(ctx, x, low):
        ctx.dtype = x.dtype
        return low.view_as(low)

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype), None


def cast_once(x):
    """Function that returns x for a product, under autocast in autocast's dtype.

    Autocast itself casts x for each product anew, and each keeps its copy for the backward pass.
    Here they share one, which is computed again where x is. The gradients of what is called for
    each product are added in x's dtype, as there.
    """
    device = x.device.type
    casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if not casts or torch.compiler.is_compiling():
        return lambda: x
    dtype = torch.get_autocast_dtype(device)
    if x.dtype in (dtype, torch.float64):
        return lambda: x
    low = x.detach().to(dtype)
    known = (_now() or {}).get(x.untyped_storage().data_ptr())
    if known is not None:
        low = recomputed(low, lambda: known[1].make().to(dtype))
    return lambda: _As.apply(x, low)


def layer_norm(norm, x):
    """``norm(x)`` of a torch.nn.LayerNorm; only x, the sum it normalises, is kept of the two."""
    out = norm(x)
    if _now() is None:
        return out
    dtype, shape, eps = out.dtype, norm.normalized_shape, norm.eps
    # Copies: sharded training takes a layer's weights away before the next one's backward pass.
    weight, bias = norm.weight.detach().clone(), norm.bias.detach().clone()

    def again():
        with torch.no_grad():
            return F.layer_norm(x.detach().to(dtype), shape, weight, bias, eps)

    return recomputed(out, again)


def _now():
    """Tensors that `recomputing` knows by address, None outside of it."""
    return None if torch.compiler.is_compiling() else _known.get()
