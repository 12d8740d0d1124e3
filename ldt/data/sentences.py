"""Rule-based boundaries of words, sentences and paragraphs, and offsets in UTF-8 and UTF-16."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

Span = tuple[int, int]  # the first character, and the one behind the last

JOINERS = "\u200c\u200d"  # inside of words of Persian, of Indian languages, and of emoji
# Signs that unicodedata calls control characters, though they are seen.
_VISIBLE = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
SEPARATORS = "".join(  # part words: spaces, zero-width ones too, control characters, directions
    sign
    for sign in map(chr, range(0x3001))
    if sign.isspace()
    or unicodedata.category(sign) == "Cc"
    or sign in "\u061c\u200b\u200e\u200f"
    or "\u202a" <= sign <= "\u202e"
    or "\u2066" <= sign <= "\u2069"
)
EDGES = SEPARATORS + "".join(  # no part of a word at its edges
    sign
    for sign in map(chr, (*range(0x3001), 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB))
    if unicodedata.category(sign) == "Cf" and sign not in _VISIBLE
)

LONGEST = 2000  # characters of a sentence or a paragraph; a longer one, such as a table, is cut

# Words that stand in front of a full stop without ending a sentence, in lower case.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof sr jr st rev hon gen col capt lt sgt messrs vs v no nos art arts sec secs "
    "§ cf e.g i.e eg ie viz fig figs al pp vol vols ch chap para paras ex exh approx ca dept est "
    "jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k e.u "  # English
    "bzw z.b d.h u.a abs nr usw ggf vgl evtl str bspw inkl zzgl sog "  # German
    "m mm mme mlle env p.ex sra srta dña ud uds pág núm sig dott ing avv".split()  # Romance
)
_LINE_END = r"(?:\r\n|\r(?!\n)|[\n\x85\u2028])"  # the two characters of \r\n are one
_BLANK_LINE = re.compile(rf"{_LINE_END}[^\S\r\n]*{_LINE_END}\s*|[\f\u2029]\s*")
# A line that begins with a bullet, the number of a clause or a letter in brackets.
_ITEM = re.compile(
    r"(?:\r\n?|\n)(?=[^\S\r\n]*(?:[•▪◦‣*–—-]\s|\(?(?:\d+(?:\.\d+)*|[a-z]|[ivxlc]+)[.)]\s"
    r"|(?:ARTICLE|Article|SECTION|Section)\s+[\dIVXLC]))"
)
# A line that is indented as in Chinese and Japanese, or begins with the number of a clause as in
# other languages than English; inside of a sentence it may stand as well.
_CLAUSE = re.compile(
    r"(?:\r\n?|\n)(?=\u3000|[^\S\r\n]*(?:第[\d〇一二三四五六七八九十百]+[条條章节節]"
    r"|제\s?\d+\s?[조장절]|[一二三四五六七八九十]+、|[（(][一二三四五六七八九十]+[）)]"
    r"|(?:Artikel|Artículo|Articolo|Artigo|Статья|Điều)\s+[\dIVXLC]))"
)
_CLOSING = "\"'”’»)\\]」』）】》"
_END = re.compile(
    rf"(?P<spaced>[.!?…؟۔]+)[{_CLOSING}]*(?=\s)"  # needs white space behind it
    rf"|[。！？｡．।॥።။។]+[{_CLOSING}]*"  # needs none
)
_NUMBER = re.compile(r"\W*(?:\d+(?:\.\d+)*|[A-Za-z]|[ivxlcIVXLC]+)")
_WORD_BEFORE = re.compile(r"[^\s(\[\"“'‘«]+$")
_REACH = 40  # characters looked at around a mark
_ALONE = (  # Thai, Lao, Burmese, Khmer, Chinese, Japanese
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u2e80-\u2fff\u3001-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER_ALONE = re.compile(f"[{_ALONE}]")
_PIECE = re.compile(rf"(?P<alone>[{_ALONE}])|[^\W{_ALONE}]+|[^\w\s]")


def trimmed(text: str, start: int, end: int) -> Span:
    """Shrink a span to exclude characters at its edges that belong to no word.

    These are white space, control characters, direction marks, byte order marks, zero-width spaces
    and joiners (a joiner after a combining mark belongs to its letter). Characters inside are kept.
    A span of nothing else becomes empty at its start.
    """
    piece = text[start:end]
    if piece.isalnum():  # nearly all tokens, in a tenth of the time
        return start, end
    first, last = end - len(piece.lstrip(EDGES)), start + len(piece.rstrip(EDGES))
    if first < last < end and text[last] in JOINERS and is_mark(text[last - 1]):
        last += 1
    return first, max(first, last)


def bare(text: str) -> str:
    """The text without the edge characters that `trimmed` excludes."""
    return text[slice(*trimmed(text, 0, len(text)))]


def is_mark(sign: str) -> bool:
    """True for a combining mark, which belongs to the preceding letter."""
    return unicodedata.category(sign)[0] == "M"


def sentences(text: str) -> list[Span]:
    """Sentences of a text as (start, end) in characters, end exclusive, in order.

    White space around a sentence is excluded. Blank lines, bullets and clause numbers start a new
    sentence. A full stop does not end one after an abbreviation, an initial or a leading number, or
    before a lower-case letter. Full stops of Chinese, Japanese, Hindi, Burmese, Khmer and Amharic
    need no space behind them. Sentences of over 2,000 characters are cut at a line end or a space.
    """
    spans: list[Span] = []
    for start, end in _between(text, 0, len(text), _BLANK_LINE):
        for first, last in _between(text, start, end, _ITEM):
            spans += _of_paragraph(text, first, last)
    return spans


def paragraphs(text: str) -> list[Span]:
    """Paragraphs of a text as (start, end) in characters, end exclusive, in order.

    White space around a paragraph is excluded. Blank lines, page breaks, bullets and clause numbers
    start a new paragraph, so list items are paragraphs. Paragraphs of over 2,000 characters are cut
    between `sentences`.
    """
    spans: list[Span] = []
    for start, end in _between(text, 0, len(text), _BLANK_LINE):
        for first, last in _between(text, start, end, _ITEM):
            for a, b in _between(text, first, last, _CLAUSE):
                spans += together(_of_paragraph(text, a, b))
    return spans


def together(spans: Iterable[Span]) -> Iterator[Span]:
    """Join consecutive spans, with what lies between, into the longest of up to 2,000 characters. A
    longer span stays alone; empty ones are left out."""
    start = end = 0
    for first, last in spans:
        if end > start and last - start <= LONGEST:
            end = last
            continue
        if end > start:
            yield start, end
        start, end = first, last
    if end > start:
        yield start, end


Unit = Literal["sentence", "paragraph"]
UNITS: dict[Unit, Callable[[str], list[Span]]] = {"sentence": sentences, "paragraph": paragraphs}


def _between(text: str, start: int, end: int, border: re.Pattern) -> Iterator[Span]:
    for match in border.finditer(text, start, end):
        yield start, match.start()
        start = match.end()
    yield start, end


def _of_paragraph(text: str, start: int, end: int) -> Iterator[Span]:
    for match in _END.finditer(text, start, end):
        if match["spaced"] and not _ends(text, start, match, end):
            continue
        yield from _cut(text, *trimmed(text, start, match.end()))
        start = match.end()
    yield from _cut(text, *trimmed(text, start, end))


def _ends(text: str, start: int, match: re.Match, end: int) -> bool:
    behind = text[match.end() : min(match.end() + _REACH, end)].lstrip()
    if behind[:1].islower():
        return False
    if match[0] != ".":
        return True  # another mark, or a quotation ends with it
    begin = max(start, match.start() - _REACH)
    word = _WORD_BEFORE.search(text[begin : match.start()])
    if word is None:
        return True
    if _NUMBER.fullmatch(text[start : match.start()].strip()):
        return False  # "1.", "2.3.", "IV." in front of their clause
    initial = len(word[0]) == 1 and word[0].isalpha() and word[0].isupper()
    return not initial and word[0].lower() not in _ABBREVIATIONS


def _cut(text: str, start: int, end: int) -> Iterator[Span]:
    while end - start > LONGEST:
        stop = start + LONGEST
        for border in ("\n", " "):
            place = text.rfind(border, start + 1, stop)
            if place > start:
                stop = place
                break
        yield trimmed(text, start, stop)
        start, end = trimmed(text, stop, end)
    if start < end:
        yield start, end


@dataclass
class Words:
    """Words of a document and their positions in its text.

    Args:
        text: raw text, or given words joined by spaces.
        places: [words, 2] int64, start and end of each word in characters, end exclusive.
        sizes: number of words of each sentence; None for raw text.
        nested: True if the words were given as a list of sentences.
    """

    text: str
    places: np.ndarray
    sizes: list[int] | None = None
    nested: bool = False

    @classmethod
    def pretokenized(cls, sentences: list[list[str]], nested: bool) -> "Words":
        """Words of the given sentences, joined by spaces to a text; their places leave out
        invisible characters at the edges. ``nested`` says that the user gave several sentences,
        not one list."""
        words = [word for sentence in sentences for word in sentence]
        sizes = np.array([len(word) for word in words], int)
        ends = np.cumsum(sizes + 1) - 1
        text = " ".join(words)
        places = [trimmed(text, *place) for place in np.stack([ends - sizes, ends], 1).tolist()]
        counts = [len(sentence) for sentence in sentences]
        return cls(text, np.array(places, int).reshape(-1, 2), counts, nested)

    @classmethod
    def raw(cls, text: str) -> "Words":
        """Split raw text into words: runs of letters and digits, and every other visible character
        alone.

        Letters of Chinese, Japanese, Thai and other scripts without spaces are words of their own.
        Combining marks and joiners inside a word belong to it; edge characters that belong to no
        word (`trimmed`) are dropped and, unless joiners, separate words.
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
        """Table of the words that have a token, [words, 4] int64: number, first token, start and
        end in characters.

        Words without a token of their own are left out: those that the tokenizer drops and, for
        given words, those that begin inside a token. In raw text these are merged with the previous
        word, and the rest is renumbered.

        Args:
            offsets: [tokens, 2], characters of each token.
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
    """True if either end of text[start:end] lies inside a word, between two letters or digits."""
    return any(
        0 < border < len(text) and all(map(_joins, text[border - 1 : border + 1]))
        for border in (start, end)
    )


def _ties(text: str, place: int) -> bool:
    return text[place - 1] in JOINERS and unicodedata.category(text[place])[0] == "S"


def _joins(sign: str) -> bool:
    """True for a letter or a digit, which form words with their neighbours."""
    return sign.isalnum() and not _LETTER_ALONE.match(sign)


def real_tokens(offsets: np.ndarray) -> np.ndarray:
    """Indices of the tokens that are not empty; ``offsets`` are their characters, [tokens, 2]."""
    return np.flatnonzero(offsets[:, 1] > offsets[:, 0])


class Units:
    """Conversion between character offsets and offsets in UTF-8 bytes or UTF-16 code units.

    A character is a Unicode code point: a combining mark counts as one, and so do CR and LF.

    Args:
        text: text without lone surrogates.
        encoding: ``utf-8`` or ``utf-16``.
    """

    def __init__(self, text: str, encoding: str = "utf-8"):
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
        larger = (0x80, 0x800, 0x10000) if encoding == "utf-8" else (0x10000,)  # by a unit each
        sizes = np.ones(len(codes), np.int64)
        for code in larger:
            sizes += codes >= code
        self._starts = np.append(0, np.cumsum(sizes))
        self.size = int(self._starts[-1])

    def unit(self, character: int) -> int:
        """Offset, in bytes or UTF-16 units, of the character with this index, or of the
        text's end."""
        return int(self._starts[character])

    def character(self, unit: int) -> int | None:
        """Index of the character that begins at this offset in bytes or UTF-16 units. The length of
        the text for its end; None inside a character or outside the text."""
        place = int(self._starts.searchsorted(unit))
        return place if place < len(self._starts) and self._starts[place] == unit else None
