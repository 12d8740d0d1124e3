"""HotpotQA, distractor and full wiki: answer, supporting facts and both.

A JSON list of questions with their paragraphs; predictions are {"answer": {id: text}, "sp": {id:
facts}}.

Source: Yang et al. 2018 (arXiv:1809.09600), the rules of their evaluation script.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ldt.benchmarks import base
from ldt.benchmarks.base import Benchmark
from ldt.errors import DataError, shown
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, texts
from ldt.metrics import baseline, word_overlap
from ldt.metrics.result import Item, compare, count_words
from ldt.metrics.word_overlap import normalise

SHOWN = ("em", "f1", "sp_em", "sp_f1", "joint_em", "joint_f1")
CLOSED = {"yes", "no", "noanswer"}  # as normalised; no credit for a part
_OPTIONAL = {"answer": str, "supporting_facts": list, "type": str, "level": str}


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each question: question, context, and answer, supporting_facts, type
    and level where they are there, which in the files of a test set they are not.

    ``context`` is a list of [title, sentences], ``supporting_facts`` of [title, number of a
    sentence]; the task looks into them.

    Raises:
        DataError: another layout.
    """
    for question, id, where in _questions(strict_json.read(source, data.encoding)):
        kinds = {"question": str, "context": list}
        kinds |= {name: kind for name, kind in _OPTIONAL.items() if name in question}
        fields = {name: take(question, name, kind, where) for name, kind in kinds.items()}
        yield Example(fields, id, where)


def _questions(file: JsonFile) -> Iterator[tuple[dict[str, Any], str, str]]:
    if not isinstance(file.value, list):
        raise DataError(f"{file.name}: {shown(file.value)}, expected a list of questions with _id")
    return base.entries(file.value, file.name, "_id")


class AnswerMatch(NamedTuple):
    """Exact match, F1, precision and recall; each from 0 to 1."""

    em: float
    f1: float
    prec: float
    recall: float


NOTHING = AnswerMatch(0.0, 0.0, 0.0, 0.0)


def match_answer(prediction: str, gold: str) -> AnswerMatch:
    """Score an answer; where either is yes, no or noanswer, only the same one counts."""
    answer, gold = normalise(prediction), normalise(gold)
    if answer != gold and {answer, gold} & CLOSED:
        return NOTHING
    return AnswerMatch(float(answer == gold), *word_overlap.overlap(answer.split(), gold.split()))


def match_facts(
    prediction: Iterable[tuple[str, int]], gold: Iterable[tuple[str, int]]
) -> AnswerMatch:
    """Score a set of supporting sentences, each (title, number in its paragraph).

    None where none are wanted is an exact match with F1 0.
    """
    facts, right = set(prediction), set(gold)
    both = len(facts & right)
    overlap = word_overlap.of(both / max(len(facts), 1), both / max(len(right), 1))
    return AnswerMatch(float(facts == right), *overlap)


def joint(answer: AnswerMatch, facts: AnswerMatch) -> AnswerMatch:
    """Both at once: the products of exact matches, precisions and recalls, and their F1."""
    both = word_overlap.of(answer.prec * facts.prec, answer.recall * facts.recall)
    return AnswerMatch(answer.em * facts.em, *both)


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return em, f1, prec and recall of the answer, of the facts (sp_) and of both (joint_).

    Args:
        right: ``answer``, a text, and ``facts``, pairs (title, number of a sentence).
        answer: ``answer`` and ``supporting_facts`` in the same form; None, or no such key, counts
            0 there and in joint.
    """
    answer = answer or {}
    text, facts = answer.get("answer"), answer.get("supporting_facts")
    answered = NOTHING if text is None else match_answer(text, right["answer"])
    supported = NOTHING if facts is None else match_facts(map(tuple, facts), right["facts"])
    both = NOTHING if text is None or facts is None else joint(answered, supported)
    return {
        f"{prefix}{name}": value
        for prefix, match in (("", answered), ("sp_", supported), ("joint_", both))
        for name, value in match._asdict().items()
    }


def published(answers: Iterable[dict]) -> dict[str, dict]:
    """The official layout: {"answer": {id: text}, "sp": {id: [[title, sentence]]}}."""
    both: dict[str, dict] = {"answer": {}, "sp": {}}
    for answer in answers:
        both["answer"][str(answer["id"])] = answer["answer"]
        both["sp"][str(answer["id"])] = answer["supporting_facts"]
    return both


@dataclass
class HotpotQAScorer(Benchmark):
    """HotpotQA: a question without an answer, or without facts, counts 0 there and in joint."""

    title = "hotpotqa"
    shown = SHOWN
    no_place = "a hotpotqa file does not tell"
    needs = ("answer", "supporting_facts")
    advice = "answers of hotpotqa have some"

    def gold(self, files):
        file, items = base.whole(files, "questions of hotpotqa", self.data.encoding), []
        for question, id, where in _questions(file):
            facts = _facts(take(question, "supporting_facts", list, where), where)
            right = {"answer": take(question, "answer", str, where), "facts": facts}
            items.append(Item(id, id, {}, _words(question, where), right=right))
        return base.checked(items, file.name)

    def published(self, lines):
        return published(lines)

    def score(self, right, answer):
        return score(right, answer)

    def parse(self, value, name):
        if not isinstance(value, dict) or not {"answer", "sp"} <= value.keys():
            raise DataError(
                f"{name}: {shown(value)}; expected an object with answer, {{id: text}}, and sp, "
                "{id: [[title, sentence], ...]}"
            )
        answers = super().parse(take(value, "answer", dict, name), f"{name}: answer")
        whole = {id: dict(answer) for id, answer in answers.items()}
        for id, facts in take(value, "sp", dict, name).items():
            whole.setdefault(id, {})["supporting_facts"] = _facts(facts, f"{name}: sp: {id}")
        return whole

    def aggregate(self, items, answers, name):
        result = super().aggregate(items, answers, name)
        both = [id for id, answer in answers.items() if len(answer) == 2]
        result.missing, _ = compare([item.id for item in items], both)
        if items[0].words is None:
            result.no_length = "the gold file has no context"
        return result

    def constants(self, items):
        """The most frequent answer, without facts."""
        usual = baseline.commonest([item.right["answer"]] for item in items)
        answer = {"answer": usual, "supporting_facts": ()}
        return {baseline.quoted(usual): {item.id: answer for item in items}}


def _words(question: dict[str, Any], where: str) -> int | None:
    """Words of all paragraphs, titles left out; None where the file has none."""
    if "context" not in question:
        return None
    words = 0
    for paragraph in take(question, "context", list, where):
        if not isinstance(paragraph, list) or len(paragraph) != 2:
            raise DataError(f"{where}: {shown(paragraph)} in context, expected [title, sentences]")
        if not isinstance(paragraph[1], list):
            raise DataError(f"{where}: the sentences are {shown(paragraph[1])}, expected a list")
        words += sum(map(count_words, texts(paragraph[1], where)))
    return words


def _facts(listed: Any, where: str) -> set[tuple[str, int]]:
    if not isinstance(listed, list):
        raise DataError(f"{where}: {shown(listed)}, expected a list of [title, sentence]")
    facts = set()
    for fact in listed:
        match fact:
            case [str(title), int(sentence)] if not isinstance(sentence, bool):
                facts.add((title, sentence))
            case _:
                raise DataError(f"{where}: {shown(fact)}, expected [title, number of a sentence]")
    return facts
