"""LexGLUE (Chalkidis et al. 2022, arXiv:2110.00976): ECtHR A and B, SCOTUS and EUR-LEX.

JSON lines as they are published (``facts`` or ``text``, labels by name), or as the library
`datasets` has them (``text``, labels by number). Predictions are the published table of logits, or
JSON lines with the numbers of classes; the figures are micro-f1 and macro-f1, of UNFAIR-ToS too, by
the rules of the published training scripts.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ldt.benchmarks import base
from ldt.benchmarks.base import AnswersById, Benchmark, Shape
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError, listed, plural, quote
from ldt.io import records
from ldt.io.records import Example
from ldt.io.sources import only
from ldt.io.streams import beginning
from ldt.metrics import baseline
from ldt.metrics.classification import f1_of_draws
from ldt.metrics.result import Item, Result, count_words, defined

_ARTICLES = ("2", "3", "5", "6", "8", "9", "10", "11", "14", "P1-1")
_CONCEPTS = tuple(
    """
    100163 100168 100169 100170 100171 100172 100173 100174 100175 100176 100177 100179
    100180 100183 100184 100185 100186 100187 100189 100190 100191 100192 100193 100194
    100195 100196 100197 100198 100199 100200 100201 100202 100204 100205 100206 100207
    100212 100214 100215 100220 100221 100222 100223 100224 100226 100227 100229 100230
    100231 100232 100233 100234 100235 100237 100238 100239 100240 100241 100242 100243
    100244 100245 100246 100247 100248 100249 100250 100252 100253 100254 100255 100256
    100257 100258 100259 100260 100261 100262 100263 100264 100265 100266 100268 100269
    100270 100271 100272 100273 100274 100275 100276 100277 100278 100279 100280 100281
    100282 100283 100284 100285
""".split()
)  # of EuroVoc


class LexGlueTask(NamedTuple):
    """One data set of the benchmark.

    ``classes`` are in the official order. ``raw`` is the field of the published labels; ``several``
    is True if a document can have more than one, or none; ``none`` if having none is scored as one
    more class; ``parted`` if blank lines separate its text into paragraphs.
    """

    name: str
    classes: tuple[str, ...]
    raw: str
    several: bool = True
    none: bool = False
    parted: bool = False

    def read(self, source: str, data: DataSection) -> Iterator[Example]:
        """Yield an example for each line of a file, in the encoding of ``data``: text, a list of
        paragraphs or one text; and, where the line has it, label, the name of the class or a
        list of names. The id is that of the line, else its number from 0."""
        for line in _lines(source, data.encoding):
            labels = self.labels(line)
            document = _DOCUMENT(_text(line), f"{line.where}: text")
            if self.parted and isinstance(document, str):
                document = re.split(r"\n{2,}", document)
            fields: dict[str, Any] = {"text": document}
            if labels is not None:
                names = [self.classes[place] for place in labels]
                fields["label"] = names if self.several else names[0]
            yield replace(line, fields=fields)

    @property
    def by_number(self) -> str:
        """Name of the field that holds labels as numbers of classes: "labels", of single-label sets
        "label"."""
        return "labels" if self.several else "label"

    def labels(self, line: Example) -> list[int] | None:
        """Numbers of the classes of a line, sorted; None if it has no labels. Names that are not
        among the classes are dropped, as the published data set drops them; DataError if a
        single label is no class."""
        key = next((key for key in (self.raw, self.by_number) if key in line.fields), None)
        if key is None:
            return None
        values = line.fields[key] if self.several else [line.fields[key]]
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            return _class_numbers(values, len(self.classes), line.where)
        places = {self.classes.index(value) for value in values if value in self.classes}
        if not self.several and not places:
            raise DataError(f"{line.where}: {key!r} is {values[0]!r}, none of the classes")
        return sorted(places)


TASKS = {
    task.name: task
    for task in (
        LexGlueTask("ecthr_a", _ARTICLES, "violated_articles", none=True),
        LexGlueTask("ecthr_b", _ARTICLES, "allegedly_violated_articles", none=True),
        LexGlueTask(
            "scotus", tuple(map(str, range(1, 14))), "issueArea", several=False, parted=True
        ),
        LexGlueTask("eurlex", _CONCEPTS, "labels"),
    )
}

_DOCUMENT = Shape((str, [str]))


def _text(line: Example) -> Any:
    return line.fields.get("facts", line.fields.get("text"))


def _class_numbers(values: Any, classes: int, where: str) -> list[int]:
    """Check and sort the numbers of classes; each comes once."""
    for value in values if isinstance(values, list) else [values]:
        if type(value) is not int or not 0 <= value < classes or not isinstance(values, list):
            what = f"a list of numbers of the {classes} classes, from 0 to {classes - 1}"
            raise DataError(f"{where}: label {quote(value)}; expected one, or {what}")
    return sorted(set(values))


def _lines(source: str, encoding: str | None = None) -> Iterator[Example]:
    for number, line in enumerate(records.read(source, format="jsonl", encoding=encoding)):
        stated = line.fields.get("id") not in (None, "")
        yield line if stated else replace(line, id=number)


_ECTHR = TASKS["ecthr_a"]._replace(name="ecthr", raw="labels")  # A or B, which score alike
_UNFAIR_TOS = LexGlueTask("unfair_tos", tuple(map(str, range(8))), "labels", none=True)
SCOTUS_OUTPUTS = 14  # of the published scripts, for 13 classes
BY_COLUMNS = {
    8: _UNFAIR_TOS,
    10: _ECTHR,
    13: TASKS["scotus"],
    SCOTUS_OUTPUTS: TASKS["scotus"],
    100: TASKS["eurlex"],
}
_LINE = 1 << 20  # bytes of a row at most


def decided(logits: np.ndarray, *, several: bool) -> np.ndarray:
    """Decide the classes [documents, classes] bool from logits [documents, classes].

    With ``several`` those whose sigmoid is above 0.5, so that a logit of 0 is no; else the highest,
    the first at a tie.
    """
    if several:
        return logits > 0
    return np.arange(logits.shape[1]) == logits.argmax(1)[:, None]


def with_none(classes: np.ndarray) -> np.ndarray:
    """Append a column to classes [documents, classes] bool: True for documents that have
    no class."""
    return np.column_stack([classes, ~classes.any(1)])


def _f1(
    gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray, task: LexGlueTask
) -> dict[str, np.ndarray]:
    """Return micro-f1 and macro-f1 [draws], from 0 to 100, of classes [documents, classes] bool.
    macro-f1 is the mean over all classes, also those that no document has; in SCOTUS over those
    that occur."""
    if task.none:
        gold, predicted = with_none(gold), with_none(predicted)
    figures = f1_of_draws(gold, predicted, weights, several=task.several)
    return {"micro-f1": figures["micro_f1"], "macro-f1": figures["macro_f1"]}


def table(rows: Iterable[Iterable[float]]) -> str:
    """Write logits as the published table: a line of each document's number from 0 and its logits,
    with 5 decimals, separated by tabs, without a header.

    Args:
        rows: logits of each document in the order of the gold file, one a class.
    """
    return "".join(
        "\t".join([str(number), *(f"{logit:.5f}" for logit in row)]) + "\n"
        for number, row in enumerate(rows)
    )


def published(answers: Iterable[dict]) -> Iterator[dict]:
    """Convert answers of ldt predict to {id, labels}, or in SCOTUS {id, label}, with numbers of
    classes.

    Args:
        answers: each with id, ``label`` (a class, or a list of them) and ``scores`` by class. Where
            a model abstains, the likeliest class stands; where a document may have several, none.
    """
    for answer in answers:
        part, label = _part(answer), answer["label"]
        if part.several:
            text: Any = sorted(map(part.classes.index, label or []))
        else:
            likeliest = max(answer["scores"], key=answer["scores"].get)
            text = part.classes.index(label or likeliest)
        yield {"id": answer["id"], part.by_number: text}


def published_logits(answers: Iterable[dict]) -> str:
    """Write the published table (`table`) of a classification's answers, whose ``scores`` are
    logits by class; DataError for the classes of no data set of the benchmark."""
    return table([answer["scores"][name] for name in _part(answer).classes] for answer in answers)


def part_of(classes: Iterable[str]) -> LexGlueTask | None:
    """Data set of the benchmark with exactly these classes, None if none has; ECtHR A also
    for B."""
    names = set(classes)
    return next((task for task in TASKS.values() if names == set(task.classes)), None)


def _part(answer: dict) -> LexGlueTask:
    names, part = set(answer["scores"]), part_of(answer["scores"])
    if part is None:
        raise DataError(
            f"{answer['id']}: the classes {listed(sorted(names))}; the layout lexglue has those of "
            f"{', '.join(TASKS)}"
        )
    return part


@dataclass
class LexGlueScorer(Benchmark):
    """LexGLUE: a part is told by the columns of a table of logits, or by ``task``.

    Args:
        task: a name in `TASKS`; needed where predictions are lines.
    """

    task: str | None = None

    title = "lexglue"
    units = "documents"
    noun = "document"
    no_length = "the gold file has no text"
    no_place = "a class has no place"
    needs = ("label", "scores")
    advice = "answers of classification have both"
    marks = ("scores", "chunks")

    def read(self, source: str, data: DataSection) -> Iterator[Example]:
        """Yield the lines of a file as examples with all their fields; `aggregate` reads their
        labels."""
        return _lines(source, data.encoding)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a line: ``right`` is the line itself, whose labels
        `aggregate` reads."""
        text = _text(example)
        texts = text if isinstance(text, list) else [text]
        known = all(isinstance(part, str) for part in texts)
        words = sum(map(count_words, texts)) if known else None
        return Item(str(example.id), example.id, {}, words, right=example)

    def load(self, files: Sequence[str]) -> list[Example] | np.ndarray:
        """Read one file of predictions: lines as examples, or the table as logits [documents,
        classes]."""
        file = only(files, "predictions of lexglue")
        head = beginning(file, 1 << 10, lambda head: bool(head.strip()))
        if head.decode("utf-8-sig", "ignore").lstrip()[:1] == "{":
            return [*_lines(file)]
        return _logits(file, base.name_of(files))

    @staticmethod
    def published(lines: Sequence[dict]) -> list[Example]:
        """Convert answers of ldt predict by `published`, to examples as `load` reads them."""
        return [Example(each, each["id"], f"answer {each['id']}") for each in published(lines)]

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert predictions to {id: classes [classes] bool}, with the row's number as id for a
        table.

        Sets ``part`` and ``outputs``, the part of the benchmark and its number of classes, for
        `aggregate`.

        Args:
            value: logits [documents, classes], or examples with the numbers of their classes.
            name: name of the file, for messages.
        """
        rows = isinstance(value, np.ndarray)
        self.part = part = self._part(value.shape[1] if rows else None, name)
        self.outputs = value.shape[1] if rows else _outputs(part)
        if rows:
            return dict(enumerate(decided(value, several=part.several)))
        ids = [str(line.id) for line in value]
        base.once(ids, name)
        stated = [line.fields.get(part.by_number) for line in value]
        chosen = [
            _class_numbers(labels if part.several else [labels], self.outputs, line.where)
            for labels, line in zip(stated, value, strict=True)
        ]
        return dict(zip(ids, _indicators(chosen, self.outputs), strict=True))

    def _part(self, columns: int | None, name: str) -> LexGlueTask:
        part = None if self.task is None else TASKS[self.task]
        if columns is None and part is None:
            what = f"--task {'|'.join(TASKS)} does"
            raise UserError(f"{name}: lines do not tell the number of classes; {what}")
        fitting = {*BY_COLUMNS} if part is None else {len(part.classes), _outputs(part)}
        if columns is not None and columns not in fitting:
            expected = " or ".join(map(str, sorted(fitting)))
            what = f"{self.task or 'lexglue'} has {expected}"
            raise DataError(f"{name}: {plural(columns, 'logit')} a row; {what}")
        return part or BY_COLUMNS[columns or 0]

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """micro-f1 and macro-f1, 0 to 100; DataError unless each gold document has a prediction.
        Needs what `parse` sets."""
        part, size = self.part, self.outputs
        right = _indicators([_gold_labels(part, item.right) for item in items], size)
        if len(answers) != len(right):
            raise DataError(
                f"{name}: {plural(len(answers), 'row')}; the gold file has "
                f"{plural(len(right), 'document')}, each of which needs one"
            )
        ids = [item.id for item in items]
        if 0 not in answers:
            base.same_ids(ids, answers, name, "document")
        predicted = np.array([answers[key] for key in (answers if 0 in answers else ids)])

        def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
            return _f1(right, predicted, weights, part)

        metrics, title = defined(figures, np.ones((1, len(items)))), f"lexglue, {part.name}"
        return self.result(items, metrics, figures=figures, title=title)

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial predictions as {description: {position in ``items``, from 0: [outputs] bool
        array}}: the class most frequent among ``items``, and no class where a document may have
        several or none."""
        labels = [_gold_labels(self.part, item.right) for item in items]
        usual = baseline.commonest(labels, default=0)
        constant = {f"always {self.part.classes[usual]}": [usual]}
        if self.part.several:
            constant["always no class"] = []
        return {
            words: dict.fromkeys(range(len(items)), _indicators([chosen], self.outputs)[0])
            for words, chosen in constant.items()
        }


def _outputs(part: LexGlueTask) -> int:
    return SCOTUS_OUTPUTS if part.name == "scotus" else len(part.classes)


def _gold_labels(task: LexGlueTask, line: Example) -> list[int]:
    labels = task.labels(line)
    if labels is None:
        other = "; --task says which of them to read" if task is _ECTHR else ""
        what = f"no field {task.by_number!r}, which gold of {task.name} has{other}"
        raise DataError(f"{line.where}: {what}")
    return labels


def _indicators(labels: Sequence[Sequence[int]], size: int) -> np.ndarray:
    rows = [np.isin(np.arange(size), numbers) for numbers in labels]
    return np.array(rows, bool).reshape(len(rows), size)


def _logits(file: str, name: str) -> np.ndarray:
    lines = records.lines(file, max_line_bytes=_LINE)
    rows = [line.raw.decode("utf-8", "replace").strip("\r\n").split("\t") for line in lines]
    if not rows:
        raise DataError(f"{name}: no rows in it")
    for number, row in enumerate(rows):
        if row[0] != str(number) or len(row) != len(rows[0]):
            raise DataError(
                f"{name}:{number + 1}: {plural(len(row), 'column')}, the first {row[0]!r:.40}; "
                f"expected {number}, the number of the document, and {len(rows[0]) - 1} logits "
                "behind tabs"
            )
    try:
        values = np.array(rows, np.float64)[:, 1:]
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None
    if not np.isfinite(values).all():
        raise DataError(f"{name}: a logit that is not finite")
    return values
