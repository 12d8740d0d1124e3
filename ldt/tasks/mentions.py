"""Where a document says an answer: words compared as the published rules compare them.

TriviaQA has answers and documents but not where in a document the answer stands; every mention of
one of its names counts as right (distant supervision, Joshi et al. 2017, arXiv:1705.03551,
section 5). Names are matched word by word, not letter by letter: "York" is no part of "Yorkshire",
"foo bar" is "Foo-Bar", whatever quotes stand around it.
"""

import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache

from ldt.official import words

_ALONE = "\u3040-\u30ff\u3400-\u9fff"  # Japanese and Chinese have no space between words
_SYMBOLS = ("Sc", "Sm", "So")  # not Sk, accents that stand alone
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
        spelt = tuple(word for word, _, _ in _words(name))
        if spelt:
            wanted.setdefault(spelt[0], set()).add(spelt)
    there = _words(text) if wanted else []
    plain = [word for word, _, _ in there]
    found = set()
    for place, word in enumerate(plain):
        for spelt in wanted.get(word, ()):
            end = place + len(spelt)
            if tuple(plain[place:end]) == spelt:
                found.add((there[place][1], there[end - 1][2]))
    return sorted(found)


def _words(text: str) -> list[tuple[str, int, int]]:
    """The words of a text as they are compared, each with its first character and its end."""
    found = []
    for match in _pattern().finditer(text):
        word = _compared(match[0])
        if word:
            found.append((word, *match.span()))
    return found


@lru_cache(1 << 16)
def _compared(word: str) -> str:
    """ "" for an article, and for a character that is neither in a word nor a symbol."""
    if not word[0].isalnum() and (word.isascii() or unicodedata.category(word) not in _SYMBOLS):
        return ""
    return words.tidy(unicodedata.normalize("NFC", word).lower())


@cache
def _pattern() -> re.Pattern:
    marks = "".join(
        re.escape(chr(code))
        for code in range(min(_MARKS_END, sys.maxunicode))
        if unicodedata.category(chr(code))[0] == "M"
    )
    letter = rf"(?![{_ALONE}])[^\W_]"
    # A zero-width joiner or non-joiner stands inside of words of Indian languages and Persian.
    return re.compile(rf"[{_ALONE}]|{letter}(?:{letter}|[{marks}\u200c\u200d])*|[^\w\s]")
