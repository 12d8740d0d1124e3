"""Natural Questions: F1 of long and of short answers at the best threshold of their scores.

Predictions are {"predictions": [{example_id, long_answer, long_answer_score, short_answers,
short_answers_score, yes_no_answer}]}, spans in bytes, in tokens, or in both.

Source: Kwiatkowski et al. 2019 (TACL), the rules of their evaluation script.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ldt.data.formats import nq as layout
from ldt.data.formats import passage_qa
from ldt.data.formats.nq import NOTHING, Span
from ldt.data.formats.recognition import begins_with_object
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, plural, shown
from ldt.io.sources import Names, only
from ldt.io.strict_json import JsonFile, take
from ldt.metrics import baseline, prediction_files
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import Item, Result, compare
from ldt.metrics.thresholds import NEEDED, NOTE, Curve, Scored

SHOWN = ("long-best-threshold-f1", "short-best-threshold-f1")
Annotation = tuple[Span | None, list[Span], str | None]  # long, short, yes or no


@dataclass(slots=True)
class Question:
    """A gold question in short; ``first`` is its first paragraph."""

    id: str
    unit: str | int
    words: int
    first: Span | None
    annotations: tuple[Annotation, ...]


class Prediction(NamedTuple):
    """A long answer, short ones or yes or no, and how sure each of the two is."""

    long: Span | None = None
    long_score: float = 0.0
    short: Sequence[Span] = ()
    short_score: float = 0.0
    yes_no: str | None = None


def same(one: Span, other: Span) -> bool:
    """True if the bytes of two spans are known and equal, or their tokens are."""
    return one[:2] == other[:2] != NOTHING[:2] or one[2:] == other[2:] != NOTHING[2:]


def score_long(annotations: Sequence[Annotation], answer: Prediction) -> Scored:
    """A long answer is right if it is that of any annotation, where two have one."""
    gold = [long for long, _, _ in annotations if long]
    has_gold = len(gold) >= NEEDED
    right = has_gold and answer.long is not None and any(same(answer.long, each) for each in gold)
    return Scored(has_gold, answer.long is not None, float(right), answer.long_score)


def score_short(annotations: Sequence[Annotation], answer: Prediction) -> Scored:
    """Yes or no is right if any annotation says it; spans if they are the set of any annotation.

    A question has a short answer where two annotations have spans, yes or no.
    """
    has_gold = sum(bool(short or yes_no) for _, short, yes_no in annotations) >= NEEDED
    right = has_gold and (
        any(yes_no == answer.yes_no for _, _, yes_no in annotations)
        if answer.yes_no
        else any(_same_set(short, answer.short) for _, short, _ in annotations)
    )
    answered = bool(answer.short or answer.yes_no)
    return Scored(has_gold, answered, float(answered and right), answer.short_score)


def _same_set(ones: Sequence[Span], others: Sequence[Span]) -> bool:
    return all(any(same(one, other) for other in others) for one in ones) and all(
        any(same(one, other) for one in ones) for other in others
    )


def published(answers: Iterable[dict]) -> dict[str, list[dict[str, Any]]]:
    """The published layout; yes or no takes the place of a span.

    Args:
        answers: ``id``, ``passage_score``, ``span_score``, ``yes_no`` ("yes", "no" or None) and
            ``offsets``, which `ldt.data.formats.nq.offsets` makes.
    """
    return {"predictions": [_published(answer) for answer in answers]}


def _published(answer: dict) -> dict[str, Any]:
    return {
        "example_id": answer["id"],
        "long_answer": answer["offsets"]["long_answer"],
        "long_answer_score": answer["passage_score"],
        "short_answers": [] if answer["yes_no"] else answer["offsets"]["short_answers"],
        "short_answers_score": answer["span_score"],
        "yes_no_answer": (answer["yes_no"] or "none").upper(),
    }


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """The questions of all files, of each no more than it is scored by."""
    questions = []
    for example in layout.gold(source, data.encoding):
        fields = example.fields
        annotations = tuple(a if any(a) else _NULL for a in fields["annotations"])
        values = (str(example.id), fields["unit"], fields["words"], fields["first"], annotations)
        questions.append(Question(*values))
    return JsonFile(passage_qa.name_of(source), questions)


_NULL: Annotation = (None, [], None)  # one for all that are so


def read_predictions(source: Names) -> JsonFile:
    """Predictions by id.

    Raises:
        UserError: several files, or there is no such file.
        DataError: gold, another layout, or what the published script refuses: a score that is
            missing, yes or no beside a span, half a span, one that does not end after its start.
    """
    if begins_with_object(only(source, "predictions of nq"), _GOLD):
        raise DataError(
            f"{passage_qa.name_of(source)}: looks like a gold file, not like predictions"
            f"{passage_qa.SWAPPED}"
        )
    file = prediction_files.read(source)
    return _by_id(take(file.value, "predictions", list, file.name), file.name)


_GOLD = ("annotations", "document_text", "document_html", "question_text")  # fields of its lines


def of_answers(answers: Iterable[dict], name: str) -> JsonFile:
    """Predictions of a file of `published`, read one by one.

    Args:
        name: of their file.
    """
    return _by_id(map(_published, answers), name)


def _by_id(items: Iterable[Any], name: str) -> JsonFile:
    by_id: dict[str, Prediction] = {}
    for number, item in enumerate(items, 1):
        where = f"{name}: prediction {number:,}"
        id = item.get("example_id") if isinstance(item, dict) else None
        if isinstance(id, bool) or not isinstance(id, int | str):
            raise DataError(
                f"{where}: example_id is {shown(id)}, expected a whole number; a number with a "
                "point has lost digits"
            )
        if str(id) in by_id:
            raise DataError(f"{where}: the id {shown(id)} stands twice; each question once")
        by_id[str(id)] = _prediction(item, f"{name}: {id}")
    return JsonFile(name, by_id)


def _prediction(item: dict, where: str) -> Prediction:
    long = _span(item["long_answer"], where) if item.get("long_answer") is not None else None
    listed = take(item, "short_answers", list, where) if item.get("short_answers") else []
    short = [span for each in listed if (span := _span(each, where))]
    yes_no = passage_qa.yes_no(item, where)
    if yes_no and short:
        raise DataError(f"{where}: {yes_no} beside short answers; one of the two")
    scores = (prediction_files.number(item, f"{key}_score", where) for key in _SCORED)
    long_score, short_score = scores
    return Prediction(long, long_score, short, short_score, yes_no)


_SCORED = ("long_answer", "short_answers")


def _span(item: Any, where: str) -> Span | None:
    bytes = passage_qa.pair(item, "start_byte", "end_byte", None, where)
    tokens = passage_qa.pair(item, "start_token", "end_token", None, where)
    return Span(*bytes, *tokens) if max(*bytes, *tokens) >= 0 else None


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score long and short answers by the published rules.

    Raises:
        DataError: the ids of the two files are not the same, where the published script stops too.
    """
    questions, answers = gold.value, predictions.value
    ids = [question.id for question in questions]
    missing, extra = compare(ids, answers)
    for name, there, other in (
        (predictions.name, missing, "no prediction of"),
        (gold.name, extra, "no gold of"),
    ):
        if there:
            what = f"{other} {plural(len(there), 'question')}, such as {there[0]}"
            raise DataError(f"{name}: {what}; the ids of both files are the same")
    pairs = [(question.annotations, answers[question.id]) for question in questions]
    curves = {
        "long": Curve([score_long(*pair) for pair in pairs]),
        "short": Curve([score_short(*pair) for pair in pairs]),
    }
    items = [Item(question.id, question.unit, {}, question.words) for question in questions]

    def best(counts: np.ndarray) -> dict[str, np.ndarray]:
        figures: dict[str, np.ndarray] = {}
        for name, curve in curves.items():
            figures |= curve.best(counts, f"{name}-")
            figures |= curve.whole(counts, f"{name}-answer-")
        return figures

    def figures(counts: np.ndarray) -> dict[str, np.ndarray]:
        return {name: v for name, v in best(counts).items() if not name.endswith("-threshold")}

    once = best(np.ones((1, len(items)), int))
    metrics: dict[str, float | int] = {name: float(value[0]) for name, value in once.items()}
    metrics |= {f"{name}-answer-n": len(items) for name in curves}
    result = Result("nq", items, metrics, "pages", missing, extra, figures=figures, shown=SHOWN)
    result.notes = dict.fromkeys(SHOWN, NOTE)
    result.no_place = "the annotations of a question stand in several places"
    if max(len(question.annotations) for question in questions) < NEEDED:
        result.warnings.append(
            f"{gold.name}: one annotation a question, but {NEEDED} have to have an answer before "
            "there is one; all figures are 0"
        )
    return result


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of the first paragraph as the long answer to everything."""
    first = {question.id: Prediction(question.first) for question in gold.value}
    figures = baseline.of_files(evaluate, gold, {"always the first paragraph": first})
    return {
        name: each
        for name, each in figures.items()
        if name.startswith("long-") and not name.endswith("-threshold")
    }
