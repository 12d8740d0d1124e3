"""Rows of CSV: which delimiter, and the cells of each row with its place in the file."""

import csv
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ldt.data.streams import Line, not_utf8, tell
from ldt.errors import DataError

TAB = "\t"
DELIMITERS = {"csv": ",", "tsv": "\t"}  # by format; of csv the one that `detect` begins with
_OTHERS = (";", "\t", "|")
_EXCEL = re.compile(rb"sep=([,;\t|])\r?\n")  # a first line that is not the header
_LOOKED_AT = 1 << 18  # bytes, in which the delimiter is looked for


class Row(NamedTuple):
    """A row below the header.

    ``fields`` are the cells by the names of the header; ``fault`` says what is wrong where there
    are none.
    """

    line: int  # its first one, from 1
    raw: bytes
    fields: dict[str, str]
    fault: str | None


def detect(lines: Iterator[Line], name: str) -> tuple[str, Iterator[Line]]:
    """The delimiter of a file with the suffix csv, and its lines again.

    A comma, unless the first rows do not agree on the number of their cells by it, and do by a
    semicolon, a tab or ``|``. Lines behind the header are looked at only where one of those stands
    in it, so that a pipe with commas is read without waiting. A first line ``sep=;`` decides.
    """
    taken = [next(lines)]
    if named := _EXCEL.fullmatch(taken[0].raw):
        return named[1].decode(), lines
    size = len(taken[0].raw)
    if any(other.encode() in taken[0].raw for other in _OTHERS):
        while size < _LOOKED_AT and (line := next(lines, None)):
            taken.append(line)
            size += len(line.raw)
    csv.field_size_limit(max(csv.field_size_limit(), size))  # else a long text hides the rows
    text = [line.raw.decode("latin-1") for line in taken]
    for delimiter in (",", *_OTHERS):
        widths = _widths(text, delimiter)
        if size >= _LOOKED_AT:
            widths[1:] = widths[1:-1]  # the last row may go on
        if widths[0] > 1 and len(set(widths)) == 1:
            break
    else:
        delimiter = ","
    if delimiter != ",":
        tell(name, f"{name}: cells are parted by {'tabs' if delimiter == TAB else delimiter}")
    return delimiter, itertools.chain(taken, lines)


def _widths(lines: list[str], delimiter: str) -> list[int]:
    """The number of cells of each row; [0] where there is none."""
    try:
        return [len(row) for row in csv.reader(lines, delimiter=delimiter) if row] or [0]
    except csv.Error:
        return [0]


def rows(
    lines: Iterable[Line], delimiter: str, *, name: str, limit: int, encoding: str | None
) -> Iterator[Row]:
    """Yield the rows below the header; a quoted cell may span lines. Every value is text.

    Args:
        lines: of the file, the header first.
        delimiter: one character.
        name: of the file, for messages.
        limit: longest cell, in bytes.
        encoding: of the text; None is UTF-8.

    Raises:
        DataError: there is something wrong with the header.
    """
    taken: list[Line] = []  # the lines of the current row
    codec = encoding or "utf-8"

    def decoded():
        for line in lines:
            taken.append(line)
            yield line.raw.decode(codec, errors="surrogateescape")

    csv.field_size_limit(max(csv.field_size_limit(), min(limit, sys.maxsize)))
    reader = csv.reader(decoded(), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        taken.clear()
        try:
            cells, fault = next(reader), None
        except StopIteration:
            return
        except csv.Error as error:
            cells, fault = [], f"not CSV: {error}"
        if not cells and not fault:
            continue
        number, raw = taken[0].number, b"".join(line.raw for line in taken)
        try:
            raw.decode(codec)
        except UnicodeDecodeError as error:
            fault = not_utf8(raw, error, taken[0].offset, encoding)
        if header is None:
            if fault or len(set(cells)) < len(cells):
                raise DataError(f"{name}:{number}: {fault or 'a name stands twice in the header'}")
            header = cells
            continue
        if taken[-1].number - number >= len(taken):
            fault = "a line of this row is too long"
        if not fault and len(cells) != len(header):
            fault = f"{len(cells)} cells, the header has {len(header)}"
        fields = {} if fault else dict(zip(header, cells, strict=True))
        yield Row(number, raw, fields, fault)
