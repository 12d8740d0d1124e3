"""Calibration errors: distance between predicted probabilities and observed accuracy."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

BINS = 15


class Bin(NamedTuple):
    """Bin of answers with similar probabilities.

    Args:
        answers: number of answers in the bin.
        probability: mean predicted probability.
        right: share of correct answers.
    """

    answers: int
    probability: float
    right: float


def reliability(probabilities: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[Bin]:
    """Points of a reliability diagram, with equally many answers in each bin.

    Equal probabilities share a bin, so there can be fewer and larger bins than asked for (Nixon et
    al. 2019, https://arxiv.org/abs/1904.01685, "adaptive").

    Args:
        probabilities: [answers], from 0 to 1.
        right: [answers] bool, True where the answer is correct.
        bins: number of bins.
    """
    order = np.argsort(probabilities, kind="stable")
    ordered, correct = probabilities[order], right[order].astype(float)
    edges = np.linspace(0, len(ordered), min(bins, len(ordered)) + 1).round().astype(int)
    # An edge between equal probabilities moves behind the last of them.
    for place, edge in enumerate(edges[1:-1], 1):
        if ordered[edge - 1] == ordered[edge]:
            edges[place] = np.searchsorted(ordered, ordered[edge], "right")
    edges = np.unique(edges)
    return [
        Bin(int(end - start), float(ordered[start:end].mean()), float(correct[start:end].mean()))
        for start, end in pairwise(edges)
    ]


def expected_calibration_error(
    probabilities: np.ndarray, right: np.ndarray, bins: int = BINS
) -> float:
    """Mean distance, 0 to 1, between probability and accuracy over the bins of `reliability`
    (Naeini et al. 2015; Guo et al. 2017, equation 3, with bins of equal mass). ``right``
    [answers] is True where the answer is correct that has a probability in ``probabilities``
    [answers]."""
    rows = reliability(probabilities, right, bins)
    total = sum(row.answers for row in rows)
    return sum(row.answers * abs(row.probability - row.right) for row in rows) / max(total, 1)


def brier(probabilities: np.ndarray, right: np.ndarray) -> float:
    """Brier score (1950): mean squared distance between probabilities and truth, ``right``, bool of
    the same shape. For [documents, classes] the squares are summed over the classes of a
    document."""
    squares = (probabilities - right.astype(float)) ** 2
    return float(squares.sum(-1).mean() if squares.ndim > 1 else squares.mean())


def negative_log_likelihood(probabilities: np.ndarray, right: np.ndarray) -> float:
    """Mean negative log-likelihood of the correct outcome, in nats.

    Args:
        probabilities: [answers], the probability of being correct, or [documents, classes].
        right: [answers] bool, or [documents] int, the correct class.
    """
    if probabilities.ndim > 1:
        of_truth = probabilities[np.arange(len(right)), right]
    else:
        of_truth = np.where(right, probabilities, 1 - probabilities)
    return float(-np.log(np.maximum(of_truth, 1e-300)).mean())


def figures(scores: np.ndarray, right: np.ndarray, several: bool) -> dict[str, float]:
    """``ece``, ``brier`` and ``nll`` (in nats) of probabilities [documents, labels].

    In multi-label classification each label of each document counts as one answer. Otherwise
    ``ece`` is that of the predicted class (Guo et al. 2017), ``brier`` and ``nll`` use all classes.

    Args:
        scores: [documents, labels], probabilities.
        right: [documents, labels] bool, the gold labels.
        several: True for multi-label classification.
    """
    ece = expected_calibration_error(*answers_of(scores, right, several))
    if several:
        flat = scores.ravel(), right.ravel()
        return {"ece": ece, "brier": brier(*flat), "nll": negative_log_likelihood(*flat)}
    nll = negative_log_likelihood(scores, right.argmax(1))
    return {"ece": ece, "brier": brier(scores, right), "nll": nll}


def answers_of(
    scores: np.ndarray, right: np.ndarray, several: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities to calibrate, and for each True if its answer is correct: of the
    predicted class of each document, [documents]; with ``several`` of each label, [documents *
    labels].

    Args:
        scores: [documents, labels], probabilities.
        right: [documents, labels] bool, the gold labels.
        several: True for multi-label classification.
    """
    if several:
        return scores.ravel(), right.ravel()
    return scores.max(1), right[np.arange(len(right)), scores.argmax(1)]
