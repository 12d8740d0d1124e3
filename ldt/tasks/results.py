"""Score files of answers in ldt's own layout: classes, entities, choices, and other tasks by
scores.

Each function takes a task, the data section, the gold examples, the answers by id and the name of
their file; it returns the result, the gold answers and a model config with their labels, for
scoring trivial answers.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ldt.benchmarks import summarization
from ldt.data.labels import MULTI, REGRESSION, Gold, LabelReader, is_blank
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import DataSection
from ldt.data.sentences import trimmed
from ldt.errors import DataError, listed, plural, quote
from ldt.io.records import Example, field
from ldt.metrics import task_metrics
from ldt.metrics.classification import as_list
from ldt.metrics.entities import Entity, by_sentence
from ldt.metrics.result import Item, Result, count_words, mean, some
from ldt.metrics.task_metrics import Judged
from ldt.tasks.base import Task, named_labels, score_all, settings_of
from ldt.tasks.query_groups import numbers_of
from ldt.tasks.text import read_sentences

Answers = Mapping[str, Example]
Evaluated = tuple[Result, Sequence[Any], Any]


# -- one answer


def score_of(task: Task, right: Any, answer: Example | None, where: str) -> dict[str, float]:
    """Return the scores of one answer, from 0 to 1 by metric, by the task's scorer or, without one,
    by `Task.measure` of this document alone; DataError if the answer is not as ``ldt predict``
    writes it.

    Args:
        task: task of the answer.
        right: gold answer (`Task.gold`).
        answer: the answer; None for a missing one, which has no scores or low ones.
        where: place of the answer, for messages.
    """
    fields, score = None if answer is None else answer.fields, task.answers.score
    try:
        if score is not None:
            return score(right, fields)
        metrics, _ = ({}, []) if fields is None else task.measure([{**fields}], [right], None)
        return {name: value / 100 for name, value in metrics.items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: not as ldt predict writes it ({what})") from None


def score_label(right: Any, answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return accuracy, or for several classes exact_match and f1, of an answer's ``label``, 0 to 1;
    {} for a number. An ``answer`` of None, or without a label, is wrong. ``right`` is the gold
    class, classes or number."""
    if isinstance(right, float):
        return {}
    label = answer and answer.get("label")
    predicted = None if label is None else {*map(str, as_list(label))}
    same = float(predicted == {*as_list(right)})
    if not isinstance(right, list):
        return {"accuracy": same}
    shared, both = len({*right} & (predicted or set())), len({*right}) + len(predicted or ())
    return {"exact_match": same, "f1": 2 * shared / both if both else same}


def score_choice(right: Any, answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return {"accuracy": 1.0} if the answer's ``choice`` is that of ``right``, else, or for None,
    0.0."""
    return {"accuracy": float((answer and answer.get("choice")) == right["choice"])}


def entities_of(answer: Example, text: str | None = None) -> dict[str, Any]:
    """Return {"entities": those of an answer or of its tags, "scores": one each, or None if one
    lacks it}.

    Args:
        answer: record with ``entities``, a list of {start, end, label}, or with ``tags``.
        text: raw text in whose characters entities are given, and then `trimmed`; None for words.

    Raises:
        DataError: they have another form.
    """
    if "entities" not in answer.fields and "tags" in answer.fields:
        try:
            return {"entities": by_sentence(read_sentences(answer, "tags")[0]), "scores": None}
        except ValueError as error:
            raise DataError(f"{answer.where}: field 'tags': {error}") from None
    items = field(answer, "entities")
    shape = {"start": int, "end": int, "label": str}
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and all(type(item.get(key)) is kind for key, kind in shape.items())
        for item in items
    ):
        raise DataError(
            f"{answer.where}: entities is {quote(items)}, expected a list of {{start, end, label}}"
        )
    entities = [Entity(*(item[key] for key in Entity._fields)) for item in items]
    if text is not None:
        entities = [Entity(*trimmed(text, start, end), label) for start, end, label in entities]
    scored = bool(items) and all("score" in item for item in items)
    scores = _numbers({n: item["score"] for n, item in enumerate(items) if scored}, answer.where)
    return {"entities": entities, "scores": [*scores.values()] if scored else None}


def choice_of(answer: Example, choices: Sequence[str]) -> dict[str, Any]:
    """Return {"choice": index, None if the model abstained, "scores": those of all choices, or
    None}.

    The ``answer`` names one of ``choices`` by its index or its text. DataError if it is none of
    them.
    """
    key = "choice" if "choice" in answer.fields else "answer"
    value = field(answer, key)
    if key == "answer" and value is not None and choices.count(value) == 1:
        value = choices.index(value)
    is_place = type(value) is int and 0 <= value < len(choices)
    if not is_place and not is_blank(value):
        raise DataError(
            f"{answer.where}: {key} is {quote(value)}, expected one of the {len(choices):,} "
            f"choices or its place, 0 to {len(choices) - 1:,}"
        )
    scores = answer.fields.get("scores")
    if scores is not None:
        if not isinstance(scores, list) or len(scores) != len(choices):
            raise DataError(
                f"{answer.where}: scores is {quote(scores)}, expected {len(choices):,} numbers, "
                "one of each choice"
            )
        scores = [*_numbers(dict(enumerate(scores)), answer.where).values()]
    return {"choice": value if is_place else None, "scores": scores}


def _numbers(values: Mapping[Any, Any], where: str) -> dict[Any, float]:
    """Scores, checked to be finite numbers."""
    for key, value in values.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise DataError(f"{where}: scores: {key} is {quote(value)}, expected a finite number")
    return {key: float(value) for key, value in values.items()}


# -- a file of answers


def evaluate_classes(
    task: Any, data: DataSection, examples: Sequence[Example], answers: Answers, name: str
) -> Evaluated:
    """Score predicted classes, or numbers of a regression, against gold labels.

    Args:
        task: a `Classification`.
        data: data section of the gold labels.
        examples: gold examples.
        answers: answers by id.
        name: name of their file, in warnings.

    Returns:
        The result, the gold answers, and a config with the names of all labels. DataError if no
            label of the answers is in the gold file, or their scores are of different classes.
    """
    problem, _, golds = task.read_labels(examples, data, "the gold file")
    labels = {id: _label(each, task, data, problem) for id, each in answers.items()}
    if problem == REGRESSION:
        numbers = {id: {"label": label} for id, label in labels.items()}
        config = SimpleNamespace(problem_type=problem, **named_labels(as_list(data.label)))
        result = task_metrics.numbers(_judged(task, data, examples, golds, numbers))
        lacking = [id for id in map(_id, examples) if labels.get(id) is None]
        if lacking:
            what = f"{plural(len(lacking), 'document')} without a number, left out of all figures"
            result.warnings.append(f"{name}: {what} but coverage: {some(lacking)}")
        return result, golds, config
    scores = {id: _scores(each) for id, each in answers.items()}
    first = next((each for each in scores.values() if each), None)
    for id, each in scores.items():
        if first and each and each.keys() != first.keys():
            what = f"scores of {listed(each)}; the first answer with some has {listed(first)}"
            raise DataError(f"{name}: {quote(id)}: {what}")
    scored = {*(first or ())}
    right = {label for gold in golds for label in as_list(gold)}
    predicted = {label for each in labels.values() if each is not None for label in as_list(each)}
    if right and predicted and right.isdisjoint(predicted | scored):
        raise DataError(
            f"{name}: no label of it is in the gold file: {listed(sorted(predicted), 3)}; there "
            f"{listed(sorted(right), 3)}"
        )
    # In the order of the scores, then those of the task, of gold and of the answers.
    known = [*(first or ()), *(task.labels or ()), *task.labels_of(data).columns.values()]
    names = list(dict.fromkeys([*known, *sorted(right), *sorted(predicted)]))
    read = {id: {"label": labels[id], "scores": scores[id]} for id in answers}
    judged = _judged(task, data, examples, golds, read)
    result = task_metrics.classes(judged, names, several=problem == MULTI)
    strange = {"gold classes without scores": right - scored if first else set()}
    strange["classes that no gold document has"] = predicted - right - scored
    result.warnings += [f"{name}: {k}: {listed(sorted(x))}" for k, x in strange.items() if x]
    lacking = [id for id, each in scores.items() if each is None]
    if 0 < len(lacking) < len(scores):
        what = f"{plural(len(lacking), 'answer')} without scores, left out of ranking and"
        result.warnings.append(f"{name}: {what} calibration: {some(lacking)}")
    return result, golds, SimpleNamespace(problem_type=problem, **named_labels(names))


def _label(each: Example, task: Any, data, problem: str) -> Gold | None:
    """Label of an answer, read as in a gold file; None if the model abstained."""
    value = field(each, "label")
    if is_blank(value):
        return None
    parted = isinstance(value, str) and not value.lstrip().startswith("[")
    reader = LabelReader("label", data.label_separator if parted else None, task.labels)
    return reader.gold(each, problem)


def _scores(each: Example) -> dict[str, float] | None:
    scores = each.fields.get("scores") or {}
    if not isinstance(scores, dict):
        raise DataError(f"{each.where}: scores is {quote(scores)}, expected {{class: number}}")
    return _numbers(scores, each.where) or None


def evaluate_entities(
    task: Any, data: DataSection, examples: Sequence[Example], answers: Answers, name: str
) -> Evaluated:
    """Score predicted entities in ``answers`` (by id, from the file ``name``) against those of gold
    ``examples``, by place and type; returns the result, the gold answers, and a config with the
    BIO tags."""
    golds = [task.gold(example, data, None) for example in examples]
    texts = {_id(example): task.raw_text(example, data) for example in examples}
    read = {id: entities_of(each, texts.get(id)) for id, each in answers.items()}
    right = {entity.label for gold in golds for entity in gold}
    strange = {entity.label for each in read.values() for entity in each["entities"]} - right
    result = task_metrics.entities(_judged(task, data, examples, golds, read))
    if strange:
        what = f"types that no gold entity has: {listed(sorted(strange))}"
        result.warnings.append(f"{name}: {what}")
    tags = ["O", *(f"{kind}-{label}" for label in sorted(right) for kind in "BI")]
    return result, golds, SimpleNamespace(**named_labels(tags))


def evaluate_choices(
    task: Any, data: DataSection, examples: Sequence[Example], answers: Answers, name: str
) -> Evaluated:
    """Score the choices in ``answers`` (by id, from the file ``name``) by accuracy against those of
    gold ``examples``; returns the result, the gold answers, and None for a config."""
    golds = [task.gold(example, data, None) for example in examples]
    read = {
        _id(example): choice_of(answers[_id(example)], task.choices(example, data))
        for example in examples
        if _id(example) in answers
    }
    places = [gold["choice"] for gold in golds]
    return task_metrics.choices(_judged(task, data, examples, places, read)), golds, None


def evaluate_rankings(
    task: Task, data: DataSection, examples: Sequence[Example], answers: Answers, name: str
) -> Evaluated:
    """Score the order of each query's documents in ``answers`` (by id, from the file ``name``)
    against the relevance in gold ``examples``; with one document per query, its score as a
    number. Returns the result, the gold answers, and a config with the ``problem_type``."""
    golds = [task.gold(example, data, None) for example in examples]
    if any(len(gold) > 1 for gold in golds):
        result, *_ = evaluate_by_scores(task, data, examples, answers, name)
        return result, golds, SimpleNamespace(problem_type=None)
    labels = {id: {"label": numbers_of(each, "scores", 1)[0]} for id, each in answers.items()}
    judged = _judged(task, data, examples, [label for (label,) in golds], labels)
    return task_metrics.numbers(judged), golds, SimpleNamespace(problem_type=REGRESSION)


def evaluate_by_scores(
    task: Task, data: DataSection, examples: Sequence[Example], answers: Answers, name: str
) -> Evaluated:
    """Score ``answers`` (by id, from the file ``name``) of any other task as training's evaluation
    does; returns the result, the gold answers, and a config with their labels. DataError if an
    answer is missing for a task whose metrics are not means over documents."""
    golds = [task.gold(example, data, None) for example in examples]
    fields = {id: each.fields for id, each in answers.items()}
    judged = _judged(task, data, examples, golds, fields)
    missing = [each.id for each in judged if each.answer is None]
    items = [Item(each.id, each.unit, {}, each.words) for each in judged]
    derive = summarization.metrics if task.answers.kind == "summary" else dict
    config = _config(golds)
    if not task.answers.means:
        if missing:
            what = plural(len(missing), "question")
            raise DataError(f"{name}: {what} without an answer: {some(missing)}; each needs one")
        figures, _ = score_all(task, [dict(fields[each.id]) for each in judged], golds, config)
        settings = settings_of(task, figures)
        figures = {key: value for key, value in figures.items() if key not in settings}
    else:
        for item, gold, example in zip(items, golds, examples, strict=True):
            answer = answers.get(item.id)
            item.scores = score_of(task, gold, answer, (answer or example).where)
        figures = mean([item.scores for item in items], derive)
    result = Result(task.name, items, figures, "documents", missing, [], derive=derive)
    result.noun = "document" if task.reads.noun == "documents" else "question"
    result.no_place = "the metric of a published layout tells it"
    return result, golds, config


def _config(golds: Sequence[Any]) -> Any:
    """Model config that has the labels of these gold answers, or permits no answer."""
    facts = [gold for gold in golds if isinstance(gold, dict)]
    labels = dict.fromkeys(gold["label"] for gold in facts if "label" in gold)
    unanswered = any(gold.get("answers") == [] for gold in facts)
    named = named_labels([*labels]) if labels else {}
    return SimpleNamespace(no_answer_threshold=0.5 if unanswered else None, **named)


def _judged(
    task: Task,
    data: DataSection,
    examples: Sequence[Example],
    golds: Sequence[Any],
    read: Mapping[str, Mapping[str, Any]],
) -> list[Judged]:
    judged = []
    for example, gold in zip(examples, golds, strict=True):
        id = _id(example)
        try:
            document = task.parts(example, data)[0]
        except DataError:  # a gold file may have labels alone
            unit: tuple[Hashable, int | None] = (id, None)
        else:
            unit = fingerprint(document), count_words(document)
        judged.append(Judged(id, example.where, *unit, gold, read.get(id)))
    return judged


def _id(example: Example) -> str:
    return str(example.id)
