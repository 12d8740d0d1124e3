"""Confident learning: gold labels that a confident model contradicts.

Source: Northcutt, Jiang and Chuang 2021 (arXiv:1911.00068): off-diagonal entries of the confident
joint, ranked by normalised margin.
"""

import numpy as np

_ROUNDING = 1e-9  # of a mean of probabilities that are all the same


def doubts(probabilities: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return for each document how likely its gold label is wrong, from 0 to 1; NaN if not
    suspected.

    A class is confident for a document if its probability reaches the class's mean probability over
    the documents labelled with it. A label is suspected if the most probable class is another one
    and is confident. Its value is (1 + margin) / 2, where the margin is the difference between the
    probabilities of the best other class and of the label.

    Args:
        probabilities: [documents, classes], by a model that was not trained on these documents.
        gold: [documents] int, the gold class.
    """
    rows = np.arange(len(gold))
    of_gold = probabilities[rows, gold]
    # Nothing is confidently of a class that no document is labelled with.
    needed = np.full(probabilities.shape[1], np.inf)
    for label in np.unique(gold):
        needed[label] = of_gold[gold == label].mean()
    confident = np.where(probabilities >= needed - _ROUNDING, probabilities, -np.inf)
    is_gold = np.arange(len(needed)) == gold[:, None]
    others = np.where(is_gold, -np.inf, probabilities).max(1, initial=-np.inf)
    denied = np.where(is_gold, -np.inf, confident).max(1, initial=-np.inf) > confident[rows, gold]
    return np.where(denied & (others > of_gold), (1 + others - of_gold) / 2, np.nan)


def doubts_of_each(probabilities: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return the `doubts` of multi-label documents, [documents, classes], NaN if not suspected,
    with each class as a yes/no label.

    Args:
        probabilities: [documents, classes], by a model that was not trained on these documents.
        gold: [documents, classes] bool.
    """
    of_each = np.full(probabilities.shape, np.nan)
    for place, (column, there) in enumerate(zip(probabilities.T, gold.T, strict=True)):
        of_each[:, place] = doubts(np.column_stack([1 - column, column]), there.astype(int))
    return of_each
