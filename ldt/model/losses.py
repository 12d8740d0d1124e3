"""Losses that several heads share."""

import torch
from torch.nn import functional as F


def cross_entropy(logits, labels):
    """Mean over the labels other than -100, 0 when there is none.

    Args:
        logits: [..., classes], in any precision.
        labels: [...] of whole numbers.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # half precision could not hold the sum
    total = F.cross_entropy(logits, labels.long(), reduction="sum")
    return total / (labels != -100).sum().clamp(min=1)
