"""Scores of answers for a report: of all of them, and of each."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ldt import benchmarks
from ldt.benchmarks import METRICS
from ldt.benchmarks.summarization import ROUGE
from ldt.errors import DataError, UserError, listed
from ldt.inference import evaluate
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.metrics.entities import NAMES, ratios
from ldt.metrics.result import Item, Result
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import recipe_file
from ldt.tasks import OWN
from ldt.tasks.base import Task
from ldt.tasks.results import entities_of, score_of
from ldt.tasks.token_classification import TokenClassification


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
    """The recipe by which gold, documents and answers are read.

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
        return recipes.load(recipe_file(Path(recipe).expanduser()), keys)
    if name is None and gold is not None:
        raise UserError("--gold: --format or --recipe says how it is read")
    name = name or next((task for key, task in _WRITES.items() if key in answer.fields), None)
    if name is None:
        raise DataError(f"{answer.where}: no answer of a known task among {listed(answer.fields)}")
    if name == "summarization":  # which reads no windows, the default
        keys.insert(0, "data.overflow=truncate")
    return recipes.of_keys({"name": name}, keys, f"--format {format}" if format else "the answers")


def result_of(answers: str, gold: Names, asked: Recipe, format: str | None) -> Result:
    """The scores of all answers: of a published format by its metric, else as a training's
    evaluation has them; raises as `ldt.inference.evaluate.evaluate` does."""
    if format in METRICS and not asked.task.answers.own:
        return benchmarks.evaluate(gold, answers, format=format, data=asked.data)
    return evaluate.scored(asked, gold, answers)


def of_document(
    task: Task, data, read: Read, item: Item | None
) -> tuple[bool | None, dict[str, float]]:
    """True if a document is answered rightly, None where that is a matter of degree; and its
    scores by the names of the metrics, from 0 to 1.

    Args:
        item: the document among those of a `Result`, None where that has none.

    Raises:
        DataError: an answer that is not as ``ldt predict`` writes it.
    """
    scores = dict(item.scores) if item is not None else {}
    if not scores or isinstance(task, TokenClassification):  # whose scores are counts
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
