"""Rows of CSV with any delimiter, Parquet, Arrow and hub datasets, streamed."""

import csv
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ldt.errors import DataError, first_line, listed
from ldt.io.streams import Line, Opened, not_utf8, tell

TAB = "\t"
DELIMITERS = {"csv": ",", "tsv": "\t"}  # by format; of csv the first guess
_OTHERS = (";", "\t", "|")
_EXCEL = re.compile(rb"sep=([,;\t|])\r?\n")  # a first line that is not the header
_LOOKED_AT = 1 << 18  # bytes, in which the delimiter is looked for
AT_ONCE = 64  # rows that are made at a time
Tree = list[str] | dict[str, Any] | None  # names of classes, by field where there are several


class Row(NamedTuple):
    """Row below the header.

    Args:
        line: number of its first line.
        raw: bytes of the row.
        fields: cells by column name.
        fault: message if the row cannot be read, in place of fields.
    """

    line: int  # its first one, from 1
    raw: bytes
    fields: dict[str, str]
    fault: str | None


def detect_delimiter(lines: Iterator[Line], name: str) -> tuple[str, Iterator[Line]]:
    """Detect the delimiter of a CSV file; returns it with an iterator of all rows' lines.

    It is a comma, unless the first rows have different numbers of cells by comma and equal ones by
    semicolon, tab or ``|``. Lines behind the header are read only if one of these occurs in it, so
    that a comma-separated pipe is read without waiting. A first line ``sep=;`` decides and is left
    out. Another delimiter than a comma is logged.

    Args:
        lines: lines of the file, at least one.
        name: name of the file, for messages.
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
    try:
        return [len(row) for row in csv.reader(lines, delimiter=delimiter) if row] or [0]
    except csv.Error:
        return [0]


def delimited_rows(
    lines: Iterable[Line], delimiter: str, *, name: str, limit: int, encoding: str | None
) -> Iterator[Row]:
    """Yield the rows below the header; quoted cells may span lines. All values are text.

    Args:
        lines: lines of the file, the header first.
        delimiter: one character.
        name: name of the file, for messages.
        limit: longest cell, in characters.
        encoding: encoding of the text; None is UTF-8.

    Raises:
        DataError: the header cannot be read. A bad row is yielded with its ``fault``.
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


def binary_rows(file: Opened) -> Iterator[dict]:
    """Yield the rows of an opened Parquet file, Arrow file or Arrow stream as dicts by column.
    Class numbers become the names that `datasets` stored in the file, -1 None; ValueError for
    one without."""
    import pyarrow
    from pyarrow import parquet

    if file.compression == "parquet":
        table = parquet.ParquetFile(file.stream, buffer_size=1 << 20)
        batches, schema = table.iter_batches(batch_size=AT_ONCE), table.schema_arrow
    elif file.compression == "arrow":
        arrow = pyarrow.ipc.open_file(file.stream)
        batches, schema = map(arrow.get_batch, range(arrow.num_record_batches)), arrow.schema
    else:
        batches = pyarrow.ipc.open_stream(file.stream)
        schema = batches.schema
    parts = (
        batch.slice(start, AT_ONCE).to_pylist()
        for batch in batches
        for start in range(0, len(batch), AT_ONCE)
    )
    yield from _named(itertools.chain.from_iterable(parts), _features(schema), file.name)


def _named(rows: Iterable[dict], features: Mapping[str, Any], name: str) -> Iterator[dict]:
    """Yield the rows with class names in place of numbers, and log the replacement; ``features`` of
    the columns are as ``datasets.Features.to_dict`` returns them."""
    trees = {column: tree for column, feature in features.items() if (tree := _tree(feature))}
    if trees:
        names = listed(
            (f"{column} ({listed(_first(trees[column]), 4, str)})" for column in trees), show=str
        )
        tell(name, f"{name}: numbers of classes are read by the names in the file: {names}")
    for row in rows:
        yield row | {key: _put(row[key], tree) for key, tree in trees.items() if key in row}


def _features(schema: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(schema.metadata[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _tree(feature: Any) -> Tree:
    """Class names within a feature, through lists and objects; None if there are none."""
    if isinstance(feature, list) and len(feature) == 1:  # of old versions
        return _tree(feature[0])
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if kind == "ClassLabel":
        return feature.get("names")
    if kind in ("Sequence", "List", "LargeList"):
        return _tree(feature.get("feature"))
    parts = {} if isinstance(kind, str) else feature
    return {key: tree for key, part in parts.items() if (tree := _tree(part))} or None


def _put(value: Any, tree: Tree) -> Any:
    if isinstance(value, list):
        return [_put(item, tree) for item in value]
    if isinstance(tree, dict) and isinstance(value, dict):
        return value | {key: _put(value[key], part) for key, part in tree.items() if key in value}
    if not isinstance(tree, list) or not isinstance(value, int):
        return value
    if not -1 <= value < len(tree):
        raise ValueError(f"class {value}; the file has names of {len(tree):,}, from 0")
    return tree[value] if value >= 0 else None  # -1 is no label, as in a test set


def _first(tree: Tree) -> list[str]:
    return tree if isinstance(tree, list) else _first(next(iter((tree or {"": []}).values())))


def hub_rows(source: str) -> Iterator[dict]:
    """Yield the rows of a hub dataset, "hf:owner/name[:split]", streamed; class numbers become
    names."""
    import datasets

    name, _, split = source.removeprefix("hf:").partition(":")
    rows = datasets.load_dataset(name, split=split or "train", streaming=True)
    features = getattr(rows, "features", None)
    yield from _named(rows, features.to_dict() if features else {}, source)


def numbered(rows: Iterator[dict], source: str, what: str) -> Iterator[tuple[int, dict]]:
    """Yield (number, row), from 1 on; an error while reading a row becomes a DataError of one line
    with the name ``source`` and the fault ``what``. The libraries raise dozens of unrelated
    classes, so all exceptions are caught."""
    for number in itertools.count(1):
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:
            place = f"{source}:{number}" if number > 1 else source
            raise DataError(f"{place}: {what}: {first_line(error)}") from error
        yield number, row
