"""Mentions of names and paragraphs of a text, and their places among its tokens."""

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
from ldt.errors import DataError, shown
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


def with_marks(span: Span, text: str) -> Span:
    """The span with the marks on its last letter, which some tokenizers drop or part from it."""
    start, end = span
    while end < len(text) and (
        is_mark(text[end]) or (text[end] in JOINERS and is_mark(text[end - 1]))
    ):
        end += 1
    return start, end


def sentences(example: Example, path: str) -> tuple[list[list[str]], bool]:
    """A list of text as one sentence, or a list of such lists; and whether it is the latter.

    Raises:
        DataError: there is no such field, or something else in it.
    """
    value = field(example, path)
    nested = isinstance(value, list) and bool(value) and all(isinstance(x, list) for x in value)
    listed = value if nested else [value]
    for sentence in listed:
        items = sentence if isinstance(sentence, list) else [None]
        if not all(isinstance(item, str) for item in items):
            raise DataError(
                f"{example.where}: field {path!r}: {shown(sentence)}, expected a list of text, or "
                "a list of sentences that are such lists"
            )
    return listed, nested


def spans(example: Example, path: str, text: str) -> list[Entity]:
    """The entities of a raw text, {start, end, label} each, as `trimmed`.

    Raises:
        DataError: one is of another form, not where its ``text`` says, or overlaps another.
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
    """Return where in ``text`` any of ``names`` stands, in order, each place once, as pairs of the
    first character and the one behind the last; places of different names may overlap.

    TriviaQA has answers and documents but not where in a document the answer stands; every mention
    of one of its names counts as right (distant supervision, Joshi et al. 2017, arXiv:1705.03551,
    section 5). Names are matched word by word, not letter by letter: "York" is no part of
    "Yorkshire", "foo bar" is "Foo-Bar", whatever quotes stand around it.

    Words are runs of letters, digits and the marks on them; each symbol that is not ASCII, an emoji
    for instance, and each letter of Chinese and Japanese is one by itself. Punctuation of every
    alphabet only parts them. They are compared in lower case and composed (NFC), and articles
    (a, an, the) are passed over, in the names as in between the words of the text.
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
    """The words of a text as they are compared, each with its first character and end."""
    words = ((_compared(match[0]), *match.span()) for match in _pattern().finditer(text))
    return [each for each in words if each[0]]


@lru_cache(1 << 16)
def _compared(word: str) -> str:
    """ "" for an article, and for a character that is neither in a word nor a symbol."""
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
        most, words: paragraphs that are read, and words of each, the first ones; None reads all.
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
    """Where the last of so many first words ends; None where there are no more."""
    if words is None:
        return None
    ends = [word.end() for word in islice(_SPACELESS.finditer(text), words + 1)]
    return ends[words - 1] if len(ends) > words else None
