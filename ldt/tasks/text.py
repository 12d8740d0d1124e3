"""Words, mentions and paragraphs of a text, and their positions among its tokens."""

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from ldt.data.sentences import JOINERS, Span, bare, is_mark, real_tokens, trimmed
from ldt.data.tokenization import special_id, tokenize_inside, tokenize_with_offsets
from ldt.errors import DataError, quote
from ldt.io.records import Example, field, kind
from ldt.metrics import word_overlap
from ldt.metrics.entities import Entity

_SYMBOLS = ("Sc", "Sm", "So")  # not Sk, accents that stand alone
_LETTER = re.compile(rf"(?![{word_overlap.CJK}])[^\W_]")
_JOINERS = "\u200c\u200d"  # inside of words of Indian languages and of Persian
_MARKS_END = 0x20000  # no combining marks of a script behind it
_SPACELESS = re.compile(r"\S+")
_BETWEEN = "\n\n"  # paragraphs in the text


def aligned(offsets: np.ndarray, spans: Iterable[Span]) -> list[Span]:
    """Return the first and last token (inclusive) of each span of characters, without repetitions;
    spans without a token (tokenizers drop some characters) are left out.

    Args:
        offsets: [tokens, 2], from `ldt.data.tokenization.tokenize_with_offsets`.
        spans: (start, end) in characters, end exclusive; edge characters that belong to no word do
            not count.
    """
    real = real_tokens(offsets)
    starts, ends = offsets[real, 0], offsets[real, 1]
    places: dict[Span, None] = {}
    for start, end in spans:
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end) - 1
        if first <= last:
            places[real[first].item(), real[last].item()] = None
    return list(places)


def with_marks(span: Span, text: str) -> Span:
    """Extend a span by combining marks on its last letter, which some tokenizers drop or
    split off."""
    start, end = span
    while end < len(text) and (
        is_mark(text[end]) or (text[end] in JOINERS and is_mark(text[end - 1]))
    ):
        end += 1
    return start, end


def read_sentences(example: Example, path: str) -> tuple[list[list[str]], bool]:
    """Read the words of each sentence from the field at ``path``, a list of words or a list of
    sentences that are such lists; returns a list per sentence, and True if the field has
    sentences. DataError for another form."""
    value = field(example, path)
    nested = isinstance(value, list) and bool(value) and all(isinstance(x, list) for x in value)
    listed = value if nested else [value]
    for sentence in listed:
        items = sentence if isinstance(sentence, list) else [None]
        if not all(isinstance(item, str) for item in items):
            raise DataError(
                f"{example.where}: field {path!r}: {quote(sentence)}, expected a list of text, or "
                "a list of sentences that are such lists"
            )
    return listed, nested


def read_entities(example: Example, path: str, text: str) -> list[Entity]:
    """Read the entities of a raw text, {start, end, label} in characters each, from the field at
    ``path``; returns them `trimmed` and sorted.

    Raises:
        DataError: an entity has another form, does not match its ``text``, or overlaps another one.
    """
    value, entities = field(example, path), []
    here = f"{example.where}: field {path!r}"
    if not isinstance(value, list):
        raise DataError(f"{here} is {kind(value)}, expected a list of entities")
    for item in value:
        match item:
            case {"start": int(start), "end": int(end), "label": str(label)} if label:
                words = text[max(start, 0) : max(end, 0)]
            case _:
                raise DataError(f"{here}: {str(item)[:60]}, expected {{start, end, label}}")
        outside = not 0 <= start < end <= len(text) or not bare(words)
        if outside or item.get("text", words) != words:
            raise DataError(
                f"{here}: {str(item)[:60]}: there stands {words[:40]!r}; the text has "
                f"{len(text):,} characters (start and end count code points, not bytes)"
            )
        entities.append(Entity(*trimmed(text, start, end), label))
    entities.sort()
    for one, other in zip(entities, entities[1:], strict=False):
        if other.start < one.end:
            raise DataError(
                f"{here}: {one.label} from {one.start:,} to {one.end:,} and {other.label} from "
                f"{other.start:,} to {other.end:,} overlap; a word has one tag"
            )
    return entities


def mentions(text: str, names: Iterable[str]) -> list[tuple[int, int]]:
    """Return all mentions of any of ``names`` in a text as (start, end) in characters, in order and
    without repetitions; mentions of different names may overlap.

    TriviaQA gives answers and documents, but not their positions; every mention counts as correct
    (distant supervision, Joshi et al. 2017, arXiv:1705.03551, section 5). Names are matched by
    whole words: "York" does not match "Yorkshire", "foo bar" matches "Foo-Bar", with any quotes
    around it.

    Words are runs of letters, digits and combining marks; each non-ASCII symbol, such as an emoji,
    and each Chinese or Japanese character is a word of its own. Punctuation of any script only
    separates words. They are compared in lower case and composed (NFC), and articles (a, an, the)
    are skipped in names and in the text.
    """
    wanted = {tuple(word for word, _, _ in _words(name)) for name in names} - {()}
    begins = {spelt[0] for spelt in wanted}
    words, places = _words(text), set()
    for number, (word, start, _) in enumerate(words):
        for spelt in wanted if word in begins else ():
            there = words[number : number + len(spelt)]
            if tuple(word for word, _, _ in there) == spelt:
                places.add((start, there[-1][2]))
    return sorted(places)


def _words(text: str) -> list[tuple[str, int, int]]:
    """Normalised words of a text, each with start and end."""
    words = ((_compared(match[0]), *match.span()) for match in _pattern().finditer(text))
    return [each for each in words if each[0]]


@lru_cache(1 << 16)
def _compared(word: str) -> str:
    """Normalised word; "" for an article and for anything but letters, digits and symbols."""
    if not word[0].isalnum() and (word.isascii() or unicodedata.category(word) not in _SYMBOLS):
        return ""
    return word_overlap.tidy(unicodedata.normalize("NFC", word).lower())


@cache
def _pattern() -> re.Pattern:
    marks = "".join(
        re.escape(chr(code))
        for code in range(min(_MARKS_END, sys.maxunicode))
        if unicodedata.category(chr(code))[0] == "M"
    )
    letter = _LETTER.pattern
    return re.compile(rf"[{word_overlap.CJK}]|{letter}(?:{letter}|[{marks}{_JOINERS}])*|[^\w\s]")


class Joined(NamedTuple):
    """Document as the model reads it.

    Args:
        text: text of all paragraphs, joined by blank lines.
        ids: ids of the tokens that are read.
        offsets: [tokens, 2] int32, characters of each token; empty for separators.
        unread: number of the remaining tokens.
    """

    text: str
    ids: list[int]
    offsets: np.ndarray
    unread: int


def join_paragraphs(
    tokenizer, paragraphs: Sequence[str], *, most: int | None = None, words: int | None = None
) -> Joined:
    """Tokenize paragraphs and join them to one document.

    The tokenizer's separator stands between two paragraphs; all but the first are tokenized as if
    preceded by a space. Words are separated by white space. This follows the scripts of LexGLUE
    (Chalkidis et al. 2022, arXiv:2110.00976) for Longformer, which join by ` </s> `, except that no
    token is added for the space before the separator.

    Args:
        tokenizer: tokenizer of the model.
        paragraphs: texts.
        most, words: number of paragraphs to read, and of words of each, from the first; None reads
            all.
    """
    separator, start, unread = special_id(tokenizer, "sep"), 0, 0
    ids: list[int] = []
    offsets = [np.empty((0, 2), np.int32)]
    for number, paragraph in enumerate(paragraphs):
        encode = tokenize_inside if number else tokenize_with_offsets
        tokens, places = encode(tokenizer, paragraph)
        if most is None or number < most:
            if number:
                ids.append(separator)
                offsets.append(np.full((1, 2), start, np.int32))
            end = _end(paragraph, words)
            read = len(tokens) if end is None else int((places[:, 0] < end).sum())
            ids += tokens[:read]
            offsets.append(places[:read] + start)
            unread += len(tokens) - read
        else:
            unread += len(tokens)
        start += len(paragraph) + len(_BETWEEN)
    return Joined(_BETWEEN.join(paragraphs), ids, np.concatenate(offsets), unread)


def _end(text: str, words: int | None) -> int | None:
    """End of the first ``words`` words; None if there are no more."""
    if words is None:
        return None
    ends = [word.end() for word in islice(_SPACELESS.finditer(text), words + 1)]
    return ends[words - 1] if len(ends) > words else None
