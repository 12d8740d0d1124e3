"""Answers as a file of the kind that its ending names, lines or a table, or in a published layout.

A table has a column for each key of the answers, in the order in which they first come; of
``scores`` by class there is a column for each class, ``scores.yes``, and ``score``, that of the
label; where there can be several labels a column for each, ``label.yes``, of 1 or 0. The columns
are known at the end only, so a table is made of the finished lines, which are read twice, some at a
time.
"""

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ldt.errors import UserError, listed
from ldt.inference.inputs import is_stream
from ldt.inference.options import named
from ldt.metrics import prediction_files
from ldt.tasks.base import AnyTask, PublishedLayout, Writer, default_layout

Layout = Callable[[Path, Path], None]  # writes the answers of a file of lines to a new file
Answer = dict[str, Any]

_COLUMNS = (".parquet", ".arrow", ".feather")  # endings of tables with types
_NOT_LINES = (".csv", ".tsv", ".json", *_COLUMNS)
ROW_GROUP = 8 << 20  # bytes of lines that become one row group of Parquet or batch of Arrow
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}  # of lines, as pyarrow calls it
_NOT_WRITTEN = {
    **dict.fromkeys(
        (".xlsx", ".xls", ".ods"), "a spreadsheet is not written; name it .csv, which one opens"
    ),
    **dict.fromkeys(
        (".bz2", ".xz", ".zip"),
        "answers are compressed as .jsonl.gz or .jsonl.zst, or are Parquet",
    ),
}


def published_layout(
    name: str | None, output: str | None, task: AnyTask, formats: Iterable[str | None]
) -> str | None:
    """Name of the published layout that answers are written in; None for lines or a table.

    Args:
        name: that is asked for; None leaves it to the ending of the file: .json is
            `ldt.tasks.base.default_layout`.
        output: the file; None or "-" for standard output.
        formats: of the documents and of the training data.

    Raises:
        UserError: the task has no such layout, there is no file to write it into, or the
            documents do not have what it needs.
    """
    if name is None:
        if is_stream(output) or Path(str(output)).suffix.lower() != ".json":
            return None
        name = default_layout(task, formats)
        if name is None:
            raise UserError(
                f"answers of {task.name} are JSON lines; name the output .jsonl, not .json"
            )
        return name
    if name not in task.answers.layouts:
        known = listed(task.answers.layouts)
        raise UserError(f"--layout {name}: no layout of {task.name}; published ones: {known}")
    if is_stream(output):
        raise UserError(f"--layout {name}: made of all answers at the end; name --output FILE")
    read = next(iter(formats), None)
    if task.answers.layouts[name].own and name != read:
        raise UserError(
            f"--layout {name}: its offsets are those of its own documents, which are read as "
            f"{read or 'lines'}; {named('data.format', name)} reads them"
        )
    return name


def layout_of(output: Path, published: PublishedLayout | None) -> Layout | None:
    """Layout of a file of this name; None where the answers stay lines.

    Args:
        published: published layout, which is taken whatever the name is; None goes by
            the ending.

    Raises:
        UserError: the ending is of a file that is not written, or of another one.
    """
    ending = output.suffix.lower()
    if ending in _NOT_WRITTEN:
        raise UserError(f"{output}: {_NOT_WRITTEN[ending]}")
    if ending in _COMPRESSED and (published or output.stem.lower().endswith(_NOT_LINES)):
        raise UserError(f"{output}: lines alone are compressed; name it .jsonl{ending}")
    tables: dict[str, Layout] = {
        **{ending: partial(write_compressed, name) for ending, name in _COMPRESSED.items()},
        ".csv": partial(write_csv, ","),
        ".tsv": partial(write_csv, "\t"),
        ".parquet": partial(write_columns, _parquet),
        ".arrow": partial(write_columns, _arrow),
        ".feather": partial(write_columns, _arrow),
    }
    if published is None:
        return tables.get(ending)
    if ending in _COLUMNS or (ending in tables and not isinstance(published.write(iter(())), str)):
        raise UserError(f"{output}: --layout makes no such table; name it .json")
    return partial(write_published, published.write)


def write_published(published: Writer, answers: Path, target: Path) -> None:
    """Write what the writer makes of all answers: text, lines, or one JSON value."""
    with open(answers, "rb") as lines:
        prediction_files.write(published(map(json.loads, lines)), target)


def write_compressed(compression: str, answers: Path, target: Path) -> None:
    """Write the lines themselves, compressed."""
    import pyarrow

    with open(answers, "rb") as lines, open(target, "xb") as file:
        out = pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, "w"), compression)
        shutil.copyfileobj(lines, out, 1 << 20)
        out.close()  # which closes the file as well


def write_csv(delimiter: str, answers: Path, target: Path) -> None:
    """Write UTF-8 with a header; lists, objects, true and false are JSON in their cells.

    A text is in its cell as it is, also where a spreadsheet takes it for a formula.
    """
    columns = list(dict.fromkeys(name for row in _rows(answers) for name in row)) or ["id"]
    with open(target, "x", encoding="utf-8", newline="") as file:
        # With this line end both of its characters are quoted; RFC 4180 has it too.
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\r\n")
        writer.writerow(columns)
        for row in _rows(answers):
            writer.writerow([_text(row.get(name)) for name in columns])


def write_columns(
    writer: Callable[[BinaryIO, Any], AbstractContextManager[Any]], answers: Path, target: Path
) -> None:
    """Write columns with the types of their values, some rows at a time.

    A column whose values have no common type is text: JSON, or the text itself.

    Args:
        writer: of pyarrow, made of the new file and the schema.
    """
    import pyarrow

    types = _types(answers) or {"id": pyarrow.string()}
    schema = pyarrow.schema(types.items())
    with open(target, "xb") as file, writer(file, schema) as rows_out:
        for rows in _groups(answers):
            typed = [{name: _cast(row.get(name), types[name]) for name in types} for row in rows]
            rows_out.write_table(pyarrow.Table.from_pylist(typed, schema))


def _parquet(file: BinaryIO, schema: Any) -> AbstractContextManager[Any]:
    from pyarrow import parquet

    return parquet.ParquetWriter(file, schema)


def _arrow(file: BinaryIO, schema: Any) -> AbstractContextManager[Any]:
    import pyarrow

    return pyarrow.ipc.new_file(file, schema)


def row_of(answer: Answer) -> Answer:
    """The cells of an answer by column."""
    row: Answer = {}
    for name, value in answer.items():
        if name != "scores" or not isinstance(value, dict):
            row[name] = value
            continue
        label = answer.get("label")
        if isinstance(label, str):
            row["score"] = value.get(label)
        elif isinstance(label, list):
            row |= {f"label.{name}": int(name in label) for name in value}
        row |= {f"{name}.{each}": score for each, score in value.items()}
    return row


def _rows(answers: Path) -> Iterator[Answer]:
    with open(answers, "rb") as lines:
        yield from map(row_of, map(json.loads, lines))


def _groups(answers: Path) -> Iterator[list[Answer]]:
    """The rows of `ROW_GROUP` bytes of lines each, or of one longer line."""
    group: list[Answer] = []
    size = 0
    with open(answers, "rb") as lines:
        for line in lines:
            if group and size + len(line) > ROW_GROUP:
                yield group
                group, size = [], 0
            group.append(row_of(json.loads(line)))
            size += len(line)
    if group:
        yield group


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _MixedError(Exception):
    """Values without a common type."""


def _types(answers: Path) -> dict[str, Any]:
    """The Arrow type of each column."""
    import pyarrow

    types: dict[str, Any] = {}
    for row in _rows(answers):
        for name, value in row.items():
            try:
                types[name] = _common(types.get(name, pyarrow.null()), _type(value))
            except _MixedError:
                types[name] = pyarrow.string()
    return {name: _filled(kind) for name, kind in types.items()}


def _filled(kind: Any) -> Any:
    """The type with text in the place of what no value had a type for."""
    import pyarrow
    from pyarrow.types import is_list, is_null, is_struct

    if is_null(kind):
        return pyarrow.string()
    if is_list(kind):
        return pyarrow.list_(_filled(kind.value_type))
    if is_struct(kind):
        return pyarrow.struct([(field.name, _filled(field.type)) for field in kind])
    return kind


def _type(value: Any) -> Any:
    """The Arrow type of a value; `_MixedError` for an empty object or a huge number."""
    import pyarrow

    if isinstance(value, list):
        return pyarrow.list_(_common_of(map(_type, value)))
    if isinstance(value, dict) and value:
        return pyarrow.struct([(name, _type(item)) for name, item in value.items()])
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return pyarrow.int64()
    scalars = {type(None): pyarrow.null(), bool: pyarrow.bool_(), float: pyarrow.float64()}
    found = (scalars | {str: pyarrow.string()}).get(type(value))
    if found is None:
        raise _MixedError
    return found


def _common_of(types: Iterable[Any]) -> Any:
    import pyarrow

    found = pyarrow.null()
    for kind in types:
        found = _common(found, kind)
    return found


def _common(one: Any, other: Any) -> Any:
    """The Arrow type that holds the values of both; `_MixedError` where there is none."""
    import pyarrow
    from pyarrow.types import is_list, is_null, is_struct

    if one == other or is_null(other):
        return one
    if is_null(one):
        return other
    if {one, other} == {pyarrow.int64(), pyarrow.float64()}:
        return pyarrow.float64()
    if is_list(one) and is_list(other):
        return pyarrow.list_(_common(one.value_type, other.value_type))
    if is_struct(one) and is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _common(fields.get(field.name, pyarrow.null()), field.type)
        return pyarrow.struct(fields.items())
    raise _MixedError


def _cast(value: Any, kind: Any) -> Any:
    """The value as Arrow takes it for a column of this type."""
    from pyarrow.types import is_floating, is_list, is_string, is_struct

    if value is None:
        return None
    if is_string(kind):
        return _text(value)
    if is_floating(kind):
        return float(value)
    if is_list(kind):
        return [_cast(item, kind.value_type) for item in value]
    if is_struct(kind):
        return {field.name: _cast(value.get(field.name), field.type) for field in kind}
    return value
