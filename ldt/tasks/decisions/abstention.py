"""When to give no answer: how sure a model must be, and sets of labels that hold the right one."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

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
        given = confidence >= threshold
        bound = upper_bound(int((~right[given]).sum()), int(given.sum()), delta / STEPS)
        if bound <= risk:
            everything = -math.inf if given.all() else threshold
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
    given = confidence >= threshold
    risk = float((~right[given]).mean()) if given.any() else math.nan
    return Abstention(threshold, float(given.mean()) if len(given) else 0.0, risk, bound)
