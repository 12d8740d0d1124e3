"""Yes and no in a column or under a key, in the words that tables of offices have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ldt.errors import DataError, shown

# Words of yes and words of no, in lower case. A blank is no beside each of them.
_PAIRS = [
    (yes.split(), no.split())
    for yes, no in (
        *(("true 1", "false 0"), ("yes", "no"), ("y", "n"), ("ja", "nein"), ("j", "n")),
        *(("oui", "non"), ("o", "n"), ("sí", "no"), ("si", "no"), ("wahr", "falsch")),
        *(("vrai", "faux"), ("x", "-"), ("✓", "✗ -"), ("☑", "☐"), ("☒", "☐")),
    )
]
_ALIKE = str.maketrans("✔✘–—", "✓✗--")
_OFFICE = "x and blank, yes and no, ja and nein, true and false, 1 and 0"


@dataclass
class Column:
    """The cells of a column that have been read.

    Args:
        pairs: words of yes and of no that fit all of them.
        words: the lower-case word of each different cell.
        first: place of the first one.
        blanks: number of blank cells.
        blank: place of the first blank.
    """

    pairs: Sequence[tuple[list[str], list[str]]] = field(default_factory=_PAIRS.copy)
    words: dict[str, str] = field(default_factory=dict)
    first: str = ""
    blanks: int = 0
    blank: str = ""

    def read(self, value: Any, path: str, where: str) -> bool:
        """Return whether a cell says yes.

        Raises:
            DataError: it says neither, or says it in words of another pair than those before.
        """
        if is_blank(value):
            self.blanks += 1
            self.blank = self.blank or where
            return False
        word = self.words.get(value) if isinstance(value, str) else None
        word = word or flag_word(value)
        fits = [pair for pair in self.pairs if word in pair[0] or word in pair[1]]
        if not fits:
            what = f"is {shown(value)}, expected yes or no in one pair of words: {_OFFICE}, …"
            before = f"; {self.first} is {next(iter(self.words))!r}" if self.words else ""
            raise DataError(f"{where}: label {path!r} {what}{before}")
        self.pairs, self.first = fits, self.first or where
        self.words.setdefault(str(value), str(word))
        return word in fits[0][0]


def is_blank(value: Any) -> bool:
    """True for null and for text of blanks."""
    return value is None or (isinstance(value, str) and not value.strip())


def flag_word(value: Any) -> str | None:
    """A cell in lower case, ``""`` of a blank; None of what is no word and no number."""
    if value is None:
        return ""
    if not isinstance(value, bool | int | float | str):
        return None
    return str(value).strip().removesuffix(".0").lower().translate(_ALIKE)


def are_flags(values: Iterable[Any]) -> bool:
    """True for cells of one pair of yes and no, blanks among them, of which some say yes."""
    try:
        words = {flag_word(value) for value in set(values)} - {""}
    except TypeError:  # lists and objects
        return False
    return any(words <= {*yes, *no} and not words.isdisjoint(yes) for yes, no in _PAIRS)
