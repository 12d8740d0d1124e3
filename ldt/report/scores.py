"""Scores of answers for a report: of all of them, and of each."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ldt import metrics
from ldt.data.records import Example
from ldt.data.sources import Names
from ldt.errors import DataError, UserError, listed
from ldt.inference import evaluate
from ldt.metrics import (
    OWN,
    conll,
    hotpotqa,
    passage_qa,
    qasper,
    rouge,
    squad,
    summarization,
    triviaqa,
    wikihop,
)
from ldt.metrics.classification import several
from ldt.metrics.result import Item, Result, compare, mean, some, unmatched
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import RECIPE, Recipe
from ldt.tasks import TASKS
from ldt.tasks.base import Task
from ldt.tasks.passage_qa import prediction


class Read(NamedTuple):
    """A document of a gold file.

    Args:
        example: as it is read.
        right: its right answer, as `Task.gold` has it.
        answer: that it got; None where it got none.
    """

    example: Example
    right: Any
    answer: Example | None

    @property
    def where(self) -> str:
        """The answer, or else the document, in messages."""
        return (self.answer or self.example).where


# Of each published format the keys of the task whose answers it scores, and of the data.
_PUBLISHED: dict[str, tuple[str, str]] = {
    **{name: (name, name) for name in ("squad", "triviaqa", "wikihop", "hotpotqa", "qasper")},
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
    **{"start": "squad", "answer": "wikihop"},
}


def asked(
    answer: Example,
    format: str | None,
    recipe: str | None,
    overrides: Iterable[str],
    gold: Names | None,
) -> Recipe:
    """The task and the data section by which gold, documents and answers are read.

    Args:
        answer: the first one, which tells the task where nothing else does.

    Raises:
        UserError: neither format nor recipe beside a gold file; answers of no known task.
        RecipeError: a recipe or keys that cannot be used.
    """
    if format in OWN:
        return evaluate.recipe_of(format, recipe, overrides)
    if format is not None and format not in _PUBLISHED:
        raise UserError(
            f"--format {format}: no report of it; {listed([*OWN, *_PUBLISHED])} have one"
        )
    name, layout = _PUBLISHED.get(format or "", (None, None))
    keys = [*([f"data.format={layout}"] if layout else []), *overrides]
    if recipe is not None:
        path = Path(recipe).expanduser()
        return recipes.load(path / RECIPE if path.is_dir() else path, keys)
    if name is None and gold is not None:
        raise UserError("--gold: --format or --recipe says how it is read")
    name = name or next((task for key, task in _WRITES.items() if key in answer.fields), None)
    if name is None:
        raise DataError(f"{answer.where}: no answer of a known task among {listed(answer.fields)}")
    keys.insert(0, f"data.overflow={TASKS[name].overflows[0]}")
    return recipes.of_keys({"name": name}, keys, f"--format {format}" if format else "the answers")


def result_of(
    answers: str,
    gold: Names,
    read: Sequence[Read],
    found: Collection[str],
    asked: Recipe,
    *,
    format: str | None,
    recipe: str | None,
    overrides: Iterable[str],
) -> Result:
    """The scores of all answers: of a published layout by its metric, of other files by the rules
    of an evaluation while training.

    Args:
        read: the documents of the gold file.
        found: ids of the answers.

    Raises:
        UserError, DataError: as `ldt.metrics.evaluate` and `ldt.inference.evaluate.evaluate`.
    """
    task, data = asked.task, asked.data
    if task.name in evaluate.SCORED:
        kind = format if format in OWN else task.name
        keys = [*([f"data.format={data.format}"] if format in _PUBLISHED else []), *overrides]
        return evaluate.evaluate(gold, answers, format=kind, recipe=recipe, overrides=keys)
    published = format or _metric_of(asked, read)
    if published is None:
        return _by_rules(task, read, answers, found)
    options: dict[str, Any] = {}
    if published == "triviaqa":
        options = {"domain": data.domain, "evidence": data.evidence and Path(data.evidence)}
    return metrics.evaluate(gold, answers, format=published, **options)


def _metric_of(asked: Recipe, read: Sequence[Read]) -> str | None:
    """The published metric of the layout that a recipe reads; None of lines."""
    name = asked.data.format
    if name == "cuad" and any(each.answer and "n_best" not in each.answer.fields for each in read):
        name = "squad"
    if name == "squad" and not all(each.right["answers"] for each in read):
        name = "squad2"
    return name if name in _PUBLISHED else None


def _by_rules(task: Task, read: Sequence[Read], name: str, found: Collection[str]) -> Result:
    items = [Item(str(each.example.id), each.where, _of_rules(task, each)) for each in read]
    derive = summarization.metrics if task.name == "summarization" else dict
    missing, extra = compare([item.id for item in items], found)
    if len(missing) == len(items):
        raise DataError(f"{name}: no id of it is in the gold file: {some(extra)}; data.id names it")
    if task.name == "passage_qa":  # whose figures are at the best thresholds
        known = [each for each in read if each.answer]
        answers = [dict(each.answer.fields) for each in known if each.answer]
        figures, _ = task.score(answers, [each.right for each in known], None)
        items = [Item(item.id, item.unit, {}) for item in items]
    else:
        figures = mean([item.scores for item in items], derive)
    result = Result(task.name, items, figures, task.noun, missing, extra, derive=derive)
    result.no_length = result.no_place = "not told of lines"
    result.warnings = unmatched(result, name)
    return result


def of_document(task: Task, read: Read, item: Item | None) -> tuple[bool | None, dict[str, float]]:
    """Whether a document is answered rightly, None where that is a matter of degree; and its
    scores by the names of the metrics, from 0 to 1.

    Args:
        item: the document among those of a `Result`, None where that has none.

    Raises:
        DataError: an answer that is not as ``ldt predict`` writes it.
    """
    scores = dict(item.scores) if item is not None else {}
    if not scores or task.name == "token_classification":  # whose scores are counts
        scores = _of_rules(task, read)
    if task.name == "summarization":
        scores = {name: scores[name] for name in rouge.NAMES}
    decisive = next((name for name in _DECISIVE if name in scores), None)
    return None if decisive is None else scores[decisive] == 1, scores


def _of_rules(task: Task, read: Read) -> dict[str, float]:
    try:
        return _RULES[task.name](read.right, read.answer)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{read.where}: not as ldt predict writes it ({what})") from None


# The score by which an answer is right or not.
_DECISIVE = (
    *("accuracy", "exact_match", "exact", "em", "class.accuracy", "answer", "Answer F1", "f1"),
)


def _labels(right: Any, answer: Example | None) -> dict[str, float]:
    if isinstance(right, float):
        return {}
    label = _value(answer, "label")
    same = label is not None and {*several(right)} == {*map(str, several(label))}
    return {"exact_match" if isinstance(right, list) else "accuracy": float(same)}


def _entities(right: Any, answer: Example | None) -> dict[str, float]:
    gold = {*right}
    mine = {*evaluate.found_entities(answer)["entities"]} if answer else set()
    if answer and gold == mine:
        return dict.fromkeys(conll.NAMES, 1.0)
    values = conll.ratios(len(gold), len(mine), len(gold & mine))
    return dict(zip(conll.NAMES, map(float, values), strict=True))


def _choice(right: Any, answer: Example | None) -> dict[str, float]:
    return {"accuracy": float(_value(answer, "choice") == right["choice"])}


def _span(right: Any, answer: Example | None) -> dict[str, float]:
    return squad.score2(right, {"answer": _value(answer, "answer")})


def _mention(right: Any, answer: Example | None) -> dict[str, float]:
    return triviaqa.score(right, {"answer": _value(answer, "answer")})


def _candidate(right: Any, answer: Example | None) -> dict[str, float]:
    return wikihop.score(right, {"answer": _value(answer, "answer")})


def _facts(right: Any, answer: Example | None) -> dict[str, float]:
    return hotpotqa.score(right, answer.fields if answer else {})


def _passages(right: Any, answer: Example | None) -> dict[str, float]:
    """Whether passage and answer are right by the published rules; where a question has none,
    whether the model is silent."""
    if answer is None:
        return {"passage": 0.0, "answer": 0.0}
    fields, found = answer.fields, {}
    given = {"passage": fields["passage"] is not None, "answer": bool(fields["answer"])}
    for each, (name, said) in zip(
        passage_qa.scored(right, prediction(fields)), given.items(), strict=True
    ):
        found[name] = each.right * said if each.has_gold else float(not said)
    return found


def _class(right: Any, answer: Example | None) -> dict[str, float]:
    return {"class.accuracy": float(_value(answer, "label") == right["label"])}


def _paper(right: Any, answer: Example | None) -> dict[str, float]:
    if answer is None:
        return dict.fromkeys(qasper.SHOWN, 0.0)
    (line,) = qasper.published([answer.fields | {"id": answer.id}])
    said = {"answer": line["predicted_answer"], "evidence": line["predicted_evidence"]}
    return qasper.score(right, said)


def _summary(right: Any, answer: Example | None) -> dict[str, float]:
    return summarization.score(right, {"summary": _value(answer, "summary") or ""})


def _value(answer: Example | None, key: str) -> Any:
    return None if answer is None else answer.fields.get(key)


_RULES: dict[str, Callable[[Any, Example | None], dict[str, float]]] = {
    "classification": _labels,
    "token_classification": _entities,
    "multiple_choice": _choice,
    "squad": _span,
    "triviaqa": _mention,
    "wikihop": _candidate,
    "hotpotqa": _facts,
    "passage_qa": _passages,
    "evidence_classification": _class,
    "qasper": _paper,
    "summarization": _summary,
}
