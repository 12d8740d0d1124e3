import numpy as np
import pytest

from ldt.metrics.curves import RECALLS, average_precision, curve, precision_recall

SCORES = np.array([0.9, 0.8, 0.8, 0.4, 0.1])
RIGHT = np.array([True, False, True, False, True])


def test_precision_and_recall_at_each_threshold_by_hand():
    precision, recall = precision_recall(SCORES, RIGHT)
    assert precision.tolist() == pytest.approx([1, 2 / 3, 2 / 4, 3 / 5])
    assert recall.tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1])


def test_average_precision_by_hand():
    # sum of (R_n - R_n-1) P_n: 1/3 * 1 + 1/3 * 2/3 + 0 + 1/3 * 3/5
    assert average_precision(SCORES, RIGHT) == pytest.approx(100 * (1 + 2 / 3 + 3 / 5) / 3)
    assert np.isnan(average_precision(SCORES, np.zeros(5, bool)))


def test_a_curve_has_the_best_precision_at_a_recall_or_beyond():
    points = dict(zip(RECALLS, curve(SCORES, RIGHT), strict=True))
    assert points[0.0] == 100
    assert points[0.3] == 100
    assert points[0.35] == pytest.approx(100 * 2 / 3)
    assert points[1.0] == pytest.approx(60)
    rising = curve(np.array([0.9, 0.8, 0.7]), np.array([False, True, True]))
    assert rising == pytest.approx([100 * 2 / 3] * len(RECALLS))
