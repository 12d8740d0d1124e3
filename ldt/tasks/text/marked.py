"""Documents that have a marker in front of each of their passages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ldt.tasks.text.alignment import Span, real_tokens


@dataclass(frozen=True)
class Marked:
    """A document as tokens, markers among them.

    Args:
        ids: of the tokens.
        offsets: [tokens, 2], the characters of each; of a marker both numbers are the place where
            its passage begins.
        numbers, places: [passages that have a token], in the order of their markers: which passage
            it is, and where its marker stands.
        parted: [tokens + 1], how many passages a cut in front of each token would part.
    """

    ids: tuple[int, ...]
    offsets: np.ndarray
    numbers: np.ndarray
    places: np.ndarray
    parted: np.ndarray

    def marked(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers and places of the markers from one token to before another."""
        here = (start <= self.places) & (self.places < end)
        return self.numbers[here], self.places[here]


def mark(
    ids: Sequence[int], offsets: np.ndarray, passages: Sequence[Span], markers: Sequence[int]
) -> Marked:
    """Put a marker in front of the first token of each passage; of nested ones the outer is first.

    A passage without any token gets none.

    Args:
        ids, offsets: of the document, as `ldt.data.tokenization.tokenize_inside` has them.
        passages: characters of each, first and behind the last; they may overlap.
        markers: id of the marker of each.
    """
    real = real_tokens(offsets)
    starts, ends = offsets[real, 0], offsets[real, 1]
    found = []  # (first token, the one behind the last, negative; number)
    for number, (start, end) in enumerate(passages):
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end) - 1
        if first <= last:
            found.append((int(real[first]), -int(real[last]) - 1, number))
    found.sort()
    before, after, numbers = np.array(found, int).reshape(-1, 3).T
    after = -after
    places = before + np.arange(len(found))
    lasts = after + np.searchsorted(before, after)  # in the marked document
    length = len(ids) + len(found)
    changes = np.zeros(length + 2, int)
    np.add.at(changes, places + 1, 1)
    np.add.at(changes, lasts, -1)
    own = np.array([passages[n][0] for n in numbers.tolist()], offsets.dtype)
    marked = Marked(
        tuple(np.insert(np.array(ids, int), before, [markers[n] for n in numbers]).tolist()),
        np.insert(offsets, before, np.stack([own, own], 1).reshape(-1, 2), axis=0),
        numbers.astype(np.int32),
        places,
        np.cumsum(changes)[: length + 1],
    )
    marked.offsets.flags.writeable = False
    return marked
