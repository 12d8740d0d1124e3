"""Explanations of an answer: the logits that decide it, and the passages of the document
as read."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ldt.data.features import Feature
from ldt.data.options import DataSection
from ldt.data.sentences import Span, Unit
from ldt.io.records import Example
from ldt.metrics.numbers import logsumexp, softmax
from ldt.tasks.base import Task


class Merge(NamedTuple):
    """Rule for combining the logits [chunks, ...] of a document.

    ``value`` returns [...]; ``shares`` returns, for [chunks], the derivative of the result with
    respect to each.
    """

    value: Callable[[np.ndarray], np.ndarray]
    shares: Callable[[np.ndarray], np.ndarray]


MERGES = {
    "mean": Merge(lambda logits: logits.mean(0), lambda logits: np.ones(len(logits)) / len(logits)),
    "sum": Merge(lambda logits: logits.sum(0), np.ones_like),
    "max": Merge(
        lambda logits: logits.max(0),
        lambda logits: (np.arange(len(logits)) == logits.argmax()).astype(float),
    ),
    "logsumexp": Merge(logsumexp, softmax),
}


@dataclass(frozen=True)
class Target:
    """Logit of a document: that of a class, of a candidate, or a number.

    Args:
        name: name of the class; None if there is only one logit to ask about.
        rows: numbers of the features whose logits are combined.
        index: index among the logits of each feature.
        merge: a key of `MERGES`.
        signed: True if lowering it speaks against the answer; False for a number, where both
            directions count.
    """

    name: str | None
    rows: Sequence[int]
    index: int
    merge: str
    signed: bool = True

    def logits(self, outputs: Sequence[dict[str, np.ndarray]]) -> np.ndarray:
        """Return the logits of this target in its ``rows``, [rows] float64, from the head outputs
        of all features of the document."""
        return np.array([outputs[row]["logits"][self.index] for row in self.rows], np.float64)

    def value(self, outputs: Sequence[dict[str, np.ndarray]]) -> float:
        """Logit of the document, combined from those of its rows."""
        return float(MERGES[self.merge].value(self.logits(outputs)))

    def shares(self, outputs: Sequence[dict[str, np.ndarray]]) -> dict[int, float]:
        """Return {row: derivative of the document's logit with respect to that of the row}, without
        zeros."""
        shares = MERGES[self.merge].shares(self.logits(outputs)).tolist()
        return {row: share for row, share in zip(self.rows, shares, strict=True) if share}


@dataclass(frozen=True)
class Reading:
    """Text of a document as the model reads it.

    Args:
        text: the text; for a document of several texts one per line.
        offsets: [tokens, 2], characters of each token of the document; equal numbers for tokens
            that stand for none, such as separators.
        passages: characters of possible explanations, sentences or paragraphs, in order.
    """

    text: str
    offsets: np.ndarray
    passages: list[Span]

    def owners(self) -> np.ndarray:
        """[tokens], index of the last passage that starts at or before each token; -1 for none."""
        starts = np.array([start for start, _ in self.passages], int)
        owners = np.searchsorted(starts, self.offsets[:, 0], "right") - 1
        return np.where(self.offsets[:, 1] > self.offsets[:, 0], owners, -1)

    def seen(self, features: Sequence[Feature]) -> np.ndarray:
        """[passages] bool, True if one of these features has a token of the passage."""
        owners, seen = self.owners(), np.zeros(len(self.passages), bool)
        for feature in features:
            _, start, end = feature["read"]
            inside = owners[start:end]
            seen[inside[inside >= 0]] = True
        return seen

    def span(self, start: int, end: int) -> Span:
        """Characters of the document's tokens from ``start`` to ``end``, exclusive; (0, 0) if these
        have none."""
        places = self.offsets[start:end]
        places = places[places[:, 1] > places[:, 0]]
        return (int(places[0, 0]), int(places[-1, 1])) if len(places) else (0, 0)


class Explained(Task):
    """Task whose answers can be explained by passages: `ByLogits` or `ByPlaces`."""

    @abstractmethod
    def reading(self, example: Example, tokenizer, data, unit: Unit = "sentence") -> Reading:
        """Return the document as `encode` reads it, with its sentences or paragraphs as
        passages."""


class ByLogits(Explained):
    """Task decided by logits, whose gradients select the passages."""

    @abstractmethod
    def targets(self, answer: dict, config, features, labels: Sequence[str] = ()) -> list[Target]:
        """Return the logits that decided an answer of `decode`, or if the task has classes and
        ``labels`` names some, those of these classes."""


class ByPlaces(Explained):
    """Task whose answers have positions in the text."""

    chunked: ClassVar[bool] = True  # one chunk alone has an answer too

    @abstractmethod
    def places(self, answer: dict, example: Example, data: DataSection) -> list[tuple[int, float]]:
        """Return (character, score) of each position that an answer of `decode` names in the
        document, such as the start of an entity."""
