"""HotpotQA: answer, supporting facts and both, of {"answer": {id: text}, "sp": {id: facts}}.

Source: Yang et al. 2018 (arXiv:1809.09600), the rules of their evaluation script.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ldt.data.formats import hotpotqa as layout
from ldt.data.formats.entries import once
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, shown
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile, take, texts
from ldt.metrics import baseline, prediction_files, word_overlap
from ldt.metrics.baseline import Baselines
from ldt.metrics.prediction_files import read as read_predictions  # noqa: F401
from ldt.metrics.result import Item, Result, compare, count_words, mean
from ldt.metrics.squad import normalise

SHOWN = ("em", "f1", "sp_em", "sp_f1", "joint_em", "joint_f1")
CLOSED = {"yes", "no", "noanswer"}  # as normalised; no credit for a part


class Match(NamedTuple):
    """Exact match, F1, precision and recall; each from 0 to 1."""

    em: float
    f1: float
    prec: float
    recall: float


NOTHING = Match(0.0, 0.0, 0.0, 0.0)


def match_answer(prediction: str, gold: str) -> Match:
    """Score an answer; where either is yes, no or noanswer, only the same one counts."""
    answer, gold = normalise(prediction), normalise(gold)
    if answer != gold and {answer, gold} & CLOSED:
        return NOTHING
    return Match(float(answer == gold), *word_overlap.overlap(answer.split(), gold.split()))


def match_facts(prediction: Iterable[tuple[str, int]], gold: Iterable[tuple[str, int]]) -> Match:
    """Score a set of supporting sentences, each (title, number in its paragraph).

    None where none are wanted is an exact match with F1 0.
    """
    facts, right = set(prediction), set(gold)
    both = len(facts & right)
    overlap = word_overlap.of(both / max(len(facts), 1), both / max(len(right), 1))
    return Match(float(facts == right), *overlap)


def joint(answer: Match, facts: Match) -> Match:
    """Both at once: the products of exact matches, precisions and recalls, and their F1."""
    both = word_overlap.of(answer.prec * facts.prec, answer.recall * facts.recall)
    return Match(answer.em * facts.em, *both)


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return em, f1, prec and recall of the answer, of the facts (sp_) and of both (joint_).

    Args:
        example: ``answer``, a text, and ``facts``, pairs (title, number of a sentence).
        answer: ``answer`` and ``supporting_facts`` in the same form; None, or no such key, counts
            0 there and in joint.
    """
    text, facts = answer.get("answer"), answer.get("supporting_facts")
    answered = NOTHING if text is None else match_answer(text, example["answer"])
    supported = NOTHING if facts is None else match_facts(map(tuple, facts), example["facts"])
    both = NOTHING if text is None or facts is None else joint(answered, supported)
    return {
        f"{prefix}{name}": value
        for prefix, match in (("", answered), ("sp_", supported), ("joint_", both))
        for name, value in match._asdict().items()
    }


def published(answers: Iterable[dict]) -> dict[str, dict]:
    """The official layout: {"answer": {id: text}, "sp": {id: [[title, sentence]]}}."""
    whole: dict[str, dict] = {"answer": {}, "sp": {}}
    for answer in answers:
        whole["answer"][str(answer["id"])] = answer["answer"]
        whole["sp"][str(answer["id"])] = answer["supporting_facts"]
    return whole


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """Read a gold file, which must have this layout (see `prediction_files.read_gold`)."""
    expected = "a list of questions with _id, answer and supporting_facts"
    return prediction_files.read_gold(source, format, expected, data.encoding)


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score by the published rules; they print 0 to 1, this is 0 to 100 as everywhere.

    A question without an answer, or without facts, counts 0 there and in joint.

    Raises:
        DataError: a file that cannot be used.
    """
    answers, facts = _predictions(predictions)
    ids, items = [], []
    for example in layout.gold(gold):
        id, fields = str(example.id), example.fields
        ids.append(id)
        right = {
            "answer": fields["answer"],
            "facts": _facts(fields["supporting_facts"], example.where),
        }
        scores = score(right, {"answer": answers.get(id), "supporting_facts": facts.get(id)})
        items.append(Item(id, id, scores, _words(fields.get("context"), example.where)))
    once(ids, gold.name)
    both = answers.keys() & facts.keys()
    missing, _ = compare(ids, both)
    _, extra = compare(ids, answers | facts)
    metrics = mean([item.scores for item in items])
    result = Result("hotpotqa", items, metrics, "questions", missing, extra)
    result.shown = SHOWN
    result.no_place = "a hotpotqa file does not tell"
    if items[0].words is None:
        result.no_length = "the gold file has no context"
    return result


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of the most frequent answer, without facts."""
    answers = {str(each.id): each.fields["answer"] for each in layout.gold(gold)}
    usual = baseline.commonest([answer] for answer in answers.values())
    value = {"answer": dict.fromkeys(answers, usual), "sp": dict.fromkeys(answers, [])}
    return baseline.of_files(evaluate, gold, {baseline.quoted(usual): value})


def _words(context: list | None, where: str) -> int | None:
    """Words of all paragraphs, titles left out; None where the file has none."""
    if context is None:
        return None
    words = 0
    for paragraph in context:
        if not isinstance(paragraph, list) or len(paragraph) != 2:
            raise DataError(f"{where}: {shown(paragraph)} in context, expected [title, sentences]")
        if not isinstance(paragraph[1], list):
            raise DataError(f"{where}: the sentences are {shown(paragraph[1])}, expected a list")
        words += sum(map(count_words, texts(paragraph[1], where)))
    return words


def _predictions(file: JsonFile) -> tuple[dict[str, str], dict[str, set]]:
    prediction_files.refuse_gold(file)
    value = file.value
    if not isinstance(value, dict) or not {"answer", "sp"} <= value.keys():
        raise DataError(
            f"{file.name}: {shown(value)}; expected an object with answer, {{id: text}}, and sp, "
            "{id: [[title, sentence], ...]}"
        )
    answers = prediction_files.answers_by_id(
        JsonFile(f"{file.name}: answer", take(value, "answer", dict, file.name))
    )
    facts = take(value, "sp", dict, file.name)
    return answers, {
        key: _facts(listed, f"{file.name}: sp: {key}") for key, listed in facts.items()
    }


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
