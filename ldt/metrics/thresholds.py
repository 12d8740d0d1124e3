"""The best F1 over all thresholds of a score, as Natural Questions and TyDi QA have it.

F1 is of counts over all questions, no mean over them, and its threshold is chosen on the scored set
itself; so intervals choose it anew on each resample (`ldt.metrics.result.Figures`).

Source: the evaluation scripts of Natural Questions and TyDi QA.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

TARGETS = (0.5, 0.75, 0.9)  # precisions at which the recall is given
NEEDED = 2  # annotations with an answer that make a question one that has an answer
NOTE = "threshold chosen on the scored set"


class Scored(NamedTuple):
    """One answer to one question.

    ``has_gold`` and ``answered`` tell whether there is an answer on either side, ``right`` is from
    0 to 1, and ``score`` is the confidence that thresholds are put on.
    """

    has_gold: bool
    answered: bool
    right: float
    score: float


class Curve:
    """Precision and recall of the answers at or above each threshold.

    Args:
        answers: one a question.
    """

    def __init__(self, answers: Sequence[Scored]):
        gold, answered, self._right, scores = np.array(answers, float).reshape(-1, 4).T
        self._gold, self._answered = gold, answered
        # A null answer adds to neither precision nor recall, so its threshold is never better.
        places = np.flatnonzero(answered)
        self._order = places[np.argsort(-scores[places], kind="stable")]
        falling = scores[self._order]
        self._ends = np.flatnonzero(
            np.append(falling[1:] != falling[:-1], [True] * bool(len(falling)))
        )
        self.thresholds = falling[self._ends]  # falling, equal scores are one

    def points(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Precision and recall, each [resamples, thresholds].

        Args:
            counts: [resamples, questions], how often each one counts.
        """
        weight = counts[:, self._order]
        right = (weight * self._right[self._order]).cumsum(1)[:, self._ends]
        answered = weight.cumsum(1)[:, self._ends]
        return divide(right, answered), divide(right, (counts @ self._gold)[:, None])

    def best(self, counts: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
        """The figures at the best threshold, 0 to 100, and the threshold, each [resamples].

        At equal F1 the higher threshold stays; it is 0 where nothing is right. Beside it the
        largest recall at each of `TARGETS`, and the precision there.

        Args:
            counts: as of `points`.
            prefix: of the names: "long-".
        """
        if not len(self.thresholds):
            nothing = np.zeros(len(counts))
            return dict.fromkeys(_names(prefix), nothing)
        precision, recall = self.points(counts)
        f1 = harmonic(precision, recall)
        place = f1.argmax(1)  # the first of equal ones, which is the highest threshold
        figures = [_at(each, place) for each in (f1, precision, recall)]
        values = [100 * each for each in figures]
        values.append(np.where(figures[0] > 0, self.thresholds[place], 0.0))
        for target in TARGETS:
            reached = np.where(precision >= target, recall, 0)
            place = reached.argmax(1)
            most = _at(reached, place)
            values += [100 * most, 100 * np.where(most > 0, _at(precision, place), 0)]
        return dict(zip(_names(prefix), values, strict=True))

    def whole(self, counts: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
        """Figures of all answers as they are, 0 to 100; arguments are those of `best`."""
        right = counts @ self._right
        precision = divide(right, counts @ self._answered)
        recall = divide(right, counts @ self._gold)
        figures = {"f1": harmonic(precision, recall), "precision": precision, "recall": recall}
        return {f"{prefix}{name}": 100 * value for name, value in figures.items()}


def divide(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """The quotient; 0 where divided by 0."""
    return np.divide(over, under, out=np.zeros(np.broadcast(over, under).shape), where=under != 0)


def harmonic(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """F1."""
    return divide(2 * precision * recall, precision + recall)


def _at(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, place[:, None], 1)[:, 0]


def _names(prefix: str) -> list[str]:
    best = [f"{prefix}best-threshold-{name}" for name in ("f1", "precision", "recall")]
    best.append(f"{prefix}best-threshold")
    for target in TARGETS:
        best += [f"{prefix}{name}-at-precision>={target}" for name in ("recall", "precision")]
    return best
