"""Grounds of an answer: the logits that decide it, and the places where the document is read."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ldt.data.features import Feature
from ldt.data.sentences import Span, Unit
from ldt.metrics.numbers import logsumexp, softmax
from ldt.tasks.base import Task


class Merge(NamedTuple):
    """A merge of the logits [chunks, ...] of a document.

    ``value`` gives [...]; ``shares``, of [chunks] alone, the derivative of that one by each.
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
    """A logit of a document: that of a class, of a candidate, or a number.

    Args:
        name: of the class; None where there is one logit only to ask about.
        rows: numbers of the features whose logits it is made of, one each.
        index: its place among the logits of each.
        merge: a key of `MERGES`.
        signed: what lowers it speaks against it; False of a number, which is moved either way.
    """

    name: str | None
    rows: Sequence[int]
    index: int
    merge: str
    signed: bool = True

    def logits(self, outputs: Sequence[dict[str, np.ndarray]]) -> np.ndarray:
        """[rows] float64, from the outputs of all features."""
        return np.array([outputs[row]["logits"][self.index] for row in self.rows], np.float64)

    def value(self, outputs: Sequence[dict[str, np.ndarray]]) -> float:
        """The logit of the document."""
        return float(MERGES[self.merge].value(self.logits(outputs)))

    def shares(self, outputs: Sequence[dict[str, np.ndarray]]) -> dict[int, float]:
        """The derivative of the document's logit by that of each feature, where it is not 0."""
        shares = MERGES[self.merge].shares(self.logits(outputs)).tolist()
        return {row: share for row, share in zip(self.rows, shares, strict=True) if share}


@dataclass(frozen=True)
class Reading:
    """The text of a document as the model reads it.

    Args:
        text: of a document in parts their texts, each in a line.
        offsets: [tokens, 2], the characters of each token of the document; of a token that stands
            for none, such as a separator, both numbers are the same.
        passages: characters of what can be named as evidence, sentences or paragraphs, in order.
    """

    text: str
    offsets: np.ndarray
    passages: list[Span]

    def owners(self) -> np.ndarray:
        """[tokens], which of the passages each token is in; -1 for none, as of white space."""
        starts = np.array([start for start, _ in self.passages], int)
        owners = np.searchsorted(starts, self.offsets[:, 0], "right") - 1
        return np.where(self.offsets[:, 1] > self.offsets[:, 0], owners, -1)

    def seen(self, features: Sequence[Feature]) -> np.ndarray:
        """[passages] bool, whether a chunk has a token of it."""
        owners, seen = self.owners(), np.zeros(len(self.passages), bool)
        for feature in features:
            _, start, end = feature["read"]
            inside = owners[start:end]
            seen[inside[inside >= 0]] = True
        return seen

    def span(self, start: int, end: int) -> Span:
        """The characters of the document's tokens from ``start`` to before ``end``."""
        places = self.offsets[start:end]
        places = places[places[:, 1] > places[:, 0]]
        return (int(places[0, 0]), int(places[-1, 1])) if len(places) else (0, 0)


class Explained(Task):
    """A task whose answers rest on passages of the document: `ByLogits` or `ByPlaces`."""

    @abstractmethod
    def reading(self, example, tokenizer, data, unit: Unit = "sentence") -> Reading:
        """The document as `encode` reads it, in passages."""


class ByLogits(Explained):
    """A task whose answers are decided by logits, of which a gradient names the passages."""

    @abstractmethod
    def targets(self, answer, config, features, labels=()) -> list[Target]:
        """Return the logits that decided an answer, or those of ``labels``."""


class ByPlaces(Explained):
    """A task whose answers have places of their own in the text."""

    chunked: ClassVar[bool] = True  # one chunk alone has an answer too

    @abstractmethod
    def places(self, answer, example, data) -> list[tuple[int, float]]:
        """Return where in the document's text an answer stands: (character, score) of each."""
