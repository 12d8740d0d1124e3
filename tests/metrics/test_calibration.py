"""Figures of calibration by hand."""

import math

import numpy as np
import pytest

from ldt.metrics.calibration import (
    brier,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
)


def test_bins_hold_equally_many():
    p = np.array([0.9, 0.1, 0.2, 0.8, 0.3, 0.7])
    right = np.array([1, 0, 1, 1, 0, 0], bool)
    assert reliability(p, right, 3) == [
        (2, pytest.approx(0.15), 0.5),
        (2, pytest.approx(0.5), 0.0),
        (2, pytest.approx(0.85), 1.0),
    ]
    assert expected_calibration_error(p, right, 3) == pytest.approx((0.35 + 0.5 + 0.15) / 3)


def test_equal_probabilities_are_in_one_bin():
    p, right = np.array([0.5] * 7 + [0.9]), np.arange(8) % 2 == 0
    assert [(row.answers, row.probability) for row in reliability(p, right, 4)] == [
        (7, 0.5),
        (1, pytest.approx(0.9)),
    ]
    assert [row.answers for row in reliability(np.ones(9), np.ones(9, bool))] == [9]


def test_there_may_be_fewer_answers_than_bins():
    assert [row.answers for row in reliability(np.array([0.2, 0.1]), np.ones(2, bool))] == [1, 1]
    assert reliability(np.zeros(0), np.zeros(0, bool)) == []
    assert expected_calibration_error(np.zeros(0), np.zeros(0, bool)) == 0


def test_what_says_how_often_it_is_right_has_no_error():
    rng = np.random.default_rng(0)
    p = rng.random(100_000)
    right = rng.random(100_000) < p
    assert expected_calibration_error(p, right) < 0.006
    assert expected_calibration_error(p**3, right) == pytest.approx(0.25, abs=0.01)


def test_brier_and_likelihood():
    p, right = np.array([0.8, 0.4]), np.array([True, False])
    assert brier(p, right) == pytest.approx((0.04 + 0.16) / 2)
    assert negative_log_likelihood(p, right) == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)
    classes, which = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]), np.array([0, 1])
    one_hot = np.eye(3)[which]
    assert brier(classes, one_hot) == pytest.approx((0.09 + 0.04 + 0.01 + 0.09 + 0.49 + 0.16) / 2)
    found = negative_log_likelihood(classes, which)
    assert found == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)
    assert negative_log_likelihood(np.zeros(1), np.ones(1, bool)) < 1000
