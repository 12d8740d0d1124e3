"""Losses that several heads share."""

import torch
from torch.nn import functional as F


def cross_entropy(logits, labels, count=None):
    """Mean over the labels other than -100, 0 when there is none.

    Args:
        logits: [..., classes], in any precision.
        labels: [...] of whole numbers.
        count: what the sum is divided by in place of the number of labels here: that of all
            batches of a step.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # half precision could not hold the sum
    total = F.cross_entropy(logits, labels.long(), reduction="sum")
    count = (labels != -100).sum() if count is None else torch.as_tensor(count)
    return total / count.clamp(min=1)
