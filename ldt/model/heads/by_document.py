"""Rows of a batch that belong to one document, such as the chunks of a long one."""

import functools

import torch
from torch.utils.checkpoint import checkpoint


def micro_batched(run, *args, **kwargs):
    """The results of ``run`` on each row alone, run again in the backward pass.

    Memory is that of the longest row, however many there are; training takes 4/3 of the time.

    Args:
        run: returns a tuple of tensors [rows, …], of which no row depends on another.
        args, kwargs: its arguments. Of tensors [rows, …] it gets one row at a time.

    Returns:
        The tuple of tensors for all rows.
    """
    if torch.is_grad_enabled():
        run = functools.partial(checkpoint, run, use_reentrant=False)
    rows = next(len(value) for value in (*args, *kwargs.values()) if _is_tensor(value))
    parts = []
    for row in range(rows):
        own_args = [_row(value, row) for value in args]
        own_kwargs = {name: _row(value, row) for name, value in kwargs.items()}
        parts.append(run(*own_args, **own_kwargs))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _row(value, row):
    return value[row : row + 1] if _is_tensor(value) else value


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def same_document(example_ids):
    """True if two rows are of one example.

    Args:
        example_ids: [rows] int64, the example of each row; None: each row is one of its own.
    """
    return example_ids is not None and len(example_ids.unique()) < len(example_ids)


def rows_of_documents(example_ids):
    """[documents, rows] bool: the rows of each document, in the order of their ids.

    Args:
        example_ids: [rows] int64, the document of each row: any whole numbers.
    """
    return example_ids.unique()[:, None] == example_ids
