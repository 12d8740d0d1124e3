"""WikiHop and MedHop as QAngaroo 1.1 has them (Welbl et al. 2018, TACL): accuracy of
{id: candidate}."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ldt.benchmarks.base import Benchmark, Id, Shape
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.metrics.baseline import Baseline, Baselines
from ldt.metrics.result import Item, count_words

_TEXTS: Any = {"query?": str, "candidates": [str], "supports": [str], "answer?": str}
_FILE = Shape([{"id": Id} | _TEXTS])


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each question: query, candidates, supports, and answer if it has one.

    Args:
        source: path, or "-" for standard input.
        data: data section of a recipe, for the encoding.
    """
    file = strict_json.read(source, data.encoding)
    for question in _FILE(file.value, file.name):
        id = question.pop("id")
        yield Example(question, id, f"{file.name}: {id}")


def published(answers: Iterable[dict]) -> dict[str, str]:
    """{id: candidate}, the best one also where the model gave no answer: the published evaluator
    takes one for each question."""
    return {str(each["id"]): each.get("best", each["answer"]) for each in answers}


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return accuracy: 1.0 if the ``answer`` of both is the same letter by letter, else 0.0."""
    return {"accuracy": float(answer is not None and answer.get("answer") == right["answer"])}


def guessing(candidates: Iterable[int]) -> Baselines:
    """Expected accuracy, 0 to 100, of choosing a candidate at random, in the mean over questions.

    Args:
        candidates: number of candidates of each question.
    """
    shares = [1 / number for number in candidates]
    return {"accuracy": Baseline("a candidate at random", 100 * sum(shares) / len(shares))}


@dataclass
class WikiHopScorer(Benchmark):
    """WikiHop: equality with the answer, letter by letter; a missing prediction counts 0."""

    title = "wikihop"
    no_place = "a wikihop file does not tell"
    right = ("answer",)
    needs = ("answer",)
    advice = "answers of wikihop have one"
    read = staticmethod(read)
    published = staticmethod(published)
    score = staticmethod(score)

    def item(self, example):
        """Item of a question, with all of its fields as the right answer."""
        words = sum(map(count_words, example.fields["supports"]))
        return Item(str(example.id), example.id, {}, words, right=example.fields)

    def aggregate(self, items, answers, name):
        """Accuracy, 0 to 100, and the number of questions."""
        result = super().aggregate(items, answers, name)
        result.metrics["total"] = len(items)
        return result

    def baselines(self, items, answers, name):
        """Expected accuracy of guessing among the different candidates of each question."""
        return guessing(len(set(item.right["candidates"])) for item in items)
