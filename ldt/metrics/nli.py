"""The figures of ContractNLI: classes and evidence of pairs that count so often each.

Weights are [resamples, pairs]; every figure is [resamples], from 0 to 100, NaN where it is not
defined.

Source: Koreeda and Manning 2021 (arXiv:2110.01799), the rules of their evaluation script.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

NOT_MENTIONED, ENTAILMENT, CONTRADICTION = range(3)
SURE = 0.5  # a span is predicted above it
RECALLS = {"precision@recall80": 0.8, "precision@recall90": 0.9}

Figures = dict[str, np.ndarray]
Side = Literal["left", "right"]


class Spans(NamedTuple):
    """The spans of a document for a hypothesis: [spans] bool, and probabilities."""

    right: np.ndarray
    scores: np.ndarray


def class_figures(weights: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> Figures:
    """Return accuracy, and precision, recall and f1 of entailment and contradiction with their
    mean and harmonic mean.

    Recall and F1 of a class that no gold label is are not defined; the precision of one that is
    never predicted is 0.

    Args:
        weights: [resamples, pairs].
        gold, predicted: [pairs], numbers of classes.
    """
    weights = weights.astype(np.float64)
    figures = {"accuracy": _ratio(weights @ (gold == predicted), weights.sum(1))}
    for label, name in ((ENTAILMENT, "entailment"), (CONTRADICTION, "contradiction")):
        is_gold, is_predicted = gold == label, predicted == label
        true, there = weights @ (is_gold & is_predicted), weights @ is_gold
        predicted_count = weights @ is_predicted
        figures |= _precision_recall_f1(true, there, predicted_count, f"_{name}")
    for name in ("precision", "recall", "f1"):
        one, other = figures[f"{name}_entailment"], figures[f"{name}_contradiction"]
        defined = ~(np.isnan(one) | np.isnan(other))
        figures[f"{name}_mean"] = np.where(defined, (one + other) / 2, np.nan)
        harmonic = np.nan_to_num(_ratio(2 * one * other, one + other)) / 100
        figures[f"{name}_hmean"] = np.where(defined, harmonic, np.nan)
    return figures


class SpanTable:
    """Spans of pairs, counted once so that any weights of the pairs can be scored."""

    def __init__(self, spans: Sequence[Spans]):
        """Count, of each pair, the spans at each threshold that is a right one's score.

        A threshold that lies between two of them has the recall of the higher one, and a lower
        precision, so that no figure needs it.
        """
        owner = np.repeat(np.arange(len(spans)), [each.right.sum() for each in spans])
        scores = _joined([each.scores[each.right] for each in spans])
        order = np.argsort(-scores, kind="stable")
        self.owner, self.thresholds = owner[order], scores[order]  # [thresholds]
        self.all = self._reaching([each.scores for each in spans])  # [pairs, thresholds]
        self.right = self._reaching([each.scores[each.right] for each in spans])
        self.wrong_above = self._reaching([each.scores[~each.right] for each in spans], "right")
        sizes = [(len(e.right), e.right.sum()) for e in spans]
        self.spans, self.there = np.array(sizes, np.float64).reshape(-1, 2).T  # [pairs]
        self.found = np.array([(e.scores > SURE).sum() for e in spans], np.float64)
        self.true = np.array([(e.right & (e.scores > SURE)).sum() for e in spans], np.float64)

    def _reaching(self, scores: Sequence[np.ndarray], side: Side = "left") -> np.ndarray:
        """Number of scores of each pair that reach each threshold, or lie above it for "right"."""
        counts = [
            len(each) - np.searchsorted(np.sort(each), self.thresholds, side) for each in scores
        ]
        return np.array(counts, np.float64).reshape(len(scores), len(self.thresholds))

    def figures(self, weights: np.ndarray) -> Figures:
        """Return map, precision at recalls, roc_auc; and precision, recall, f1 and accuracy of the
        spans above `SURE`.

        ``map`` is the average precision over all spans together, not interpolated, equal scores
        together. The precision at a recall is that of the highest threshold that reaches it.

        Args:
            weights: [resamples, pairs].
        """
        weights = weights.astype(np.float64)
        there, spans = weights @ self.there, weights @ self.spans
        reached, right = weights @ self.all, weights @ self.right  # [resamples, thresholds]
        span_weights = weights[:, self.owner]  # how often the span counts that the threshold is of
        precision = _ratio(right, reached)
        figures = {"map": _ratio((span_weights * np.nan_to_num(precision)).sum(1), there) / 100}
        recall = right / np.maximum(there, 1)[:, None]
        for name, wanted in RECALLS.items():
            figures[name] = np.full(len(weights), np.nan)
            if some := np.flatnonzero(there).tolist():
                first = (recall[some] >= wanted).argmax(1)
                figures[name][some] = precision[some, first]
        wrong = spans - there
        above = (reached - right + weights @ self.wrong_above) / 2  # equal ones half
        figures["roc_auc"] = _ratio((span_weights * (wrong[:, None] - above)).sum(1), there * wrong)
        true, found = weights @ self.true, weights @ self.found
        figures |= _precision_recall_f1(true, there, found)
        figures["precision"] = np.where(spans > 0, figures["precision"], np.nan)
        figures["accuracy"] = _ratio(spans - there - found + 2 * true, spans)
        return figures


def binary(entailment: float, contradiction: float) -> int:
    """The class where only these two are asked for; entailment at a tie."""
    return CONTRADICTION if contradiction > entailment else ENTAILMENT


def mean_defined(figures: Sequence[Figures]) -> Figures:
    """The mean of each figure over those where it is defined; NaN where it is so nowhere, none of
    nothing."""
    means = {}
    for name in figures[0] if figures else ():
        values = np.stack([each[name] for each in figures])
        means[name] = _ratio(np.nansum(values, 0), (~np.isnan(values)).sum(0)) / 100
    return means


def _precision_recall_f1(true, there, found, suffix: str = "") -> Figures:
    f1 = _ratio(2 * true, there + found)
    return {
        f"precision{suffix}": np.nan_to_num(_ratio(true, found)),
        f"recall{suffix}": _ratio(true, there),
        f"f1{suffix}": np.where(there > 0, f1, np.nan),
    }


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """From 0 to 100; NaN of nothing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, 100 * part / whole, np.nan)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *arrays])
