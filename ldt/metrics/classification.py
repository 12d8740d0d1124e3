"""Metrics of classes and of numbers, in float64 numpy, as scikit-learn and scipy define them.

Shares are from 0 to 100, as all metrics of ldt; correlations and errors have their own units.
"""

import numpy as np


def class_table(gold: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """Return precision, recall, f1 and support of each class.

    Args:
        gold, predicted: [documents, classes] bool, whether a document has a class.

    Returns:
        Arrays of [classes], from 0 to 100 but for support. A ratio of nothing to nothing is 0, as
        in scikit-learn.
    """
    true = (gold & predicted).sum(0)
    return {
        "precision": _percent(true, predicted.sum(0)),
        "recall": _percent(true, gold.sum(0)),
        "f1": _percent(2 * true, predicted.sum(0) + gold.sum(0)),
        "support": gold.sum(0),
    }


def class_metrics(gold: np.ndarray, predicted: np.ndarray, *, several: bool) -> dict[str, float]:
    """Return the share of documents that are right, macro_f1 and micro_f1, from 0 to 100.

    The share is called accuracy; with several labels, where a document is right if all its classes
    are, exact_match.

    Args:
        gold, predicted: [documents, classes] bool.
        several: whether a document can have several classes. Then macro_f1 is the mean over all
            classes, as scikit-learn has it for multi-label indicators, else over those that any
            document has in ``gold`` or ``predicted``, as it has it for single labels.
    """
    f1 = f1_of_draws(gold, predicted, np.ones((1, len(gold))), several=several)
    return {
        "exact_match" if several else "accuracy": 100 * float((gold == predicted).all(1).mean()),
        **{name: float(value[0]) for name, value in f1.items()},
    }


def f1_of_draws(
    gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray, *, several: bool
) -> dict[str, np.ndarray]:
    """Return macro_f1 and micro_f1 [draws], from 0 to 100, of documents drawn so often each.

    Args:
        gold, predicted: [documents, classes] bool.
        weights: [draws, documents].
        several: as `class_metrics` has it; without it the mean is over classes of the draw.
    """
    weights = weights.astype(np.float64)
    true, both = weights @ (gold & predicted), weights @ (gold.astype(int) + predicted)
    seen = np.ones_like(both) if several else both > 0
    return {
        "macro_f1": (_percent(2 * true, both) * seen).sum(1) / np.maximum(seen.sum(1), 1),
        "micro_f1": _percent(2 * true.sum(1), both.sum(1)),
    }


def number_metrics(gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return mse, mae, pearson and spearman (ties share their mean rank) of two [documents].

    A correlation is 0 where one side is constant.
    """
    gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
    return {
        "mse": float(((gold - predicted) ** 2).mean()),
        "mae": float(np.abs(gold - predicted).mean()),
        "pearson": _correlation(gold, predicted),
        "spearman": _correlation(_ranks(gold), _ranks(predicted)),
    }


def _percent(part, whole):
    return 100 * part / np.maximum(whole, 1)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return (ends - (counts - 1) / 2)[place]
