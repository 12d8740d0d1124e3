"""Bounds against sums of exact fractions, and against documents that nothing was chosen by."""

import math
from fractions import Fraction

import numpy as np
import pytest

from ldt.tasks.decisions.thresholds import (
    STEPS,
    abstain_for_coverage,
    abstain_for_risk,
    conformal_quantile,
    risk_coverage,
    upper_bound,
)


def draw(rng, documents):
    """Confidences, and answers that are right as often as these say, or a little less."""
    confidence = rng.beta(5, 2, documents)
    return confidence, rng.random(documents) < confidence


@pytest.mark.parametrize(("wrong", "count"), [(0, 10), (1, 10), (3, 40), (39, 40), (7, 300)])
@pytest.mark.parametrize("delta", [0.1, 0.005])
def test_the_bound_is_where_so_few_are_as_unlikely_as_asked(wrong, count, delta):
    p = Fraction(upper_bound(wrong, count, delta))
    tail = sum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(wrong + 1))
    assert float(tail) == pytest.approx(delta, rel=1e-9)


def test_the_bound_of_no_mistake_and_of_nothing_but_mistakes():
    assert upper_bound(0, 20, 0.05) == pytest.approx(1 - 0.05 ** (1 / 20))
    assert upper_bound(20, 20, 0.05) == upper_bound(0, 0, 0.05) == 1
    assert upper_bound(3, 20_000, 0.05) == pytest.approx(7.7537 / 20_000, rel=1e-3)  # Poisson's


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_new_documents_are_answered_as_often_as_asked(coverage):
    rng = np.random.default_rng(0)
    found = []
    fresh = draw(rng, 20_000)[0]
    for _ in range(2000):
        threshold = abstain_for_coverage(*draw(rng, 50), coverage).threshold
        found.append((fresh >= threshold).mean())
    assert coverage - 0.005 < np.mean(found) < coverage + 1 / 50 + 0.01


def test_a_coverage_has_the_figures_of_its_documents():
    confidence = np.array([0.9, 0.2, 0.6, 0.4, 0.8])
    right = np.array([1, 0, 1, 0, 0], bool)
    found = abstain_for_coverage(confidence, right, 0.5)
    assert found[:3] == (0.6, 0.6, pytest.approx(1 / 3))
    assert abstain_for_coverage(confidence, right, 0.9).threshold == -math.inf  # five say no more
    assert abstain_for_coverage(confidence, right, 1)[:3] == (-math.inf, 1.0, 0.6)
    assert abstain_for_coverage(confidence, right, 0).threshold == math.inf
    assert abstain_for_coverage(confidence[:0], right[:0], 0.5).threshold == -math.inf


@pytest.mark.parametrize("risk", [0.2, 0.3])
def test_a_risk_is_hardly_ever_exceeded_by_new_documents(risk):
    rng = np.random.default_rng(1)
    exceeded, answered = 0, 0
    confidence, right = draw(rng, 50_000)
    for _ in range(300):
        threshold = abstain_for_risk(*draw(rng, 800), risk, delta=0.1).threshold
        given = confidence >= threshold
        exceeded += given.any() and (~right[given]).mean() > risk
        answered += given.any()
    assert exceeded <= 0.1 * 300
    assert answered > 200


def test_a_risk_tells_its_bound():
    confidence = np.linspace(0, 1, 200)
    right = confidence > 0.3
    found = abstain_for_risk(confidence, right, 0.1)
    given = confidence >= found.threshold
    wrong = int((~right[given]).sum())
    assert found.bound == upper_bound(wrong, int(given.sum()), 0.1 / STEPS) <= 0.1
    assert (found.coverage, found.risk) == (given.mean(), wrong / given.sum())
    fewer = np.count_nonzero(given) - 200 // STEPS
    assert fewer < np.count_nonzero(given) < 200
    more = confidence >= np.sort(confidence)[::-1][int(given.sum()) + 200 // STEPS - 1]
    assert upper_bound(int((~right[more]).sum()), int(more.sum()), 0.1 / STEPS) > 0.1


def test_all_or_nothing_is_answered_where_that_is_sure():
    sure = np.linspace(0.5, 1, 300)
    everything = abstain_for_risk(sure, np.ones(300, bool), 0.05)
    assert everything[:3] == (-math.inf, 1.0, 0.0)
    nothing = abstain_for_risk(sure, np.zeros(300, bool), 0.05)
    assert nothing[:2] == (math.inf, 0.0)
    assert math.isnan(nothing.risk)
    assert abstain_for_risk(sure[:3], np.ones(3, bool), 0.05).threshold == math.inf
    assert abstain_for_risk(sure[:0], np.ones(0, bool), 0.05).threshold == math.inf


def test_equal_confidences_are_answered_together():
    found = abstain_for_risk(np.ones(300), np.arange(300) > 2, 0.1)
    assert (found.threshold, found.coverage) == (-math.inf, 1.0)


def test_risk_by_coverage():
    confidence = np.array([0.9, 0.7, 0.7, 0.1])
    coverage, risk = risk_coverage(confidence, np.array([1, 0, 1, 0], bool))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert np.allclose(risk, [0, 0.25, 1 / 3, 0.5])  # the two in the middle are half wrong each
    swapped = risk_coverage(confidence, np.array([1, 1, 0, 0], bool))[1]
    assert np.array_equal(risk, swapped)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_sets_hold_the_right_answer_as_often_as_asked(coverage):
    rng = np.random.default_rng(2)
    held = []
    fresh = 1 - draw(rng, 20_000)[0]
    for _ in range(2000):
        quantile = conformal_quantile(1 - draw(rng, 60)[0], coverage)
        held.append((fresh <= quantile).mean())
    assert coverage - 0.005 < np.mean(held) < coverage + 1 / 60 + 0.01


def test_a_quantile_is_an_order_statistic():
    values = np.array([0.4, 0.1, 0.3, 0.2])
    assert conformal_quantile(values, 0.6) == 0.3
    assert conformal_quantile(values, 0.8) == 0.4
    assert conformal_quantile(values, 0.9) == math.inf
    assert conformal_quantile(values[:0], 0.5) == math.inf
    assert conformal_quantile(values, 0) == -math.inf


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_is_from_0_to_1(share):
    with pytest.raises(ValueError, match="from 0 to 1"):
        abstain_for_coverage(np.ones(3), np.ones(3, bool), share)
    with pytest.raises(ValueError, match="not a number"):
        conformal_quantile(np.array([math.nan]), 0.5)
