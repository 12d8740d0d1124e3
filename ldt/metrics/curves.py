"""Precision-recall and ROC curves of one label over all thresholds.

Throughout, ``scores`` are [documents], and ``right`` are [documents] bool (True if the document has
the label).
"""

from __future__ import annotations

import numpy as np

RECALLS = tuple(step / 20 for step in range(21))  # where a curve is told


def precision_recall(scores: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall, 0 to 1, each [thresholds], with each different score as the threshold,
    in falling order."""
    true, positive = (counts[0] for counts in _counts(scores, right, np.ones((1, len(scores)))))
    return true / positive, true / max(true[-1], 1)


def average_precision(scores: np.ndarray, right: np.ndarray) -> float:
    """Average precision, from 0 to 100, as scikit-learn defines it; NaN if no document has the
    label, True in ``right``."""
    return float(ranking_of_draws(scores, right, np.ones((1, len(scores))))["average_precision"][0])


def ranking_of_draws(
    scores: np.ndarray, right: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Return average_precision and roc_auc of one label in each draw, [draws], from 0 to 100, as
    scikit-learn; NaN in draws without a positive document, roc_auc also without a negative one.

    Args:
        scores: [documents], probabilities or other scores of the label.
        right: [documents] bool, True if the document has the label.
        weights: [draws, documents], how often each document counts.
    """
    if not len(scores):
        nothing = np.full(len(weights), np.nan)
        return {"average_precision": nothing, "roc_auc": nothing}
    true, positives = _counts(scores, right, weights)
    wrong, positive = positives - true, true[:, -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        recall, fall_out = true / positive, wrong / wrong[:, -1:]
        precision = np.where(positives > 0, true / positives, 0)
    heights = recall + np.pad(recall, ((0, 0), (1, 0)))[:, :-1]  # twice that of each trapezium
    return {
        "average_precision": 100 * (np.diff(recall, prepend=0) * precision).sum(1),
        "roc_auc": 50 * (np.diff(fall_out, prepend=0) * heights).sum(1),
    }


def _counts(
    scores: np.ndarray, right: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """True positives and predicted positives at each threshold, [draws, thresholds]."""
    order = np.argsort(-scores, kind="stable")
    ordered, drawn = scores[order], weights[:, order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # of equal scores
    return (drawn * right[order]).cumsum(1)[:, last], drawn.cumsum(1)[:, last]


def curve(scores: np.ndarray, right: np.ndarray) -> list[float]:
    """Interpolated precision-recall curve: for each of `RECALLS` the highest precision, from 0 to
    100, at that recall or a higher one (Manning, Raghavan and Schütze 2008, section 8.4).

    At least one document must have the label.
    """
    precision, recall = precision_recall(scores, right)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(recall, np.array(RECALLS) - 1e-12)
    return (100 * highest[places]).tolist()
