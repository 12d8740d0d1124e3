"""The layouts of gold and prediction files: which one a file has, and what is wrong with it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ldt.data import formats
from ldt.errors import DataError, shown
from ldt.io import records, strict_json, tables
from ldt.io.records import Example
from ldt.io.sources import Names, only
from ldt.io.strict_json import Decoder, JsonFile, json_line

TABLES = ("csv", "tsv", "parquet", "arrow", "feather")  # endings of tables of answers
_SCORES = "scores."  # begins the columns of classes
_TEXTS = ("id", "answer", "summary", "text", "context", "question", "document")


def by_id(answers: Iterable[dict]) -> dict[str, str]:
    """{id: answer}, the layout of predictions that `answers_by_id` reads."""
    return {str(answer["id"]): answer["answer"] for answer in answers}


def read(source: Names) -> JsonFile:
    """Read predictions that are one JSON value (see `ldt.io.strict_json.read`).

    Raises:
        UserError: several files, or there is no such file.
        DataError: it is damaged.
    """
    return strict_json.read(only(source, "predictions of this layout"))


def answers(source: str) -> Iterator[Example]:
    """Yield the answers of a file of `ldt predict`, lines or a table, as its lines have them.

    Of a table, columns ``scores.CLASS`` become ``scores``, and cells what their text says as JSON
    but for texts; an empty cell of CSV is null.

    Raises:
        UserError, DataError: as `ldt.io.records.read` does.
    """
    table, cells = records.suffix(source) in TABLES, records.suffix(source) in tables.DELIMITERS
    for example in records.read(source):
        yield replace(example, fields=_answer(example.fields, cells)) if table else example


def _answer(row: dict[str, Any], cells: bool) -> dict[str, Any]:
    """The keys of an answer by the columns of its row.

    Args:
        cells: whether all values are text, as in CSV.
    """
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
    """The JSON value of a cell of text; without ``every`` of a list or an object alone."""
    if cell == "":
        return None
    if not isinstance(cell, str) or not (every or cell.startswith(("[", "{"))):
        return cell
    try:
        value, end = Decoder().decode(cell)
    except ValueError:
        return cell
    return value if end == len(cell) else cell


def write(value: Any, target: Path) -> None:
    """Write a new file of what a writer makes of answers: text, lines (an iterator of values), or
    one JSON value."""
    with open(target, "xb") as file:
        if isinstance(value, str):
            file.write(value.encode())
        else:
            file.writelines(map(json_line, value if isinstance(value, Iterator) else [value]))


def read_gold(source: Names, format: str, expected: str, encoding: str | None = None) -> JsonFile:
    """Read a gold file that is one JSON value.

    Args:
        source: a path, or "-" for standard input; one file.
        format: its layout, as it was asked for.
        expected: such a file, in words.
        encoding: of its text.

    Raises:
        UserError: there is no such file, or there are several.
        DataError: it is damaged, has another layout (the message says which), or no question.
    """
    file = strict_json.read(only(source, f"the questions of {format}"), encoding)
    if formats.fits(file.value, format.removesuffix("2")):
        return file
    detected = formats.detect(file.value)
    if detected:
        raise DataError(
            f"{file.name}: looks like a {detected} gold file, not a {format} one; "
            f"--format {detected} reads it"
        )
    if file.value in ([], {}):
        raise DataError(f"{file.name}: no questions in it")
    if _prediction_format(file.value):
        raise DataError(
            f"{file.name}: looks like predictions, not like a gold file; "
            "are --gold and --pred swapped?"
        )
    raise DataError(f"{file.name}: {shown(file.value)}; expected {expected}")


def number(item: Mapping[Any, Any], key: Any, where: str) -> float:
    """A number that a prediction has under ``key``.

    Raises:
        DataError: it is missing, or no number.
    """
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: {key} is {shown(value)}, expected a number")
    return float(value)


def answers_by_id(file: JsonFile) -> dict[str, str]:
    """Predictions as one object, id to text.

    Raises:
        DataError: another layout, or a prediction that is no text.
    """
    refuse_gold(file)
    if _prediction_format(file.value) == "hotpotqa":
        raise DataError(f"{file.name}: looks like hotpotqa predictions; --format hotpotqa reads it")
    if not isinstance(file.value, dict):
        raise DataError(f"{file.name}: {shown(file.value)}; expected one object, {{id: answer}}")
    for key, value in file.value.items():
        if not isinstance(value, str):
            raise DataError(
                f"{file.name}: {shown(key)}: the prediction is {shown(value)}, expected text"
            )
    return file.value


def refuse_gold(file: JsonFile) -> None:
    """Refuse a gold file in the place of predictions.

    Raises:
        DataError: it is one.
    """
    detected = formats.detect(file.value)
    if detected:
        raise DataError(
            f"{file.name}: looks like a {detected} gold file, not like predictions; "
            "are --gold and --pred swapped?"
        )


def _prediction_format(value: Any) -> str | None:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "contractnli" if "annotation_sets" in value[0] else None
    if not isinstance(value, dict):
        return None
    if "predicted_answer" in value:
        return "qasper"
    if value and all(isinstance(spans, list) for spans in value.values()):
        return "cuad"
    if isinstance(value.get("answer"), dict) and isinstance(value.get("sp"), dict):
        return "hotpotqa"
    return "text" if value and all(isinstance(text, str) for text in value.values()) else None
