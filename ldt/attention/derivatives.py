"""Errors for derivatives that the fast backends lack, and gradients without recomputing
the output."""

from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps

import torch
from torch.autograd import forward_ad

_WAY_OUT = "config.attention_backend='reference' has them, in memory of the square of the length"


def transformed() -> bool:
    """True within a transform of torch.func, such as grad or vmap, or forward-mode
    differentiation."""
    if torch.compiler.is_compiling():
        return False
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


def refuse_transforms(name: str) -> None:
    """Raise NotImplementedError within a transform of torch.func or forward-mode differentiation,
    unless ``name``, that of a backend, is "reference"."""
    if name != "reference" and transformed():
        raise NotImplementedError(
            f"attention backend {name!r} has no rules for torch.func and forward differentiation; "
            + _WAY_OUT
        )


def first_order(backward):
    """Decorator of the ``backward`` of an autograd function: differentiating its gradients again
    raises NotImplementedError.

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
    """Make the NotImplementedError of a second derivative, which the caller raises."""
    return NotImplementedError(f"fast attention has no second derivatives; {_WAY_OUT}")


_noted: ContextVar[list | None] = ContextVar("_noted", default=None)
_known: ContextVar[tuple | None] = ContextVar("_known", default=None)


@contextmanager
def noting():
    """Context manager that gives a list, to which `once` appends its (output, log-sum-exp)."""
    before = _noted.set([])
    try:
        yield _noted.get()
    finally:
        _noted.reset(before)


@contextmanager
def unread(*known):
    """Context manager in which outputs are not computed, because only gradients are wanted.

    Args:
        known: results that `once` returns in it, from the list of `noting`; none where the
            gradients do not need them.
    """
    before = _known.set(known)
    try:
        yield
    finally:
        _known.reset(before)


def is_unread() -> bool:
    """True within the context manager `unread`, where outputs need not be computed."""
    return _known.get() is not None


def once(attend, *arguments):
    """Call ``attend(*arguments)`` for (output, log-sum-exp), and append them to the list of
    `noting`; within `unread` return its known ones instead, detached."""
    known = _known.get()
    if known:
        return [x.detach() for x in known]
    result = attend(*arguments)
    noted = _noted.get()
    if noted is not None:
        noted.append(result)
    return result
