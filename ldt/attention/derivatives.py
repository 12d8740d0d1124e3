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
    that raises NotImplementedError."""

    @wraps(backward)
    def once(ctx, *grads):
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return found
        anchor = torch.zeros((), requires_grad=True)
        return tuple(x if x is None else _Last.apply(x, anchor) for x in found)

    return once


class _Last(torch.autograd.Function):
    """The identity, with no derivative."""

    @staticmethod
    def forward(ctx, x, anchor):
        return x.detach()

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError(f"fast attention has no second derivatives; {_WAY_OUT}")


_unread: ContextVar[bool] = ContextVar("_unread", default=False)


@contextmanager
def unread():
    """Context in which outputs are not computed: gradients alone are wanted, and need none."""
    before = _unread.set(True)
    try:
        yield
    finally:
        _unread.reset(before)


def is_unread():
    """True within `unread`."""
    return _unread.get()
