"""Words, mentions and paragraphs of a text, and their places among its tokens."""

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from ldt.data.sentences import JOINERS, SEPARATORS, Span, bare, is_mark, trimmed
from ldt.data.tokenization import special_id, tokenize_inside, tokenize_with_offsets
from ldt.errors import DataError, shown
from ldt.io.records import Example, field, kind
from ldt.metrics import word_overlap
from ldt.metrics.entities import Entity

_ALONE = (  # Thai, Lao, Burmese, Khmer, Chinese, Japanese
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u2e80-\u2fff\u3001-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER_ALONE = re.compile(f"[{_ALONE}]")
_PIECE = re.compile(rf"(?P<alone>[{_ALONE}])|[^\W{_ALONE}]+|[^\w\s]")
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


@dataclass
class Words:
    """The words of a document in its text.

    Args:
        text: raw, or given words with a space between them.
        places: [words, 2] int64, the first character of each word and the one behind its last.
        sizes: words of each sentence; None of raw text.
        nested: whether the words were given as a list of sentences.
    """

    text: str
    places: np.ndarray
    sizes: list[int] | None = None
    nested: bool = False

    @classmethod
    def given(cls, sentences: list[list[str]], nested: bool) -> "Words":
        """Words as they were given, a space between each two."""
        words = [word for sentence in sentences for word in sentence]
        sizes = np.array([len(word) for word in words], int)
        ends = np.cumsum(sizes + 1) - 1
        text = " ".join(words)
        places = [trimmed(text, *place) for place in np.stack([ends - sizes, ends], 1).tolist()]
        counts = [len(sentence) for sentence in sentences]
        return cls(text, np.array(places, int).reshape(-1, 2), counts, nested)

    @classmethod
    def raw(cls, text: str) -> "Words":
        """Runs of letters and digits, and every other sign that is no white space alone.

        So is each letter of Chinese, Japanese, Thai and other scripts that put no space between
        words. Marks and joiners go on with the word they stand in, though ``\\w`` has them not;
        what is no part of a word (`ldt.data.sentences.trimmed`) is left out at its edges, and
        parts words where it is no joiner.
        """
        places: list[list[int]] = []
        open_ = False  # marks came last, on a letter
        for piece in _PIECE.finditer(text):
            start, end = piece.span()
            if text[start] in SEPARATORS:
                continue
            mark = unicodedata.category(text[start])[0] in "MC"
            behind = bool(places) and places[-1][1] == start
            if behind and (mark or (open_ and _joins(text[start])) or _ties(text, start)):
                places[-1][1] = end
            else:
                places.append([start, end])
            open_ = mark and behind and (open_ or _joins(text[start - 1]))
        words = [trimmed(text, *place) for place in places]
        return cls(text, np.array([x for x in words if x[0] < x[1]], int).reshape(-1, 2))

    def located(self, offsets: np.ndarray) -> np.ndarray:
        """Return [words, 4] int64: number, first token, first character, the one behind the last.

        Words without a token of their own are left out: those that the tokenizer drops and, of
        given words, those that begin inside of a token. In raw text these go on with the word
        before, and numbers are of what is left.

        Args:
            offsets: [tokens, 2], the characters of each token.
        """
        tokens = real_tokens(offsets)
        starts, ends = offsets[tokens].T.astype(int)
        words: list[list[int]] = []
        first = np.searchsorted(ends, self.places[:, 0], side="right")
        for number, ((start, end), token) in enumerate(zip(self.places, first, strict=True)):
            if token == len(tokens) or starts[token] >= end:
                continue
            if starts[token] >= start:
                words.append([number, tokens[token], start, end])
            elif self.sizes is None and words:
                words[-1][3] = end
        located = np.array(words, int).reshape(-1, 4)
        if self.sizes is None:
            located[:, 0] = np.arange(len(located))
        return located


def cuts_word(text: str, start: int, end: int) -> bool:
    """Tell whether a span begins or ends between two letters or digits, which make one word."""
    return any(
        0 < border < len(text) and all(map(_joins, text[border - 1 : border + 1]))
        for border in (start, end)
    )


def _ties(text: str, place: int) -> bool:
    """Tell whether a joiner makes one emoji of the symbol there and what is before."""
    return text[place - 1] in JOINERS and unicodedata.category(text[place])[0] == "S"


def _joins(sign: str) -> bool:
    """Tell whether a character makes one word with such ones beside it: a letter or a digit."""
    return sign.isalnum() and not _LETTER_ALONE.match(sign)


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
