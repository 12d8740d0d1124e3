"""Tasks whose classes may count differently in the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ldt.data.features import Feature
from ldt.data.labels import REGRESSION
from ldt.errors import RecipeError, did_you_mean, listed
from ldt.tasks.base import NO_LABEL, Task

MOST_SHOWN = 20  # classes in a line
Weight = Annotated[float, Field(gt=0, le=1e6)]


class Weighted(Task):
    """A task of classes.

    Args:
        class_weights: what a class counts in the loss. ``balanced`` weighs it by n / (classes x n
            of the class), as scikit-learn does; where documents can have several classes, the
            documents that have it by those without / those with it. {class: weight} weighs the
            others 1; for entities a class is a type, or O.
        focal_gamma: power of 1 - p by which the loss of a label of probability p is multiplied, so
            that labels that are easy count less (Lin et al. 2017); 0 leaves it as it is.
    """

    class_weights: Literal["none", "balanced"] | dict[str, Weight] = "none"
    focal_gamma: float = Field(0.0, ge=0, le=10)

    @property
    def weighs_by(self) -> str | None:
        """The first key by which classes do not count alike; None where all do."""
        plain = {"class_weights": "none", "focal_gamma": 0}
        return next((key for key, value in plain.items() if getattr(self, key) != value), None)

    def weigh(self, features: Sequence[Feature], config) -> tuple[dict[str, Any], list[str]]:
        """Return class_weights and focal_gamma of the config, and a line with counts and weights.

        Raises:
            RecipeError: a class that there is none of.
        """
        changes: dict[str, Any] = {"class_weights": None, "focal_gamma": self.focal_gamma}
        if self.class_weights == "none" or config.problem_type == REGRESSION:
            return changes, []
        names = [config.id2label[number] for number in range(len(config.id2label))]
        counts, total, several = _counts(features, len(names))
        if self.class_weights == "balanced":
            parts = np.maximum(counts, 1)
            weights = (total - counts) / parts if several else total / (len(names) * parts)
            weights = np.maximum(weights, 1e-6)  # of a class that all have
        else:
            weights = self._given(names)
        everywhere = total if several and self.class_weights == "balanced" else -1
        shown = [
            f"{name!r} {weight:.4g} ({count:,}{', which all have' * (count == everywhere)})"
            for name, weight, count in zip(names, weights, counts.tolist(), strict=True)
        ]
        more = f" and {len(shown) - MOST_SHOWN:,} more" if len(shown) > MOST_SHOWN else ""
        line = f"class weights, with the number of labels: {', '.join(shown[:MOST_SHOWN])}{more}"
        return changes | {"class_weights": weights.tolist()}, [line]

    def _given(self, names: Sequence[str]) -> np.ndarray:
        assert isinstance(self.class_weights, dict)
        weights = dict.fromkeys(names, 1.0)
        for name, weight in self.class_weights.items():
            matching = [each for each in names if name in (each, each.partition("-")[2])]
            if name in names:
                matching = [name]
            if not matching:
                near = did_you_mean(name, names) or f"; there are {listed(names)}"
                raise RecipeError(f"task.class_weights: no class {name!r}{near}")
            weights |= dict.fromkeys(matching, weight)
        return np.array([*weights.values()])


def classes_of(label: Any) -> list[int]:
    """The classes of an input by its ``labels``: a number, or [classes] bool."""
    return np.flatnonzero(label).tolist() if isinstance(label, np.ndarray) else [int(label)]


def _counts(features: Sequence[Feature], size: int) -> tuple[np.ndarray, int, bool]:
    """Number of labels of each class and in all; whether inputs have several or none."""
    counts, total, several = np.zeros(size, int), 0, False
    for feature in features:
        label = feature["labels"]
        several = isinstance(label, np.ndarray) and label.dtype == bool
        if isinstance(label, np.ndarray) and not several:  # one for each token
            known = label[label != NO_LABEL]
            counts += np.bincount(known, minlength=size)
            total += len(known)
        else:
            counts[classes_of(label)] += 1
            total += 1
    return counts, total, several
