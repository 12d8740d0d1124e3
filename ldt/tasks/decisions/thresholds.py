"""Thresholds: probabilities from which on a label, an answer or a set of labels is given."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

DEFAULT = 0.5  # threshold where none is chosen
DELTA = 0.1  # probability that an exact bound does not hold
STRENGTH = 5  # positives of a label that weigh as much as all labels together
TARGET = re.compile(r"f(\d+(?:\.\d+)?)|(precision|recall)\s*>=\s*(0?\.\d+|1(?:\.0*)?|0)")


@dataclass(frozen=True)
class Objective:
    """Objective of a threshold.

    Args:
        beta: of F-beta, where recall weighs beta times as much as precision; None of a bound.
        bounded: ``precision`` or ``recall``, which is to reach ``least``, the other one being as
            high as it then can; empty of F-beta.
        least: the bound, from 0 to 1.
    """

    beta: float | None = 1.0
    bounded: str = ""
    least: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Objective:
        """The target of ``f1``, ``f2``, ``f0.5``, ``precision>=0.9`` or ``recall>=0.9``.

        Raises:
            ValueError: it is none of these.
        """
        match = TARGET.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"expected f1, f2, precision>=0.9 or recall>=0.9, got {text!r}")
        beta, bounded, least = match.groups()
        if bounded:
            return cls(None, bounded, float(least))
        if float(beta) == 0:
            raise ValueError(f"expected an F-beta with a beta above 0, got {text!r}")
        return cls(float(beta))

    def value(self, true: np.ndarray, given: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Value of the objective at these counts, the higher the better.

        Args:
            true: [...] labels given that are right.
            given: [...] labels given.
            right: [...] labels that are right.
        """
        precision, recall = true / np.maximum(given, 1), true / np.maximum(right, 1)
        if self.beta is not None:
            square = self.beta**2
            return (1 + square) * true / np.maximum(square * right + given, 1e-300)
        bounded, other = (precision, recall) if self.bounded == "precision" else (recall, precision)
        # Out of reach, what comes nearest to the bound is best; within it, the other one decides.
        return np.where(bounded >= self.least - 1e-12, 1 + other, bounded - 1)


class Outcome(NamedTuple):
    """A target of one label on held-out documents.

    Args:
        verdict: ``reached`` or ``missed`` where an exact bound says so, ``too few`` where there are
            too few documents for that, ``no documents`` of a label that none has, whose threshold
            is `DEFAULT`; "" of an F-beta, which has no bound to reach.
        right: documents that count for the bounded figure.
        total: documents that it is a share of.
        at_least, at_most: bounds of the share, each with a certainty of 1 - `DELTA` (Clopper and
            Pearson 1934).
    """

    verdict: str
    right: int = 0
    total: int = 0
    at_least: float = 0.0
    at_most: float = 1.0

    @property
    def bound(self) -> str:
        """The share that was measured, and the bound that decides, in words; "" without one."""
        if self.verdict not in ("reached", "missed", "too few"):
            return ""
        if not self.total:
            return "never given"
        end = f"at most {self.at_most:.1%}" if self.verdict == "missed" else ""
        return f"{self.right:,} of {self.total:,}, {end or f'at least {self.at_least:.1%}'}"


def outcome(given: np.ndarray, right: np.ndarray, target: Objective) -> Outcome:
    """The verdict on a target by the answers for documents that the threshold was chosen without.

    Args:
        given, right: [documents] bool, whether a document gets the label, and whether it has it.
    """
    if not right.any():
        return Outcome("no documents")
    if not target.bounded:
        return Outcome("")
    of = right if target.bounded == "recall" else given
    count, hits = int(of.sum()), int((given & right).sum())
    at_least = 1 - upper_bound(count - hits, count, DELTA)
    at_most = upper_bound(hits, count, DELTA)
    verdict = "reached" if at_least >= target.least else "too few"
    if at_most < target.least:
        verdict = "missed"
    return Outcome(verdict, hits, count, at_least, at_most)


class Best(NamedTuple):
    """Thresholds [labels], what they are worth by the target, and the positives of each label."""

    thresholds: np.ndarray
    values: np.ndarray
    positives: np.ndarray


def best_threshold(scores: np.ndarray, right: np.ndarray, target: Objective) -> Best:
    """The threshold of each label that is best on these documents.

    It lies in the middle between two scores, below the lowest one half-way to 0. Of several that
    are equally good it is the highest.

    Args:
        scores: [documents, labels], probabilities.
        right: [documents, labels] bool.
        target: what is to be best.

    Returns:
        NaN as the threshold of a label without positives: nothing can be chosen by.

    Raises:
        ValueError: a score that is not a number from 0 to 1.
    """
    if not ((scores >= 0) & (scores <= 1)).all():
        raise ValueError("expected scores from 0 to 1")
    positives = right.sum(0)
    if not len(scores):
        none = np.full(scores.shape[1], np.nan)
        return Best(none, none, positives)
    order = np.argsort(-scores, axis=0, kind="stable")
    ordered = np.take_along_axis(scores, order, 0)
    true = np.take_along_axis(right, order, 0).cumsum(0)
    counts = np.arange(1, len(scores) + 1)[:, None]
    values = target.value(true, counts, positives)
    below = np.vstack([ordered[1:], np.zeros_like(ordered[:1])])
    values[:-1][ordered[:-1] == ordered[1:]] = -np.inf  # no threshold lies between equal scores
    place = values.argmax(0)
    columns = np.arange(scores.shape[1])
    thresholds = (ordered[place, columns] + below[place, columns]) / 2
    best = values[place, columns]
    return Best(np.where(positives > 0, thresholds, np.nan), best, positives)


def label_thresholds(
    scores: np.ndarray, right: np.ndarray, target: Objective, strength: float = STRENGTH
) -> np.ndarray:
    """Thresholds [labels] that hold for new documents, too: few positives choose little.

    A label's best threshold is drawn to the best common one, as logits, as far as it has few
    positives: with n of them it weighs n / (n + strength). A label without any keeps `DEFAULT`.

    Args:
        scores, right, target: as `best_threshold` has them.
        strength: positives that weigh as much as the common threshold; 0 leaves each its own.

    Raises:
        ValueError: a score that is not a number from 0 to 1.
    """
    best, _, positives = best_threshold(scores, right, target)
    common = best_threshold(scores.reshape(-1, 1), right.reshape(-1, 1), target).thresholds[0]
    if np.isnan(common):
        return np.full(scores.shape[1], DEFAULT)
    weight = positives / np.maximum(positives + strength, 1e-300)
    drawn = weight * _logit(np.nan_to_num(best, nan=common)) + (1 - weight) * _logit(common)
    return np.where(positives > 0, 1 / (1 + np.exp(-drawn)), DEFAULT)


def _logit(p: np.ndarray | float) -> np.ndarray:
    clipped = np.clip(p, 1e-12, 1 - 1e-12)
    return np.log(clipped) - np.log1p(-clipped)


STEPS = 20  # shares of answers that a risk is tried with


class Abstention(NamedTuple):
    """From which confidence on answers are given, and what that gave on the documents it is from.

    Args:
        threshold: confidence; minus infinity answers all, infinity none.
        coverage: share of documents with an answer.
        risk: share of wrong answers among those; NaN where there are none.
        bound: with the asked certainty the risk is at most this on documents like these; NaN where
            a coverage was asked for.
    """

    threshold: float
    coverage: float
    risk: float
    bound: float


def abstain_for_coverage(confidence: np.ndarray, right: np.ndarray, coverage: float) -> Abstention:
    """The threshold above which a new document lies with at least this probability.

    An order statistic: of n confidences, as of the new one, each place is equally likely (Vovk et
    al. 2005; Angelopoulos and Bates 2021, section 1, https://arxiv.org/abs/2107.07511).

    Args:
        confidence: [documents], of held-out ones.
        right: [documents] bool, whether the answer is right.
        coverage: share of answers, from 0 to 1.
    """
    _check(confidence, coverage)
    lowest = math.floor((len(confidence) + 1) * (1 - coverage) + 1e-9)
    ordered = [-math.inf, *np.sort(confidence).tolist(), math.inf]
    threshold = ordered[min(lowest, len(confidence) + 1)]
    return _measured(threshold, confidence, right, math.nan)


def abstain_for_risk(
    confidence: np.ndarray, right: np.ndarray, risk: float, delta: float = 0.1
) -> Abstention:
    """The lowest threshold above which at most this share of answers is wrong, surely enough.

    `STEPS` shares of answers are tried, each with the exact binomial bound (Clopper and Pearson
    1934) at delta / STEPS, so that all hold together (Geifman and El-Yaniv 2017, theorem 3.2,
    https://arxiv.org/abs/1705.08500, with a fixed grid in place of a search).

    Args:
        confidence, right: as `abstain_for_coverage` has them.
        risk: highest share of wrong answers, from 0 to 1.
        delta: probability that the share is higher after all.

    Returns:
        With the threshold infinity where no share of answers is sure enough.
    """
    _check(confidence, risk)
    ordered = np.sort(confidence)[::-1]
    for step in range(STEPS, 0, -1):
        count = math.ceil(len(ordered) * step / STEPS)
        if not count:
            break
        threshold = float(ordered[count - 1])
        answered = confidence >= threshold
        bound = upper_bound(int((~right[answered]).sum()), int(answered.sum()), delta / STEPS)
        if bound <= risk:
            everything = -math.inf if answered.all() else threshold
            return _measured(everything, confidence, right, bound)
    return _measured(math.inf, confidence, right, math.nan)


@lru_cache(maxsize=10_000)  # of many classes most have the same few counts
def upper_bound(wrong: int, count: int, delta: float) -> float:
    """The share that is not exceeded with a certainty of 1 - delta, where ``wrong`` of ``count``
    were so (Clopper and Pearson 1934): the p at which so few or fewer have the probability delta.
    """
    if wrong >= count:
        return 1.0
    places = np.arange(wrong + 1)
    gamma = np.array([math.lgamma(n + 1) for n in range(count + 1)])
    choose = gamma[count] - gamma[places] - gamma[count - places]
    low, high = wrong / count, 1.0
    for _ in range(60):
        p = (low + high) / 2
        terms = choose + places * math.log(p) + (count - places) * math.log1p(-p)
        top = terms.max()
        tail = math.exp(top) * np.exp(terms - top).sum()
        low, high = (p, high) if tail > delta else (low, p)
    return high


def risk_coverage(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and risk [documents] of the answers that are most certain; their mean is the AURC.

    Among equal confidences the risk rises evenly (Geifman et al. 2019,
    https://arxiv.org/abs/1805.08206).
    """
    order = np.argsort(-confidence, kind="stable")
    wrong = (~right[order]).astype(float)
    _, which, sizes = np.unique(-confidence[order], return_inverse=True, return_counts=True)
    wrong = (np.bincount(which, wrong) / sizes)[which]
    counts = np.arange(1, len(order) + 1)
    return counts / max(len(order), 1), wrong.cumsum() / counts


def conformal_quantile(nonconformity: np.ndarray, coverage: float) -> float:
    """Bound that a new document's right answer does not exceed with at least this probability.

    Split conformal prediction (Angelopoulos and Bates 2021, section 1,
    https://arxiv.org/abs/2107.07511). With 1 - p as the nonconformity of a class, those of up to
    the quantile are a set that holds the right one.

    Args:
        nonconformity: [documents], of the right answers of held-out ones.
        coverage: from 0 to 1.

    Returns:
        Infinity where there are too few documents for this coverage: every answer is in the set.
    """
    _check(nonconformity, coverage)
    place = math.ceil((len(nonconformity) + 1) * coverage - 1e-9)
    if place > len(nonconformity):
        return math.inf
    return float(np.sort(nonconformity)[place - 1]) if place else -math.inf


def _check(values: np.ndarray, share: float) -> None:
    if np.isnan(values).any():
        raise ValueError("a confidence is not a number")
    if not 0 <= share <= 1:
        raise ValueError(f"expected a share from 0 to 1, got {share}")


def _measured(
    threshold: float, confidence: np.ndarray, right: np.ndarray, bound: float
) -> Abstention:
    answered = confidence >= threshold
    risk = float((~right[answered]).mean()) if answered.any() else math.nan
    return Abstention(threshold, float(answered.mean()) if len(answered) else 0.0, risk, bound)
