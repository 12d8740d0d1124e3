"""Read files, pipes and hub datasets as examples, one at a time in constant memory.

Formats are JSONL and JSON arrays, CSV, TSV, Parquet and Arrow, detected by content or suffix; gzip,
bz2, xz and zstd are detected by content. JSON is read strictly (``ldt.io.strict_json``). Control
characters, NUL and U+2028 inside strings are kept.

Duplicate ids are not detected here, which takes memory per record; `SeenIds` does.
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

    Args:
        fields: fields of the record.
        id: id of the record, else its number: of the line, of the row in Parquet or below the
            header of CSV, or of the item in a JSON array.
        where: place for messages, such as "train.jsonl:17".
        folder: folder of the file, for names of further files in the record; None for a stream.
        record: number of the record in the whole input, from 1, if the input is divided into
            shards.
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
    """Yield the records of ``source`` in order, holding one record in memory.

    Args:
        source: a path, "-" for standard input, or "hf:owner/name[:split]" (default split "train"),
            the only form that uses the network.
        id_field: dotted path of the id, a text or an integer. If it is null or empty, the id is the
            number of the record, from 1. None uses a field `id` or `doc_key` if there is one; ""
            always uses numbers.
        placed: True makes such numbers "train.jsonl:17", which several files need.
        format: "jsonl" (also JSON arrays), "csv" or "tsv"; None detects it by suffix and content,
            and the delimiter of CSV (`tables.detect_delimiter`). Parquet is always detected by
            content.
        encoding: encoding of the text, a superset of ASCII; None is UTF-8, for callers without an
            option to name another.
        on_error: None raises the first error. A function is called with the error and the record's
            bytes (only 1,024 of a too long line, none for Parquet and hub datasets), and reading
            continues.
        max_line_bytes: longer lines are rejected without holding them in memory. For a JSON array,
            which is read whole, the limit of its total size.

    Raises:
        UserError: the file is missing or a folder, or standard input is a terminal.
        DataError: "train.jsonl:17: message". Damage that ends the file (truncated gzip, UTF-16, a
            broken JSON array) is raised even with ``on_error``.
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
    with streams.open_source(source) as file:
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
    """Id at a dotted path; the example's own id if that is null or empty. A path of None uses a
    field `id` or `doc_key` if there is one, "" none. A missing field, or one that is neither
    text nor an integer, is a DataError."""
    if path is None:
        path = next((name for name in ("id", "doc_key") if name in example.fields), "")
    value = field(example, path) if path else None
    if value is None or value == "":
        return example.id
    if isinstance(value, bool) or not isinstance(value, str | int):
        what = f"is {kind(value)}, expected text or a whole number"
        raise DataError(f"{example.where}: field {path or 'id'!r} {what}")
    return value


def lines(
    source: str, *, on_error: OnError | None = None, max_line_bytes: int, whole: bool = False
) -> Iterator[Line]:
    """Yield the lines of a text file or of standard input ("-"), decompressed.

    Args:
        source: a path, or "-".
        on_error: called with the error and the first 1,024 bytes of a line that is too long; None
            raises the error.
        max_line_bytes: longest line.
        whole: True removes a byte order mark only at the beginning, as in one text; False also at
            each line, as in concatenated files.
    """
    with streams.open_source(source) as file:
        yield from _Reader(file, "", on_error, max_line_bytes).lines(whole)


def field(example: Example, path: str) -> Any:
    """Value at a dotted path, such as "clauses.Audit Rights"; an exact key takes precedence. Of the
    path "Title + Body", the non-blank texts of both joined by an empty line. A missing field is
    a DataError."""
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
    """True if the dotted path exists, even with the value null; of "Title + Body", both."""
    whole = _find(example.fields, path)[0]
    return whole or all(_find(example.fields, part)[0] for part in path.split(JOIN))


def optional(example: Example | None, path: str) -> Any:
    """Return the value at a dotted path; None without an example, such a field or texts to join."""
    try:
        return field(example, path) if example and has(example, path) else None
    except DataError:
        return None


def text(example: Example, path: str, blank: bool = False) -> str:
    """Text at a dotted path, which may be empty; null is one too if ``blank``. Anything else, or no
    such field, is a DataError."""
    value = field(example, path)
    if blank and value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{example.where}: field {path!r} is {kind(value)}, expected text")
    return value


def titled(title: str | None, text: str | None) -> str:
    """Title and text of a document joined by a space; None and "" are left out."""
    return " ".join(filter(None, (title, text)))


def flat(value: Any) -> str:
    """All values in a JSON value, nested ones too, as text ("None" for null), one per line; keys of
    objects are left out."""
    if isinstance(value, dict):
        value = list(value.values())
    return "\n".join(map(flat, value)) if isinstance(value, list) else str(value)


def texts(example: Example, path: str) -> list[str]:
    """List of texts at a dotted path; it and they may be empty. Anything else is a DataError."""
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
        """Yield the items of a JSON array; the file is held in memory."""
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
        """Rows of CSV with a header; the default id is the row's number below the header."""
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
    """Suffix in lower case without the dot, ignoring one of compression: "csv" for "a.csv.gz"."""
    stem, end = os.path.splitext(name.lower())
    if end in (".gz", ".bz2", ".xz", ".zst"):
        end = os.path.splitext(stem)[1]
    return end.removeprefix(".")


def _is_utf16(raw: bytes) -> bool:
    return raw.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(raw) > 1 and raw[:2].count(0) == 1)


def _past_space(text: str, start: int) -> int:
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
    names = []
    for key, value in fields.items():
        names.append(prefix + str(key))
        if isinstance(value, dict) and depth > 1:
            names += _names(value, f"{prefix}{key}.", depth - 1)
    return names


class SeenIds:
    """Set of ids: 16 bytes for a run of increasing integers, 8 for any other id. Line numbers form
    such a run, so a stream without ids takes no memory. ``7`` and ``"7"`` are the same id, as in
    prediction files. Other ids are compared by a 64-bit hash."""

    RECENT = 1 << 14

    def __init__(self) -> None:
        self.starts = array("q")  # runs of whole numbers, first and last, rising
        self.ends = array("q")
        self.recent: set[int] = set()
        self.sorted: list[np.ndarray] = []  # uint64, each more than the next

    def add(self, key: str | int) -> bool:
        """Add an id; returns False if it was already there. ``7`` and ``"7"`` are the same id."""
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
