"""Calibrators: logits to probabilities that match the observed accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ldt.metrics.numbers import softmax

LEAST = 5  # documents with a label, and without it, by which it is calibrated
RANGE = 10.0  # highest temperature; 1 / RANGE is the lowest
_CLOSE = 1e-10  # of the derivative, where the fit ends


def logistic(logits: np.ndarray) -> np.ndarray:
    """Logistic function, 1 / (1 + exp(-logit)), of each element."""
    return 0.5 * (1 + np.tanh(logits / 2))


def logit(p: np.ndarray | float) -> np.ndarray:
    """Inverse of `logistic`; finite for 0 and 1 too."""
    clipped = np.clip(p, 1e-12, 1 - 1e-12)
    return np.log(clipped) - np.log1p(-clipped)


@dataclass(frozen=True)
class Temperature:
    """Temperature scaling of single-label logits (Guo et al. 2017, section 4.2,
    https://arxiv.org/abs/1706.04599). The predicted class does not change, its probability does.
    """

    name: ClassVar[str] = "temperature"
    temperature: float

    @classmethod
    def fit(cls, logits: np.ndarray, right: np.ndarray) -> Temperature:
        """Fit the temperature that minimises cross-entropy.

        Args:
            logits: [documents, classes].
            right: [documents] int, the gold class.
        """
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
        """Probabilities of logits, both [documents, classes]."""
        return softmax(np.asarray(logits, np.float64) / self.temperature)


@dataclass(frozen=True)
class _ByLabel:
    """Logistic regression for each label of a multi-label model; ``weights`` of each label have the
    intercept last.

    A label with fewer than `LEAST` positive or negative documents keeps its probabilities. Negative
    weights, which would reverse the order of documents, are set to zero.
    """

    keeps: ClassVar[tuple[float, ...]]  # weights, the intercept last, that change nothing
    weights: list[list[float]]

    @staticmethod
    def _features(logits: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    @classmethod
    def fit(cls, logits: np.ndarray, right: np.ndarray):
        """Fit the weights of each label that minimise cross-entropy, as a new calibrator.

        Targets are smoothed away from 0 and 1, so that weights stay finite for separable labels
        (Platt 1999, section 2.2; Lin, Lin and Weng 2007).

        Args:
            logits: [documents, labels].
            right: [documents, labels] bool, the gold labels.
        """
        weights = []
        for column, there in zip(logits.T, right.T, strict=True):
            positives = int(there.sum())
            negatives = len(there) - positives
            if min(positives, negatives) < LEAST:
                weights.append(list(cls.keeps))
                continue
            targets = np.where(there, (positives + 1) / (positives + 2), 1 / (negatives + 2))
            weights.append(_regression(cls._features(column), targets).tolist())
        return cls(weights)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities of logits, both [documents, labels]."""
        weights = np.array(self.weights).reshape(len(self.weights), len(self.keeps))
        features = self._features(np.asarray(logits, np.float64))
        logits = (features * weights[:, :-1].T[:, None]).sum(0) + weights[:, -1]
        return logistic(logits)


class Platt(_ByLabel):
    """Platt scaling (1999): a scale and an offset for the logit of each label."""

    name: ClassVar[str] = "platt"
    keeps: ClassVar[tuple[float, ...]] = (1.0, 0.0)

    @staticmethod
    def _features(logits: np.ndarray) -> np.ndarray:
        return logits[None]

    def before(self, probabilities: np.ndarray) -> np.ndarray:
        """Inverse of the calibration: the uncalibrated probability of each label, [labels], for a
        calibrated one, [labels].

        If a label's calibration is constant, 0 where the constant reaches the given probability,
        else 1.
        """
        factor, summand = np.array(self.weights).reshape(len(self.weights), 2).T
        over = logit(probabilities) - summand
        logits = np.divide(over, factor, out=np.where(over > 0, np.inf, -np.inf), where=factor > 0)
        return logistic(logits)


class Beta(_ByLabel):
    """Beta calibration: regression on log p and -log(1 - p) of each label (Kull, Silva Filho and
    Flach 2017, section 4, http://proceedings.mlr.press/v54/kull17a.html). Unlike Platt scaling it
    corrects high and low probabilities independently.
    """

    name: ClassVar[str] = "beta"
    keeps: ClassVar[tuple[float, ...]] = (1.0, 1.0, 0.0)

    @staticmethod
    def _features(logits: np.ndarray) -> np.ndarray:
        """log p and -log(1 - p), [2, ...], of the probability p of each logit."""
        return np.stack([-np.logaddexp(0, -logits), np.logaddexp(0, logits)])


CALIBRATORS = {each.name: each for each in (Temperature, Platt, Beta)}


def _regression(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Weights of a logistic regression, the intercept last; no other weight is negative.
    ``features`` are [features, documents], ``targets`` [documents], from 0 to 1."""
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
    """Weights that minimise cross-entropy, by Newton's method with step halving."""
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
