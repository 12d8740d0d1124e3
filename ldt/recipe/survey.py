"""Survey of a data file by its first records: layout, text, labels, and the task that fits.

The file is opened once, and read again from its beginning where its first records say that it has
another encoding or layout.
"""

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ldt.benchmarks import formats
from ldt.benchmarks.lexglue import TASKS as LEXGLUE
from ldt.benchmarks.recognition import BEGIN, recognised
from ldt.data import corpus, label_tools, summaries
from ldt.data.labels import MOST_CODES, are_flags, flag_word
from ldt.data.options import CorpusSection, DataSection
from ldt.errors import DataError, UserError, first_line, listed, plural
from ldt.io import records, streams, strict_json, text_files
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile
from ldt.tasks import TASKS
from ldt.tasks.base import TaskReads
from ldt.tasks.classification import REGRESSION, Classification

MOST = 2_000  # records that are looked at
PAGES = 100  # of layouts whose records are whole pages, `_PAGED`
TOKENS_A_WORD = 1.4  # of English, in the usual vocabularies
MOST_CLASSES = 50  # a field of more different values holds no classes

_PAGED = ("nq", "tydiqa")
_OF_ANY = ("label-studio", "doccano")  # layouts whose fields say which task
# Ways to read labels, tried in this order: keys of `task:` and of `data:`.
_OF_LABELS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"problem": "single_label"}, {}),  # of few whole numbers with a point
    ({"problem": "regression"}, {}),
    ({}, {"label_separator": "|"}),
    ({}, {"label_separator": ";"}),
)
_ENDS_OF_IDS = ("_id", "-id", " id", "-nr", "_nr", " nr")
_IDS = "id nr doc_id document_id uid uuid key name file filename".split()
_LABELS = "label labels class classes category categories target group topic sentiment y".split()
_NAMED = {"label", "labels"}  # fields that say what is learned, whatever else there is
_EVALUATION = ("dev", "valid", "validation", "val", "eval")  # what a file beside train is called
_SPLITS = {"train", "training", "test", *_EVALUATION}
_DATE = re.compile(r"\d{4}-\d\d|\d\d?[./]\d\d?[./]\d")
_TAG = re.compile(r"O|[BIES]-\S+")

Columns = dict[str, list[Any]]  # values by field


@dataclass(frozen=True)
class Labels:
    """Labels of a file, and how they are read.

    Args:
        path: the field, or those of yes and no.
        task, data: keys of a recipe by which they are read, if it takes any.
        counts: records of each class; none of numbers.
        trouble: why they cannot be learned from as they are.
    """

    path: str | list[str]
    task: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    trouble: str | None = None

    def words(self) -> str:
        """Classes with their counts, or "numbers", for a message."""
        if not self.counts:
            return "numbers"
        counts = self.counts.most_common()
        classes = listed(counts, 6, lambda pair: f"{pair[0]} ({pair[1]:,})")
        return f"{len(counts):,} class{'es' if len(counts) > 1 else ''}: {classes}"


@dataclass(frozen=True)
class Survey:
    """A data file as its first records show it.

    Args:
        source: the file, or for pretraining a folder or pattern.
        format: layout that the recipe must name; none where reading detects it.
        task: name of the task that fits best.
        examples: the first `MOST` records; none of plain text.
        texts: documents of plain text, of which there are no records.
        columns: values of the records by field.
        text: field of the longest texts, if any field holds text.
        labels: labels of a field that seems to hold classes.
        id: field of the ids, if it is not ``id``.
        eval: file beside it to evaluate on.
        keys: further keys of ``data:`` by which the file is read.
    """

    source: str
    format: str | None
    task: str
    examples: Sequence[Example] = ()
    texts: Sequence[str] = ()
    columns: Columns = field(default_factory=dict)
    text: str | None = None
    labels: Labels | None = None
    id: str | None = None
    eval: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)

    def document_field(self, task: str) -> str | None:
        """Name of the field that a task reads the document from; None where there is none."""
        reads = TASKS[task].reads
        fields = (name for name in (reads.document, *reads.instead) if name in self.columns)
        return next(fields, None if self.text in _signs(reads) else self.text)

    def text_key(self, task: str) -> str | None:
        """Value of the key ``data.text`` that a recipe needs, a field; None where a task reads it
        anyway."""
        name, reads = self.document_field(task), TASKS[task].reads
        needed = name == self.text and name not in (reads.document, *reads.instead)
        return name if needed and not self.format and "text_files" not in self.keys else None

    def documents(self, task: str) -> list[str]:
        """Texts of the first documents, each with its question, as a task reads them; "" for one
        that it cannot read."""
        if self.texts:
            return list(self.texts)
        reader: Any = TASKS[task].model_construct()
        keys = {"format": self.format, "text": self.text_key(task), **self.keys}
        data = DataSection.model_validate(keys)
        if reader.reads.kind != "examples":
            return [str(each.fields.get(str(self.text)) or "") for each in self.examples]
        documents = []
        for example in self.examples:
            try:
                documents.append(" ".join(filter(None, reader.parts(example, data))))
            except DataError:
                documents.append("")
        return documents

    def lines(self, task: str) -> Iterator[str]:
        """Yield what was found in the file, as far as it concerns a task, in lines of text."""
        count = len(self.texts) or len(self.examples)
        more = " or more" if count == _most(self.format) else ""
        more += f", layout {self.format}" if self.format else ""
        yield f"{self.source}: {plural(count, 'document' if self.texts else 'record')}{more}"
        tokens = sum(map(guessed, self.documents(task))) // count
        yield f"text: {self.document_field(task) or 'plain'}, some {tokens:,} tokens on average"
        if task == "classification" and self.labels and not self.labels.trouble:
            paths = [self.labels.path] if isinstance(self.labels.path, str) else self.labels.path
            yield f"label: {listed(paths, 8, str)}, {self.labels.words()}"
            taken = {*paths, self.text, self.id or "id"}
            if left_out := [name for name in self.columns if name not in taken]:
                yield f"left out: {listed(left_out, 8, str)}"


def survey(source: str) -> Survey:
    """Survey a data file by its first records; a published layout is read whole.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, or holds nothing.
    """
    hub = source.startswith("hf:")
    source = source if hub else os.path.expanduser(source)
    pattern = not os.path.exists(source) and "*" in source
    if not hub and (os.path.isdir(source) or pattern):
        return Survey(source, None, "mlm", texts=_plain_texts(source))
    with nullcontext() if hub else streams.held(source) as file:
        layout, whole = _layout(source, file) if file else (None, None)
        if layout is None and not hub and records.suffix(source) in corpus.TEXTS:
            return Survey(source, None, "mlm", texts=_plain_texts(source))
        examples, keys = _read(source, layout, {}, whole)
        columns = _columns(examples)
        if layout is None and (layout := _layout_of_lines(columns)):
            examples, keys = _read(source, layout, keys)
        elif layout is None and (name := _file_field(examples, columns)):
            examples, keys = _read(source, None, keys | {"text_files": name})
    columns, count = _columns(examples), len(examples)
    # Text of a court's decision may be a list of paragraphs.
    text = "text" if layout in LEXGLUE else keys.get("text_files") or _longest(columns)
    labels: Labels | None = None
    if layout is None or layout in _OF_ANY or layout in LEXGLUE:
        tried = (_read_labels(examples, path) for path in _label_fields(columns, text, count))
        for read in tried:
            labels = read if labels is None or not read.trouble else labels
            if not read.trouble:
                break
    return Survey(
        source,
        layout,
        _task(layout, columns, text, labels is not None),
        examples,
        columns=columns,
        text=text,
        labels=labels,
        id=None if layout else _id(columns, count),
        eval=_beside(source),
        keys=keys,
    )


def check_fields(survey: Survey, task: str) -> None:
    """Raise an error if the file lacks the fields of a task.

    Raises:
        UserError: a field is missing, or the layout is that of another task.
        DataError: the labels cannot be learned.
    """
    reads, labels = TASKS[task].reads, survey.labels
    other = survey.format is not None and survey.format not in TASKS[task].answers.layouts
    if other and survey.task != task and task != "mlm":
        raise UserError(f"{survey.source}: its layout is that of {survey.task}, not of {task}")
    if any(set(signs) <= set(survey.columns) for signs in reads.signs[1:]):
        return
    if task == "classification" and labels and labels.trouble:
        raise DataError(
            f"{survey.source}: no label that can be learned: {labels.trouble}; mend the file, or "
            "a recipe says how the label is read"
        )
    missing = [] if survey.format else [n for n in _signs(reads) if n not in survey.columns]
    if task == "classification" and labels is None:
        missing = ["label"]
    if survey.columns and survey.document_field(task) is None:
        missing.append(reads.document)
    if missing:
        has = listed(survey.columns) if survey.columns else "plain text"
        raise UserError(
            f"{survey.source}: no field {missing[0]!r}, which {task} reads; it has {has}; "
            "data.fields in a recipe gives a field another name"
        )


def guessed(text: str) -> int:
    """Number of tokens of a text, estimated by its words; in scripts without spaces each letter
    counts."""
    unspaced = sum(letter >= "\u2e80" for letter in text)
    return unspaced + math.ceil(TOKENS_A_WORD * len(text.split()))


# -- reading


def _most(layout: str | None) -> int:
    return PAGES if layout in _PAGED else MOST


def _columns(examples: Sequence[Example]) -> Columns:
    columns: Columns = {}
    for example in examples:
        for name, value in example.fields.items():
            columns.setdefault(name, []).append(value)
    return columns


def _read(
    source: str, layout: str | None, known: dict[str, Any], whole: JsonFile | None = None
) -> tuple[list[Example], dict[str, Any]]:
    """The first records, as UTF-8 or as Excel writes them, and the keys of ``data:`` for that."""
    errors = []
    for keys in (known, known | {"encoding": "cp1252"}):
        data = DataSection.model_validate({"format": layout, **keys})
        try:
            every = formats.read_json(whole, data) if whole else formats.read(source, data)
            examples = list(itertools.islice(every, _most(layout)))
        except DataError as error:
            errors.append(error)
            continue
        if not examples:
            raise DataError(f"{source}: no records in it")
        return examples, keys
    raise errors[0]


def _plain_texts(source: str) -> list[str]:
    data = CorpusSection.model_validate({"train": source, "on_error": "skip"})
    readers = (corpus.Reader(each, data) for each in corpus.sources(source))
    texts = list(itertools.islice(itertools.chain.from_iterable(readers), MOST))
    if not texts:
        raise DataError(f"{source}: no text in it")
    return texts


def _layout(source: str, file: streams.Opened) -> tuple[str | None, JsonFile | None]:
    """The published layout of a file, None for lines and tables; and its value if it was read."""
    if file.is_table:
        return None, None
    lines = (line for line in file.stream if line.strip())
    first, second = next(lines, b""), next(lines, b"")
    start = first.lstrip(b"\xef\xbb\xbf \t")[:1]
    if start == b"[" or (start == b"{" and not second.startswith(b"{")):
        whole = strict_json.read(source)
        layout = formats.detect(whole.value)
        return layout, whole if layout else None
    if start == b"{":
        return next((name for name in _PAGED if recognised(source, name)), None), None
    if BEGIN.match(first.decode(errors="replace")):
        return "coreference", None
    begun = (line for line in (first, second, *itertools.islice(lines, 200)))
    rows = [line.split() for line in begun if not line.startswith((b"#", b"-DOCSTART-"))]
    tags = [cells[-1].decode(errors="replace") for cells in rows if len(cells) > 1]
    tagged = len(tags) == len(rows) > 0 and all(map(_TAG.fullmatch, tags))
    return "conll" if tagged else None, None


def _layout_of_lines(columns: Columns) -> str | None:
    """The published layout whose fields lines or a table have; summaries under their usual names
    are none."""
    if label_tools.has_spans(columns):
        return "doccano"
    for name, part in LEXGLUE.items():
        if set(_flat(columns.get(part.raw, []))) & set(part.classes) and (
            {"text", "facts"} & set(columns)
        ):
            return name
    pairs = [pair for pair in summaries.PAIRS.items() if set(pair) <= set(columns)]
    renamed = pairs and pairs[0][0] != "text" and not _NAMED & set(columns)
    return "summarization" if renamed else None


def _file_field(examples: Sequence[Example], columns: Columns) -> str | None:
    """The field whose cells are names of text files that are there."""
    for name, values in columns.items():
        cells = [str(v).strip() for v in values if records.suffix(str(v)) in text_files.SUFFIXES]
        if len(cells) == len(examples) and all(
            example.folder and os.path.isfile(os.path.join(example.folder, file))
            for example, file in zip(examples, cells, strict=True)
        ):
            return name
    return None


def _beside(source: str) -> str | None:
    """Evaluation file that lies beside a file called train."""
    path = Path(source)
    names = (path.with_name(path.name.replace("train", word)) for word in _EVALUATION)
    return next((str(name) for name in names if name != path and name.is_file()), None)


# -- fields


def _longest(columns: Columns) -> str | None:
    sizes = {
        name: sum(len("".join(value.split())) for value in values) / len(values)
        for name, values in columns.items()
        if all(isinstance(value, str) for value in values)
    }
    return max(sizes, key=sizes.__getitem__, default=None)


def _id(columns: Columns, count: int) -> str | None:
    """The field of the ids, unless it is called id."""
    if "id" in columns:
        return None
    for name, values in columns.items():
        fits = name.lower() in _IDS or name.lower().endswith(_ENDS_OF_IDS)
        plain = {*map(type, values)} <= {str, int}
        if fits and plain and len(values) == len(set(values)) == count:
            return name
    return None


def _task(layout: str | None, columns: Columns, text: str | None, has_labels: bool) -> str:
    """The task of a layout; else the one of the most signs that are all there."""
    reads = {name: TASKS[name].reads for name in TASKS}
    if layout is not None and layout not in _OF_ANY:
        return next((name for name, each in reads.items() if layout in each.formats), layout)
    for name in sorted(reads, key=lambda name: -len(_signs(reads[name]))):
        if _has_signs(reads[name], columns, text):
            return name
    return "classification" if has_labels else "mlm"


def _has_signs(reads: TaskReads, columns: Columns, text: str | None) -> bool:
    signs = next((each for each in reads.signs if set(each) <= set(columns)), ())
    if not signs or (len(signs) == 1 and _NAMED & set(columns)):
        return False
    if reads.placed and not any(
        not answer or isinstance(answer, dict) or any(isinstance(each, dict) for each in answer)
        for answer in columns["answers"]
    ):
        return False
    return bool({reads.document, *reads.instead} & columns.keys()) or text not in signs


def _signs(reads: TaskReads) -> tuple[str, ...]:
    """Field names that tell a task; none of a task that no field tells."""
    return reads.signs[0] if reads.signs else ()


# -- labels


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list) else [value]


def _read_labels(examples: Sequence[Example], path: str | list[str]) -> Labels:
    """Read labels as a classification does, in the first way that it takes."""
    trouble = None
    cells = [str(each.fields.get(path)) for each in examples] if isinstance(path, str) else [""]
    for task_keys, data_keys in _OF_LABELS:
        mark = data_keys.get("label_separator", "")
        if not any(mark in cell for cell in cells):
            continue
        if task_keys.get("problem") == "single_label" and not _are_codes(cells):
            continue
        task = Classification(**task_keys)
        data = DataSection.model_validate({"label": path, **data_keys})
        try:
            config = SimpleNamespace(**task.learn(examples, data))
            golds = [task.gold(example, data, config) for example in examples]
        except UserError as error:
            trouble = trouble or first_line(error)
            continue
        numbers = config.problem_type == REGRESSION
        counts = Counter(() if numbers else map(str, _flat(golds)))
        return Labels(path, task_keys, data_keys, counts)
    return Labels(path, trouble=trouble)


def _are_codes(cells: Sequence[str]) -> bool:
    try:
        return len(set(cells)) <= MOST_CODES and all(float(cell) % 1 == 0 for cell in cells)
    except ValueError:
        return False


def _label_fields(columns: Columns, text: str | None, count: int) -> Iterator[str | list[str]]:
    """Yield the fields that may hold the labels, the likeliest first: one of such a name, several
    of yes and no; else those with few values, the fewest first."""
    whole = {
        name: values for name, values in columns.items() if name != text and len(values) == count
    }
    full = {name: values for name, values in whole.items() if None not in values}
    lower = {name.lower(): name for name in full}
    named = [lower[name] for name in _LABELS if name in lower][:1]
    yield from named
    words = {name: {*map(flag_word, values)} for name, values in whole.items() if are_flags(values)}
    flags = [name for name, each in words.items() if len(each) > 1]
    if len(flags) > 1 or any("" in words[name] for name in flags):
        yield flags
    if not named:
        few = {name: _distinct(values) for name, values in full.items()}
        fits = [name for name in few if 1 < few[name] <= min(MOST_CLASSES, count // 2)]
        # Short texts first.
        yield from sorted(fits, key=lambda name: (few[name], len(str(full[name]))))


def _distinct(values: list[Any]) -> int:
    """The number of classes that values may be: texts but dates and splits, true, false, lists of
    texts."""
    items = list(_flat(values))
    if not all(isinstance(item, str | bool) and not _DATE.match(str(item)) for item in items):
        return 0
    return 0 if set(items) <= _SPLITS else len(set(items))
