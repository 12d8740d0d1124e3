"""HotpotQA, distractor and full wiki: answer, supporting facts and both.

A JSON list of questions with their paragraphs; predictions are {"answer": {id: text}, "sp": {id:
facts}}.

Source: Yang et al. 2018 (arXiv:1809.09600), the rules of their evaluation script.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ldt.benchmarks import base
from ldt.benchmarks.base import AnswersById, Benchmark, Id, Shape, Whole
from ldt.data.options import DataSection
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.metrics import baseline, word_overlap
from ldt.metrics.result import Item, Result, compare, count_words
from ldt.metrics.word_overlap import normalise

SHOWN = ("em", "f1", "sp_em", "sp_f1", "joint_em", "joint_f1")
CLOSED = {"yes", "no", "noanswer"}  # as normalised; no credit for a part

_FACTS: Any = [tuple[str, Whole]]  # title, number of a sentence
_LABELS: Any = {"answer?": str, "supporting_facts?": [Any], "type?": str, "level?": str}
_FILE = Shape([{"_id": Id, "question?": str, "context?": [Any]} | _LABELS])
_INSIDE = Shape({"context?": [tuple[str, list[str]]], "supporting_facts": _FACTS})
_PREDICTIONS = Shape({"answer": {str: str}, "sp": {str: _FACTS}})


def read(source: str | strict_json.JsonFile, data: DataSection) -> Iterator[Example]:
    """Yield an example for each question of a file (a path, "-" for standard input, or its loaded
    JSON), in the encoding of ``data``.

    Fields, each where the file has it: question; context, a list of [title, sentences]; and, not in
    the files of a test set, answer, supporting_facts, a list of [title, number of a sentence], type
    and level. What is inside of context and supporting_facts is not checked here.
    """
    file = strict_json.read(source, data.encoding)
    for question in _FILE(file.value, file.name):
        id = question.pop("_id")
        yield Example(question, id, f"{file.name}: {id}")


class AnswerMatch(NamedTuple):
    """Exact match, F1, precision and recall; each from 0 to 1."""

    em: float
    f1: float
    prec: float
    recall: float


NOTHING = AnswerMatch(0.0, 0.0, 0.0, 0.0)


def match_answer(prediction: str, gold: str) -> AnswerMatch:
    """Score a predicted answer by SQuAD's exact match, F1, precision and recall of words, each 0 to
    1; where either text is yes, no or noanswer, all are 0 unless both are the same."""
    answer, gold = normalise(prediction), normalise(gold)
    if answer != gold and {answer, gold} & CLOSED:
        return NOTHING
    return AnswerMatch(float(answer == gold), *word_overlap.overlap(answer.split(), gold.split()))


def match_facts(
    prediction: Iterable[tuple[str, int]], gold: Iterable[tuple[str, int]]
) -> AnswerMatch:
    """Score a set of supporting sentences, each (title, number in its paragraph): exact match, F1,
    precision and recall, 0 to 1. If gold and prediction are both empty, exact match is 1, the
    rest 0."""
    facts, right = set(prediction), set(gold)
    both = len(facts & right)
    overlap = word_overlap.with_f1(both / max(len(facts), 1), both / max(len(right), 1))
    return AnswerMatch(float(facts == right), *overlap)


def _joint(answer: AnswerMatch, facts: AnswerMatch) -> AnswerMatch:
    """Products of exact matches, precisions and recalls of answer and facts, and their F1."""
    both = word_overlap.with_f1(answer.prec * facts.prec, answer.recall * facts.recall)
    return AnswerMatch(answer.em * facts.em, *both)


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return em, f1, prec and recall, 0 to 1, of the answer, of the facts (sp_) and of both
    (joint_).

    Args:
        right: ``answer``, a text, and ``facts``, pairs (title, number of a sentence).
        answer: ``answer``, a text, and ``supporting_facts``, such pairs; None, or no such key,
            counts 0 there and in joint.
    """
    answer = answer or {}
    text, facts = answer.get("answer"), answer.get("supporting_facts")
    answered = NOTHING if text is None else match_answer(text, right["answer"])
    supported = NOTHING if facts is None else match_facts(map(tuple, facts), right["facts"])
    both = NOTHING if text is None or facts is None else _joint(answered, supported)
    return {
        f"{prefix}{name}": value
        for prefix, match in (("", answered), ("sp_", supported), ("joint_", both))
        for name, value in match._asdict().items()
    }


def published(answers: Iterable[dict]) -> dict[str, dict]:
    """Convert answers of ldt predict (``id``, ``answer``, ``supporting_facts``) to the official
    layout: {"answer": {id: text}, "sp": {id: [[title, sentence]]}}."""
    answers = list(answers)
    facts = {str(answer["id"]): answer["supporting_facts"] for answer in answers}
    return {"answer": base.by_id(answers), "sp": facts}


@dataclass
class HotpotQAScorer(Benchmark):
    """HotpotQA: a question without an answer, or without facts, counts 0 there and in joint."""

    title = "hotpotqa"
    shown = SHOWN
    no_place = "a hotpotqa file does not tell"
    right = ("answer", "supporting_facts")
    needs = ("answer", "supporting_facts")
    advice = "answers of hotpotqa have some"
    read = staticmethod(read)
    published = staticmethod(published)
    score = staticmethod(score)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question: ``right`` has ``answer`` and ``facts``, a set of (title,
        number of a sentence)."""
        inside = _INSIDE(example.fields, example.where)
        words = None
        if "context" in inside:
            words = sum(count_words(text) for _, texts in inside["context"] for text in texts)
        right = {"answer": example.fields["answer"], "facts": set(inside["supporting_facts"])}
        return Item(str(example.id), example.id, {}, words, right=right)

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert {"answer": {id: text}, "sp": {id: facts}} to {id: answer} with ``answer`` and
        ``supporting_facts``, a set of (title, number of a sentence), each where it is given."""
        both = _PREDICTIONS(value, name)
        answers: Any = super().parse(both["answer"], name)
        for id, facts in both["sp"].items():
            answers.setdefault(id, {})["supporting_facts"] = set(facts)
        return answers

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Means of `score`, 0 to 100; a question lacking its answer or its facts is among the
        ``missing``."""
        result = super().aggregate(items, answers, name)
        both = [id for id, answer in answers.items() if len(answer) == 2]
        result.missing, _ = compare([item.id for item in items], both)
        result.no_length = "the gold file has no context"
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: the most frequent answer, without facts."""
        usual = baseline.commonest([item.right["answer"]] for item in items)
        return base.always(usual, items, supporting_facts=())
