"""Helpers of several heads: rows of one document, separators, and groups of rows to run."""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ldt.model.base import given_words, real_tokens


def length_of(inputs: dict[str, Any]) -> int:
    """Number of tokens of each row, padding included, of ``input_ids`` [b, n] or ``inputs_embeds``
    [b, n, d] among a head's keyword arguments; ValueError unless exactly one is given."""
    return given_words(inputs.get("input_ids"), inputs.get("inputs_embeds")).shape[1]


def micro_batched(run, groups=None, **inputs):
    """Call ``run`` on one row, or group of rows, after the other, and again in the backward pass;
    join the results in the order of the rows, to a tuple of tensors.

    Memory is that of the longest row, however many there are; training takes 4/3 of the time.

    Args:
        run: returns a tuple of tensors [rows, …], of which no row depends on another.
        groups: numbers of the rows to run together, in lists that have each row once; None runs
            each alone.
        inputs: keyword arguments of ``run``; tensors [rows, …] are passed one group at a time.
    """
    if torch.is_grad_enabled():
        run = partial(checkpoint, run, use_reentrant=False)
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    if groups is None:
        groups = [[row] for row in range(len(next(iter(tensors.values()))))]
    parts = [run(**inputs | {name: x[rows] for name, x in tensors.items()}) for rows in groups]
    order = torch.tensor(sum(groups, [])).argsort()
    return tuple(torch.cat(part)[order] for part in zip(*parts, strict=True))


def by_tokens(lengths, most):
    """Group the numbers of rows, in lists, so that a group has at most ``most`` tokens, or one row;
    the longest rows first. ``lengths`` has the tokens of each row; ``most`` None gives one
    group."""
    groups, size = [[]], 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if groups[-1] and most is not None and size + lengths[row] > most:
            groups, size = [*groups, []], 0
        groups[-1].append(row)
        size += lengths[row]
    return groups


def same_document(example_ids: torch.Tensor | None):
    """True if any two rows are of one example, by the numbers of their examples [rows]; None: each
    row is one of its own."""
    return example_ids is not None and len(example_ids.unique()) < len(example_ids)


def rows_of_documents(example_ids: torch.Tensor):
    """Membership of rows in documents, [documents, rows] bool, by the number of each row's document
    [rows]: any whole numbers, documents in their order."""
    return example_ids.unique()[:, None] == example_ids


def separators(config, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, choices=1):
    """Find ``config.sep_token_id`` in ids [b, n]: (real tokens, separators among them), [b, n] bool
    both.

    Raises:
        ValueError: a row with real tokens has no separator, or there are no ids; for the message,
            ``choices`` rows in turn are the choices of one question.
    """
    if input_ids is None or config.sep_token_id is None:
        lacking = "input_ids" if input_ids is None else "sep_token_id in the config"
        raise ValueError(
            f"without {lacking} there is no telling which tokens are global; "
            "give global_attention_mask"
        )
    real = real_tokens(tuple(input_ids.shape), attention_mask, input_ids.device)
    separator = real & (input_ids == config.sep_token_id)
    without = real.any(1) & ~separator.any(1)
    if not torch.compiler.is_compiling() and without.any():
        row, choice = divmod(int(without.nonzero()[0]), choices)
        where = f"row {row}" if choices == 1 else f"row {row}, choice {choice}"
        raise ValueError(
            f"{where}: no separator (id {config.sep_token_id}) tells which tokens are global; "
            "give global_attention_mask"
        )
    return real, separator


def before_first(config, input_ids: torch.Tensor, attention_mask: torch.Tensor | None):
    """True at the real tokens before the first separator of each row, [b, n] bool; ValueError for a
    row without any, see `separators`."""
    real, separator = separators(config, input_ids, attention_mask)
    return real & ~after_first(separator, 0)


def after_first(separator: torch.Tensor, distance: int):
    """True at places from ``distance`` after the first separator of a row on, [b, n] bool.

    Args:
        separator: [b, n] bool, True at separators; a row without any counts from its first place.
    """
    position = torch.arange(separator.shape[1], device=separator.device)
    return position >= separator.int().argmax(1, keepdim=True) + distance
