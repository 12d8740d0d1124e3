"""Answers, with their gold and their texts, to the documents of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ldt.data import formats
from ldt.data.formats.entries import once
from ldt.errors import DataError, UserError, plural, shown
from ldt.inference.evaluate import choice_of
from ldt.io import sources
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.metrics import prediction_files
from ldt.metrics.classification import indicators, several
from ldt.metrics.label_doubt import doubts, doubts_of_each
from ldt.metrics.result import Item, Result, count_words
from ldt.report import scores
from ldt.report.model import MISSING, SILENT, Document
from ldt.report.scores import Read
from ldt.report.views import view
from ldt.tasks.base import ANSWER_KEYS, Task, not_empty
from ldt.tasks.deciding import Deciding

SUM = 1e-3  # as far from 1 the probabilities of a document may add up
Examples = Mapping[str, Example]


def gather(
    answers: str,
    *,
    gold: Names | None = None,
    documents: Names | None = None,
    format: str | None = None,
    recipe: str | None = None,
    overrides: Iterable[str] = (),
) -> tuple[Result | None, list[Document]]:
    """Score answers and list their documents, in the order of the gold file, else of the answers.

    Args:
        answers: of ``ldt predict``, lines or a table.
        gold: labelled documents, in a published layout or as ``data.eval`` names them; None for no
            scores.
        documents: the texts, where neither gold nor answers have them.
        format: one of `ldt.metrics.OWN`, or a published format of `ldt.metrics.METRICS`; None where
            a recipe says it, or without gold.
        recipe, overrides: as of `ldt.inference.evaluate.evaluate`.

    Raises:
        UserError: a file that is not there, or cannot be read twice; a recipe that does not suit.
        DataError: a file that cannot be used; a mark that does not fit its text.
    """
    overrides = list(overrides)
    if "-" in [answers, *sources.each(gold or []), *sources.each(documents or [])]:
        raise UserError("a report reads its files twice; save standard input first")
    found = _by_id(prediction_files.answers(answers), answers)
    first = next(iter(found.values()))
    asked = scores.asked(first, format, recipe, overrides, gold)
    task, data = asked.task, asked.data
    texts: Examples = {}
    if documents is not None:
        listed = formats.read(sources.each(documents), data, document=task.reads.document)
        texts = _by_id(listed, sources.named(documents))
    if gold is None:
        read = [Read(_kept(task, each), None, each) for each in found.values()]
    else:
        name = sources.named(gold)
        examples = list(not_empty(task, formats.read(sources.each(gold), data), name))
        once((str(each.id) for each in examples), name)
        rights = _rights(task, data, examples, name)
        read = [
            Read(each, right, _with_choice(task, data, each, found.get(str(each.id))))
            for each, right in zip(examples, rights, strict=True)
        ]
    result, items = None, dict[str, Item]()
    if gold is not None:
        result = scores.result_of(
            answers, gold, asked, format=format, recipe=recipe, overrides=overrides
        )
        items = {item.id: item for item in result.items}
    doubted = _doubts(read)
    made = []
    for each, doubt in zip(read, doubted, strict=True):
        whole = each
        if documents is not None:
            example = _with_text(each.example, texts, documents)
            if gold is None:
                example = replace(example, where=texts[str(example.id)].where)
            whole = each._replace(example=example)
        made.append(_document(task, data, whole, items, doubt))
    return result, made


def _by_id(examples: Iterable[Example], name: str) -> Examples:
    listed = list(examples)
    if not listed:
        raise DataError(f"{name}: nothing in it")
    once((str(each.id) for each in listed), name)
    return {str(each.id): each for each in listed}


def _rights(task: Any, data, examples: Sequence[Example], name: str) -> Sequence[Any]:
    if isinstance(task, Deciding):
        return task.read_labels(examples, data, name)[2]
    return [task.gold(example, data, None) for example in examples]


def _with_choice(task: Any, data, example: Example, answer: Example | None) -> Example | None:
    """An answer that says in words which one of several choices it is, with the place of that."""
    if task.answers.kind != "choice" or answer is None or "choice" in answer.fields:
        return answer
    choice = choice_of(answer, task.choices(example, data))["choice"]
    return replace(answer, fields={**answer.fields, "choice": choice})


def _kept(task: Task, answer: Example) -> Example:
    """Parts of a document that its answer shows."""
    own = {*ANSWER_KEYS, *task.answers.keys}
    return replace(answer, fields={k: v for k, v in answer.fields.items() if k not in own})


def _with_text(example: Example, texts: Examples, documents: Names) -> Example:
    """A gold example, or what an answer has kept, with what its document has."""
    if str(example.id) not in texts:
        raise DataError(
            f"{example.where}: no document {shown(example.id)} in {sources.named(documents)}; "
            "data.id names the field of its ids"
        )
    document = texts[str(example.id)]
    return replace(example, fields={**document.fields, **example.fields})


def _document(
    task: Task, data, read: Read, items: Mapping[str, Item], doubt: tuple[float, str] | None
) -> Document:
    example, answer = read.example, read.answer
    seen = view(task, data, example, answer, read.right)
    right, its_scores = None, dict[str, float]()
    if read.right is not None:
        right, its_scores = scores.of_document(task, data, read, items.get(str(example.id)))
    unanswered = _unanswered(answer)
    return Document(
        id=str(example.id),
        where=example.where,
        text=seen.text,
        asks=seen.asks,
        gold=seen.gold,
        answer=seen.answer,
        right=None if unanswered else right,
        scores=its_scores,
        confidence=None if answer is None else _confidence(answer.fields),
        words=None if seen.text is None else count_words(seen.text),
        marks=seen.marks,
        doubt=doubt and doubt[0],
        doubted=doubt[1] if doubt else "",
        unanswered=unanswered,
        notes=_notes(answer),
    )


def _unanswered(answer: Example | None) -> str:
    """Why nothing is said of a document; "" where something is."""
    if answer is None:
        return MISSING
    fields = answer.fields
    silent = fields.get("abstained") or None in (fields.get("label", 0), fields.get("choice", 0))
    return SILENT if silent else ""


def _confidence(answer: Mapping[str, Any]) -> float | None:
    """The probability of an answer; of several classes that of the least sure of the decisions."""
    by_class, label = answer.get("scores"), answer.get("label")
    value = answer.get("score") if "start" not in answer or "type" in answer else None
    if isinstance(by_class, list):
        value = max(by_class, default=None)
    elif isinstance(by_class, dict) and isinstance(label, list):
        value = min((p if name in label else 1 - p for name, p in by_class.items()), default=None)
    elif isinstance(by_class, dict) and "label" in answer:
        value = max(by_class.values(), default=None) if label is None else by_class.get(label)
    elif "no_answer" in answer:
        value = 1 - answer["no_answer"] if answer.get("answer") else answer["no_answer"]
    elif "entities" in answer:
        value = min((each.get("score", 2) for each in answer["entities"]), default=None)
    return value if isinstance(value, int | float) and 0 <= value <= 1 else None


def _notes(answer: Example | None) -> list[str]:
    if answer is None:
        return ["no answer in the file"]
    fields, notes = answer.fields, []
    if fields.get("empty"):
        notes.append("the document is empty")
    if fields.get("truncated"):
        unread = fields.get("unread_tokens")
        how_much = f", {plural(unread, 'token')} left out" if isinstance(unread, int) else ""
        notes.append(f"not read to its end{how_much}")
    if fields.get("question_cut"):
        notes.append("the question was cut off")
    if fields.get("abstained"):
        why = fields.get("why")
        notes.append("no answer was given" + (f": {why}" if why else ""))
    if fields.get("unfinished"):
        notes.append("the summary has no end")
    return notes


def _doubts(read: Sequence[Read]) -> list[tuple[float, str] | None]:
    """Doubt of each gold label, and, of several labels, the name of the most doubtful one; None
    where no label is in doubt or no probabilities are known."""
    found: list[tuple[float, str] | None] = [None] * len(read)
    golds = [
        each.right.get("label") if isinstance(each.right, dict) else each.right for each in read
    ]
    known, rows, names, right = [], [], list[str](), list[Any]()
    for number, (each, gold) in enumerate(zip(read, golds, strict=True)):
        given = each.answer.fields.get("scores") if each.answer else None
        if not isinstance(gold, str | list) or not isinstance(given, dict):
            continue
        names = names or list(given)
        if given.keys() == {*names} >= {*several(gold)}:
            known.append(number)
            right.append(gold)
            rows.append([given[name] for name in names])
    if not known:
        return found
    probabilities = np.array(rows, float)
    table = indicators(right, names)
    several_each = isinstance(right[0], list)
    if probabilities.min() < 0 or probabilities.max() > 1:
        return found
    doubted = [""] * len(known)
    if several_each:
        each_class = np.nan_to_num(doubts_of_each(probabilities, table), nan=-1)
        values, places = each_class.max(1), each_class.argmax(1).tolist()
        doubted = [
            f"{names[place]!r} {'given' if there[place] else 'missing'}"
            for place, there in zip(places, table, strict=True)
        ]
    elif (abs(probabilities.sum(1) - 1) <= SUM).all():
        values = np.nan_to_num(doubts(probabilities, table.argmax(1)), nan=-1)
    else:
        return found
    for number, value, label in zip(known, values.tolist(), doubted, strict=True):
        found[number] = (value, label) if value >= 0 else None
    return found
