"""Parse labels, in the forms people write them, into classes or numbers.

Accepted are a text per document, lists, lists inside a text cell, several classes in a cell,
vectors of 0 and 1, objects, and columns of yes and no. `LabelReader` parses each label on its own,
so training, evaluation and splits agree; the functions below it look at a whole training set and
refuse ambiguous labels.

White space around a class is dropped: ``cap `` is ``cap``. Otherwise classes are kept as written;
`ldt.data.profile` reports classes that are nearly the same (`near`).
"""

import ast
import logging
import math
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ldt.errors import DataError, kind, plural, quote
from ldt.io.records import Example
from ldt.io.records import field as field_of
from ldt.io.strict_json import JsonDecoder

log = logging.getLogger("ldt")

SINGLE = "single_label_classification"  # config.problem_type, in transformers' words
MULTI = "multi_label_classification"
REGRESSION = "regression"
Gold = str | list[str] | float  # a class, the list of classes, or the number of a regression
WHOLE = "none"  # the separator that parts nothing
MOST_CODES = 20  # different numbers that can be classes, however few documents have them

_BITS = {"true": True, "false": False, "1": True, "0": False}  # of a vector
_SEPARATORS = ("|", ";", "\n", ",", " / ")
_IN_NAMES = (",", " / ")  # those that names of classes have too
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_NOT_TOLD_APART = re.compile(r"(?<!\d)[^\w+#*]|[^\w+#*](?!\d)|_")  # blanks and punctuation
_ADJACENT = re.compile(r"""['"]\s+['"]|\\""")  # texts that Python would join, and escapes
_ARRAY = re.compile(r"""\[[\d.\s]*\]|\[\s*['"].*['"]\s*\]""", re.S)  # as NumPy prints it

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


class AmbiguousLabels(DataError):
    """Labels with two possible readings. The message begins with a place."""


@dataclass
class _Column:
    """Cells of a yes/no column read so far: the pairs of words that fit all of them, the word of
    each distinct cell, the places of the first cell and the first blank one."""

    pairs: Sequence[tuple[list[str], list[str]]] = field(default_factory=_PAIRS.copy)
    words: dict[str, str] = field(default_factory=dict)
    first: str = ""
    blanks: int = 0
    blank: str = ""

    def read(self, value: Any, path: str, where: str) -> bool:
        """True if the cell says yes; DataError if it says neither, or in other words than earlier
        cells."""
        if is_blank(value):
            self.blanks += 1
            self.blank = self.blank or where
            return False
        word = self.words.get(value) if isinstance(value, str) else None
        word = word or flag_word(value)
        fits = [pair for pair in self.pairs if word in pair[0] or word in pair[1]]
        if not fits:
            what = f"is {quote(value)}, expected yes or no in one pair of words: {_OFFICE}, …"
            before = f"; {self.first} is {next(iter(self.words))!r}" if self.words else ""
            raise DataError(f"{where}: label {path!r} {what}{before}")
        self.pairs, self.first = fits, self.first or where
        self.words.setdefault(str(value), str(word))
        return word in fits[0][0]


@dataclass(frozen=True)
class LabelReader:
    """Parser of labels.

    Args:
        path: field of the label, or several fields of yes and no (``data.label``).
        separator: text between the classes in a cell (``data.label_separator``); `WHOLE` takes
            every text as one class, None parses lists in a text.
        names: the classes (``task.labels``), in the order of vectors of 0 and 1.
    """

    path: str | list[str]
    separator: str | None = None
    names: Sequence[str] | None = None

    @cached_property
    def columns(self) -> dict[str, str]:
        """Class of each yes/no field: its name without the prefix that all share; {} for a single
        field."""
        if isinstance(self.path, str):
            return {}
        shared = os.path.commonprefix(self.path).rpartition(".")
        start = len(shared[0] + shared[1])
        rests = [name[start:] for name in self.path]
        whole = any(not tail or tail[0].isspace() for tail in rests)  # "U.S. law" is no path
        return dict(zip(self.path, self.path if whole else rests, strict=True))

    @cached_property
    def flags(self) -> defaultdict[str, _Column]:
        """Cells of yes and no read so far, by field or key; `raw` and `read` fill it."""
        return defaultdict(_Column)

    def raw(self, example: Example) -> Any:
        """Label of an example as a JSON value; lists and objects inside a text are parsed. With a
        separator, the list of a text's parts; for several fields, the list of classes that are
        true. A missing field is a DataError."""
        if isinstance(self.path, list):
            return [
                name
                for path, name in self.columns.items()
                if self.flags[path].read(field_of(example, path), path, example.where)
            ]
        value = field_of(example, self.path)
        if not isinstance(value, str) or self.separator == WHOLE:
            return value
        if self.separator is not None:
            return _parts(value, self.separator)
        return self._literal(value, example.where)

    def gold(self, example: Example, problem: str) -> Gold:
        """Gold label of an example: a class, a list of classes, or a number. ``problem`` is
        `SINGLE`, `MULTI` or `REGRESSION`. DataError if the label is missing or does not fit."""
        return self.read(self.raw(example), problem, example.where)

    def read(self, value: Any, problem: str, where: str) -> Gold:
        """Turn the output of `raw` into a class, a list of classes, or a number.

        Args:
            value: output of `raw`; blank is no class (``[]``) for `MULTI`, else an error.
            problem: `SINGLE`, `MULTI` or `REGRESSION`.
            where: place of the label, for messages.

        Raises:
            DataError: the label is missing or of a wrong type.
        """
        if problem == MULTI:
            return self._classes(value, where)
        return (self._number if problem == REGRESSION else self._class)(value, where)

    def classes(self, value: Any, where: str) -> str | list[str] | None:
        """Class of a text or number, classes of a list or object, from `raw`; None if blank."""
        if is_blank(value):
            return None
        several = isinstance(value, list | dict)
        return self._classes(value, where) if several else self._class(value, where)

    def _literal(self, text: str, where: str) -> Any:
        """List or object that a text contains, in JSON or Python notation; else the text."""
        start = text.strip()
        if not start.startswith(("[", "{")):
            return text
        decoder = JsonDecoder()
        with suppress(ValueError):
            value, end = decoder.decode(start)
            if end == len(start) and not decoder.problems:
                return value
        if not _ADJACENT.search(start):
            with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                value = ast.literal_eval(start)
                return sorted(value, key=str) if isinstance(value, set | frozenset) else value
        if _ARRAY.fullmatch(start):
            raise DataError(
                f"{where}: label {self.path!r} is {quote(text)}, neither JSON nor Python; "
                "json.dumps writes a list that is read, data.label_separator=none reads a class"
            )
        return text

    def _class(self, value: Any, where: str) -> str:
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float) and math.isfinite(value):
            return str(int(value) if value.is_integer() else value)  # 1.0 is the class 1
        what = "expected text, a whole number, true or false"
        raise DataError(f"{where}: label {self.path!r} is {quote(value)}, {what}")

    def _classes(self, value: Any, where: str) -> list[str]:
        if is_blank(value):
            return []
        if isinstance(value, dict):
            return sorted(
                str(name).strip()
                for name, flag in value.items()
                if self.flags[name].read(flag, f"{self.path}.{name}", where)
            )
        if not isinstance(value, list):
            hint = "; data.label_separator parts text" if isinstance(value, str) else ""
            what = f"is {quote(value)}, expected a list of classes{hint}"
            raise DataError(f"{where}: label {self.path!r} {what}")
        if isinstance(self.path, list):
            return value
        if self.names and _is_vector(value) and not set(_BITS) & set(self.names):
            if len(value) != len(self.names):
                what = f"is a vector of {len(value):,}, task.labels has {len(self.names):,} names"
                raise DataError(f"{where}: label {self.path!r} {what}")
            return [name for name, bit in zip(self.names, value, strict=True) if _bit(bit)]
        return sorted({self._class(item, where) for item in value})

    def _number(self, value: Any, where: str) -> float:
        if isinstance(value, str) and _is_number(value):
            value = float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise DataError(f"{where}: label {self.path!r} is {quote(value)}, expected a number")


Values = Sequence[tuple[Any, str]]  # a label as `LabelReader.raw` returns it, and its place


def infer_problem(values: Values, reader: LabelReader) -> str:
    """Infer the problem from the types of the labels: `SINGLE`, `MULTI` or `REGRESSION`.

    Args:
        values: labels as `LabelReader.raw` returns them, each with its place for messages.
        reader: reader of the labels.

    Raises:
        DataError: the types do not go together.
        AmbiguousLabels: numbers written as text, or a single word for yes beside blanks.
    """
    path = reader.path
    several = [value for value, _ in values if not is_blank(value)]
    words = {flag_word(value) for value, _ in values} if isinstance(path, str) else set()
    if len(words) == 2 and "" in words and are_flags(words):
        what = f"is {quote(several[0])} or blank; data.label=[{path}] reads blank as no"
        raise AmbiguousLabels(f"{values[0][1]}: label {path!r} {what}")
    lists = several and all(isinstance(each, list) for each in several)
    objects = any(several) and all(isinstance(each, dict) for each in several)
    if isinstance(path, list) or lists or objects:
        return MULTI
    first: dict[type, tuple[str, str]] = {}
    for value, where in values:
        if value is None:
            raise DataError(f"{where}: label {path!r} is null")
        first.setdefault(type(value), (kind(value), where))
    if len(first) > 1 and set(first) != {float, int}:
        (one, there), (other, where) = list(first.values())[:2]
        what = f"is {other}, at {there} {one}; they must be alike"
        raise DataError(f"{where}: label {path!r} {what}")
    if first and not isinstance(values[0][0], bool) and all(_is_number(v) for v, _ in values):
        return _of_numbers(values)
    return SINGLE


def _of_numbers(values: Values) -> str:
    """Problem of labels that are numbers, or texts of numbers. Few distinct integers are classes.
    Many distinct values, stored as floats and not all integers, are a regression."""
    different = {float(v) if isinstance(v, str) else v for v, _ in values}
    decimal = next((value for value, _ in values if is_decimal(value)), None)
    half = len(values) / 2
    if decimal is None and len(different) <= max(MOST_CODES, half):
        return SINGLE
    if isinstance(decimal, float):
        whole = all(number % 1 == 0 for number in different)
        few = max(MOST_CODES, half) if whole else min(MOST_CODES, half)
        if not 1 < len(different) <= few:
            return REGRESSION
    one = values[0][0] if decimal is None else decimal
    kind_of = "numbers as text" if isinstance(one, str) else "numbers"
    raise AmbiguousLabels(
        f"{values[0][1]}: labels such as {one!r} are {kind_of}; task.problem=regression reads "
        f"them so, single_label as {len(different):,} classes"
    )


def check_meaning(values: Values, reader: LabelReader) -> None:
    """Refuse labels of a training set that have two possible readings.

    Logs a warning for each yes/no field whose blanks are read as no beside words for no.

    Raises:
        AmbiguousLabels: texts that look like several classes or several numbers in one, or vectors
            of 0 and 1 without named classes. The message lists the ways to read them.
    """
    if reader.separator is None:
        _check_texts(values, reader.names or ())
    lists = [(value, where) for value, where in values if isinstance(value, list) and value]
    if lists and not reader.names and isinstance(reader.path, str):
        sizes = {len(value) if _is_vector(value) else 0 for value, _ in lists}
        if len(sizes) == 1 and sizes != {0}:
            raise AmbiguousLabels(
                f"{lists[0][1]}: label {reader.path!r} is a vector of {sizes.pop():,} numbers 0 "
                "and 1, of classes without names; task.labels=[a, b, …] names them in their order"
            )
    for path, column in reader.flags.items():
        if column.blanks and not set(column.words.values()).isdisjoint(column.pairs[0][1]):
            blanks = plural(column.blanks, "blank")
            why = "read as no; leave out documents where it is not known"
            log.warning("%s: %s beside yes and no in %r, %s", column.blank, blanks, path, why)


def count_classes(values: Values, golds: Sequence[Gold], reader: LabelReader) -> Counter[str]:
    """Number of documents of each class; 0 for fields and keys that are never true.

    Args:
        values: labels as `LabelReader.raw` returns them.
        golds: the same labels as classes.
        reader: reader of the labels.
    """
    counts = Counter(dict.fromkeys(reader.columns.values(), 0))
    for value, _ in values:
        if isinstance(value, dict):
            counts.update(dict.fromkeys((str(name).strip() for name in value), 0))
    for gold in golds:
        counts.update([gold] if isinstance(gold, str) else gold if isinstance(gold, list) else ())
    return counts


def near(names: Iterable[str]) -> list[list[str]]:
    """Groups of class names that differ only in case, white space and punctuation. Numbers are
    never grouped; ``+``, ``#`` and ``*`` count as letters, so ``C`` and ``C++`` differ."""
    groups: dict[str, list[str]] = {}
    for name in names:
        letters = _NOT_TOLD_APART.sub("", unicodedata.normalize("NFKC", name)).casefold()
        if any(letter.isalpha() for letter in letters):
            groups.setdefault(letters, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _check_texts(values: Values, known: Sequence[str]) -> None:
    stripped = [(v.strip(), where) for v, where in values if isinstance(v, str) and v.strip()]
    counts = Counter(text for text, _ in stripped if text not in known)
    places = dict(reversed(stripped))
    numbers = [text for text in counts if "," in text]
    if numbers and all(_DECIMAL_COMMA.fullmatch(text) for text in counts):
        raise AmbiguousLabels(
            f"{places[numbers[0]]}: labels such as {numbers[0]!r} look like numbers with a decimal "
            "comma, which is to be a point; data.label_separator=',' reads several classes, "
            "data.label_separator=none one"
        )
    if (separator := _separator(counts)) is None:
        return
    parts = {part for text in counts for part in _parts(text, separator)}
    text = next(text for text in counts if len(_parts(text, separator)) > 1)
    shell = "'\"\\n\"'" if separator == "\n" else f"{separator!r}"
    raise AmbiguousLabels(
        f"{places[text]}: labels such as {quote(text)} look like several classes in a cell; "
        f"data.label_separator={shell} reads {len(parts):,} classes, data.label_separator=none "
        f"keeps {len(counts):,} combinations as classes"
    )


def _separator(counts: Counter[str]) -> str | None:
    """Guess the separator of texts that combine the same parts again and again. At least half of
    the parts must occur in other texts or alone; more than half if class names may contain the
    separator. Parts that keep their position ("Smith, John") are one name."""
    documents: dict[str, int] = {}
    for separator in _SEPARATORS:
        places: dict[str, list[int]] = {}  # of each part in different texts; -1 where it is alone
        joined: set[str] = set()
        for text in counts:
            parts = _parts(text, separator)
            for place, part in enumerate(dict.fromkeys(parts)):
                places.setdefault(part, []).append(place if len(parts) > 1 else -1)
            if len(parts) > 1:
                joined.update(parts)
                documents[separator] = documents.get(separator, 0) + counts[text]
        again = [part for part in joined if len(places[part]) > 1]
        few = 2 * len(again) < len(joined) + (separator in _IN_NAMES)
        if few or all(len(set(places[part])) == 1 for part in again):
            documents.pop(separator, None)
    return max(documents, key=lambda separator: documents[separator], default=None)


def _parts(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def is_decimal(value: Any) -> bool:
    """True for a number with a decimal point or an exponent, also as text."""
    is_text = isinstance(value, str) and _is_number(value) and not value.strip("+- ").isdigit()
    return is_text or isinstance(value, float)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) or math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def is_stray(value: Any) -> bool:
    """True if a class in a label (a text, or those of a list or object) has white space
    around it."""
    if isinstance(value, list | dict):
        return any(isinstance(item, str) and item != item.strip() for item in value)
    return isinstance(value, str) and value != value.strip()


def _bit(value: Any) -> bool | None:
    if not isinstance(value, bool | int | float | str):
        return None
    return _BITS.get(str(value).strip().removesuffix(".0").lower())


def _is_vector(value: list) -> bool:
    return bool(value) and all(_bit(item) is not None for item in value)


# -- yes and no


def is_blank(value: Any) -> bool:
    """True for null and for text of white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def flag_word(value: Any) -> str | None:
    """Cell in lower case without spaces around it, as words for yes and no are compared.

    1.0 becomes ``1``, ✔ becomes ✓, a blank ``""``. None if it is neither text nor number.
    """
    if value is None:
        return ""
    if not isinstance(value, bool | int | float | str):
        return None
    return str(value).strip().removesuffix(".0").lower().translate(_ALIKE)


def are_flags(values: Iterable[Any]) -> bool:
    """True if all cells are blank or from one pair of yes and no words, and some say yes."""
    try:
        words = {flag_word(value) for value in set(values)} - {""}
    except TypeError:  # lists and objects
        return False
    return any(words <= {*yes, *no} and not words.isdisjoint(yes) for yes, no in _PAIRS)
