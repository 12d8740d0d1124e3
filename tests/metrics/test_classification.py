import numpy as np

from ldt.metrics.classification import number_metrics


def test_a_constant_side_has_no_correlation_and_no_nan():
    metrics = number_metrics(np.array([0.1] * 3), np.array([1.0, 2, 3]))
    assert (metrics["pearson"], metrics["spearman"]) == (0, 0)
