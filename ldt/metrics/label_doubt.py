"""Labels that a confident model denies: confident learning.

Source: Northcutt, Jiang and Chuang 2021 (arXiv:1911.00068): the off-diagonal of the confident
joint, in the order of the normalised margin.
"""

import numpy as np

_ROUNDING = 1e-9  # of a mean of probabilities that are all the same


def doubts(probabilities: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return how doubtful the label of each document is, from 0 to 1; NaN where it is not.

    A class is confident of a document where its probability reaches the mean of those that the
    documents labelled with it have. A label is doubtful where the likeliest of the confident
    classes is another, and the likeliest of all is too. Its doubt is (1 + margin) / 2, the margin
    being how much likelier than the label's the likeliest other class is.

    Args:
        probabilities: [documents, classes], by a model that was not trained on these documents.
        gold: [documents] int, the class that each is labelled with.
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
    """Return `doubts` of several labels a document, [documents, classes]: each class for itself,
    there or not.

    Args:
        probabilities: [documents, classes].
        gold: [documents, classes] bool.
    """
    of_each = np.full(probabilities.shape, np.nan)
    for place, (column, there) in enumerate(zip(probabilities.T, gold.T, strict=True)):
        of_each[:, place] = doubts(np.column_stack([1 - column, column]), there.astype(int))
    return of_each
