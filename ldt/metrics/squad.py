"""SQuAD 1.1 and 2.0, in any language and any length: exact match and F1 of {id: answer}.

Predictions are one object of text, or a list of entries with id, prediction_text and, for squad2,
no_answer_probability, as the library `evaluate` has them.

XQuAD uses the same rules in every language: English articles only, ASCII punctuation only, words
between spaces, so that F1 on Chinese is nearly exact match.

Sources: Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822), the rules of their
evaluation scripts.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ldt.data.formats import squad as layout
from ldt.data.formats.entries import once
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, shown
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile, take, take_id
from ldt.metrics import baseline, prediction_files, word_overlap
from ldt.metrics.baseline import Baselines
from ldt.metrics.prediction_files import by_id as published  # noqa: F401, the writer
from ldt.metrics.prediction_files import read as read_predictions  # noqa: F401
from ldt.metrics.result import Item, Result, compare, count_words, mean

CERTAIN = 1.0  # a prediction counts as "no answer" above it, by default of the published script
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_FIELDS = ("prediction_text", "no_answer_probability")


def normalise(text: str) -> str:
    """``text`` in lower case, without ASCII punctuation ("well-known" is one word) and articles."""
    return word_overlap.tidy(text.lower().translate(_PUNCTUATION))


def match(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """SQuAD 1.1: return (exact match, F1), each the best over ``golds``.

    An answer without words has F1 0, also beside such a gold one.

    Raises:
        ValueError: ``golds`` is empty.
    """
    return word_overlap.best(normalise(prediction), [normalise(gold) for gold in golds])


def match2(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """SQuAD 2.0: return (exact match, F1), each the best over ``golds``; "" says no answer.

    Gold answers without words do not count; where none is left, only an answer without words is
    right, with F1 1.
    """
    golds = [gold for gold in golds if normalise(gold)] or [""]
    exact, f1 = match(prediction, golds)
    if golds == [""]:
        f1 = float(exact)
    return exact, f1


def best_threshold(
    scores: Mapping[str, float],
    answered: Iterable[str],
    no_answer: Mapping[str, float],
    answerable: Iterable[str],
) -> tuple[float, float]:
    """Return the largest sum of scores that a threshold gives, and that threshold.

    Questions whose probability is not above the threshold keep their prediction, the others count
    as "no answer". Questions of the same probability are taken in the order of ``no_answer``, one
    by one, as the published search does: its best figure can lie between two of them.

    Args:
        scores: question to exact match or F1 of its prediction, all questions.
        answered: questions whose prediction is not "".
        no_answer: question to probability that it has no answer; others than in ``scores`` are
            passed over.
        answerable: questions that have an answer.
    """
    answered, answerable = set(answered), set(answerable)
    now: float = len(scores.keys() - answerable)  # "no answer" to everything
    best = now
    threshold = 0.0
    for question in sorted(no_answer, key=no_answer.__getitem__):
        if question not in scores:
            continue
        if question in answerable:
            now += scores[question]
        elif question in answered:
            now -= 1
        if now > best:
            best, threshold = now, no_answer[question]
    return best, threshold


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return exact_match and f1 by the rules of SQuAD 1.1 (`match`).

    Args:
        example: ``answers``, the texts of all that are right.
        answer: ``answer``, a text; None for no prediction, which counts 0.
    """
    return _scores(match, example, answer)


def score2(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return exact_match and f1 by the rules of SQuAD 2.0 (`match2`); see `score`."""
    return _scores(match2, example, answer)


def _scores(rule, example, answer):
    exact, f1 = (0, 0.0)
    if answer["answer"] is not None:
        exact, f1 = rule(answer["answer"], example["answers"])
    return {"exact_match": exact, "f1": f1}


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """Read a gold file, which must have this layout (see `prediction_files.read_gold`)."""
    expected = "an object with data, a list of articles with paragraphs"
    return prediction_files.read_gold(source, format, expected, data.encoding)


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """SQuAD 1.1: every question has an answer; one without a prediction counts 0.

    Raises:
        DataError: a file that cannot be used.
    """
    questions = _questions(gold)
    for question in questions.values():
        if not question.fields["answers"]:
            raise DataError(f"{question.where}: no answers; --format squad2 has such")
    answers, _ = _predictions(predictions)
    items = [
        _item(question, score(_gold(question), {"answer": answers.get(id)}))
        for id, question in questions.items()
    ]
    missing, extra = compare(list(questions), answers)
    metrics = mean([item.scores for item in items])
    return Result("squad 1.1", items, metrics, "paragraphs", missing, extra)


def evaluate2(gold: JsonFile, predictions: JsonFile, *, na_prob: JsonFile | None = None) -> Result:
    """SQuAD 2.0: "" says that there is no answer; a question without a prediction counts 0.

    With probabilities of no answer (in ``na_prob`` or the predictions) the best threshold is
    searched too. The published script stops at a missing prediction.

    Args:
        na_prob: {id: probability}, of every predicted question.

    Raises:
        DataError: a file that cannot be used.
    """
    questions = _questions(gold)
    answers, no_answer = _predictions(predictions)
    if na_prob:
        no_answer = _probabilities(na_prob)
    missing, extra = compare(list(questions), answers)
    scores = {
        id: score2(_gold(question), {"answer": answers.get(id)})
        for id, question in questions.items()
    }
    answerable = {id for id, question in questions.items() if question.fields["answers"]}
    warnings: list[str] = []
    sure: set[str] = set()
    if no_answer:
        where = (na_prob or predictions).name
        sure = _sure(no_answer, scores.keys() & answers.keys(), where, warnings)
    items = []
    for id, question in questions.items():
        exact, f1 = scores[id].values()
        if id in sure:
            exact = f1 = float(id not in answerable)
        items.append(_item(question, {"exact": exact, "f1": f1}))

    # The figures of all questions, then of those with and without an answer.
    metrics: dict[str, float | int] = {**_figures(items)}
    parts = {}
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        pairs = zip(items, questions, strict=True)
        part = [item for item, id in pairs if (id in answerable) == wanted]
        if part:
            parts[prefix] = part
            metrics |= {prefix + name: value for name, value in _figures(part).items()}

    # The best threshold is searched with the predictions as they are, not as `sure` has them.
    if no_answer:
        answered = {key for key, text in answers.items() if text}
        for name, key in (("exact", "exact_match"), ("f1", "f1")):
            one = {question: both[key] for question, both in scores.items()}
            best, threshold = best_threshold(one, answered, no_answer, answerable)
            metrics[f"best_{name}"] = 100.0 * best / len(scores)
            metrics[f"best_{name}_thresh"] = threshold
    return Result(
        "squad 2.0",
        items,
        metrics,
        "paragraphs",
        missing,
        extra,
        parts=parts,
        warnings=warnings,
    )


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of the most frequent answer, and of "" where questions have no answer."""
    answers = {id: _gold(question)["answers"] for id, question in _questions(gold).items()}
    usual = baseline.commonest(answers.values())
    constant = {baseline.quoted(usual): usual}
    if not all(answers.values()):
        constant["always no answer"] = ""
    predictions = {name: dict.fromkeys(answers, text) for name, text in constant.items()}
    return baseline.of_files(evaluate, gold, predictions)


def _figures(items: Sequence[Item]) -> dict[str, float | int]:
    return {**mean([item.scores for item in items]), "total": len(items)}


def _questions(gold: JsonFile) -> dict[str, Example]:
    """The questions of a gold file by their ids."""
    questions = [(str(question.id), question) for question in layout.gold(gold)]
    if not questions:
        raise DataError(f"{gold.name}: no questions in it")
    once((id for id, _ in questions), gold.name)
    return dict(questions)


def _gold(question: Example) -> dict[str, list[str]]:
    return {"answers": [answer["text"] for answer in question.fields["answers"]]}


def _item(question: Example, scores: dict[str, float]) -> Item:
    fields = question.fields
    place = _place(fields["answers"], fields["context"])
    return Item(str(question.id), fields["paragraph"], scores, _words(fields["context"]), place)


_words = lru_cache(2)(count_words)  # questions on one paragraph come one after the other


def _place(answers: list[dict[str, Any]], context: str) -> float | str:
    """Place of the first gold answer, from 0 to 1; in words why it has none."""
    if not answers:
        return "no answer"
    starts = [
        start
        for answer in answers
        if isinstance(start := answer.get("answer_start"), int)
        and start >= 0
        and answer["text"]
        and context.startswith(answer["text"], start)
    ]
    return min(starts) / len(context) if starts else "not at its answer_start"


def _predictions(file) -> tuple[dict[str, str], dict[str, float]]:
    """Id to answer, and id to probability of no answer where the entries have it."""
    if not isinstance(file.value, list) or not file.value:
        return prediction_files.answers_by_id(file), {}
    prediction_files.refuse_gold(file)
    text, probability = _FIELDS
    answers, no_answer, ids = {}, {}, []
    for number, entry in enumerate(file.value, 1):
        id = take_id(entry, "id", f"{file.name}: entry {number:,}")
        ids.append(id)
        answers[id] = take(entry, text, str, f"{file.name}: {id}")
        if probability in entry:
            no_answer[id] = _probability(entry[probability], f"{file.name}: {id}")
    once(ids, file.name)
    return answers, no_answer


def _probabilities(file):
    if not isinstance(file.value, dict):
        raise DataError(f"{file.name}: {shown(file.value)}; expected an object, {{id: number}}")
    return {key: _probability(value, f"{file.name}: {key}") for key, value in file.value.items()}


def _probability(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: the probability is {shown(value)}, expected a number")
    return value


def _sure(no_answer, predicted, where, warnings):
    """The questions whose prediction the published rule takes as "no answer"."""
    lacking = sorted(predicted - no_answer.keys())
    if lacking:
        raise DataError(
            f"{where}: no probability of {len(lacking):,} predicted questions, such as "
            f"{lacking[0]!r}; each needs one"
        )
    sure = {key for key in predicted if no_answer[key] > CERTAIN}
    if sure:
        warnings.append(
            f"{where}: {len(sure):,} probabilities are above 1; as in the published script those "
            'predictions count as ""'
        )
    return sure
