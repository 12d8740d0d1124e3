"""Join answers with gold answers and texts to the documents of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ldt import benchmarks
from ldt.benchmarks import METRICS, formats
from ldt.benchmarks.base import once
from ldt.benchmarks.summarization import ROUGE
from ldt.data import answer_files
from ldt.errors import DataError, UserError, listed, plural, quote
from ldt.inference import evaluate
from ldt.io import sources
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.metrics.classification import as_list, indicators
from ldt.metrics.entities import NAMES, ratios
from ldt.metrics.label_errors import doubts, doubts_of_each
from ldt.metrics.result import Item, Result, count_words
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import recipe_file
from ldt.report.model import MISSING, SILENT, Document
from ldt.report.views import View
from ldt.tasks import OWN
from ldt.tasks.base import ANSWER_KEYS, Task, not_empty
from ldt.tasks.deciding import Deciding
from ldt.tasks.results import choice_of, entities_of, score_of
from ldt.tasks.token_classification import TokenClassification

SUM = 1e-3  # as far from 1 the probabilities of a document may add up
Doubt = tuple[float, str] | None  # of a gold label, and of several the name of the doubtful one


class Read(NamedTuple):
    """Document of a gold file.

    Args:
        example: the record.
        right: gold answer, as from `Task.gold`.
        answer: prediction; None if it is missing.
    """

    example: Example
    right: Any
    answer: Example | None


# Of each published format the keys of the task whose answers it scores, and of the data.
_PUBLISHED: dict[str, tuple[str, str]] = {
    **{name: (name, name) for name in ("squad", "triviaqa", "wikihop", "hotpotqa", "qasper")},
    "coreference": ("coreference", "coreference"),
    "squad2": ("squad", "squad"),
    "cuad": ("squad", "cuad"),
    "nq": ("passage_qa", "nq"),
    "tydiqa": ("passage_qa", "tydiqa"),
    "contractnli": ("evidence_classification", "contractnli"),
    "summarization": ("summarization", "summarization"),
    "conll": ("token_classification", "conll"),
}
# By a key of an answer the task that writes it, the most telling ones first.
_WRITES = {
    **{"tags": "token_classification", "entities": "token_classification"},
    **{"span_probs": "evidence_classification", "passage_score": "passage_qa"},
    **{"supporting_facts": "hotpotqa", "paragraph_probs": "qasper", "summary": "summarization"},
    **{"choice": "multiple_choice", "label": "classification", "question_id": "triviaqa"},
    **{"start": "squad", "answer": "wikihop", "ranking": "reranking"},
    "clusters": "coreference",
}


def _recipe_of(
    answer: Example,
    format: str | None,
    recipe: str | None,
    overrides: Iterable[str],
    gold: Names | None,
) -> Recipe:
    """Recipe for reading gold file, documents and answers; of the task of the first ``answer`` if
    no option names one."""
    if format in OWN:
        return evaluate.recipe_of(format, recipe, overrides)
    if format is not None and format not in _PUBLISHED:
        raise UserError(
            f"--format {format}: no report of it; {listed([*OWN, *_PUBLISHED])} have one"
        )
    name, layout = _PUBLISHED.get(format or "", (None, None))
    keys = [*([f"data.format={layout}"] if layout else []), *overrides]
    if recipe is not None:
        return recipes.load(recipe_file(Path(recipe).expanduser()), keys)
    if name is None and gold is not None:
        raise UserError("--gold: --format or --recipe says how it is read")
    name = name or next((task for key, task in _WRITES.items() if key in answer.fields), None)
    if name is None:
        raise DataError(f"{answer.where}: no answer of a known task among {listed(answer.fields)}")
    if name == "summarization":  # which reads no windows, the default
        keys.insert(0, "data.overflow=truncate")
    return recipes.of_keys({"name": name}, keys, f"--format {format}" if format else "the answers")


def _result_of(answers: str, gold: Names, asked: Recipe, format: str | None) -> Result:
    """Score a file of answers: by the metric of a published format, else as training's evaluation
    does."""
    if format in METRICS and not asked.task.answers.formats:
        return benchmarks.evaluate(gold, answers, format=format, data=asked.data)
    return evaluate.scored(asked, gold, answers)


def _scores(
    task: Task, data, read: Read, item: Item | None
) -> tuple[bool | None, dict[str, float]]:
    """Return True if the document is answered correctly (None if that is a matter of degree), and
    its scores by metric, from 0 to 1."""
    scores = dict(item.scores) if item is not None else {}
    if not scores or any(":" in name for name in scores):  # counts, of entities or of mentions
        where = (read.answer or read.example).where
        if isinstance(task, TokenClassification):
            scores = _entities(read.right, read.answer, task.raw_text(read.example, data))
        else:
            scores = score_of(task, read.right, read.answer, where)
    if task.answers.kind == "summary":
        scores = {name: scores[name] for name in ROUGE}
    decisive = next((name for name in _DECISIVE if name in scores), None)
    return None if decisive is None else scores[decisive] == 1, scores


# The score by which an answer is right or not.
_DECISIVE = (
    *("accuracy", "exact_match", "exact", "em", "class.accuracy", "answer", "Answer F1", "f1"),
)


def _entities(right: Any, answer: Example | None, text: str | None) -> dict[str, float]:
    gold = {*right}
    mine = {*entities_of(answer, text)["entities"]} if answer else set()
    if answer and gold == mine:
        return dict.fromkeys(NAMES, 1.0)
    values = ratios(len(gold), len(mine), len(gold & mine))
    return dict(zip(NAMES, map(float, values), strict=True))


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
        answers: file of ``ldt predict``, lines or a table.
        gold: labelled documents, in a published layout or named as in ``data.eval``; None for no
            scores.
        documents: file of the texts, if neither gold file nor answers contain them.
        format: one of `ldt.tasks.OWN` or `ldt.benchmarks.METRICS`; None if a recipe gives it or
            without gold.
        recipe: recipe or run folder that says how files are read and scored; None: by ``format``.
        overrides: ``key=value`` arguments that change keys of the recipe.

    Returns:
        The scores, None without gold, and the documents.

    Raises:
        UserError: a file is missing or cannot be read twice, or the recipe does not fit.
        DataError: a file cannot be used, or a span does not fit its text.
    """
    overrides = list(overrides)
    if "-" in [answers, *sources.each(gold or []), *sources.each(documents or [])]:
        raise UserError("a report reads its files twice; save standard input first")
    answered = _by_id(answer_files.answers(answers), answers)
    first = next(iter(answered.values()))
    asked = _recipe_of(first, format, recipe, overrides, gold)
    task, data = asked.task, asked.data
    result, items = None, dict[str, Item]()
    if gold is None:
        task_keys = {*ANSWER_KEYS, *task.answers.keys}  # all else a document has left in its answer
        read = []
        for each in answered.values():
            fields = {key: value for key, value in each.fields.items() if key not in task_keys}
            read.append(Read(replace(each, fields=fields), None, each))
    else:
        name = sources.brief(gold)
        examples = list(not_empty(task, formats.read(sources.each(gold), data), name))
        once((str(each.id) for each in examples), name)
        read = [
            Read(each, right, _with_choice(task, data, each, answered.get(str(each.id))))
            for each, right in zip(examples, _rights(task, data, examples, name), strict=True)
        ]
        result = _result_of(answers, gold, asked, format)
        items = {item.id: item for item in result.items}
    doubted = _doubts(read)
    if documents is not None:
        read_texts = formats.read(sources.each(documents), data, document=task.reads.document)
        texts = _by_id(read_texts, sources.brief(documents))
        read = [
            each._replace(example=_with_text(each.example, texts, documents, gold is None))
            for each in read
        ]
    return result, [
        _document(task, data, each, items, doubt) for each, doubt in zip(read, doubted, strict=True)
    ]


def _by_id(examples: Iterable[Example], name: str) -> dict[str, Example]:
    examples = list(examples)
    if not examples:
        raise DataError(f"{name}: nothing in it")
    once((str(each.id) for each in examples), name)
    return {str(each.id): each for each in examples}


def _rights(task: Any, data, examples: Sequence[Example], name: str) -> Sequence[Any]:
    if isinstance(task, Deciding):
        return task.read_labels(examples, data, name)[2]
    return [task.gold(example, data, None) for example in examples]


def _with_choice(task: Any, data, example: Example, answer: Example | None) -> Example | None:
    """Answer with the index of a choice that it names by its text."""
    if task.answers.kind != "choice" or answer is None or "choice" in answer.fields:
        return answer
    choice = choice_of(answer, task.choices(example, data))["choice"]
    return replace(answer, fields={**answer.fields, "choice": choice})


def _with_text(
    example: Example, texts: Mapping[str, Example], documents: Names, is_alone: bool
) -> Example:
    document = texts.get(str(example.id))
    if document is None:
        raise DataError(
            f"{example.where}: no document {quote(example.id)} in {sources.brief(documents)}; "
            "data.id names the field of its ids"
        )
    where = document.where if is_alone else example.where
    return replace(example, fields={**document.fields, **example.fields}, where=where)


def _document(task: Task, data, read: Read, items: Mapping[str, Item], doubt: Doubt) -> Document:
    example, answer = read.example, read.answer
    view = View(task, data, example, answer, read.right)
    right, by_metric = None, dict[str, float]()
    if read.right is not None:
        right, by_metric = _scores(task, data, read, items.get(str(example.id)))
    fields = {} if answer is None else answer.fields
    silent = fields.get("abstained") or None in (fields.get("label", 0), fields.get("choice", 0))
    unanswered = MISSING if answer is None else SILENT if silent else ""
    return Document(
        id=str(example.id),
        where=example.where,
        text=view.text,
        asks=view.asks,
        gold=view.gold,
        answer=view.answer_text,
        right=None if unanswered else right,
        scores=by_metric,
        confidence=None if answer is None else _confidence(answer.fields),
        words=None if view.text is None else count_words(view.text),
        marks=view.marks,
        doubt=doubt and doubt[0],
        doubted=doubt[1] if doubt else "",
        unanswered=unanswered,
        notes=_notes(answer),
    )


def _confidence(answer: Mapping[str, Any]) -> float | None:
    """Probability of an answer; in multi-label classification that of the least certain label."""
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
    fields = answer.fields
    unread = fields.get("unread_tokens")
    left_out = f", {plural(unread, 'token')} left out" if isinstance(unread, int) else ""
    why = f": {fields['why']}" if fields.get("why") else ""
    lines = {
        "empty": "the document is empty",
        "truncated": f"not read to its end{left_out}",
        "question_cut": "the question was cut off",
        "abstained": f"no answer was given{why}",
        "unfinished": "the summary has no end",
    }
    return [line for key, line in lines.items() if fields.get(key)]


def _doubts(read: Sequence[Read]) -> list[Doubt]:
    """Confident-learning doubt of each gold label; None if there is none or probabilities are
    unknown."""
    doubts_of_all: list[Doubt] = [None] * len(read)
    places, rows, names, right = [], [], list[str](), list[Any]()
    for place, each in enumerate(read):
        gold = each.right.get("label") if isinstance(each.right, dict) else each.right
        by_class = each.answer.fields.get("scores") if each.answer else None
        if not isinstance(gold, str | list) or not isinstance(by_class, dict):
            continue
        names = names or list(by_class)
        if by_class.keys() == {*names} >= {*as_list(gold)}:
            places.append(place)
            right.append(gold)
            rows.append([by_class[name] for name in names])
    probabilities = np.array(rows, float)
    if not rows or probabilities.min() < 0 or probabilities.max() > 1:
        return doubts_of_all
    table = indicators(right, names)
    doubted = [""] * len(rows)
    if isinstance(right[0], list):
        each_class = np.nan_to_num(doubts_of_each(probabilities, table), nan=-1)
        values, classes = each_class.max(1), each_class.argmax(1).tolist()
        doubted = [
            f"{names[place]!r} {'given' if there[place] else 'missing'}"
            for place, there in zip(classes, table, strict=True)
        ]
    elif (abs(probabilities.sum(1) - 1) <= SUM).all():
        values = np.nan_to_num(doubts(probabilities, table.argmax(1)), nan=-1)
    else:
        return doubts_of_all
    for place, value, label in zip(places, values.tolist(), doubted, strict=True):
        doubts_of_all[place] = (value, label) if value >= 0 else None
    return doubts_of_all
