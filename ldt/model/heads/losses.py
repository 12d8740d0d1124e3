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
    return total / (count + (count == 0))


def weighted(losses, weights):
    """The sum of losses by their names, each times its weight, or 1 where none is named."""
    return sum(weights.get(name, 1) * loss for name, loss in losses.items())


def counts(num_items_in_batch, parts):
    """The count of each part of a loss, None for each where there are none.

    Args:
        num_items_in_batch: [parts], or [1, parts] as DataParallel hands it on; None.
        parts: how many.
    """
    return [None] * parts if num_items_in_batch is None else num_items_in_batch.flatten()


def class_weights(config, device):
    """[labels] float64, ``config.class_weights``; None where there are none."""
    if not config.class_weights:
        return None
    return torch.tensor(config.class_weights, dtype=torch.float64, device=device)


def class_items(labels, weights=None):
    """Divisor of a mean over labels [...]: their number, or the sum of their weights, without
    those of -100."""
    known = labels != -100
    if weights is None:
        return known.sum()
    return weights[labels.long()[known]].sum()


def cross_entropy(logits, labels, count=None, weights=None, gamma=0.0):
    """Mean over the labels other than -100, 0 when there is none.

    With weights it is the weighted mean, as in torch. With a gamma each label's part is multiplied
    by (1 - p)^gamma, where p is its probability: the focal loss (Lin et al. 2017, equations 4 and
    5, https://arxiv.org/abs/1708.02002), which is divided as without.

    Args:
        logits: [..., classes], in any precision.
        labels: [...] of whole numbers.
        count: see `mean`.
        weights: [classes], of each class; None weighs all the same.
        gamma: 0 or more.
    """
    logits, labels = exact(logits), labels.long()
    cast = None if weights is None else weights.to(logits.dtype)
    if gamma:
        known = labels != -100
        labels = labels[known]
        losses = focal(F.cross_entropy(logits[known], labels, reduction="none"), gamma)
        total = (losses if cast is None else losses * cast[labels]).sum()
    else:
        total = F.cross_entropy(logits, labels, cast, reduction="sum")
    return mean(total, class_items(labels, weights), count)


def binary_cross_entropy(logits, labels, weights=None, gamma=0.0):
    """Sum over all labels, which are there (1) or not (0); see `cross_entropy`.

    Args:
        logits, labels: [b, labels].
        weights: [labels], of those that are there, as torch's ``pos_weight``.
        gamma: 0 or more.
    """
    cast = None if weights is None else weights.to(logits.dtype)
    if not gamma:
        options = {"pos_weight": cast, "reduction": "sum"}
        return F.binary_cross_entropy_with_logits(logits, labels, **options)
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    losses = focal(losses, gamma)
    return (losses if cast is None else losses * (1 + (cast - 1) * labels)).sum()


def focal(losses, gamma):
    """-(1 - p)^gamma log p of -log p."""
    tiny = torch.finfo(losses.dtype).tiny  # the slope of 0^gamma is infinite below 1
    return (-torch.expm1(-losses)).clamp(min=tiny) ** gamma * losses


def best_means(logits, member, most):
    """[documents], the mean of the best logits of each document's chunks.

    Args:
        logits: [rows], one a chunk.
        member: [documents, rows] bool, the chunks of each document, one at least.
        most: chunks that count; those of a document that has fewer count all.
    """
    table = logits.expand(member.shape).masked_fill(~member, float("-inf"))
    best = table.topk(min(most, table.shape[1]), 1).values
    there = best.isfinite()
    return best.masked_fill(~there, 0).sum(1) / there.sum(1)


def ranking_losses(scores, labels, there, teacher=None, pointwise=False):
    """[queries], the loss of the documents of each query.

    Listwise it is the cross entropy of the softmax over a query's documents with their labels, made
    to add up to 1: of one relevant document -log of its share (ListNet's top one; Cao et al. 2007).
    Pointwise it is the mean binary cross entropy. A teacher's scores add the cross entropy with
    their softmax.

    Args:
        scores: [queries, documents], logits.
        labels: [queries, documents], how relevant each document is, from 0 on; pointwise up to 1.
        there: [queries, documents] bool, False where a query has fewer; labels are 0 there.
        teacher: [queries, documents], logits of another model; None: there are none.
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
