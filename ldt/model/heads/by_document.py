"""Rows of a batch that belong to one document, such as the windows of a long one."""

import functools
import warnings

import torch
from torch.utils.checkpoint import checkpoint


def takes_documents(forward):
    """A head's ``forward`` that also takes ``example_ids`` by their old name ``documents``."""

    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        if "documents" in kwargs:
            message = "documents is called example_ids now"
            # Behind this frame stand two of torch.nn.Module, then the caller.
            warnings.warn(message, DeprecationWarning, stacklevel=4)
            kwargs["example_ids"] = kwargs.pop("documents")
        return forward(*args, **kwargs)

    return wrapper


def by_row(run, *inputs):
    """``run`` on each row alone; where a gradient is asked for, again in the backward pass.

    The memory is that of the longest row, however many there are; the time of training is 4/3.

    Args:
        run: takes ``inputs`` and returns a tuple of tensors [rows, …], of which no row depends on
            another.
        inputs: tensors [rows, …], or None.

    Returns:
        What ``run`` returns for all rows.
    """
    again, parts = torch.is_grad_enabled(), []
    for row in range(next(len(given) for given in inputs if given is not None)):
        here = [None if given is None else given[row : row + 1] for given in inputs]
        parts.append(checkpoint(run, *here, use_reentrant=False) if again else run(*here))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def share(example_ids):
    """True if two rows are of one example.

    Args:
        example_ids: [rows] int64, the example of each row; None: each row is one of its own.
    """
    return example_ids is not None and len(example_ids.unique()) < len(example_ids)
