"""WikiHop and MedHop as QAngaroo 1.1 has them (Welbl et al. 2018, TACL): accuracy of
{id: candidate}."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ldt.benchmarks.base import AnswersById, Benchmark, Id, Shape
from ldt.data.options import DataSection
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.metrics.baseline import Baseline, Baselines
from ldt.metrics.result import Item, Result, count_words

_TEXTS: Any = {"query?": str, "candidates": [str], "supports": [str], "answer?": str}
_FILE = Shape([{"id": Id} | _TEXTS])


def read(source: str | strict_json.JsonFile, data: DataSection) -> Iterator[Example]:
    """Yield an example for each question of a file (a path, "-" for standard input, or its loaded
    JSON), in the encoding of ``data``: query; candidates and supports, lists of texts; and
    answer if it is there."""
    file = strict_json.read(source, data.encoding)
    for question in _FILE(file.value, file.name):
        id = question.pop("id")
        yield Example(question, id, f"{file.name}: {id}")


def published(answers: Iterable[dict]) -> dict[str, str]:
    """Convert answers of ldt predict to {id: candidate}: ``best`` where the model abstained, else
    ``answer``, since the published evaluator takes one for each question."""
    return {str(each["id"]): each.get("best", each["answer"]) for each in answers}


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return accuracy: 1.0 if the ``answer`` of both is the same letter by letter, else 0.0; None
    is wrong."""
    return {"accuracy": float(answer is not None and answer.get("answer") == right["answer"])}


def guessing(candidates: Iterable[int]) -> Baselines:
    """{"accuracy": `Baseline`} of choosing a candidate at random, its value the expected accuracy,
    0 to 100, in the mean over questions; ``candidates`` has the number of candidates of each."""
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

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question, with all of its fields as ``right``."""
        words = sum(map(count_words, example.fields["supports"]))
        return Item(str(example.id), example.id, {}, words, right=example.fields)

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Accuracy, 0 to 100, and ``total``, the number of questions."""
        result = super().aggregate(items, answers, name)
        result.metrics["total"] = len(items)
        return result

    def baselines(self, items: Sequence[Item], answers: AnswersById, name: str) -> Baselines:
        """Expected accuracy of guessing among the different candidates of each question; only
        ``items`` is used."""
        return guessing(len(set(item.right["candidates"])) for item in items)
