"""doccano: a line a document, with the labels that were given to it.

Places are units of UTF-16, as its editor counts them unless a project counts grapheme clusters.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ldt.data.formats.annotated import Annotated, labelled
from ldt.errors import DataError, listed, shown
from ldt.io import records
from ldt.io.records import Example
from ldt.io.text_files import Utf16

# Of its labels in a line: of exports since 1.5, before it, of relations, and of the first versions.
KEYS = ("label", "labels", "cats", "entities", "annotations")


def named(examples: Iterable[Example], data, exported: bool = True) -> Iterator[Example]:
    """Yield the lines with what was labelled (`ldt.data.formats.annotated.labelled`).

    Under any of `KEYS`, spans are [start, end, label] or objects; classes are texts, and become
    ``label``. Other fields stay.

    Args:
        exported: whether each line has one of `KEYS`, as exports have; documents to answer for
            need none.

    Raises:
        DataError: labels of another form, or none where there are to be some; a span that is not
            in the text.
    """
    yield from labelled([_annotated(example, data, exported) for example in examples])


def has_spans(columns: Mapping[str, Iterable[Any]]) -> bool:
    """Tell whether fields by name have spans as this export writes them."""
    return any(
        (isinstance(item, dict) and "start_offset" in item)
        or (isinstance(item, list) and [type(each) for each in item] == [int, int, str])
        for key in KEYS
        for value in columns.get(key, ())
        for item in (value if isinstance(value, list) else ())
    )


def _annotated(example: Example, data, exported: bool) -> Annotated:
    """A line with its spans, and its classes."""
    if exported and not set(KEYS) & set(example.fields):
        raise DataError(
            f"{example.where}: no labels: no field {', '.join(KEYS[:-1])} or {KEYS[-1]}; it has "
            f"{listed(example.fields)}"
        )
    fields = {name: value for name, value in example.fields.items() if name not in KEYS}
    text = records.text(example, data.text or "text")
    units = Utf16(text)
    spans: list[tuple[int, int, str]] = []
    classes: list[str] = []
    for key in KEYS:
        value = example.fields.get(key)
        for item in [value] if isinstance(value, str) else value or ():
            match item:
                case str():
                    classes.append(item)
                case [int(start), int(end), str(name)]:
                    spans.append(_span(start, end, name, units, example.where))
                case {"start_offset": int(start), "end_offset": int(end), "label": str(name)}:
                    spans.append(_span(start, end, name, units, example.where))
                case {"label": str(name)}:
                    classes.append(name)
                case {"label": int(number)}:
                    raise DataError(
                        f"{example.where}: field {key!r} has the number of a label, {number}; "
                        "its name stands elsewhere: doccano exports names as JSONL (text labels)"
                    )
                case _:
                    raise DataError(
                        f"{example.where}: field {key!r}: {shown(item)}, expected a class, or "
                        "[start, end, label] of a span"
                    )
    named = {"label": classes} if classes else {}
    return Annotated(replace(example, fields=fields | {"text": text}), spans, named)


def _span(start: int, end: int, label: str, units: Utf16, where: str) -> tuple[int, int, str]:
    a, b = units.character(start), units.character(end)
    if a is None or b is None or a >= b:
        what = "it parts a character" if 0 <= start < end <= units.size else "no words there"
        raise DataError(
            f"{where}: {label} from {start:,} to {end:,}: {what}; the text has {units.size:,} "
            "units of UTF-16, as doccano counts where a project does not count grapheme clusters"
        )
    return a, b, label
