"""Rows of a batch that belong to one document, such as the windows of a long one."""

from contextvars import ContextVar

import torch
from torch.utils.checkpoint import checkpoint

_alone = ContextVar("_alone", default=False)


def runs_alone() -> bool:
    """Whether a row runs alone, so that what its backward pass needs is computed again anyway."""
    return _alone.get()


def by_row(run, *inputs):
    """``run`` on each row alone, computed again in the backward pass.

    The memory of training is that of the longest row, however many there are; the time is 4/3.
    Where no gradient is asked for, or there is one row, all rows are run at once.

    Args:
        run: takes ``inputs`` and returns a tuple of tensors [rows, …], of which no row depends on
            another.
        inputs: tensors [rows, …], or None.

    Returns:
        What ``run`` returns for all rows.
    """
    rows = next(len(given) for given in inputs if given is not None)
    if rows == 1 or not torch.is_grad_enabled():
        return run(*inputs)

    def alone(*inputs):
        before = _alone.set(True)
        try:
            return run(*inputs)
        finally:
            _alone.reset(before)

    parts = []
    for row in range(rows):
        here = [None if given is None else given[row : row + 1] for given in inputs]
        parts.append(checkpoint(alone, *here, use_reentrant=False))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
