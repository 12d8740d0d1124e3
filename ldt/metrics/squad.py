"""SQuAD 1.1 and 2.0, in any language and any length: exact match and F1 of {id: answer}.

Predictions are one object of text, or a list of entries with id, prediction_text and, for squad2,
no_answer_probability, as the library `evaluate` has them.
"""

from typing import Any, NamedTuple

from ldt.data.json_file import JsonFile, shown, take
from ldt.errors import DataError
from ldt.metrics import prediction_files
from ldt.metrics.result import Item, Result, compare, count_words, mean
from ldt.metrics.rules import squad as rules

# A prediction counts as "no answer" above it, as the published script has it by default.
CERTAIN = 1.0
_FIELDS = ("prediction_text", "no_answer_probability")


class _Question(NamedTuple):
    id: str
    golds: list[str]
    document: tuple[int, int]
    words: int
    place: float | str


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """SQuAD 1.1: every question has an answer; one without a prediction counts 0.

    Raises:
        DataError: a file that cannot be used.
    """
    questions = _questions(gold)
    for question in questions:
        if not question.golds:
            raise DataError(f"{gold.name}: {question.id}: no answers; --format squad2 has such")
    found, _ = _predictions(predictions)
    items = []
    for question in questions:
        exact, f1 = 0, 0.0
        if question.id in found:
            exact, f1 = rules.score(found[question.id], question.golds)
        items.append(_item(question, {"exact_match": exact, "f1": f1}))
    missing, extra = compare([question.id for question in questions], found)
    return Result("squad 1.1", items, mean(items), "paragraphs", missing, extra)


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
    found, no_answer = _predictions(predictions)
    if na_prob:
        no_answer = _probabilities(na_prob)
    missing, extra = compare([question.id for question in questions], found)
    scores = {}
    for question in questions:
        scores[question.id] = (0, 0.0)
        if question.id in found:
            scores[question.id] = rules.score2(found[question.id], question.golds)
    answerable = {question.id for question in questions if question.golds}
    items, warnings = [], []
    sure = set()
    if no_answer:
        where = (na_prob or predictions).name
        sure = _sure(no_answer, scores.keys() & found.keys(), where, warnings)
    for question in questions:
        exact, f1 = scores[question.id]
        if question.id in sure:
            exact = f1 = float(not question.golds)
        items.append(_item(question, {"exact": exact, "f1": f1}))
    metrics, parts = mean(items) | {"total": len(items)}, {}
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        pairs = zip(items, questions, strict=True)
        part = [item for item, question in pairs if bool(question.golds) == wanted]
        if part:
            parts[prefix] = part
            figures = mean(part) | {"total": len(part)}
            metrics |= {prefix + name: value for name, value in figures.items()}
    if no_answer:
        answered = {key for key, text in found.items() if text}
        for place, name in enumerate(("exact", "f1")):
            one = {key: pair[place] for key, pair in scores.items()}
            best, threshold = rules.best_threshold(one, answered, no_answer, answerable)
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


def _item(question, scores):
    return Item(question.document, scores, question.words, question.place)


def _questions(gold):
    questions = []
    for number, article in enumerate(gold.value["data"]):
        where = f"{gold.name}: article {number + 1:,}"
        for place, paragraph in enumerate(take(article, "paragraphs", list, where)):
            here = f"{where}, paragraph {place + 1:,}"
            context = take(paragraph, "context", str, here)
            words = count_words(context)
            for qa in take(paragraph, "qas", list, here):
                id = take(qa, "id", str, here)
                answers = take(qa, "answers", list, f"{gold.name}: {id}")
                golds = [take(answer, "text", str, f"{gold.name}: {id}") for answer in answers]
                start = _place(answers, context)
                questions.append(_Question(id, golds, (number, place), words, start))
    if not questions:
        raise DataError(f"{gold.name}: no questions in it")
    prediction_files.once((question.id for question in questions), gold.name)
    return questions


def _place(answers, context):
    """Where the first gold answer begins, from 0 to 1; in words why nowhere."""
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
    found, no_answer, ids = {}, {}, []
    for number, entry in enumerate(file.value, 1):
        id = take(entry, "id", str, f"{file.name}: entry {number:,}")
        ids.append(id)
        found[id] = take(entry, text, str, f"{file.name}: {id}")
        if probability in entry:
            no_answer[id] = _probability(entry[probability], f"{file.name}: {id}")
    prediction_files.once(ids, file.name)
    return found, no_answer


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
