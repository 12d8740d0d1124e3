"""The layouts of published data sets as examples. A layout is a name in `FORMATS`.

An example of ``read`` has the fields of the task that the layout belongs to, as a JSON line would
have them; one of ``gold`` has what a prediction is scored by. Both go through the same file once.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os.path import isdir
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ldt.data.formats import (
    conll,
    contractnli,
    cuad,
    doccano,
    hotpotqa,
    label_studio,
    lexglue,
    nq,
    qasper,
    squad,
    summarization,
    triviaqa,
    tydiqa,
    wikihop,
)
from ldt.errors import DataError, UserError
from ldt.io import records, sources, strict_json, text_files
from ldt.io.records import Example, OnError
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile

if TYPE_CHECKING:
    from ldt.data.options import DataSection

LINES = ("jsonl", "csv", "tsv", "parquet")  # read one by one, in constant memory
_WHOLE: dict[str, ModuleType] = {  # one JSON value
    "hotpotqa": hotpotqa,
    "squad": squad,
    "triviaqa": triviaqa,
    "wikihop": wikihop,
    "cuad": cuad,  # behind squad, as whose layout it is detected
    "contractnli": contractnli,
    "qasper": qasper,
    "label-studio": label_studio,
}
_STREAMED: dict[str, Any] = {  # a document at a time
    "conll": conll,
    "nq": nq,
    "tydiqa": tydiqa,
    **lexglue.TASKS,
}
_NUMBERED = ("conll", *lexglue.TASKS)  # whose ids may be numbers in a file
TEXT = "text"  # a file is a document
SUMMARIES = "summarization"  # lines and tables, their fields renamed
DOCCANO = "doccano"  # lines, their labels renamed
_OF_RECORDS = (*LINES, SUMMARIES, DOCCANO)
PUBLISHED = tuple(_WHOLE)  # read whole into memory
FORMATS = (*LINES, TEXT, SUMMARIES, DOCCANO, *_STREAMED, *_WHOLE)


def read(
    source: Names,
    data: "DataSection",
    *,
    document: str | None = None,
    on_error: OnError | None = None,
    max_line_bytes: int = 256 << 20,
) -> Iterator[Example]:
    """Yield the examples of ``source`` in order.

    Of several files one is read after the other, and ids that no record has are places.

    Args:
        source: as `ldt.io.records.read` takes it, a pattern, or several of them; most published
            layouts are read whole into memory, a file at a time.
        data: its format, id and what else the layout wants.
        document: field of the text where ``data.text`` names none: with it text files and folders
            of them are documents too (`ldt.io.text_files`). None where right answers are needed,
            which text alone does not have.
        on_error, max_line_bytes: of lines, as in `ldt.io.records.read`. What is wrong with a
            published layout is always raised.

    Raises:
        UserError: there is no such file, or an option is missing.
        DataError: the file is damaged or of another layout; text without right answers; text
            beside a file of records.
    """
    files = sources.each(source)
    if data.format not in (None, TEXT, *_OF_RECORDS) and getattr(data, "text_files", None):
        raise UserError(f"data.text_files: files of data.format={data.format} hold the texts")
    if data.format is None:
        kinds = ["text" if text_files.is_text(file) else "records" for file in files]
        odd = next((place for place, kind in enumerate(kinds) if kind != kinds[0]), None)
        if odd is not None:
            raise DataError(
                f"{files[odd]}: {kinds[odd]}, but {files[0]} is {kinds[0]}; files that are read "
                "together have one layout"
            )
    parts = [
        _read(file, data, document, on_error, max_line_bytes, several=len(files) > 1)
        for file in files
    ]
    examples = itertools.chain.from_iterable(parts)
    renamed = getattr(data, "fields", {})
    return examples if document is not None or not renamed else _having(examples, renamed, source)


def unread(format: str | None) -> dict[str, str]:
    """Keys of ``data:`` that no file of a format is read by, with why; see `DataSection`."""
    keys = {"domain": "a domain is one of triviaqa files"}
    if format == "parquet":
        keys["encoding"] = "text in Parquet is UTF-8"
    if format == TEXT:
        keys |= {"id": "the name of a text file is its id", "text": "a text file is all text"}
    elif format not in (None, *_OF_RECORDS, "label-studio"):
        keys["id"] = f"{format} says which ids are read"
    if format == "triviaqa":
        keys = {"id": keys["id"], "text": "texts of triviaqa are the files that it names"}
    elif format not in (None, *_OF_RECORDS):
        keys["evidence"] = f"{format} names no files of documents"
    if format not in (None, *_OF_RECORDS):
        keys["text_files"] = f"files of {format} hold the texts"
    return keys


def _having(
    examples: Iterable[Example], fields: Mapping[str, str], source: Names
) -> Iterator[Example]:
    """Yield the examples; raise a DataError at the end for a field that none of them has."""
    missing, example = dict(fields), None
    for example in examples:
        for name in [name for name, path in missing.items() if records.has(example, path)]:
            del missing[name]
        yield example
    if example is not None:
        for name, path in missing.items():
            file = sources.named(source)
            raise DataError(f"{file}: data.fields.{name}: no record has a field {path!r}")


def _read(
    source: str,
    data: "DataSection",
    document: str | None,
    on_error: OnError | None,
    max_line_bytes: int,
    several: bool,
) -> Iterator[Example]:
    """The examples of one file; see `read`."""
    encoding = getattr(data, "encoding", None)  # prompts of a character model have none
    if data.format == TEXT or (data.format is None and text_files.is_text(source)):
        if document is None:
            what = "a folder" if isdir(source) else "plain text"
            raise DataError(
                f"{source}: {what}, where one file of JSON lines, CSV or Parquet is expected, with "
                "the right answer beside each text"
            )
        texts = text_files.read(
            source,
            data.text or document,
            encoding=encoding,
            on_error=on_error,
            max_bytes=max_line_bytes,
        )
        return _placed(texts) if several else texts
    if data.format in _NUMBERED and several:
        return _placed(_STREAMED[data.format].read(source, data))
    if data.format in _STREAMED:
        return _STREAMED[data.format].read(source, data)
    if data.format in _WHOLE:
        return _read_whole(source, data)
    examples = records.read(
        source,
        id_field=data.id,
        placed=several,
        format=None if data.format in ("parquet", SUMMARIES, DOCCANO) else data.format,
        encoding=encoding,
        on_error=on_error,
        max_line_bytes=max_line_bytes,
    )
    if field := getattr(data, "text_files", None):
        examples = text_files.filled(
            examples,
            field,
            getattr(data, "evidence", None),
            encoding=encoding,
            on_error=on_error,
            max_bytes=max_line_bytes,
        )
    if data.format == DOCCANO:
        return doccano.named(examples, data, exported=document is None)
    return summarization.named(examples) if data.format == SUMMARIES else examples


def _placed(examples: Iterator[Example]) -> Iterator[Example]:
    """The examples of one of several files, with places for ids, which are its own."""
    return (replace(example, id=example.where) for example in examples)


def _read_whole(source: str, data: "DataSection") -> Iterator[Example]:
    yield from read_json(strict_json.read(source, data.encoding), data)


def read_json(file: JsonFile, data: "DataSection") -> Iterator[Example]:
    """The examples of a JSON file whose value is read already, in the layout of `PUBLISHED` that
    ``data.format`` names."""
    examples: Iterator[Example] = _WHOLE[str(data.format)].read(file, data)
    return examples


def classes(format: str | None) -> list[str] | None:
    """The classes of a published layout, in their official order; None where it has none."""
    part = lexglue.TASKS.get(format or "")
    return list(part.classes) if part else None


def fits(value: Any, name: str) -> bool:
    """True if the value of a JSON file with gold answers has this layout."""
    return name in _WHOLE and _WHOLE[name].fits(value)


def detect(value: Any) -> str | None:
    """The layout that the value of a JSON file with gold answers has; None for no known one."""
    return next((name for name, layout in _WHOLE.items() if layout.fits(value)), None)
