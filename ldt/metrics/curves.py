"""Precision against recall of a label, over all thresholds."""

from __future__ import annotations

import numpy as np

RECALLS = tuple(step / 20 for step in range(21))  # where a curve is told


def precision_recall(scores: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall [thresholds] of giving a label from each score on, the highest first.

    Args:
        scores: [documents].
        right: [documents] bool, whether they have the label; some do.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, true = scores[order], right[order].cumsum()
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # of equal scores
    return true[last] / (last + 1), true[last] / max(true[-1], 1)


def average_precision(scores: np.ndarray, right: np.ndarray) -> float:
    """The mean precision over the steps of recall, from 0 to 100, as scikit-learn has it.

    NaN of a label that no document has.
    """
    if not right.any():
        return float("nan")
    precision, recall = precision_recall(scores, right)
    return float(100 * (np.diff(recall, prepend=0) * precision).sum())


def curve(scores: np.ndarray, right: np.ndarray) -> list[float]:
    """The highest precision, 0 to 100, at each of `RECALLS` or a higher recall; of a label that
    some document has (Manning, Raghavan and Schütze 2008, section 8.4)."""
    precision, recall = precision_recall(scores, right)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(recall, np.array(RECALLS) - 1e-12)
    return (100 * highest[places]).tolist()
