"""Formats of data files: lines, tables, texts, exports of label tools, and the published data sets.

An example of `read` has the fields of the task that a published layout belongs to, as a JSON line
would have them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from os.path import isdir
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ldt.data import label_tools, summaries
from ldt.errors import DataError, UserError
from ldt.io import records, sources, text_files
from ldt.io.records import Example, OnError
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile

if TYPE_CHECKING:
    from ldt.data.options import DataSection

LINES = ("jsonl", "csv", "tsv", "parquet")  # read one by one, in constant memory
TEXT = "text"  # a file is a document
SUMMARIES = "summarization"  # lines and tables, their fields renamed
DOCCANO = "doccano"  # lines, their labels renamed
LABEL_STUDIO = "label-studio"
_OF_RECORDS = (*LINES, SUMMARIES, DOCCANO)
LEXGLUE = ("ecthr_a", "ecthr_b", "scotus", "eurlex")
_NUMBERED = ("conll", "triples", *LEXGLUE)  # whose ids may be numbers in a file
STREAMED = (
    "conll",
    "coreference",
    "gap",
    "nq",
    "tydiqa",
    "triples",
    "beir",
    *LEXGLUE,
)  # a document at a time
_READERS = {"cuad": "squad:read", "beir": "retrieval:read", "triples": "retrieval:read_triples"}
# One JSON value, read whole into memory.
PUBLISHED = (
    *("hotpotqa", "squad", "triviaqa", "wikihop", "cuad", "contractnli", "qasper"),
    LABEL_STUDIO,
)
FORMATS = (*LINES, TEXT, SUMMARIES, DOCCANO, *STREAMED, *PUBLISHED)


def read(
    source: Names,
    data: "DataSection",
    *,
    document: str | None = None,
    on_error: OnError | None = None,
    max_line_bytes: int = 256 << 20,
) -> Iterator[Example]:
    """Yield the examples of ``source`` in order, those of several files one file after the other.

    Of several files a record without an id has its place as id, such as "a.jsonl:17".

    Args:
        source: a path, "-", "hf:owner/name", a pattern such as "*.jsonl", or several of them; most
            published layouts are read whole into memory, a file at a time.
        data: its format, id and what else the layout wants.
        document: field of the text where ``data.text`` names none: with it text files and folders
            of them are documents too (`ldt.io.text_files`). None where right answers are needed,
            which text alone does not have.
        on_error: called with the error and the bytes of a bad record, which is then left out; None
            raises it. What is wrong with a published layout is always raised.
        max_line_bytes: longest line; a longer one is an error.

    Raises:
        UserError: there is no such file, or an option is missing.
        DataError: the file is damaged or of another layout; text without right answers; text beside
            a file of records; at the end, a field of ``data.fields`` that no record has.
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
    """Keys of a recipe's ``data:`` that have no effect on files of this format, each with the
    reason, such as {"domain": "a domain is one of triviaqa files"}; None is the format that is
    detected."""
    keys = {"domain": "a domain is one of triviaqa files"}
    if format == "parquet":
        keys["encoding"] = "text in Parquet is UTF-8"
    if format == TEXT:
        keys |= {"id": "the name of a text file is its id", "text": "a text file is all text"}
    elif format not in (None, *_OF_RECORDS, LABEL_STUDIO):
        keys["id"] = f"{format} says which ids are read"
    if format in ("beir", "triples"):
        keys |= {"encoding": f"{format} is UTF-8", "text": f"{format} has no other texts"}
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
            file = sources.brief(source)
            raise DataError(f"{file}: data.fields.{name}: no record has a field {path!r}")


def _read(
    source: str,
    data: "DataSection",
    document: str | None,
    on_error: OnError | None,
    max_line_bytes: int,
    several: bool,
) -> Iterator[Example]:
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
    if data.format and (reader := _reader(data.format)):
        published = reader(source, data)
        return _placed(published) if several and data.format in _NUMBERED else published
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
        return label_tools.read_doccano(examples, data, exported=document is None)
    return summaries.with_fields(examples) if data.format == SUMMARIES else examples


def _placed(examples: Iterator[Example]) -> Iterator[Example]:
    """The examples of one of several files, with places for ids, which are its own."""
    return (replace(example, id=example.where) for example in examples)


def _reader(format: str) -> Callable[[Any, "DataSection"], Iterator[Example]] | None:
    """The function that reads files of a published layout; None of other formats."""
    if format in LEXGLUE:
        return resolve_name("ldt.benchmarks.lexglue:TASKS")[format].read
    if format == LABEL_STUDIO:
        return label_tools.read_label_studio
    if format not in (*STREAMED, *PUBLISHED):
        return None
    return resolve_name(f"ldt.benchmarks.{_READERS.get(format, f'{format}:read')}")


def read_json(file: JsonFile, data: "DataSection") -> Iterator[Example]:
    """Yield the examples of a JSON file that is loaded already, in the layout of `PUBLISHED` that
    ``data.format`` names."""
    reader = _reader(str(data.format))
    assert reader is not None  # a layout of `PUBLISHED` has one
    return reader(file, data)


def classes(format: str | None) -> list[str] | None:
    """Class names of a published layout, in their official order; None for one without a fixed
    list, which are all but `LEXGLUE`."""
    if format not in LEXGLUE:
        return None
    return [*resolve_name("ldt.benchmarks.lexglue:TASKS")[format].classes]


def detect(value: Any) -> str | None:
    """Name of the published layout (squad, triviaqa, contractnli, hotpotqa, wikihop, qasper,
    label-studio) of a JSON file with gold answers, given its parsed value; None if it is none of
    them."""
    if isinstance(value, dict):
        lists = {key for key, each in value.items() if isinstance(each, list)}
        for name, key in (("squad", "data"), ("triviaqa", "Data"), ("contractnli", "documents")):
            if key in lists and (name != "contractnli" or isinstance(value.get("labels"), dict)):
                return name
        value = list(value.values())
    first = next((each for each in value if isinstance(each, dict)), {})
    keys = {"hotpotqa": {"supporting_facts"}, "wikihop": {"candidates"}, "qasper": {"qas"}}
    keys[LABEL_STUDIO] = {"annotations", "data"}
    return next((name for name, needed in keys.items() if needed <= first.keys()), None)
