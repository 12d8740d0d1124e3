"""Read and write files of answers (JSON lines or tables) as ldt predict writes them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ldt.io import records, tables
from ldt.io.records import Example
from ldt.io.strict_json import JsonDecoder, json_line

TABLES = ("csv", "tsv", "parquet", "arrow", "feather")  # endings of tables of answers
_SCORES = "scores."  # begins the columns of classes
_TEXTS = ("id", "answer", "summary", "text", "context", "question", "document")


def answers(source: str) -> Iterator[Example]:
    """Yield the answers of a file of `ldt predict`, JSON lines or a table, as JSON objects.

    In a table, columns ``scores.CLASS`` become ``scores``, cells are parsed as JSON except for
    texts, and an empty cell of CSV is null.

    Raises:
        UserError: the file is missing.
        DataError: a record cannot be read.
    """
    table, cells = records.suffix(source) in TABLES, records.suffix(source) in tables.DELIMITERS
    if source == "-":
        for example in records.read(source):  # a table of text, perhaps
            cells = all(isinstance(value, str) for value in example.fields.values())
            yield replace(example, fields=_answer(example.fields, cells))
        return
    for example in records.read(source):
        yield replace(example, fields=_answer(example.fields, cells)) if table else example


def _answer(row: dict[str, Any], cells: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    for name, value in row.items():
        if name.startswith(_SCORES):
            scores[name.removeprefix(_SCORES)] = _value(value, cells)
        else:
            fields[name] = value if name in _TEXTS else _value(value, cells and name != "label")
    if any(value is not None for value in scores.values()):
        if isinstance(fields.get("label"), str):
            fields.pop("score", None)  # of the label, which is among them
        fields["scores"] = scores
    return fields


def _value(cell: Any, every: bool) -> Any:
    """JSON value of a text cell; without ``every`` only lists and objects are parsed."""
    if cell == "":
        return None
    if not isinstance(cell, str) or not (every or cell.startswith(("[", "{"))):
        return cell
    try:
        value, end = JsonDecoder().decode(cell)
    except ValueError:
        return cell
    return value if end == len(cell) else cell


def write(value: Any, target: Path) -> None:
    """Write a new file: a text as it is, an iterator of JSON values one a line, or one JSON value.

    Raises:
        FileExistsError: there is such a file.
    """
    with open(target, "xb") as file:
        if isinstance(value, str):
            file.write(value.encode())
        else:
            file.writelines(map(json_line, value if isinstance(value, Iterator) else [value]))
