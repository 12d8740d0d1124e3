"""Places where a document says an answer: words compared as the published rules compare them.

TriviaQA has answers and documents but not where in a document the answer stands; every mention of
one of its names counts as right (distant supervision, Joshi et al. 2017, arXiv:1705.03551,
section 5). Names are matched word by word, not letter by letter: "York" is no part of "Yorkshire",
"foo bar" is "Foo-Bar", whatever quotes stand around it.
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import islice

from ldt.metrics import word_overlap

_SYMBOLS = ("Sc", "Sm", "So")  # not Sk, accents that stand alone
_LETTER = re.compile(rf"(?![{word_overlap.CJK}])[^\W_]")
_JOINERS = "\u200c\u200d"  # inside of words of Indian languages and of Persian
_MARKS_END = 0x20000  # no combining marks of a script behind it


def mentions(text: str, names: Iterable[str]) -> list[tuple[int, int]]:
    """Return where in ``text`` any of ``names`` stands, in order, each place once.

    Words are runs of letters, digits and the marks on them; each symbol that is not ASCII, an emoji
    for instance, and each letter of Chinese and Japanese is one by itself. Punctuation of every
    alphabet only parts them. They are compared in lower case and composed (NFC), and articles
    (a, an, the) are passed over, in the names as in between the words of the text.

    Args:
        text: as it is; the places are characters of it.
        names: of the answer; one without a word is found nowhere.

    Returns:
        Pairs (first character, the one behind the last). Places of different names may overlap.
    """
    wanted: dict[str, set[tuple[str, ...]]] = {}
    for name in names:
        spelt = tuple(word for word, _, _ in _words(name, 0))
        if spelt:
            wanted.setdefault(spelt[0], set()).add(spelt)
    longest = max((len(spelt) for some in wanted.values() for spelt in some), default=0)
    places = set()
    for place in _places(text, wanted):
        there = list(islice(_words(text, place), longest))
        for spelt in wanted.get(there[0][0], ()) if there else ():
            if tuple(word for word, _, _ in there[: len(spelt)]) == spelt:
                places.add((there[0][1], there[len(spelt) - 1][2]))
    return sorted(places)


def _places(text: str, first: Iterable[str]) -> Iterator[int]:
    """Places where a word begins that begins with one of ``first``.

    Looks for their letters, which is faster than taking every word. Where letters change in number
    or kind as they are compared, every word is a place.
    """
    lower = text.lower()
    if len(lower) != len(text) or not unicodedata.is_normalized("NFC", text):
        yield from (match.start() for match in _pattern().finditer(text))
        return
    for word in first:
        place = lower.find(word)
        while place >= 0:
            if _begins(text, place):
                yield place
            place = lower.find(word, place + 1)


def _begins(text: str, place: int) -> bool:
    """Tell whether the letter or symbol at ``place`` is the first of a word."""
    if not place or not _LETTER.match(text, place):
        return True
    before = text[place - 1]
    if _LETTER.match(before):
        return False
    if before not in _JOINERS and unicodedata.category(before)[0] != "M":
        return True
    begin = place  # a mark is part of a word, or stands alone
    while begin and not text[begin - 1].isspace():
        begin -= 1
    return any(match.start() == place for match in _pattern().finditer(text, begin, place + 1))


def _words(text: str, place: int) -> Iterator[tuple[str, int, int]]:
    """The words from ``place`` on as they are compared, each with its first character and end."""
    for match in _pattern().finditer(text, place):
        word = _compared(match[0])
        if word:
            yield word, *match.span()


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
