"""Calibration: logits to probabilities that are as often right as they say, measured in folds."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from ldt.metrics.numbers import softmax

LEAST = 5  # documents with a label, and without it, by which it is calibrated
RANGE = 10.0  # highest temperature; 1 / RANGE is the lowest
_CLOSE = 1e-10  # of the derivative, where the fit ends


@dataclass(frozen=True)
class Temperature:
    """Logits of classes divided by a number, of which one is right (Guo et al. 2017, section 4.2,
    https://arxiv.org/abs/1706.04599). The answer stays the same, its probability does not.

    Args:
        temperature: from 1 / `RANGE` to `RANGE`.
    """

    name: ClassVar[str] = "temperature"
    temperature: float

    @classmethod
    def fit(cls, logits: np.ndarray, right: np.ndarray) -> Temperature:
        """The temperature with the least cross-entropy.

        Args:
            logits: [documents, classes].
            right: [documents] int, the right class.

        Raises:
            ValueError: a logit that is not finite.
        """
        logits = _finite(logits)
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

    def facts(self) -> dict[str, Any]:
        """Arguments of the class as JSON."""
        return asdict(self)


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
        """The weights of each label with the least cross-entropy.

        Targets are not quite 0 and 1, so that they are finite where a label can be told without a
        mistake (Platt 1999, section 2.2; Lin, Lin and Weng 2007).

        Args:
            logits: [documents, labels].
            right: [documents, labels] bool.

        Raises:
            ValueError: a logit that is not finite.
        """
        logits, weights = _finite(logits), []
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
        logit = (features * weights[:, :-1].T[:, None]).sum(0) + weights[:, -1]
        return 0.5 * (1 + np.tanh(logit / 2))

    def facts(self) -> dict[str, Any]:
        """Arguments of the class as JSON."""
        return {"weights": self.weights}


@dataclass(frozen=True)
class Platt(_ByLabel):
    """Logits of each label times a number, plus another one (Platt 1999).

    Args:
        weights: factor and summand of each label.
    """

    name: ClassVar[str] = "platt"
    keeps: ClassVar[tuple[float, ...]] = (1.0, 0.0)

    @staticmethod
    def features(logits: np.ndarray) -> np.ndarray:
        return logits[None]

    def before(self, probabilities: np.ndarray) -> np.ndarray:
        """Probability of each label before calibration, [labels]; of one whose calibrated
        probability is always the same: 0 where that is at least as high, else 1."""
        factor, summand = np.array(self.weights).reshape(len(self.weights), 2).T
        clipped = np.clip(probabilities, 1e-12, 1 - 1e-12)
        over = np.log(clipped) - np.log1p(-clipped) - summand
        logits = np.divide(over, factor, out=np.where(over > 0, np.inf, -np.inf), where=factor > 0)
        return 0.5 * (1 + np.tanh(logits / 2))


@dataclass(frozen=True)
class Beta(_ByLabel):
    """A regression on log p and -log(1 - p) of each label (Kull, Silva Filho and Flach 2017,
    section 4, http://proceedings.mlr.press/v54/kull17a.html); it can pull both ends by themselves.

    Args:
        weights: a, b and c of each label.
    """

    name: ClassVar[str] = "beta"
    keeps: ClassVar[tuple[float, ...]] = (1.0, 1.0, 0.0)

    @staticmethod
    def features(logits: np.ndarray) -> np.ndarray:
        return np.stack([-np.logaddexp(0, -logits), np.logaddexp(0, logits)])


CALIBRATORS = {each.name: each for each in (Temperature, Platt, Beta)}


def _finite(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    if not np.isfinite(logits).all():
        raise ValueError("a logit is not finite")
    return logits


def _regression(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Weights of a logistic regression by Newton's method, the intercept last; none but the
    intercept is negative.

    Args:
        features: [features, documents].
        targets: [documents], from 0 to 1.
    """
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
        p = 0.5 * (1 + np.tanh(weights @ rows / 2))
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


def folds(
    count: int, parts: int = 5, seed: int = 0, groups: Sequence[Hashable] | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each part of a set the numbers of the others, to fit on, and its own.

    Args:
        count: documents of the set.
        parts: into which it is cut, at random, as equal as they can be.
        seed: of the cut.
        groups: of each document, what must stay together; None keeps nothing together.

    Yields:
        [others] and [own] int64, sorted. Of fewer groups than parts there are as many as groups; of
        one group none.
    """
    if groups is None:
        unit = np.arange(count)
    else:
        numbers: dict[Hashable, int] = {}
        unit = np.array([numbers.setdefault(group, len(numbers)) for group in groups], int)
    units = int(unit.max(initial=-1)) + 1
    parts = min(parts, units)
    if parts < 2:
        return
    part = np.empty(units, int)
    part[np.random.default_rng(seed).permutation(units)] = np.arange(units) % parts
    for number in range(parts):
        held_out = part[unit] == number
        yield np.flatnonzero(~held_out), np.flatnonzero(held_out)
