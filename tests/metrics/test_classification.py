import math

import numpy as np
import pytest

from ldt.metrics.classification import class_metrics, class_rows, number_metrics


def one_hot(labels, classes):
    return np.eye(classes, dtype=bool)[labels]


# Three documents of class 0, two of 1, one of 2; class 3 occurs nowhere.
GOLD = one_hot([0, 0, 0, 1, 1, 2], 4)
FOUND = one_hot([0, 0, 1, 1, 2, 1], 4)


def test_rows_of_classes_equal_a_hand_computation():
    rows = class_rows(GOLD, FOUND, [*"abcd"])
    assert [[*row.values()] for row in rows] == [
        ["a", 100, 200 / 3, 80, 3],
        ["b", 100 / 3, 50, 40, 2],
        ["c", 0, 0, 0, 1],
        ["d", None, None, None, 0],
    ]


def test_macro_f1_averages_over_the_classes_that_occur_or_over_all():
    seen = class_metrics(GOLD, FOUND, several=False)
    assert seen == {"accuracy": 50, "macro_f1": pytest.approx(40), "micro_f1": 50}
    assert class_metrics(GOLD, FOUND, several=True)["macro_f1"] == pytest.approx(30)


def test_a_class_that_is_only_predicted_counts_in_macro_f1():
    metrics = class_metrics(one_hot([0, 0], 3), one_hot([0, 2], 3), several=False)
    assert metrics["macro_f1"] == pytest.approx(100 * (2 / 3 + 0) / 2)


def test_multi_label_metrics_equal_a_hand_computation():
    gold = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], bool)
    found = np.array([[1, 0, 0], [0, 0, 0], [1, 0, 1]], bool)
    metrics = class_metrics(gold, found, several=True)
    assert metrics["exact_match"] == pytest.approx(100 / 3)  # only the empty one is right in full
    assert metrics["macro_f1"] == pytest.approx(100 * (1 + 0 + 0) / 3)
    assert metrics["micro_f1"] == pytest.approx(100 * 2 * 2 / (4 + 3))
    assert "accuracy" not in metrics


def test_number_metrics_equal_a_hand_computation():
    metrics = number_metrics(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 3, 8]))
    assert metrics["mse"] == 4
    assert metrics["mae"] == 1
    assert metrics["pearson"] == pytest.approx(11 / math.sqrt(5 * 29))
    assert metrics["spearman"] == pytest.approx(1)


def test_tied_values_share_their_rank():
    metrics = number_metrics(np.array([1.0, 1, 2, 3]), np.array([1.0, 2, 3, 4]))
    # Ranks 1.5 1.5 3 4 and 1 2 3 4.
    assert metrics["spearman"] == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_a_constant_side_has_no_correlation_and_no_nan():
    metrics = number_metrics(np.array([0.1] * 3), np.array([1.0, 2, 3]))
    assert (metrics["pearson"], metrics["spearman"]) == (0, 0)


def test_metrics_equal_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    for _ in range(20):
        gold, found = generator.integers(0, 6, (2, 15))
        metrics = class_metrics(one_hot(gold, 6), one_hot(found, 6), several=False)
        assert metrics["accuracy"] == pytest.approx(100 * sklearn.accuracy_score(gold, found))
        for kind in ("macro", "micro"):
            want = sklearn.f1_score(gold, found, average=kind, zero_division=0)
            assert metrics[f"{kind}_f1"] == pytest.approx(100 * want)
        gold, found = generator.random((2, 15, 4)) < 0.3
        metrics = class_metrics(gold, found, several=True)
        assert metrics["exact_match"] == pytest.approx(100 * sklearn.accuracy_score(gold, found))
        for kind in ("macro", "micro"):
            want = sklearn.f1_score(gold, found, average=kind, zero_division=0)
            assert metrics[f"{kind}_f1"] == pytest.approx(100 * want)
