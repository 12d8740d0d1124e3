"""Losses that several heads share."""

import torch
from torch.nn import functional as F


def exact(x):
    """``x`` in float32 at least: half precision could not hold a sum, nor tell few logits apart."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def mean(total, items, count=None):
    """A loss of a sum over items; 0 where there is no item.

    Args:
        total: the sum, a scalar.
        items: how many it is over, a scalar.
        count: divides in place of ``items``: those of all batches of a step.
    """
    count = items if count is None else torch.as_tensor(count)
    return total / count.clamp(min=1)


def counts(num_items_in_batch, parts):
    """The count of each part of a loss, None for each where there are none.

    Args:
        num_items_in_batch: [parts], or [1, parts] as DataParallel hands it on; None.
        parts: how many.
    """
    return [None] * parts if num_items_in_batch is None else num_items_in_batch.flatten()


def cross_entropy(logits, labels, count=None):
    """Mean over the labels other than -100, 0 when there is none.

    Args:
        logits: [..., classes], in any precision.
        labels: [...] of whole numbers.
        count: see `mean`.
    """
    total = F.cross_entropy(exact(logits), labels.long(), reduction="sum")
    return mean(total, (labels != -100).sum(), count)
