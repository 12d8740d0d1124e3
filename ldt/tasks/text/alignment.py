"""Alignment of characters of a text with its tokens."""

from collections.abc import Iterable

import numpy as np

from ldt.data.sentences import JOINERS, Span, is_mark


def aligned(offsets: np.ndarray, spans: Iterable[Span]) -> list[Span]:
    """Return the first and the last token of each span of characters, both inclusive, each once.

    What is no part of a word (`ldt.data.sentences.trimmed`) does not count around a span. A span in
    which no token stands (the tokenizer drops some characters) is left out.

    Args:
        offsets: [tokens, 2], as `ldt.data.tokenization.tokenize_with_offsets` has them.
        spans: (first character, the one behind the last).
    """
    real = real_tokens(offsets)
    starts, ends = offsets[real, 0], offsets[real, 1]
    places: dict[Span, None] = {}
    for start, end in spans:
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end) - 1
        if first <= last:
            places[real[first].item(), real[last].item()] = None
    return list(places)


def real_tokens(offsets: np.ndarray) -> np.ndarray:
    """Numbers of the tokens that stand for some part of a word."""
    return np.flatnonzero(offsets[:, 1] > offsets[:, 0])


def with_marks(span: Span, text: str) -> Span:
    """The span with the marks on its last letter, which some tokenizers drop or part from it."""
    start, end = span
    while end < len(text) and (
        is_mark(text[end]) or (text[end] in JOINERS and is_mark(text[end - 1]))
    ):
        end += 1
    return start, end
