"""Metrics of classes and of numbers, in float64 numpy, as scikit-learn and scipy define them.

Shares are from 0 to 100, as all metrics of ldt; correlations and errors have their own units.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def as_list(names: Any) -> list[Any]:
    """Return a list unchanged, and one name (or number) as a list of it."""
    return names if isinstance(names, list) else [names]


def indicators(labels: Sequence[str | list[str]], names: Sequence[str]) -> np.ndarray:
    """Indicator matrix of labels, [documents, labels] bool, its columns in the order of ``names``;
    a label is a name or a list of names, KeyError for one that is not in ``names``."""
    places = {name: place for place, name in enumerate(names)}
    matrix = np.zeros((len(labels), len(names)), bool)
    for row, label in zip(matrix, labels, strict=True):
        row[[places[name] for name in as_list(label)]] = True
    return matrix


def class_rows(
    gold: np.ndarray, predicted: np.ndarray, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row {class, precision, recall, f1, support} for each class: the middle ones 0 to
    100, or None where undefined; support is the number of gold documents.

    Args:
        gold, predicted: [documents, classes] bool.
        names: name of each class.
    """
    true, predictions, there = (gold & predicted).sum(0), predicted.sum(0), gold.sum(0)
    ratios = {
        "precision": (true, predictions),
        "recall": (true, there),
        "f1": (2 * true, predictions + there),
    }
    rows: list[dict[str, Any]] = []
    for n, name in enumerate(names):
        rows.append({"class": name})
        for key, (part, whole) in ratios.items():
            rows[-1][key] = (100 * part[n] / whole[n]).item() if whole[n] else None
        rows[-1]["support"] = there[n].item()
    return rows


def class_metrics(gold: np.ndarray, predicted: np.ndarray, *, several: bool) -> dict[str, float]:
    """Return accuracy (multi-label: exact_match), macro_f1 and micro_f1, from 0 to 100.

    Args:
        gold, predicted: [documents, classes] bool.
        several: True for multi-label classification. macro_f1 is then the mean over all classes,
            else over the classes that occur in ``gold`` or ``predicted``, as in scikit-learn.
    """
    one = np.ones((1, len(gold)))
    figures = class_figures(gold, predicted, one, several=several, answered=one[0] > 0)
    return {name: float(value[0]) for name, value in figures.items()}


def class_figures(
    gold: np.ndarray,
    predicted: np.ndarray,
    weights: np.ndarray,
    *,
    several: bool,
    answered: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return accuracy or exact_match, macro_f1 and micro_f1 (`class_metrics`) of each bootstrap
    draw, {name: [draws]}, from 0 to 100.

    Args:
        gold, predicted: [documents, classes] bool.
        weights: [draws, documents], how often each document counts.
        several: True for multi-label classification.
        answered: [documents] bool, False where the prediction is missing; such a document is wrong
            even if its gold labels are empty.
    """
    right = (gold == predicted).all(1) & answered
    return {
        "exact_match" if several else "accuracy": 100 * (weights @ right) / weights.sum(1),
        **f1_of_draws(gold, predicted, weights, several=several),
    }


def f1_of_draws(
    gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray, *, several: bool
) -> dict[str, np.ndarray]:
    """Return macro_f1 and micro_f1 of each bootstrap draw, [draws], from 0 to 100.

    Args:
        gold, predicted: [documents, classes] bool.
        weights: [draws, documents], how often each document counts.
        several: True for multi-label classification, as in `class_metrics`. For single labels a
            class that is absent from one draw takes its f1 from all documents of any draw, so that
            every mean has the same number of terms.
    """
    weights = np.concatenate([drawn(weights), weights]).astype(np.float64)
    true, both = weights @ (gold & predicted), weights @ (gold.astype(int) + predicted)
    seen = np.ones(both.shape[1]) if several else both[0] > 0
    of_each = _percent(2 * true, both)
    of_each = np.where(both > 0, of_each, of_each[0])
    figures = {
        "macro_f1": (of_each * seen).sum(1) / max(seen.sum(), 1),
        "micro_f1": _percent(2 * true.sum(1), both.sum(1)),
    }
    return {name: values[1:] for name, values in figures.items()}


def drawn(weights: np.ndarray) -> np.ndarray:
    """Mark the documents that occur in at least one draw, [1, documents] bool, for weights [draws,
    documents]."""
    return np.array(weights.max(0, keepdims=True) > 0)


def confusion(gold: np.ndarray, predicted: np.ndarray, *, several: bool) -> np.ndarray:
    """Return confusion counts.

    Args:
        gold, predicted: [documents, classes] bool. For single labels ``predicted`` can be empty in
            a row, which counts as no answer.
        several: True for multi-label classification.

    Returns:
        For single labels [classes, classes + 1]: gold class by predicted class, the last column
        without an answer. For multi-label [classes, 2, 2]: gold by predicted for each class, as
            scikit-learn's multilabel_confusion_matrix.
    """
    if not several:
        with_none = np.column_stack([predicted, ~predicted.any(1)])
        return gold.T.astype(int) @ with_none.astype(int)
    sides = np.stack([~gold, gold], 1).astype(int), np.stack([~predicted, predicted], 1).astype(int)
    return np.einsum("dgc,dpc->cgp", *sides)


def number_metrics(gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return mse, mae, pearson and spearman (mean ranks for ties) of two arrays [documents].

    A correlation is from -1 to 1; with a constant array it is 0.
    """
    figures = number_figures(gold, predicted, np.ones((1, len(gold))))
    return {name: float(value[0]) for name, value in figures.items()}


def number_figures(
    gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Return mse, mae, pearson and spearman (`number_metrics`) of each bootstrap draw, {name:
    [draws]}; ``weights`` [draws, documents] say how often each document counts."""
    gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
    weights = weights.astype(np.float64)
    total = weights.sum(1)
    return {
        "mse": weights @ (gold - predicted) ** 2 / total,
        "mae": weights @ np.abs(gold - predicted) / total,
        "pearson": _correlation(gold, predicted, weights),
        "spearman": _correlation(_ranks(gold, weights), _ranks(predicted, weights), weights),
    }


def _percent(part, whole):
    return 100 * part / np.maximum(whole, 1)


def _correlation(a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> np.ndarray:
    a, b = np.broadcast_to(a, weights.shape), np.broadcast_to(b, weights.shape)
    varies = _varies(a, weights) & _varies(b, weights)
    total = weights.sum(1, keepdims=True)
    a = a - (weights * a).sum(1, keepdims=True) / total
    b = b - (weights * b).sum(1, keepdims=True) / total
    spread = np.sqrt((weights * a * a).sum(1) * (weights * b * b).sum(1))
    return np.where(varies, (weights * a * b).sum(1) / np.where(varies, spread, 1), 0.0)


def _varies(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """True for draws whose values are not all the same, [draws] bool."""
    there = weights > 0
    return np.where(there, values, -np.inf).max(1) > np.where(there, values, np.inf).min(1)


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean rank of each document in each draw, [draws, documents]."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    last = np.flatnonzero(np.append(place[order][1:] != place[order][:-1], True))
    ends = weights[:, order].cumsum(1)[:, last]
    return (ends - (np.diff(ends, prepend=0) - 1) / 2)[:, place]
