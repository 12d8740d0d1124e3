"""LexGLUE: micro-f1 and macro-f1 of ECtHR A and B, SCOTUS, EUR-LEX and UNFAIR-ToS.

Predictions are the published table of logits, or JSON lines with the numbers of classes.

Source: Chalkidis et al. 2022 (arXiv:2110.00976), the rules of their training scripts.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ldt.data.formats import lexglue as layout
from ldt.data.formats.lexglue import TASKS, LexGlueTask
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, UserError, listed, plural
from ldt.io import records
from ldt.io.records import Example
from ldt.io.sources import Names, only
from ldt.io.streams import beginning
from ldt.io.strict_json import JsonFile, take
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.classification import f1_of_draws
from ldt.metrics.result import Item, Result, count_words, defined

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
    """The classes [documents, classes] bool that logits say.

    With several a document, those whose sigmoid is above 0.5, so that a logit of 0 is no; else
    the highest, the first at a tie.
    """
    if several:
        return logits > 0
    return np.arange(logits.shape[1]) == logits.argmax(1)[:, None]


def with_none(classes: np.ndarray) -> np.ndarray:
    """Classes [documents, classes] bool with one more, of documents that have no other."""
    return np.column_stack([classes, ~classes.any(1)])


def f1(
    gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray, task: LexGlueTask
) -> dict[str, np.ndarray]:
    """Return micro-f1 and macro-f1 [draws], from 0 to 100, of documents drawn so often each.

    macro-f1 is the mean over all classes, also those that no document has; in SCOTUS over those
    that occur in gold or predictions.

    Args:
        gold, predicted: [documents, classes] bool, without the class of none.
        weights: [draws, documents].
    """
    if task.none:
        gold, predicted = with_none(gold), with_none(predicted)
    figures = f1_of_draws(gold, predicted, weights, several=task.several)
    return {"micro-f1": figures["micro_f1"], "macro-f1": figures["macro_f1"]}


def table(answers: Iterable[dict]) -> str:
    """The published table: number of the document from 0 and its logits, with 5 decimals, parted
    by tabs, without a header.

    Args:
        answers: each with ``logits``, one a class, in the order of the gold file.
    """
    rows = (
        [str(number), *(f"{logit:.5f}" for logit in answer["logits"])]
        for number, answer in enumerate(answers)
    )
    return "".join("\t".join(row) + "\n" for row in rows)


def published(answers: Iterable[dict]) -> Iterator[dict]:
    """Yield the lines with numbers of classes.

    Args:
        answers: of a classification, each with id, ``label`` (a class, or a list of them) and
            ``scores`` by class. Where a model does not decide, the likeliest class stands; of a
            part in which a document may have none, none.

    Raises:
        DataError: classes of no part of the benchmark.
    """
    for answer in answers:
        part, label = _part(answer), answer["label"]
        if part.several:
            yield {"id": answer["id"], "labels": sorted(map(part.classes.index, label or []))}
        else:
            likeliest = max(answer["scores"], key=answer["scores"].get)
            yield {"id": answer["id"], "label": part.classes.index(label or likeliest)}


def published_logits(answers: Iterable[dict]) -> str:
    """The published table (`table`) of a classification's answers, whose ``scores`` are logits.

    Raises:
        DataError: classes of no part of the benchmark.
    """
    return table(
        {"logits": [answer["scores"][name] for name in _part(answer).classes]} for answer in answers
    )


def part_of(classes: Iterable[str]) -> LexGlueTask | None:
    """The part of the benchmark that has these classes, None where none has; ECtHR A stands for
    B."""
    names = set(classes)
    return next((task for task in TASKS.values() if names == set(task.classes)), None)


def _part(answer: dict) -> LexGlueTask:
    """The part of the benchmark whose classes an answer has."""
    names, part = set(answer["scores"]), part_of(answer["scores"])
    if part is None:
        raise DataError(
            f"{answer['id']}: the classes {listed(sorted(names))}; the layout lexglue has those of "
            f"{', '.join(TASKS)}"
        )
    return part


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """The lines of a gold file (see `ldt.data.formats.lexglue.lines`).

    Raises:
        UserError: there is no such file, or there are several.
        DataError: it is damaged, has another layout, or no line.
    """
    file = only(source, f"the documents of {format}")
    name = "stdin" if file == "-" else file
    if _first(file) not in ("", "{", "["):
        raise DataError(
            f"{name}: looks like a table of logits, not like a gold file; are --gold and --pred "
            "swapped?"
        )
    lines = layout.lines(file, data.encoding)
    if not lines:
        raise DataError(f"{name}: no documents in it")
    return JsonFile(name, lines)


def read_predictions(source: Names) -> JsonFile:
    """The lines of predictions, or a table of logits [documents, classes].

    Raises:
        UserError: there is no such file, or there are several.
        DataError: it is damaged.
    """
    file = only(source, "predictions of lexglue")
    name = "stdin" if file == "-" else file
    return JsonFile(name, layout.lines(file) if _first(file) in ("{", "[") else _logits(file, name))


def evaluate(gold: JsonFile, predictions: JsonFile, *, task: str | None = None) -> Result:
    """Score by the published rules; gold and predictions have as many documents.

    Args:
        gold, predictions: as `read_gold` and `read_predictions` have them.
        task: a name in `TASKS`; a table says by its columns which rules it needs.

    Raises:
        UserError: no task where the files do not tell it.
        DataError: a file that cannot be used.
    """
    part = _task(predictions, task)
    logits = isinstance(predictions.value, np.ndarray)
    size = predictions.value.shape[1] if logits else _outputs(part)
    right = _indicators((_gold_labels(part, line) for line in gold.value), size)
    if len(predictions.value) != len(right):
        raise DataError(
            f"{predictions.name}: {plural(len(predictions.value), 'row')}; {gold.name} has "
            f"{plural(len(right), 'document')}, each of which needs one"
        )
    if logits:
        predicted = decided(predictions.value, several=part.several)
    else:
        predicted = _indicators(_predicted_labels(part, gold, predictions), size)

    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        return f1(right, predicted, weights, part)

    items = [Item(str(line.id), line.id, {}, _words(line.fields)) for line in gold.value]
    metrics = defined(figures, np.ones((1, len(items))))
    result = Result(f"lexglue, {part.name}", items, metrics, "documents", [], [], figures=figures)
    result.noun = "document"
    result.no_length = "the gold file has no text"
    result.no_place = "a class has no place"
    return result


def baselines(
    gold: JsonFile, evaluate: Callable, predictions: JsonFile, task: str | None = None
) -> Baselines:
    """Scores of the most frequent class, and of none where a document may have none."""
    part = _task(predictions, task)
    labels = [_gold_labels(part, line) for line in gold.value]
    usual = baseline.commonest(labels, default=0)
    constant = {f"always {part.classes[usual]}": [usual]}
    if part.several:
        constant["always no class"] = []
    rows = {}
    for name, numbers in constant.items():
        chosen = np.isin(np.arange(len(part.classes)), numbers)
        rows[name] = np.tile(np.where(chosen, 1.0, -1.0), (len(labels), 1))
    return baseline.of_files(partial(evaluate, task=task), gold, rows)


def _task(predictions: JsonFile, name: str | None) -> LexGlueTask:
    """The part of the benchmark that predictions are of."""
    is_table = isinstance(predictions.value, np.ndarray)
    if name is None and not is_table:
        raise UserError(
            f"{predictions.name}: lines do not tell the number of classes; --task "
            f"{'|'.join(TASKS)} does"
        )
    if not is_table:
        return TASKS[str(name)]
    columns = predictions.value.shape[1]
    fitting = BY_COLUMNS if name is None else {len(TASKS[name].classes), _outputs(TASKS[name])}
    if columns not in fitting:
        expected = " or ".join(map(str, sorted(fitting)))
        raise DataError(
            f"{predictions.name}: {plural(columns, 'logit')} a row; {name or 'lexglue'} has "
            f"{expected}"
        )
    return BY_COLUMNS[columns] if name is None else TASKS[name]


def _outputs(part: LexGlueTask) -> int:
    return SCOTUS_OUTPUTS if part.name == "scotus" else len(part.classes)


def _gold_labels(task: LexGlueTask, line: Example) -> list[int]:
    labels = task.labels(line.fields, line.where)
    if labels is None:
        other = "; --task says which of them to read" if task is _ECTHR else ""
        key = "labels" if task.several else "label"
        raise DataError(f"{line.where}: no field {key!r}, which gold of {task.name} has{other}")
    return labels


def _predicted_labels(
    task: LexGlueTask, gold: JsonFile, predictions: JsonFile
) -> Iterator[list[int]]:
    """The classes of the documents in the order of the gold file."""
    by_id = {str(line.id): line for line in predictions.value}
    for document in gold.value:
        line = by_id.get(str(document.id))
        if line is None:
            raise DataError(f"{predictions.name}: no prediction of {str(document.id)!r}")
        if "text" in line.fields or "facts" in line.fields:
            raise DataError(
                f"{line.where}: looks like a lexglue gold file, not like predictions; are --gold "
                "and --pred swapped?"
            )
        key, kind = ("labels", list) if task.several else ("label", int)
        value: Any = take(line.fields, key, kind, line.where)
        yield layout.numbers(value if task.several else [value], _outputs(task), line.where)


def _indicators(labels: Iterable[Sequence[int]], size: int) -> np.ndarray:
    """Numbers of classes as [documents, classes] bool."""
    rows = [np.isin(np.arange(size), numbers) for numbers in labels]
    return np.array(rows, bool).reshape(len(rows), size)


def _words(fields: dict[str, Any]) -> int | None:
    text = fields.get("facts", fields.get("text"))
    texts = text if isinstance(text, list) else [text]
    known = all(isinstance(part, str) for part in texts)
    return sum(map(count_words, texts)) if known else None


def _first(file: str) -> str:
    """The first character of a file, "" of an empty one."""
    head = beginning(file, 1 << 10, lambda head: bool(head.strip()))
    return head.decode("utf-8-sig", "ignore").lstrip()[:1]


def _logits(file: str, name: str) -> np.ndarray:
    """A published table as [documents, classes].

    Raises:
        DataError: a row that is not numbered on, or has other columns than the first.
    """
    rows: list[list[float]] = []
    for line in records.lines(file, max_line_bytes=_LINE):
        cells = line.raw.decode("utf-8", "replace").strip("\r\n").split("\t")
        where = f"{name}:{line.number}"
        if cells[0] != str(len(rows)):
            raise DataError(
                f"{where}: the row begins with {cells[0]!r:.40}, expected {len(rows)}, the number "
                "of the document, and its logits behind tabs"
            )
        try:
            values = [float(cell) for cell in cells[1:]]
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        if not all(map(math.isfinite, values)):
            raise DataError(f"{where}: a logit that is not finite")
        if rows and len(values) != len(rows[0]):
            raise DataError(
                f"{where}: {plural(len(values), 'logit')}, in the rows before {len(rows[0])}"
            )
        rows.append(values)
    if not rows:
        raise DataError(f"{name}: no rows in it")
    return np.array(rows, np.float64)
