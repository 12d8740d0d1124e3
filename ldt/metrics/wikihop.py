"""WikiHop (Welbl et al. 2018, TACL): accuracy of {id: candidate}."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ldt.data.formats import wikihop as layout
from ldt.data.formats.entries import once
from ldt.data.options import DEFAULTS, DataSection
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile
from ldt.metrics import prediction_files
from ldt.metrics.baseline import Baseline, Baselines
from ldt.metrics.prediction_files import read as read_predictions  # noqa: F401
from ldt.metrics.result import Item, Result, compare, count_words, mean


def published(answers: Iterable[dict]) -> dict[str, str]:
    """{id: candidate}, the best one also where the model gave no answer: the published evaluator
    takes one for each question."""
    return {str(each["id"]): each.get("best", each["answer"]) for each in answers}


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracy: 1.0 if the ``answer`` of both is the same letter by letter, else 0.0."""
    return {"accuracy": float(answer["answer"] == example["answer"])}


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """Read a gold file, which must have this layout (see `prediction_files.read_gold`)."""
    expected = "a list of questions with id, candidates, supports and answer"
    return prediction_files.read_gold(source, format, expected, data.encoding)


def guessing(candidates: Iterable[int]) -> Baselines:
    """The accuracy of a candidate at random, in the mean over all draws, from 0 to 100.

    Args:
        candidates: their number, of each question.
    """
    shares = [1 / number for number in candidates]
    return {"accuracy": Baseline("a candidate at random", 100 * sum(shares) / len(shares))}


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of `guessing`."""
    return guessing(len(set(each.fields["candidates"])) for each in layout.gold(gold))


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score by equality with the answer, letter by letter; a missing prediction counts 0.

    Raises:
        DataError: a file that cannot be used.
    """
    answers = prediction_files.answers_by_id(predictions)
    ids, items, strange = [], [], []
    for example in layout.gold(gold):
        id, fields = str(example.id), example.fields
        ids.append(id)
        scores = score(fields, {"answer": answers.get(id)})
        items.append(Item(id, id, scores, sum(map(count_words, fields["supports"]))))
        if id in answers and answers[id] not in fields["candidates"]:
            strange.append(id)
    once(ids, gold.name)
    missing, extra = compare(ids, answers)
    metrics = mean([item.scores for item in items]) | {"total": len(items)}
    result = Result("wikihop", items, metrics, "questions", missing, extra)
    result.no_place = "a wikihop file does not tell"
    if strange:
        result.warnings.append(
            f"{predictions.name}: {len(strange):,} predictions are none of their candidates: "
            f"{', '.join(map(repr, strange[:3]))}"
        )
    return result
