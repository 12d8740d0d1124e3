"""Survey of a data file: the fields that hold text and labels, and the task that fits."""

import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ldt.data import corpus, formats
from ldt.data.formats.recognition import recognised
from ldt.data.options import CorpusSection, DataSection
from ldt.errors import DataError, UserError, listed, plural
from ldt.io import records, streams, strict_json, text_files
from ldt.io.records import Example
from ldt.io.text_files import SUFFIXES
from ldt.recipe.label_survey import Labels, label_fields, labels, left_out
from ldt.tasks import TASKS

MOST = 2_000  # records that are looked at
PAGES = 100  # of layouts whose records are whole pages
TOKENS_A_WORD = 1.4  # of English, in the usual vocabularies

# The fields by which a file is told to be a task's, the most telling ones first.
SIGNS: dict[str, tuple[str, ...]] = {
    "evidence_classification": ("hypothesis", "spans", "label", "evidence"),
    "wikihop": ("query", "candidates", "supports", "answer"),
    "hotpotqa": ("question", "context", "supporting_facts", "answer"),
    "multiple_choice": ("question", "choices"),
    "passage_qa": ("question", "context", "candidates", "annotations"),
    "qasper": ("question", "paragraphs", "answers"),
    "qasper_generation": ("question", "paragraphs", "answers"),
    "triviaqa": ("question", "answers"),
    "squad": ("question", "answers"),
    "token_classification": ("tokens", "tags"),
    "summarization": ("summary",),
}
# The tasks of layouts that are not called so.
_TASKS = {
    **dict.fromkeys(formats.lexglue.TASKS, "classification"),
    "conll": "token_classification",
    "contractnli": "evidence_classification",
    "nq": "passage_qa",
    "tydiqa": "passage_qa",
}
_OF_ANY = ("label-studio", "doccano")  # layouts whose fields say which task
# Ways to read a file, tried in this order: keys of `data:`, where it has them.
_READINGS: tuple[dict[str, Any], ...] = ({}, {"encoding": "cp1252"})
_ENDS_OF_IDS = ("_id", "-id", " id", "-nr", "_nr", " nr")
_IDS = "id nr doc_id document_id uid uuid key name file filename".split()
_EVALUATION = ("dev", "valid", "validation", "val", "eval")  # what a file beside train is called
_NAMED = {"label", "labels"}  # fields that say what is learned, whatever else there is
_TAG = re.compile(r"O|[BIES]-\S+")


@dataclass(frozen=True)
class Survey:
    """A data file as its first records show it.

    Args:
        source: the file, or for pretraining a folder or pattern.
        format: layout that the recipe must name; none where reading detects it.
        task: name of the task that fits best.
        examples: the first `MOST` records; none of plain text.
        texts: documents of plain text, of which there are no records.
        text: field of the longest texts, if any field holds text.
        labels: those of a field that seems to hold classes.
        id: field of the ids, if it is not ``id``.
        eval: file beside it to evaluate on.
        left_out: lines on fields that are no labels, and why.
        columns: values by field.
        keys: further keys of ``data:`` by which the file is read.
    """

    source: str
    format: str | None
    task: str
    examples: Sequence[Example] = ()
    texts: Sequence[str] = ()
    text: str | None = None
    labels: Labels | None = None
    id: str | None = None
    eval: str | None = None
    left_out: Sequence[str] = ()
    columns: dict[str, list[Any]] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)

    def document(self, task: str) -> str | None:
        """The field that a task reads the document from; None where there is none."""
        others = {"token_classification": "tokens", "triviaqa": "context_file"}
        for name in (TASKS[task].reads.document, others.get(task)):
            if name in self.columns:
                return name
        return None if self.text in SIGNS.get(task, ()) else self.text

    def documents(self, task: str) -> list[str]:
        """The text of each document as a task reads it, with its question."""
        if self.texts:
            return list(self.texts)
        asked = {"question", "query", "hypothesis"} & set(TASKS[task].reads.fields)
        names = [name for name in (self.document(task), *asked) if name in self.columns]
        return [" ".join(_texts(each, names)) for each in self.examples]

    def lines(self, task: str) -> Iterator[str]:
        """Findings in words, as far as they are about a task."""
        count = len(self.texts) or len(self.examples)
        more = " or more" if count == _most(self.format) else ""
        layout = f", layout {self.format}" if self.format else ""
        noun = "document" if self.texts else "record"
        yield f"{self.source}: {plural(count, noun)}{more}{layout}"
        documents = self.documents(task)
        tokens = sum(map(guessed, documents)) // len(documents)
        yield f"text: {self.document(task) or 'plain'}, some {tokens:,} tokens on average"
        if task == "classification" and self.labels:
            longer = _longest(self.columns, list)
            if longer and sum(map(len, documents)) < _letters(self.columns[longer]):
                yield f"{longer} is longer, but a list; text is read where it is one a record"
            if not self.labels.trouble:
                yield f"label: {self.labels.name()}, {self.labels.words()}"
            yield from self.left_out


def survey(source: str) -> Survey:
    """Look at a data file, as far as its first records; a published layout is read whole.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, or holds nothing.
    """
    if not source.startswith("hf:"):
        source = os.path.expanduser(source)
    if _is_plain(source):
        return Survey(source, None, "mlm", texts=_plain_texts(source))
    layout = None if source.startswith("hf:") else _layout(source)
    examples, keys = _read(source, layout, {})
    if not examples:
        raise DataError(f"{source}: no records in it")
    columns = _columns(examples)
    if layout is None and (layout := _layout_of_lines(columns)):
        if layout != "summarization":
            examples, keys = _read(source, layout, keys)
            columns = _columns(examples)
    elif layout is None and (name := _file_field(examples, columns)):
        examples, keys = _read(source, None, keys | {"text_files": name})
        columns = _columns(examples)
    text = keys.get("text_files") or _longest(columns)
    if layout in formats.lexglue.TASKS:
        text = "text"  # which may be a list of paragraphs
    found = layout is None or layout in _OF_ANY or _TASKS.get(layout) == "classification"
    fields = label_fields(columns, text, len(examples)) if found else []
    best = None
    for path in fields:
        read = labels(examples, path)
        best = best or read
        if not read.trouble:
            best = read
            break
    id = None if layout else _id(columns, len(examples))
    paths = best.path if best and isinstance(best.path, list) else [best.path if best else ""]
    taken = [*paths, str(text), id or "id"]
    return Survey(
        source,
        layout,
        _task(layout, columns, text, bool(best)),
        examples,
        text=text,
        labels=best,
        id=id,
        eval=_beside(source),
        left_out=left_out(columns, taken, len(examples)) if found else (),
        columns=columns,
        keys=keys,
    )


def _columns(examples: Sequence[Example]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for example in examples:
        for name, value in example.fields.items():
            columns.setdefault(name, []).append(value)
    return columns


def _most(layout: str | None) -> int:
    """Records that are looked at."""
    return PAGES if _TASKS.get(str(layout)) == "passage_qa" else MOST


def _read(
    source: str, layout: str | None, known: dict[str, Any]
) -> tuple[list[Example], dict[str, Any]]:
    """The first records, and the keys of ``data:`` by which they are read, if it takes any.

    Args:
        known: some of the keys.
    """
    found = []
    for keys in ({**known, **reading} for reading in _READINGS):
        data = DataSection.model_validate({"format": layout, **keys})
        try:
            return list(itertools.islice(formats.read(source, data), _most(layout))), keys
        except DataError as error:
            found.append(error)
    raise found[0]


def _is_plain(source: str) -> bool:
    """True for what only pretraining reads: a folder, a pattern, a file of plain text."""
    if source.startswith("hf:"):
        return False
    if os.path.isdir(source) or (not os.path.exists(source) and "*" in source):
        return True
    return records.suffix(source) in corpus.TEXTS and not _is_conll(source)


def _plain_texts(source: str) -> list[str]:
    data = CorpusSection.model_validate({"train": source, "on_error": "skip"})
    documents = itertools.chain.from_iterable(
        corpus.Reader(each, data) for each in corpus.sources(source)
    )
    texts = list(itertools.islice(documents, MOST))
    if not texts:
        raise DataError(f"{source}: no text in it")
    return texts


def _layout(source: str) -> str | None:
    """The published layout of a file, None for lines and tables."""
    with streams.opened(source) as file:
        if file.is_table:
            return None
        lines = (line for line in file.stream if line.strip())
        first, second = next(lines, b""), next(lines, b"")
    start = first.lstrip(b"\xef\xbb\xbf \t")[:1]
    if start == b"[" or (start == b"{" and not second.startswith(b"{")):
        return formats.detect(strict_json.read(source).value)
    if start == b"{":
        return next((name for name in ("nq", "tydiqa") if recognised(source, name)), None)
    return "conll" if _is_conll(source) else None


def _is_conll(source: str) -> bool:
    """True where lines end in tags of entities, as far as the first ones show."""
    with streams.opened(source) as file:
        lines = [line.split() for line in itertools.islice(file.stream, 200)]
    lines = [cells for cells in lines if cells and not cells[0].startswith(b"#")]
    rows = [cells for cells in lines if cells[0] != b"-DOCSTART-"]
    tags = [cells[-1].decode(errors="replace") for cells in rows if len(cells) > 1]
    return len(tags) == len(rows) > 0 and all(map(_TAG.fullmatch, tags))


def _longest(columns: dict[str, list[Any]], kind: type = str) -> str | None:
    """The field of the longest texts, or lists of texts."""
    sizes = {
        name: _letters(values) / len(values)
        for name, values in columns.items()
        if all(isinstance(value, kind) for value in values)
    }
    return max(sizes, key=sizes.__getitem__, default=None)


def _letters(values: list[Any]) -> int:
    return sum(len(word) for value in values for word in _words(value))


def _id(columns: dict[str, list[Any]], count: int) -> str | None:
    """The field of the ids, where there is one that is not called id."""
    for name, values in columns.items():
        called = name.lower() in _IDS or name.lower().endswith(_ENDS_OF_IDS)
        if called and name != "id" and "id" not in columns and len(values) == count:
            plain = all(isinstance(v, str | int) and not isinstance(v, bool) for v in values)
            if plain and len(set(values)) == count:
                return name
    return None


def _task(
    layout: str | None,
    columns: dict[str, list[Any]],
    text: str | None,
    has_labels: bool,
) -> str:
    if layout is not None and layout not in _OF_ANY:
        return _TASKS.get(layout, layout)
    for name, signs in SIGNS.items():
        if name == "summarization" and _NAMED & set(columns):
            continue
        if set(signs) <= set(columns) and (
            TASKS[name].reads.document in columns or text not in signs
        ):
            return "squad" if name == "triviaqa" and _has_places(columns["answers"]) else name
    if {"text", "entities"} <= set(columns):
        return "token_classification"
    return "classification" if has_labels else "mlm"


def _layout_of_lines(columns: dict[str, list[Any]]) -> str | None:
    """The layout of lines or of a table that have the fields of a published one, or of an export.

    Documents with summaries are one if these have other names than ``text`` and ``summary``.
    """
    if formats.doccano.has_spans(columns):
        return "doccano"
    for name, part in formats.lexglue.TASKS.items():
        classes = {str(each) for value in columns.get(part.raw, ()) for each in _items(value)}
        if classes & set(part.classes) and {"text", "facts"} & set(columns):
            return name
    pairs = [pair for pair in formats.summarization.PAIRS.items() if set(pair) <= set(columns)]
    named = pairs and pairs[0][0] != "text" and not _NAMED & set(columns)
    return "summarization" if named else None


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _file_field(examples: Sequence[Example], columns: dict[str, list[Any]]) -> str | None:
    """The field whose cells are names of text files that are there."""
    for name, values in columns.items():
        called = [str(value) for value in values if records.suffix(str(value)) in SUFFIXES]
        if len(called) == len(examples) and all(
            example.folder and os.path.isfile(os.path.join(example.folder, file.strip()))
            for example, file in zip(examples, called, strict=True)
        ):
            return name
    return None


def _has_places(answers: list[Any]) -> bool:
    """True where answers have a place in their document, or there may be none: SQuAD's."""
    return any(
        not answer or isinstance(answer, dict) or any(isinstance(each, dict) for each in answer)
        for answer in answers
    )


def _beside(source: str) -> str | None:
    """The file to evaluate on that lies beside a file called train."""
    path = Path(source)
    if "train" not in path.name:
        return None
    names = (path.with_name(path.name.replace("train", word)) for word in _EVALUATION)
    return next((str(name) for name in names if name.is_file()), None)


def _texts(example: Example, names: Sequence[str | None]) -> Iterator[str]:
    """Words of some fields of an example, of the file where a field names one."""
    for name in filter(None, names):
        value = example.fields.get(name)
        yield from _words(_page(example, value) if name == "context_file" else value)


def _page(example: Example, name: Any) -> str:
    """The text of a file that an example names; nothing of one that training would not read."""
    try:
        if isinstance(name, str) and example.folder is not None:
            name = text_files.inside(text_files.real(Path(example.folder)), name, example.where)
        return text_files.read_file(name) if isinstance(name, Path) else ""
    except (OSError, DataError):
        return ""


def _words(value: Any) -> Iterator[str]:
    """Words of all texts in a value."""
    if isinstance(value, str):
        yield from value.split()
    elif isinstance(value, dict):
        yield from _words(list(value.values()))
    elif isinstance(value, list):
        for each in value:
            yield from _words(each)


def guessed(text: str) -> int:
    """Tokens of a text by its words; of scripts without spaces each letter is taken for one."""
    unspaced = sum(letter >= "\u2e80" for letter in text)
    return unspaced + math.ceil(TOKENS_A_WORD * len(text.split()))


def check_fields(found: Survey, task: str) -> None:
    """Refuse a task that the file has no fields for.

    Raises:
        UserError: the fields that are missing, and those that there are.
    """
    other = found.format is not None and found.format not in TASKS[task].answers.layouts
    if other and found.task != task and task != "mlm":
        raise UserError(f"{found.source}: its layout is that of {found.task}, not of {task}")
    signs = () if found.format else SIGNS.get(task, ())
    if task == "token_classification" and {"text", "entities"} <= set(found.columns):
        return
    missing = [name for name in signs if name not in found.columns]
    if task == "classification" and found.labels is None:
        missing = ["label"]
    if found.columns and found.document(task) is None:
        missing.append(TASKS[task].reads.document)
    if task == "classification" and found.labels and found.labels.trouble:
        raise DataError(
            f"{found.source}: no label that can be learned: {found.labels.trouble}; mend the file, "
            "or a recipe says how the label is read"
        )
    if missing:
        has = listed(found.columns) if found.columns else "plain text"
        raise UserError(
            f"{found.source}: no field {missing[0]!r}, which {task} reads; it has {has}; "
            "data.fields in a recipe gives a field another name"
        )
