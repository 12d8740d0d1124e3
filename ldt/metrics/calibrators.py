"""Calibration: logits to probabilities that are as often right as they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ldt.metrics.numbers import softmax

LEAST = 5  # documents with a label, and without it, by which it is calibrated
RANGE = 10.0  # highest temperature; 1 / RANGE is the lowest
_CLOSE = 1e-10  # of the derivative, where the fit ends


def logistic(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits, of each by itself."""
    return 0.5 * (1 + np.tanh(logits / 2))


def logit(p: np.ndarray | float) -> np.ndarray:
    """Logits of probabilities, finite ones of 0 and 1 too."""
    clipped = np.clip(p, 1e-12, 1 - 1e-12)
    return np.log(clipped) - np.log1p(-clipped)


@dataclass(frozen=True)
class Temperature:
    """Logits of classes divided by a number, of which one is right (Guo et al. 2017, section 4.2,
    https://arxiv.org/abs/1706.04599). The answer stays the same, its probability does not."""

    name: ClassVar[str] = "temperature"
    temperature: float

    @classmethod
    def fit(cls, logits: np.ndarray, right: np.ndarray) -> Temperature:
        """The temperature with the least cross-entropy, of logits [documents, classes] and the
        right class [documents] int."""
        of_right = logits[np.arange(len(logits)), right]

        def slope(inverse: float) -> float:
            return float(((softmax(inverse * logits) * logits).sum(1) - of_right).mean())

        # The cross-entropy is convex in 1 / temperature: its slope grows, and is 0 at the best.
        if not len(logits):
            return cls(1.0)
        low, high = 1 / RANGE, RANGE
        for _ in range(100):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        return cls(1 / low)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities [documents, classes]."""
        return softmax(np.asarray(logits, np.float64) / self.temperature)


@dataclass(frozen=True)
class _ByLabel:
    """A calibration with a logistic regression for each label, which is there or not.

    A label that fewer than `LEAST` documents have, or that fewer lack, keeps its probabilities.
    Weights below 0, which would turn the order of documents round, are left out.

    Args:
        weights: of each label, the intercept last.
    """

    keeps: ClassVar[tuple[float, ...]]  # weights, the intercept last, that change nothing
    weights: list[list[float]]

    @staticmethod
    def features(logits: np.ndarray) -> np.ndarray:
        """Regressors [features, ...] of logits [...]."""
        raise NotImplementedError

    @classmethod
    def fit(cls, logits: np.ndarray, right: np.ndarray):
        """The weights of each label with the least cross-entropy, by [documents, labels].

        Targets are not quite 0 and 1, so that they are finite where a label can be told without a
        mistake (Platt 1999, section 2.2; Lin, Lin and Weng 2007).
        """
        weights = []
        for column, there in zip(logits.T, right.T, strict=True):
            positives = int(there.sum())
            negatives = len(there) - positives
            if min(positives, negatives) < LEAST:
                weights.append(list(cls.keeps))
                continue
            targets = np.where(there, (positives + 1) / (positives + 2), 1 / (negatives + 2))
            weights.append(_regression(cls.features(column), targets).tolist())
        return cls(weights)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities [documents, labels]."""
        weights = np.array(self.weights).reshape(len(self.weights), len(self.keeps))
        features = self.features(np.asarray(logits, np.float64))
        logits = (features * weights[:, :-1].T[:, None]).sum(0) + weights[:, -1]
        return logistic(logits)


class Platt(_ByLabel):
    """Logits of each label times a number, plus another one (Platt 1999)."""

    name: ClassVar[str] = "platt"
    keeps: ClassVar[tuple[float, ...]] = (1.0, 0.0)

    @staticmethod
    def features(logits: np.ndarray) -> np.ndarray:
        return logits[None]

    def before(self, probabilities: np.ndarray) -> np.ndarray:
        """Probability of each label before calibration, [labels]; of one whose calibrated
        probability is always the same: 0 where that is at least as high, else 1."""
        factor, summand = np.array(self.weights).reshape(len(self.weights), 2).T
        over = logit(probabilities) - summand
        logits = np.divide(over, factor, out=np.where(over > 0, np.inf, -np.inf), where=factor > 0)
        return logistic(logits)


class Beta(_ByLabel):
    """A regression on log p and -log(1 - p) of each label (Kull, Silva Filho and Flach 2017,
    section 4, http://proceedings.mlr.press/v54/kull17a.html); it can pull both ends by themselves.
    """

    name: ClassVar[str] = "beta"
    keeps: ClassVar[tuple[float, ...]] = (1.0, 1.0, 0.0)

    @staticmethod
    def features(logits: np.ndarray) -> np.ndarray:
        return np.stack([-np.logaddexp(0, -logits), np.logaddexp(0, logits)])


CALIBRATORS = {each.name: each for each in (Temperature, Platt, Beta)}


def _regression(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Weights of a logistic regression of targets [documents] on [features, documents], the
    intercept last; none but the intercept is negative."""
    rows = np.vstack([features, np.ones(len(targets))])
    used = np.ones(len(rows), bool)
    while True:
        weights = np.zeros(len(rows))
        weights[used] = _newton(rows[used], targets)
        negative = used & (weights < 0)
        negative[-1] = False
        if not negative.any():
            return weights
        used[np.flatnonzero(negative)[weights[negative].argmin()]] = False


def _newton(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Weights of the least cross-entropy; steps are halved until they help."""
    weights = np.zeros(len(rows))
    loss = _cross_entropy(weights @ rows, targets)
    for _ in range(100):
        p = logistic(weights @ rows)
        gradient = rows @ (p - targets)
        if np.abs(gradient).max() < _CLOSE * len(targets):
            break
        curvature = (rows * (p * (1 - p))) @ rows.T
        curvature[np.diag_indices(len(rows))] += 1e-12 * len(targets)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while (new := _cross_entropy((weights - size * step) @ rows, targets)) > loss:
            size /= 2
            if size < 1e-10:
                return weights
        weights, loss = weights - size * step, new
    return weights


def _cross_entropy(logits: np.ndarray, targets: np.ndarray) -> float:
    return float((np.logaddexp(0, logits) - targets * logits).sum())
