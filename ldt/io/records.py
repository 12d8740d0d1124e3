"""Files, pipes and hub data sets to examples, one at a time and in constant memory.

What is read: JSONL and JSON arrays, CSV, TSV, Parquet and Arrow, each detected by content or
suffix; gzip, bz2, xz and zstd by content whatever the suffix. JSON is read strictly
(``ldt.io.strict_json``). Raw control characters, NUL and U+2028 inside strings are kept.

Ids are not compared while a file is read, which takes memory per record: `SeenIds` does.
"""

import dataclasses
import io
import itertools
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ldt.errors import DataError, did_you_mean, kind, listed
from ldt.io import sources, streams, tables
from ldt.io.streams import Line
from ldt.io.strict_json import JsonDecoder

OnError = Callable[[DataError, bytes], None]

_KEPT_OF_LONG_LINE = 1024
JOIN = " + "  # between the names of fields whose texts are one
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclasses.dataclass(slots=True)
class Example:
    """One record of the user's data.

    ``where`` ("train.jsonl:17") opens every message about it; ``id`` is the number of its line (of
    its row in Parquet and, below the header, in CSV; of the item in a JSON array) where the record
    has none. ``folder`` is that of the file, none for a stream: what a record names is there.
    ``record`` is its number in the whole input, from 1, where that input is answered in shards.
    """

    fields: dict[str, Any]
    id: str | int
    where: str
    folder: str | None = dataclasses.field(default=None, compare=False)
    record: int | None = dataclasses.field(default=None, compare=False)


def read(
    source: str | os.PathLike,
    *,
    id_field: str | None = None,
    placed: bool = False,
    format: str | None = None,
    encoding: str | None = None,
    on_error: OnError | None = None,
    max_line_bytes: int = 256 << 20,
) -> Iterator[Example]:
    """Yield the records of ``source`` in order, with the memory of one record.

    Args:
        source: a path, "-" for standard input, or "hf:owner/name[:split]" (split "train" where none
            is given), the only form that may use the network.
        id_field: where a record has its id, text or a whole number; a dotted path as in ``field``.
            Where it is null or empty, the id is the number of the record, from 1. None is a
            field `id`, which may be missing too; "" takes the numbers.
        placed: whether the id is "train.jsonl:17" there, as one of several files needs it.
        format: "jsonl" (JSON arrays too), "csv" or "tsv"; None detects it by suffix and
            content, and the delimiter of csv too (`tables.detect_delimiter`). Parquet is always
            detected by content.
        encoding: of the text, one that has ASCII in it; None is UTF-8 where the caller has no
            option to name another.
        on_error: None raises at the first bad record. Else it is called with the error and the
            record's bytes (only the first 1,024 of a line that is too long, none for Parquet and
            hub sets), and reading goes on.
        max_line_bytes: a longer line is rejected without being held in memory. A JSON array is
            read whole and may have this size in all.

    Raises:
        UserError: there is no such file, it is a folder, or standard input is a terminal.
        DataError: "train.jsonl:17: what is wrong". Damage that ends a file (cut-off gzip, UTF-16,
            a broken JSON array) is raised whether or not there is an ``on_error``.
    """
    if format not in (None, "jsonl", *tables.DELIMITERS):
        raise ValueError(f"format must be jsonl, csv or tsv, got {format!r}")
    source = os.fspath(source)
    if sources.is_hub_set(source):
        if fault := sources.hub_fault():
            raise DataError(f"{source}: {fault}")
        nothing = streams.Opened(source, io.BytesIO(), None)
        reader = _Reader(nothing, id_field, on_error, max_line_bytes, encoding, placed=placed)
        what = "cannot be read (offline, or no such set?)"
        yield from reader.table(tables.hub_rows(source), what)
        return
    with streams.opened(source) as file:
        away = source == "-" or sources.is_remote(source)
        folder = None if away else os.path.dirname(os.path.abspath(source))
        reader = _Reader(file, id_field, on_error, max_line_bytes, encoding, folder, placed)
        if file.compression in ("parquet", "arrow") and source == "-":
            what = file.compression.capitalize()
            raise DataError(f"stdin: {what} is read from its end; save it to a file first")
        elif file.is_table:
            what = str(file.compression).capitalize()
            if encoding not in (None, "utf-8"):
                raise DataError(f"{file.name}: {what} is UTF-8; leave data.encoding out")
            yield from reader.table(tables.binary_rows(file), f"damaged {what}")
        else:
            yield from reader.records(format)


def identified(example: Example, path: str | None) -> str | int:
    """The id at a dotted path; where it is null or empty, that which the example has.

    Args:
        path: None is a field `id`, which may be missing; "" is none.
    """
    value = field(example, path) if path else _find(example.fields, "id" if path is None else "")[1]
    if value is None or value == "":
        return example.id
    if isinstance(value, bool) or not isinstance(value, str | int):
        what = f"is {kind(value)}, expected text or a whole number"
        raise DataError(f"{example.where}: field {path or 'id'!r} {what}")
    return value


def lines(
    source: str, *, on_error: OnError | None = None, max_line_bytes: int, whole: bool = False
) -> Iterator[Line]:
    """Yield the lines of a text file, decompressed; other arguments and errors as in `read`.

    Args:
        whole: whether they are parts of one text, of which a byte order mark is left out at the
            beginning alone; else at that of each line, as files that were joined have them.
    """
    with streams.opened(source) as file:
        yield from _Reader(file, "", on_error, max_line_bytes).lines(whole)


def field(example: Example, path: str) -> Any:
    """Return the value at a dotted path, as "clauses.Audit Rights"; an exact key wins.

    At "Title + Body" are the texts of both that are not blank, with an empty line between them.
    """
    present, value = _find(example.fields, path)
    if present:
        return value
    if JOIN in path:
        parts = [text(example, part, blank=True) for part in path.split(JOIN)]
        return "\n\n".join(part for part in parts if part.strip())
    names = _names(example.fields)
    hint = did_you_mean(path, names).removeprefix(", ") or f"it has {listed(names)}"
    raise DataError(f"{example.where}: no field {path!r}; {hint}")


def has(example: Example, path: str) -> bool:
    """True if there is something at the dotted path, be it null."""
    whole = _find(example.fields, path)[0]
    return whole or all(_find(example.fields, part)[0] for part in path.split(JOIN))


def text(example: Example, path: str, blank: bool = False) -> str:
    """Return the text at a dotted path; it may be empty.

    Args:
        blank: whether null is an empty text.
    """
    value = field(example, path)
    if blank and value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{example.where}: field {path!r} is {kind(value)}, expected text")
    return value


def flat(value: Any) -> str:
    """All text in a JSON value, a line for each."""
    if isinstance(value, dict):
        value = list(value.values())
    return "\n".join(map(flat, value)) if isinstance(value, list) else str(value)


def texts(example: Example, path: str) -> list[str]:
    """Return the list of texts at a dotted path; it may be empty, and so may be texts in it."""
    values = field(example, path)
    if not isinstance(values, list):
        what = f"is {kind(values)}, expected a list of texts"
        raise DataError(f"{example.where}: field {path!r} {what}")
    for number, value in enumerate(values, 1):
        if not isinstance(value, str):
            raise DataError(
                f"{example.where}: field {path!r}: {kind(value)} in place {number:,}, expected text"
            )
    return values


@dataclasses.dataclass
class _Reader:
    """One open source, and what its messages need."""

    file: streams.Opened
    id_field: str | None
    on_error: OnError | None
    limit: int
    encoding: str | None = None
    folder: str | None = None
    placed: bool = False

    def __post_init__(self) -> None:
        self.name, self.codec = self.file.name, self.encoding or "utf-8"

    def reject(self, where: str, what: str, raw: bytes) -> None:
        error = DataError(f"{where}: {what}")
        if self.on_error is None:
            raise error
        self.on_error(error, raw)

    def example(self, value: Any, number: int, where: str, raw: bytes) -> Iterator[Example]:
        """Yield the example of a decoded record, or nothing when it is rejected."""
        if not isinstance(value, dict):
            self.reject(where, f'{kind(value)}, expected an object such as {{"text": "…"}}', raw)
            return
        example = Example(value, where if self.placed else number, where, self.folder)
        try:
            example.id = identified(example, self.id_field)
        except DataError as error:
            if self.on_error is None:
                raise
            self.on_error(error, raw)
        else:
            yield example

    def records(self, format: str | None) -> Iterator[Example]:
        lines = self.lines()
        first = next((line for line in lines if line.raw.strip()), None)
        if first is None:
            return
        lines = itertools.chain([first], lines)
        start = first.raw.lstrip()[:1]
        detected = format or ("jsonl" if start == b"{" else suffix(self.name))
        if detected in tables.DELIMITERS:
            yield from self.rows(lines, detected)
        elif start == b"[":
            yield from self.items(first)
        else:
            yield from self.objects(lines)

    def table(self, rows: Iterator[dict], what: str) -> Iterator[Example]:
        for number, row in tables.numbered(rows, self.name, what):
            yield from self.example(row, number, f"{self.name}:{number}", b"")

    def lines(self, whole: bool = False) -> Iterator[Line]:
        number = offset = 0
        while raw := self.take(self.limit + 1, number + 1, offset):
            number += 1
            size = len(raw)
            if number == 1 and _is_utf16(raw):
                what = (
                    "looks like UTF-16, expected UTF-8; iconv -f UTF-16 -t UTF-8 FILE converts it"
                )
                raise DataError(f"{self.name}: {what}")
            if size > self.limit:
                start = raw[:_KEPT_OF_LONG_LINE]
                while raw and not raw.endswith(b"\n"):
                    raw = self.take(1 << 20, number, offset + size)
                    size += len(raw)
                what = f"a line of {size:,} bytes; at most {self.limit:,} are read in one"
                self.reject(f"{self.name}:{number}", what, start)
            else:
                mark = streams.BOM if number == 1 or not whole else b""
                line = raw.removeprefix(mark)
                yield Line(number, offset + size - len(line), line)
            offset += size

    def take(self, size: int, number: int, offset: int) -> bytes:
        try:
            return self.file.stream.readline(size)
        except streams.DAMAGE as error:
            where = f"{self.name}:{number}: cannot read on, {offset:,} bytes into the lines"
            raise DataError(f"{where}: {self.file.damaged(error)}") from error

    def objects(self, lines: Iterable[Line]) -> Iterator[Example]:
        decoder = JsonDecoder()
        for number, offset, raw in lines:
            if not raw.strip():
                continue
            where = f"{self.name}:{number}"
            try:
                text = raw.decode(self.codec).strip(" \t\r\n")
                value, end = decoder.decode(text)
            except ValueError as error:
                what = str(error)
                if isinstance(error, UnicodeDecodeError):
                    what = streams.not_utf8(raw, error, offset, self.encoding)
                elif text == "{":
                    what += "; each line must be one whole object: jq -c . FILE makes such lines"
                self.reject(where, what, raw)
            else:
                if end < len(text):
                    decoder.problems.append(f"text after the object, at column {end + 1}")
                if decoder.problems:
                    self.reject(where, decoder.problems[0], raw)
                else:
                    yield from self.example(value, number, where, raw)

    def items(self, first: Line) -> Iterator[Example]:
        """A JSON array: the file whole in memory, one decoded item at a time."""
        raw = first.raw + self.file.stream.read(self.limit + 1 - len(first.raw))
        if len(raw) > self.limit:
            what = f"a JSON array of more than {self.limit:,} bytes; one object a line has no limit"
            raise DataError(f"{self.name}: {what}: jq -c '.[]' FILE > FILE.jsonl")
        try:
            text = raw.decode(self.codec)
        except UnicodeDecodeError as error:
            number = first.number + raw.count(b"\n", 0, error.start)
            what = streams.not_utf8(raw, error, first.offset, self.encoding)
            raise DataError(f"{self.name}:{number}: {what}") from None
        decoder = JsonDecoder()
        at = _past_space(text, text.index("[") + 1)
        for number in itertools.count(1):
            if number == 1 and text[at : at + 1] == "]":
                break
            where = f"{self.name}: item {number}"
            try:
                value, end = decoder.decode(text, at)
            except ValueError as error:
                raise DataError(f"{where}: {error}") from None
            item = text[at:end].encode(errors="replace")
            if decoder.problems:
                self.reject(where, decoder.problems[0], item)
            else:
                yield from self.example(value, number, where, item)
            at = _past_space(text, end)
            if text[at : at + 1] == "]":
                break
            if text[at : at + 1] != ",":
                raise DataError(f"{where}: expected , or ] after it; is the file cut off?")
            at = _past_space(text, at + 1)
        if text[at + 1 :].strip():
            raise DataError(f"{self.name}: text after the JSON array's closing ]")

    def rows(self, lines: Iterator[Line], format: str) -> Iterator[Example]:
        """CSV with a header; the id of a row without one is its number below the header."""
        delimiter = tables.DELIMITERS[format]
        if format == "csv":
            delimiter, lines = tables.detect_delimiter(lines, self.name)
        parsed = tables.delimited_rows(
            lines, delimiter, name=self.name, limit=self.limit, encoding=self.encoding
        )
        for number, row in enumerate(parsed, 1):
            where = f"{self.name}:{row.line}"
            if row.fault:
                self.reject(where, row.fault, row.raw)
            else:
                yield from self.example(row.fields, number, where, row.raw)


def suffix(name: str) -> str:
    """The suffix under a compression's, without its point: "csv" for "a.csv.gz"."""
    stem, end = os.path.splitext(name.lower())
    if end in (".gz", ".bz2", ".xz", ".zst"):
        end = os.path.splitext(stem)[1]
    return end.removeprefix(".")


def _is_utf16(raw: bytes) -> bool:
    return raw.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(raw) > 1 and raw[:2].count(0) == 1)


def _past_space(text: str, start: int) -> int:
    """The place of the first character from ``start`` on that is no white space of JSON."""
    space = _SPACE.match(text, start)
    return space.end() if space else start


def _find(node: Any, path: str) -> tuple[bool, Any]:
    if not isinstance(node, dict):
        return False, None
    if path in node:
        return True, node[path]
    for point in (at for at, letter in enumerate(path) if letter == "."):
        present, value = _find(node.get(path[:point]), path[point + 1 :])
        if present:
            return True, value
    return False, None


def _names(fields: dict, prefix: str = "", depth: int = 3) -> list[str]:
    """The dotted names of all fields, those of objects inside included."""
    names = []
    for key, value in fields.items():
        names.append(prefix + str(key))
        if isinstance(value, dict) and depth > 1:
            names += _names(value, f"{prefix}{key}.", depth - 1)
    return names


class SeenIds:
    """Ids that have come: 16 bytes for a run of rising whole numbers, 8 for any other id.

    Line numbers, which stand in for missing ids, are such a run, so a stream without ids needs
    no memory for them. ``7`` and ``"7"`` are the same id, as they are in a prediction file. Ids
    other than whole numbers are told apart by 64 bits of their hash.
    """

    RECENT = 1 << 14

    def __init__(self) -> None:
        self.starts = array("q")  # runs of whole numbers, first and last, rising
        self.ends = array("q")
        self.recent: set[int] = set()
        self.sorted: list[np.ndarray] = []  # uint64, each more than the next

    def add(self, key: str | int) -> bool:
        """Add an id; False if it has come before."""
        number = _whole(key)
        if number is not None:
            last = self.ends[-1] if self.ends else None
            if last is None or number > last + 1:
                self.starts.append(number)
                self.ends.append(number)
                return True
            if number == last + 1:
                self.ends[-1] = number
                return True
            run = bisect_right(self.starts, number) - 1
            if run >= 0 and number <= self.ends[run]:
                return False
        value = hash(str(key)) & (1 << 64) - 1
        if value in self.recent or any(_holds(values, value) for values in self.sorted):
            return False
        self.recent.add(value)
        if len(self.recent) >= self.RECENT:
            values = np.fromiter(self.recent, np.uint64, len(self.recent))
            while self.sorted and len(self.sorted[-1]) <= len(values):
                values = np.concatenate([values, self.sorted.pop()])
            self.sorted.append(np.sort(values))
            self.recent = set()
        return True


def _whole(key: str | int) -> int | None:
    """An id as a number, if it is a whole one that 64 bits hold."""
    if isinstance(key, str):
        if not (len(key) < 19 and key.isdecimal() and key.isascii()):
            return None
        if str(int(key)) != key:
            return None  # "007" is not 7
        return int(key)
    return key if -(1 << 62) < key < 1 << 62 else None


def _holds(values: np.ndarray, value: int) -> bool:
    wanted = np.uint64(value)
    place = values.searchsorted(wanted)
    return bool(place < len(values) and values[place] == wanted)
