"""Scores of parts of a document at their markers, and the losses."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import gelu

from ldt.attention.matmul import Linear
from ldt.model.heads.losses import exact, mean


class EvidenceHead(nn.Module):
    """Dense, gelu, one number: whether what a token stands for is evidence."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.out_proj = Linear(config.hidden_size, 1)

    def forward(self, x, positions):
        """[b, n, d] and [b, k] -> [b, k], the dtype's least number where a position is below 0."""
        places = positions.clamp(min=0).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        logits = self.out_proj(gelu(self.dense(x.gather(1, places)))).squeeze(-1)
        return logits.masked_fill(positions < 0, torch.finfo(logits.dtype).min)


def known_evidence(labels, positions):
    """[b, k] bool: where there is a label and what it is of."""
    return (labels != -100) & (positions >= 0)


def evidence_loss(logits, labels, positions, count=None):
    """Binary cross entropy, the mean over the labels other than -100; 0 where there is none.

    Args:
        logits, labels, positions: [b, k], as `LdtForEvidenceAnswering` has them.
        count: divides in place of the number of labels.
    """
    labels = labels.to(logits.device)
    known = known_evidence(labels, positions)
    logits = exact(logits).masked_fill(~known, 0)
    gold = labels.masked_fill(~known, 0).to(logits.dtype)
    each = F.binary_cross_entropy_with_logits(logits, gold, reduction="none")
    return mean(each.masked_fill(~known, 0).sum(), known.sum(), count)


def one_passage_loss(logits, labels, positions, count=None):
    """Negative log likelihood of the right passages of a row, or of none where none is right.

    The logarithm of the sum of exp(logit) over the passages of a row and of exp(0) for none, less
    that over its right ones, or 0; the mean over rows that have a label. So a logit is how much
    likelier its passage is than none, whatever else stands in its input.

    Args:
        logits, labels, positions: [b, k]; passages without a label have no part in it.
        count: divides in place of the number of rows that have a label.
    """
    labels = labels.to(logits.device)
    known = known_evidence(labels, positions.to(logits.device))
    logits = F.pad(exact(logits), (0, 1))  # 0 for none, in the last place
    least = torch.finfo(logits.dtype).min
    right = F.pad(known & (labels == 1), (0, 1))
    right[:, -1] = ~right.any(1)
    total = logits.masked_fill(~F.pad(known, (0, 1), value=True), least).logsumexp(1)
    losses = total - logits.masked_fill(~right, least).logsumexp(1)
    some = known.any(1)
    return mean(losses.masked_fill(~some, 0).sum(), some.sum(), count)


def balanced_loss(logits, labels, positions, count=None):
    """Cross entropy in which the evidence of a row counts as its other passages do together.

    Of a row with p passages that are evidence and n that are not, each of the first counts n + 1
    and each of the others p + 1; the weighted mean over them, and the mean of it over rows with a
    labelled passage. 0 where there is none.

    Args:
        logits, labels, positions: [b, k]; labels 1 of evidence, else 0, -100 for none.
        count: divides in place of the number of rows.

    Source: Dasigi et al. 2021 (arXiv:2105.03011), their code, which has a row in a batch.
    """
    labels = labels.to(logits.device)
    known = known_evidence(labels, positions.to(logits.device))
    right = known & (labels == 1)
    ones = right.sum(1, keepdim=True)
    zeros = known.sum(1, keepdim=True) - ones
    logits = exact(logits).masked_fill(~known, 0)
    weights = torch.where(right, zeros + 1, ones + 1).masked_fill(~known, 0).to(logits.dtype)
    each = F.binary_cross_entropy_with_logits(
        logits, right.to(logits.dtype), weights, reduction="none"
    )
    total = weights.sum(1)
    rows = each.sum(1) / (total + (total == 0))
    return mean(rows.sum(), known.any(1).sum(), count)
