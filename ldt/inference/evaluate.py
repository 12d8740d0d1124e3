"""Scores of answers in ldt's own layout: the gold file is read as a training reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ldt import metrics
from ldt.data import formats
from ldt.data.corpus import fingerprint
from ldt.data.formats.entries import once
from ldt.data.labels import MULTI, REGRESSION, Gold, LabelReader, is_blank
from ldt.data.options import DataSection
from ldt.data.sentences import trimmed
from ldt.errors import DataError, UserError, listed, plural, shown
from ldt.inference.rules import of_answer
from ldt.io import sources
from ldt.io.records import Example, field
from ldt.io.sources import Names
from ldt.metrics import own_answers, prediction_files, summarization
from ldt.metrics.baseline import no_better
from ldt.metrics.classification import several
from ldt.metrics.conll import Entity
from ldt.metrics.own_answers import Judged
from ldt.metrics.result import Item, Result, compare, count_words, mean, some, unmatched
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import recipe_file
from ldt.tasks.base import Task, named_labels, not_empty, path_of, score_all, settings_of
from ldt.tasks.classification import Classification
from ldt.tasks.multiple_choice import MultipleChoice
from ldt.tasks.text import sentences
from ldt.tasks.token_classification import TokenClassification, by_sentence

# Of each format (`ldt.metrics.OWN`) the keys of the task whose answers they are.
_TASKS: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification"},
    "regression": {"name": "classification", "problem": "regression"},
    "token_classification": {"name": "token_classification"},
    "multiple_choice": {"name": "multiple_choice"},
}
# Of each kind of answers (`ldt.tasks.base.Answers`) that is scored here, its formats.
SCORED = {
    "label": ("classification", "regression"),
    "entities": ("token_classification",),
    "choice": ("multiple_choice",),
}
_SCORES = "scores."  # begins the columns of a table of answers
_OF_ANSWERS = {"windows", "scores"}  # keys that gold files do not have

Answers = Mapping[str, Example]


def evaluate(
    gold: Names,
    pred: Names,
    *,
    format: str | None = None,
    recipe: str | None = None,
    overrides: Iterable[str] = (),
) -> Result:
    """Score answers of `ldt predict`, or of others in its layout.

    Args:
        gold: labelled documents, as ``data.eval`` names them.
        pred: the answers, JSON lines or a table.
        format: one of `ldt.metrics.OWN`; None where there is a recipe, whose task and layout say
            how answers are scored.
        recipe: a recipe, or the folder of a run, whose ``task`` and ``data`` say how the gold file
            is read; None for the defaults of the task.
        overrides: keys of the recipe to change, such as ``data.label=class``.

    Raises:
        UserError: a file that is not there, a recipe that does not suit.
        DataError: a file that cannot be used.
    """
    asked = recipe_of(format, recipe, overrides)
    task, data = asked.task, asked.data
    if task.answers.kind not in SCORED and data.format in metrics.METRICS:
        return _published(asked, gold, pred)
    golds, file = sources.each(gold), sources.only(pred, "answers")
    if [*golds, file].count("-") > 1:
        raise UserError("standard input can be one file only; name the other")
    name = "stdin" if file == "-" else file
    examples = list(not_empty(task, formats.read(golds, data), sources.named(golds)))
    found = list(prediction_files.answers(file))
    if not found:
        raise DataError(f"{name}: no answers in it")
    _refuse_swapped(task, data, examples[0], found[0], name)
    once((str(example.id) for example in examples), sources.named(golds))
    once((str(each.id) for each in found), name)
    answers = {str(each.id): each for each in found}
    ids = [str(example.id) for example in examples]
    missing, extra = compare(ids, answers)
    if len(missing) == len(ids):
        raise DataError(
            f"{name}: no id of it is in {sources.named(golds)}: {some(extra)}; there "
            f"{some(missing)}; data.id names the field"
        )
    score = _SCORERS.get(type(task), _by_rules)
    result, right, config = score(task, data, examples, answers, name)
    result.extra = extra
    result.warnings[:0] = unmatched(result, name)
    result.baselines = task.baseline(right, right, config)
    result.warnings += no_better(result.metrics, result.baselines)
    return result


def _published(asked: Recipe, gold: Names, pred: Names) -> Result:
    """The published metric of the layout that a recipe reads."""
    task, data, format = asked.task, asked.data, str(asked.data.format)
    if format in ("squad", "cuad"):
        golds, files = sources.each(gold), sources.each(pred)
        if "-" in [*golds, *files]:
            raise UserError(f"--format says how standard input is scored, of {format} files")
        few = format == "cuad" and any(
            "n_best" not in each.fields for each in prediction_files.answers(files[0])
        )
        if few or format == "squad":
            examples = formats.read(golds, data)
            answered = all(task.gold(each, data, None)["answers"] for each in examples)
            format = "squad" if answered else "squad2"
    return metrics.evaluate(gold, pred, format=format, data=data)


def reading_of(format: str, overrides: Iterable[str]) -> DataSection:
    """The data section by which a gold file of a published layout is read.

    Args:
        overrides: ``data.encoding=…``, of conll ``data.fields.tags=…`` and of triviaqa
            ``data.domain=…`` and ``data.evidence=…`` too.

    Raises:
        RecipeError: another key.
    """
    names: tuple[str, ...] = ("encoding",)
    if format == "conll":
        names += ("fields.tokens", "fields.tags")
    if format == "triviaqa":
        names += ("domain", "evidence", "format")
        overrides = ["data.format=triviaqa", *overrides]
    return recipes.reading(overrides, names)


def recipe_of(format: str | None, name: str | None, overrides: Iterable[str]) -> Recipe:
    """The recipe by which `evaluate` reads a gold file, see there.

    Raises:
        UserError, RecipeError: it does not suit, or cannot be read.
    """
    if name is None:
        assert format is not None  # one of them is asked for
        return recipes.of_keys(dict(_TASKS[format]), overrides, f"--format {format}")
    found = recipes.load(recipe_file(Path(name).expanduser()), overrides)
    if found.task.reads.kind != "examples":
        raise UserError(f"--recipe {name}: {found.task.name} has no answers to score")
    if format is not None and format not in SCORED.get(found.task.answers.kind, ()):
        raise UserError(f"--recipe {name}: answers of {found.task.name}, not of {format}")
    if format == "regression" and found.task.problem != "regression":
        task = found.task.model_copy(update={"problem": "regression"})
        return Recipe(task, found.model, found.data, found.training, found.path, found.places)
    return found


def _refuse_swapped(task: Task, data, gold: Example, answer: Example, name: str) -> None:
    """Refuse a gold file in the place of answers, by what only one of them has."""
    asked = {
        path_of(task, each, data) for each in (task.reads.document, "tokens", *task.reads.asked)
    }
    inputs = [not asked.isdisjoint(each.fields) for each in (gold, answer)]
    outputs = [not _OF_ANSWERS.isdisjoint(each.fields) for each in (gold, answer)]
    if inputs == [False, True] or (inputs[0] == inputs[1] and outputs == [True, False]):
        raise DataError(
            f"{name}: looks like a gold file, not like answers; are --gold and --pred swapped?"
        )


def _classes(
    task: Classification, data, examples: Sequence[Example], answers: Answers, name: str
) -> tuple[Result, list[Gold], Any]:
    problem, _, golds = task.read_labels(examples, data, "the gold file")
    found = {id: _label(each, task, data, problem) for id, each in answers.items()}
    if problem == REGRESSION:
        numbers = {id: {"label": label} for id, label in found.items()}
        config = SimpleNamespace(problem_type=problem, **named_labels(several(data.label)))
        result = own_answers.numbers(_judged(task, data, examples, golds, numbers))
        lacking = [id for id in map(_id, examples) if found.get(id) is None]
        if lacking:
            what = f"{plural(len(lacking), 'document')} without a number, left out of all figures"
            result.warnings.append(f"{name}: {what} but coverage: {some(lacking)}")
        return result, golds, config
    scores = {id: _scores(each) for id, each in answers.items()}
    names = _class_names(task, data, golds, found, scores, name)
    read: dict[str, dict[str, Any]] = {
        id: {"label": found[id], "scores": scores[id]} for id in answers
    }
    judged = _judged(task, data, examples, golds, read)
    result = own_answers.classes(judged, names, several=problem == MULTI)
    result.warnings += _strangers(golds, found, scores, name)
    lacking = [id for id, each in scores.items() if each is None]
    if 0 < len(lacking) < len(scores):
        what = f"{plural(len(lacking), 'answer')} without scores, left out of ranking and"
        result.warnings.append(f"{name}: {what} calibration: {some(lacking)}")
    return result, golds, SimpleNamespace(problem_type=problem, **named_labels(names))


def _class_names(task, data, golds, found, scores, name: str) -> list[str]:
    """All classes: in the order of the scores, then those of the task, gold and answers.

    Raises:
        DataError: answers that have scores of other classes than the first; or no class of gold.
    """
    first = next((each for each in scores.values() if each), None)
    for id, each in scores.items():
        if first and each and each.keys() != first.keys():
            what = f"scores of {listed(each)}; the first answer with some has {listed(first)}"
            raise DataError(f"{name}: {shown(id)}: {what}")
    right = {label for gold in golds for label in several(gold)}
    predicted = {label for each in found.values() if each is not None for label in several(each)}
    known = [*(first or ()), *(task.labels or ()), *task.labels_of(data).columns.values()]
    if right and predicted and right.isdisjoint(predicted | {*(first or ())}):
        raise DataError(
            f"{name}: no label of it is in the gold file: {listed(sorted(predicted), 3)}; there "
            f"{listed(sorted(right), 3)}"
        )
    return list(dict.fromkeys([*known, *sorted(right), *sorted(predicted)]))


def _strangers(golds, found, scores, name: str) -> list[str]:
    """Warnings of classes that only one of the two files knows."""
    right = {label for gold in golds for label in several(gold)}
    first = next((each for each in scores.values() if each), None)
    predicted = {label for each in found.values() if each is not None for label in several(each)}
    lines = []
    if first is not None and right - first.keys():
        lines.append(f"{name}: gold classes without scores: {listed(sorted(right - first.keys()))}")
    if predicted - right - {*(first or ())}:
        strange = listed(sorted(predicted - right - {*(first or ())}))
        lines.append(f"{name}: classes that no gold document has: {strange}")
    return lines


def _label(each: Example, task: Classification, data, problem: str) -> Gold | None:
    """The label of an answer, read as that of a gold file; None of a silent one."""
    value = field(each, "label")
    if is_blank(value):
        return None
    parted = isinstance(value, str) and not value.lstrip().startswith("[")
    reader = LabelReader("label", data.label_separator if parted else None, task.labels)
    return reader.gold(each, problem)


def _scores(each: Example) -> dict[str, float] | None:
    """The scores of an answer by class, also those of a table."""
    fields = each.fields
    given = fields.get("scores")
    if given is None:
        given = {k.removeprefix(_SCORES): v for k, v in fields.items() if k.startswith(_SCORES)}
    given = _parsed(given)
    if not isinstance(given, dict):
        raise DataError(f"{each.where}: scores is {shown(given)}, expected {{class: number}}")
    return {name: _number(given, name, f"{each.where}: scores") for name in given} or None


def _number(values: Any, key: Any, where: str) -> float:
    """A finite number, which of a table may be text."""
    value = _parsed(values[key])
    found = prediction_files.number({key: value}, key, where)
    if not math.isfinite(found):
        raise DataError(f"{where}: {key} is {found}, expected a finite number")
    return found


def _parsed(value: Any) -> Any:
    """Value of a cell of a table that holds JSON; anything else as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _entities(
    task: TokenClassification, data, examples: Sequence[Example], answers: Answers, name: str
) -> tuple[Result, list[list[Entity]], Any]:
    golds = [task.gold(example, data, None) for example in examples]
    texts = {_id(example): task.raw_text(example, data) for example in examples}
    read = {id: found_entities(each, texts.get(id)) for id, each in answers.items()}
    right = {entity.label for gold in golds for entity in gold}
    found = {entity.label for each in read.values() for entity in each["entities"]}
    result = own_answers.entities(_judged(task, data, examples, golds, read))
    if found - right:
        strange = listed(sorted(found - right))
        result.warnings.append(f"{name}: types that no gold entity has: {strange}")
    tags = ["O", *(f"{kind}-{label}" for label in sorted(right) for kind in "BI")]
    return result, golds, SimpleNamespace(**named_labels(tags))


def found_entities(each: Example, text: str | None = None) -> dict[str, Any]:
    """The entities of an answer, or those of its tags.

    Args:
        text: their places are characters of, which `trimmed` shall clean; none of given words.
    """
    if "entities" not in each.fields and "tags" in each.fields:
        tagged = Example({"tags": _parsed(each.fields["tags"])}, each.id, each.where)
        try:
            return {"entities": by_sentence(sentences(tagged, "tags")[0]), "scores": None}
        except ValueError as error:
            raise DataError(f"{each.where}: field 'tags': {error}") from None
    given = _parsed(field(each, "entities"))
    if not isinstance(given, list) or not all(map(_is_entity, given)):
        raise DataError(
            f"{each.where}: entities is {shown(given)}, expected a list of {{start, end, label}}"
        )
    found = [Entity(*(entity[key] for key in Entity._fields)) for entity in given]
    if text is not None:
        found = [Entity(*trimmed(text, start, end), label) for start, end, label in found]
    scored = bool(given) and all("score" in entity for entity in given)
    where = f"{each.where}: entities"
    scores = [_number(entity, "score", where) for entity in given] if scored else None
    return {"entities": found, "scores": scores}


def _is_entity(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("label"), str):
        return False
    return all(type(value.get(key)) is int for key in ("start", "end"))


def _choices(
    task: MultipleChoice, data, examples: Sequence[Example], answers: Answers, name: str
) -> tuple[Result, list[dict[str, int]], Any]:
    golds = [task.gold(example, data, None) for example in examples]
    read = {
        _id(example): choice_of(answers[_id(example)], task.choices(example, data))
        for example in examples
        if _id(example) in answers
    }
    places = [gold["choice"] for gold in golds]
    return own_answers.choices(_judged(task, data, examples, places, read)), golds, None


def choice_of(each: Example, choices: Sequence[str]) -> dict[str, Any]:
    """The place of the chosen one, None of a silent answer, and the scores of all."""
    key = "choice" if "choice" in each.fields else "answer"
    value = _parsed(field(each, "choice")) if key == "choice" else field(each, "answer")
    if key == "answer" and value is not None and choices.count(value) == 1:
        value = choices.index(value)
    is_place = type(value) is int and 0 <= value < len(choices)
    if not is_place and not is_blank(value):
        raise DataError(
            f"{each.where}: {key} is {shown(value)}, expected one of the {len(choices):,} choices "
            f"or its place, 0 to {len(choices) - 1:,}"
        )
    scores = _parsed(each.fields.get("scores"))
    if scores is None:
        return {"choice": value if is_place else None, "scores": None}
    if not isinstance(scores, list) or len(scores) != len(choices):
        raise DataError(
            f"{each.where}: scores is {shown(scores)}, expected {len(choices):,} numbers, one of "
            "each choice"
        )
    numbers = [_number(scores, place, f"{each.where}: scores") for place in range(len(scores))]
    return {"choice": value if is_place else None, "scores": numbers}


def _by_rules(
    task: Task, data, examples: Sequence[Example], answers: Answers, name: str
) -> tuple[Result, list[Any], Any]:
    """The scores of answers to questions, and of summaries, as an evaluation while training has
    them.

    Raises:
        DataError: a document without an answer, of a task whose figures need one of each.
    """
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
            item.scores = of_answer(task, gold, answer, (answer or example).where)
        figures = mean([item.scores for item in items], derive)
    result = Result(task.name, items, figures, "documents", missing, [], derive=derive)
    result.noun = "document" if task.reads.noun == "documents" else "question"
    result.no_place = "the metric of a published layout tells it"
    return result, golds, config


def _config(golds: Sequence[Any]) -> Any:
    """The config of a model that knows the labels of these golds, or that there may be no
    answer."""
    facts = [gold for gold in golds if isinstance(gold, dict)]
    labels = dict.fromkeys(gold["label"] for gold in facts if "label" in gold)
    unanswered = any(gold.get("answers") == [] for gold in facts)
    named = named_labels([*labels]) if labels else {}
    return SimpleNamespace(no_answer_threshold=0.5 if unanswered else None, **named)


def _judged(
    task: Task,
    data,
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
            about: tuple[Hashable, int | None] = (id, None)
        else:
            about = fingerprint(document), count_words(document)
        judged.append(Judged(id, example.where, *about, gold, read.get(id)))
    return judged


def _id(example: Example) -> str:
    return str(example.id)


_SCORERS: dict[type, Callable] = {
    Classification: _classes,
    TokenClassification: _entities,
    MultipleChoice: _choices,
}
