"""A document in paragraphs as one sequence of tokens, with a separator between two of them."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ldt.data.tokenization import special_id, tokenize_inside, tokenize_with_offsets

_WORD = re.compile(r"\S+")
_BETWEEN = "\n\n"  # paragraphs in the text


class Joined(NamedTuple):
    """A document as the model reads it.

    Args:
        text: of all paragraphs, a blank line between two of them.
        ids: of the tokens that are read.
        offsets: [tokens, 2] int32, the characters of each; of a separator no characters.
        unread: tokens of the rest.
    """

    text: str
    ids: list[int]
    offsets: np.ndarray
    unread: int


def joined(
    tokenizer, paragraphs: Sequence[str], *, most: int | None = None, words: int | None = None
) -> Joined:
    """Lay paragraphs end to end.

    The separator is the tokenizer's own, once between two paragraphs; all but the first are
    tokenized as if a space stood in front. Words are parted by white space. So do the scripts of
    LexGLUE (Chalkidis et al. 2022, arXiv:2110.00976) for Longformer, which join with ` </s> `; the
    token that some vocabularies have for the blank in front of it is left out here.

    Args:
        most: paragraphs that are read, the first ones; None reads all.
        words: of each that are read, the first ones; None reads all.
    """
    separator, start, unread = special_id(tokenizer, "sep"), 0, 0
    ids: list[int] = []
    offsets = [np.empty((0, 2), np.int32)]
    for number, paragraph in enumerate(paragraphs):
        encode = tokenize_inside if number else tokenize_with_offsets
        found, places = encode(tokenizer, paragraph)
        if most is None or number < most:
            if number:
                ids.append(separator)
                offsets.append(np.full((1, 2), start, np.int32))
            end = _end(paragraph, words)
            read = len(found) if end is None else int((places[:, 0] < end).sum())
            ids += found[:read]
            offsets.append(places[:read] + start)
            unread += len(found) - read
        else:
            unread += len(found)
        start += len(paragraph) + len(_BETWEEN)
    return Joined(_BETWEEN.join(paragraphs), ids, np.concatenate(offsets), unread)


def _end(text: str, words: int | None) -> int | None:
    """Where the last of so many first words ends; None where there are no more."""
    if words is None:
        return None
    ends = [word.end() for word in islice(_WORD.finditer(text), words + 1)]
    return ends[words - 1] if len(ends) > words else None
