"""Losses that several heads share."""

import torch
from torch.nn import functional as F


def exact(x: torch.Tensor):
    """Cast ``x`` to float32 at least: halves could not hold a sum, nor distinguish close logits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def mean(total, items, count=None):
    """Divide a sum of losses by the number of items; 0 where there is no item.

    Args:
        total: the sum, a scalar.
        items: number of items in it, a scalar.
        count: divisor in place of ``items``: the number in all batches of a step.
    """
    count = items if count is None else torch.as_tensor(count)
    return total / (count + (count == 0))


def weighted(losses, weights):
    """Sum of losses {name: scalar}, each times its weight, or times 1 if ``weights`` lacks its
    name."""
    return sum(weights.get(name, 1) * loss for name, loss in losses.items())


def counts(num_items_in_batch, parts):
    """Divisors of the parts of a loss: ``num_items_in_batch`` [parts], or a list of None without
    it."""
    return [None] * parts if num_items_in_batch is None else num_items_in_batch.flatten()


def class_weights(config, device: torch.device):
    """Weights of classes in a loss, ``config.class_weights``, as [labels] float64 on a device; or
    None."""
    if not config.class_weights:
        return None
    return torch.tensor(config.class_weights, dtype=torch.float64, device=device)


def class_items(labels: torch.Tensor, weights=None):
    """Divisor of a mean over labels [...], a scalar: their number, or the sum of their ``weights``
    [classes], without those of -100."""
    known = labels != -100
    if weights is None:
        return known.sum()
    return weights[labels.long()[known]].sum()


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, count=None, weights=None, gamma=0.0):
    """Cross entropy, the mean over the labels other than -100, a scalar; 0 when there is none.

    With weights it is the weighted mean, as in torch. With a gamma each label's part is multiplied
    by (1 - p)^gamma, where p is its probability: the focal loss (Lin et al. 2017, equations 4 and
    5, https://arxiv.org/abs/1708.02002), which is divided as without.

    Args:
        logits: [..., classes], in any precision.
        labels: [...] of whole numbers.
        count: divisor in place of the number of labels here, or of the sum of their weights.
        weights: [classes], of each class; None weighs all the same.
        gamma: 0 or more.
    """
    logits, labels = exact(logits), labels.long()
    cast = None if weights is None else weights.to(logits.dtype)
    if gamma:
        known = labels != -100
        labels = labels[known]
        losses = _focal(F.cross_entropy(logits[known], labels, reduction="none"), gamma)
        total = (losses if cast is None else losses * cast[labels]).sum()
    else:
        total = F.cross_entropy(logits, labels, cast, reduction="sum")
    return mean(total, class_items(labels, weights), count)


def binary_cross_entropy(logits, labels, weights=None, gamma=0.0):
    """Binary cross entropy, summed over all labels, which are 1 or 0; a scalar.

    Args:
        logits, labels: [b, labels].
        weights: [labels], of the labels that are 1, as torch's ``pos_weight``.
        gamma: 0 or more, exponent of the focal loss as of `cross_entropy`.
    """
    cast = None if weights is None else weights.to(logits.dtype)
    if not gamma:
        options = {"pos_weight": cast, "reduction": "sum"}
        return F.binary_cross_entropy_with_logits(logits, labels, **options)
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    losses = _focal(losses, gamma)
    return (losses if cast is None else losses * (1 + (cast - 1) * labels)).sum()


def _focal(losses, gamma):
    """Focal loss -(1 - p)^gamma log p from ``losses``, -log p."""
    tiny = torch.finfo(losses.dtype).tiny  # the slope of 0^gamma is infinite below 1
    return (-torch.expm1(-losses)).clamp(min=tiny) ** gamma * losses


def best_means(logits: torch.Tensor, member: torch.Tensor, most: int):
    """Mean of the best logits of each document's chunks, [documents].

    Args:
        logits: [rows], one a chunk.
        member: [documents, rows] bool, the chunks of each document, one at least.
        most: number of chunks that count; all of them in a document that has fewer.
    """
    table = logits.expand(member.shape).masked_fill(~member, float("-inf"))
    best = table.topk(min(most, table.shape[1]), 1).values
    there = best.isfinite()
    return best.masked_fill(~there, 0).sum(1) / there.sum(1)


def ranking_losses(scores: torch.Tensor, labels, there, teacher=None, pointwise=False):
    """Ranking loss of each query over its documents, [queries].

    Listwise it is the cross entropy of the softmax over a query's documents with their labels,
    scaled to add up to 1: for one relevant document -log of its share (ListNet's top one; Cao et
    al. 2007). Pointwise it is the mean binary cross entropy. A teacher's scores add the cross
    entropy with their softmax.

    Args:
        scores: [queries, documents], logits.
        labels: [queries, documents], how relevant each document is, from 0 on; pointwise up to 1.
        there: [queries, documents] bool, False where a query has fewer; labels are 0 there.
        teacher: [queries, documents], logits of another model; None: there are none.
        pointwise: True for the pointwise loss.
    """
    least = torch.finfo(scores.dtype).min
    logs = scores.masked_fill(~there, least).log_softmax(1)
    if pointwise:
        losses = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        losses = losses.masked_fill(~there, 0).sum(1) / there.sum(1)
    else:
        total = labels.sum(1, keepdim=True)
        losses = -(labels / (total + (total == 0)) * logs).sum(1)
    if teacher is not None:
        losses = losses - (teacher.masked_fill(~there, least).softmax(1) * logs).sum(1)
    return losses
