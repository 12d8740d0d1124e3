"""WikiHop and MedHop as QAngaroo 1.1 has them (Welbl et al. 2018, TACL): accuracy of
{id: candidate}."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ldt.benchmarks import base
from ldt.benchmarks.base import Benchmark
from ldt.errors import DataError, shown
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, texts
from ldt.metrics.baseline import Baseline, Baselines
from ldt.metrics.result import Item, count_words


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each question: query, candidates, supports, and answer if it has one.

    Raises:
        DataError: another layout.
    """
    for question, id, where in _questions(strict_json.read(source, data.encoding)):
        fields = {"query": take(question, "query", str, where)} | _texts(question, where)
        if "answer" in question:
            fields["answer"] = take(question, "answer", str, where)
        yield Example(fields, id, where)


def _questions(file: JsonFile) -> Iterator[tuple[dict[str, Any], str, str]]:
    if not isinstance(file.value, list):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected a list of questions with id, query, "
            "candidates and supports"
        )
    return base.entries(file.value, file.name, "id")


def _texts(question: dict[str, Any], where: str) -> dict[str, Any]:
    return {
        key: texts(take(question, key, list, where), where) for key in ("candidates", "supports")
    }


def published(answers: Iterable[dict]) -> dict[str, str]:
    """{id: candidate}, the best one also where the model gave no answer: the published evaluator
    takes one for each question."""
    return {str(each["id"]): each.get("best", each["answer"]) for each in answers}


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return accuracy: 1.0 if the ``answer`` of both is the same letter by letter, else 0.0."""
    return {"accuracy": float(answer is not None and answer.get("answer") == right["answer"])}


def guessing(candidates: Iterable[int]) -> Baselines:
    """The accuracy of a candidate at random, in the mean over all draws, from 0 to 100.

    Args:
        candidates: their number, of each question.
    """
    shares = [1 / number for number in candidates]
    return {"accuracy": Baseline("a candidate at random", 100 * sum(shares) / len(shares))}


@dataclass
class WikiHopScorer(Benchmark):
    """WikiHop: equality with the answer, letter by letter; a missing prediction counts 0."""

    title = "wikihop"
    no_place = "a wikihop file does not tell"
    needs = ("answer",)
    advice = "answers of wikihop have one"

    def gold(self, files):
        file, items = base.whole(files, "questions of wikihop", self.data.encoding), []
        for question, id, where in _questions(file):
            if "answer" not in question:
                raise DataError(f"{where}: no field 'answer'; the files of a test set have none")
            right = {"answer": take(question, "answer", str, where), **_texts(question, where)}
            items.append(Item(id, id, {}, sum(map(count_words, right["supports"])), right=right))
        return base.checked(items, file.name)

    def published(self, lines):
        return published(lines)

    def score(self, right, answer):
        return score(right, answer)

    def aggregate(self, items, answers, name):
        result = super().aggregate(items, answers, name)
        result.metrics["total"] = len(items)
        strange = [
            item.id
            for item in items
            if item.id in answers and answers[item.id]["answer"] not in item.right["candidates"]
        ]
        if strange:
            result.warnings.append(
                f"{name}: {len(strange):,} predictions are none of their candidates: "
                f"{', '.join(map(repr, strange[:3]))}"
            )
        return result

    def baselines(self, items, answers, name):
        return guessing(len(set(item.right["candidates"])) for item in items)
