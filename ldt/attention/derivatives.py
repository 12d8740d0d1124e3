"""Derivatives that the fast backends do not have, and gradients without the output they are of."""

from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps

import torch
from torch.autograd import forward_ad

_WAY_OUT = "config.attention_backend='reference' has them, in memory of the square of the length"


def transformed():
    """True within a transform of torch.func, such as grad or vmap, or forward differentiation."""
    if torch.compiler.is_compiling():
        return False
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


def refuse_transforms(name):
    """Raise NotImplementedError where `transformed`, unless the backend ``name`` is plain torch."""
    if name != "reference" and transformed():
        raise NotImplementedError(
            f"attention backend {name!r} has no rules for torch.func and forward differentiation; "
            + _WAY_OUT
        )


def first_order(backward):
    """The ``backward`` of an autograd function, whose gradients cannot be differentiated again:
    that raises NotImplementedError.

    torch's own ``once_differentiable`` raises only where a graph leads to what made the gradients
    that it was given. Second derivatives by the tensors of the forward pass it leaves out.
    """

    @wraps(backward)
    def once(ctx, *grads):
        with torch.no_grad():
            result = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return result
        made_of = *grads, *ctx.saved_tensors
        return tuple(x if x is None else _Last.apply(x, *made_of) for x in result)

    return once


class _Last(torch.autograd.Function):
    """x, made of other tensors in a way that has no derivative."""

    @staticmethod
    def forward(ctx, x, *made_of):
        return x.detach()

    @staticmethod
    def backward(ctx, *grads):
        raise second_derivative()


def second_derivative():
    """The NotImplementedError of a second derivative."""
    return NotImplementedError(f"fast attention has no second derivatives; {_WAY_OUT}")


_noted: ContextVar[list | None] = ContextVar("_noted", default=None)
_known: ContextVar[tuple | None] = ContextVar("_known", default=None)


@contextmanager
def noting():
    """Context that gives a list of the results of what `once` runs in it."""
    before = _noted.set([])
    try:
        yield _noted.get()
    finally:
        _noted.reset(before)


@contextmanager
def unread(*known):
    """Context in which outputs are not computed: gradients alone are wanted.

    Args:
        known: what `once` returns in it, the result that `noting` gave; nothing where gradients do
            without.
    """
    before = _known.set(known)
    try:
        yield
    finally:
        _known.reset(before)


def is_unread():
    """True within `unread`."""
    return _known.get() is not None


def once(attend, *arguments):
    """``attend(*arguments)``, output and log-sum-exp; within `unread` those that it was given."""
    known = _known.get()
    if known:
        return [x.detach() for x in known]
    result = attend(*arguments)
    noted = _noted.get()
    if noted is not None:
        noted.append(result)
    return result
