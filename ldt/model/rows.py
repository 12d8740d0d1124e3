"""Rows of a batch that belong to one document, such as the windows of a long one."""

import torch
from torch.utils.checkpoint import checkpoint


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
    parts = []
    for row in range(rows):
        here = [None if given is None else given[row : row + 1] for given in inputs]
        parts.append(checkpoint(run, *here, use_reentrant=False))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
