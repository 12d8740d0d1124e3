"""Passages and answers on one page: the rules of Natural Questions and of TyDi QA, and their lines.

F1 is of counts over all questions, no mean over them, at the best threshold of the answers' scores,
which is chosen on the scored set itself; so intervals choose it anew on each resample
(`ldt.metrics.result.Figures`). The task passage_qa is steered by the same figures, under one name
for both sets (`measure`).

Sources: the evaluation scripts of Natural Questions (Kwiatkowski et al. 2019, TACL) and of TyDi QA
(Clark et al. 2020, arXiv:2003.05002).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from ldt.benchmarks.base import Benchmark, Shape
from ldt.data.options import DataSection
from ldt.data.sentences import Units
from ldt.errors import DataError
from ldt.io import records
from ldt.io.records import Example
from ldt.metrics import word_overlap

TARGETS = (0.5, 0.75, 0.9)  # precisions at which the recall is given
NEEDED = 2  # annotations with an answer that make a question one that has an answer
NOTE = "threshold chosen on the scored set"
PARTS = ("passage", "span")
LEFT_OUT = "english"  # of the means over languages

Pair = tuple[int, int]
# The passage or None, spans, yes or no; of passages and spans as the set names them.
Annotation = tuple[Any, Sequence[Any], str | None]


class PassageAnswer(NamedTuple):
    """Predicted passage, and spans or yes or no, with a score of each of the two."""

    passage: Any = None
    passage_score: float = 0.0
    spans: Sequence[Any] = ()
    span_score: float = 0.0
    yes_no: str | None = None


class PassageGold(NamedTuple):
    """The right answers to a question, as the task has them.

    Args:
        annotations: at least one; numbers of passages, and spans in the unit of the answers
            (tokens, bytes or characters).
        first: number of the passage that an answer without reading names.
        language: where there is one, it is scored as TyDi QA, else as Natural Questions.
    """

    annotations: tuple[Annotation, ...]
    first: int | None
    language: str | None


class Scored(NamedTuple):
    """Score of one answer to one question.

    ``has_gold`` and ``answered`` are True if there is an answer on either side, ``right`` is from 0
    to 1, and ``score`` is the confidence that thresholds apply to.
    """

    has_gold: bool
    answered: bool
    right: float
    score: float


def same_set(golds: Sequence[Sequence[Any]], spans: Sequence[Any], same: Callable) -> float:
    """Natural Questions' score of the predicted ``spans``: 1.0 if they are the set of any
    annotation in ``golds``, lists of spans, else 0.0; ``same(one, other)`` tells if two spans
    are equal."""
    return float(
        any(
            all(any(same(one, other) for other in spans) for one in gold)
            and all(any(same(one, other) for one in gold) for other in spans)
            for gold in golds
        )
    )


def overlap(golds: Sequence[Sequence[Pair]], spans: Sequence[Pair], same: Callable) -> float:
    """TyDi QA's score, 0 to 1, of the one span (start, end) in ``spans``: the best F1 of the bytes
    that it shares with a span of an annotation in ``golds``; ``same`` is not used."""
    (start, end), best = spans[0], 0.0
    for a, b in (gold for listed in golds for gold in listed):
        both = max(0, min(end, b) - max(start, a))
        best = max(best, word_overlap.with_f1(both / (end - start), both / (b - a)).f1)
    return best


def score_parts(
    annotations: Sequence[Annotation],
    answer: PassageAnswer | None,
    rule: Callable[..., float],
    same: Callable[[Any, Any], bool] = lambda one, other: one == other,
) -> tuple[Scored, Scored]:
    """Score the passage and the span of an answer by the published rules: (passage, span).

    A question has a passage, or a span, yes or no, if `NEEDED` annotations have one. A passage is
    right if it is that of any annotation; yes or no if any says it; spans by ``rule``. No
    prediction at all (None) is a wrong answer of score 0 where gold has none, and else counts as
    "no answer".

    Args:
        annotations: (passage or None, spans, "yes", "no" or None) of each annotator.
        answer: predicted answer, its passage and spans in the form of the annotations.
        rule: `same_set` or `overlap`.
        same: function that tells if two passages, or two spans, are the same.
    """
    has_passage, has_span = has = _voted(annotations, NEEDED)
    if answer is None:
        passage, span = (Scored(side, not side, 0.0, 0.0) for side in has)
        return passage, span
    there = answer.passage is not None
    passages = [passage for passage, _, _ in annotations if passage is not None]
    right = has_passage and there and any(same(answer.passage, each) for each in passages)
    predicted = 0.0
    if has_span and answer.yes_no:
        predicted = float(any(yes_no == answer.yes_no for _, _, yes_no in annotations))
    elif has_span and answer.spans:
        predicted = rule([spans for _, spans, _ in annotations], answer.spans, same)
    answered = bool(answer.spans or answer.yes_no)
    return (
        Scored(has_passage, there, float(right), answer.passage_score),
        Scored(has_span, answered, predicted, answer.span_score),
    )


def _voted(annotations: Sequence[Annotation], needed: int) -> tuple[bool, bool]:
    passages = sum(passage is not None for passage, _, _ in annotations)
    spans = sum(bool(spans or yes_no) for _, spans, yes_no in annotations)
    return passages >= needed, spans >= needed


class Curve:
    """Precision and recall of scored answers that are given at or above each threshold of their
    scores.

    Throughout, ``counts`` are [resamples, questions]: how often each question counts.
    """

    def __init__(self, answers: Sequence[Scored]):
        gold, answered, self._right, scores = np.array(answers, float).reshape(-1, 4).T
        self._gold, self._answered = gold, answered
        # A null answer adds to neither precision nor recall, so its threshold is never better.
        places = np.flatnonzero(answered)
        self._order = places[np.argsort(-scores[places], kind="stable")]
        falling = scores[self._order]
        self._ends = np.flatnonzero(
            np.append(falling[1:] != falling[:-1], [True] * bool(len(falling)))
        )
        self.thresholds = falling[self._ends]  # falling, equal scores are one

    def points(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Precision and recall, 0 to 1, each [resamples, thresholds], the highest
        threshold first."""
        weight = counts[:, self._order]
        right = (weight * self._right[self._order]).cumsum(1)[:, self._ends]
        answered = weight.cumsum(1)[:, self._ends]
        return divide(right, answered), divide(right, (counts @ self._gold)[:, None])

    def best(self, counts: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
        """Metrics at the best threshold, 0 to 100, and the threshold itself, each [resamples].

        At equal F1 the higher threshold stays; it is 0 where nothing is right. With them come the
        largest recall at a precision of at least each of `TARGETS`, and the precision there.

        Args:
            counts: how often each question counts, [resamples, questions].
            prefix: beginning of the names, as "long-" of "long-best-threshold-f1".
        """
        if not len(self.thresholds):
            nothing = np.zeros(len(counts))
            return dict.fromkeys(_names(prefix), nothing)
        precision, recall = self.points(counts)
        f1 = _harmonic(precision, recall)
        place = f1.argmax(1)  # the first of equal ones, which is the highest threshold
        figures = [_at(each, place) for each in (f1, precision, recall)]
        values = [100 * each for each in figures]
        values.append(np.where(figures[0] > 0, self.thresholds[place], 0.0))
        for target in TARGETS:
            reached = np.where(precision >= target, recall, 0)
            place = reached.argmax(1)
            most = _at(reached, place)
            values += [100 * most, 100 * np.where(most > 0, _at(precision, place), 0)]
        return dict(zip(_names(prefix), values, strict=True))

    def whole(self, counts: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
        """F1, precision and recall of all answers without a threshold, 0 to 100, each [resamples],
        by ``prefix`` and their name, for ``counts`` [resamples, questions]."""
        right = counts @ self._right
        precision = divide(right, counts @ self._answered)
        recall = divide(right, counts @ self._gold)
        figures = {"f1": _harmonic(precision, recall), "precision": precision, "recall": recall}
        return {f"{prefix}{name}": 100 * value for name, value in figures.items()}


def divide(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Divide arrays by element; 0 where the divisor is 0."""
    return np.divide(over, under, out=np.zeros(np.broadcast(over, under).shape), where=under != 0)


def _harmonic(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    return divide(2 * precision * recall, precision + recall)


def _at(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, place[:, None], 1)[:, 0]


def _names(prefix: str) -> list[str]:
    best = [f"{prefix}best-threshold-{name}" for name in ("f1", "precision", "recall")]
    best.append(f"{prefix}best-threshold")
    for target in TARGETS:
        best += [f"{prefix}{name}-at-precision>={target}" for name in ("recall", "precision")]
    return best


def right_of(annotations: Sequence[Annotation]) -> tuple[bool, bool]:
    """Return (True if a question has a gold passage, True if it has a gold span, yes or no):
    `NEEDED` annotations, or the only one, have it."""
    return _voted(annotations, min(NEEDED, len(annotations)) or NEEDED)


def scored(gold: PassageGold, answer: PassageAnswer) -> tuple[Scored, Scored]:
    """Score the passage and the span of an answer, each by the published rule: those of TyDi QA if
    gold has a language, else those of Natural Questions.

    A question with one annotation, as in training data, counts as one with two equal ones; the
    published rules need two.
    """
    annotations = gold.annotations * (NEEDED if len(gold.annotations) == 1 else 1)
    return score_parts(annotations, answer, same_set if gold.language is None else overlap)


def score(right: PassageGold, answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Score an answer of the task: {"passage": 0 to 1, "answer": 0 to 1}; None scores 0. Where gold
    has no passage, or no answer, 1.0 if the answer has none either.

    Args:
        right: gold answers.
        answer: as `answer_of` takes it, with what was answered in the end: ``passage``, an index or
            None, and ``answer``, the text or "".
    """
    if answer is None:
        return {"passage": 0.0, "answer": 0.0}
    spoken = {"passage": answer["passage"] is not None, "answer": bool(answer["answer"])}
    parts = scored(right, answer_of(answer))
    return {
        name: each.right * spoken[name] if each.has_gold else float(not spoken[name])
        for name, each in zip(spoken, parts, strict=True)
    }


def in_bytes(offsets: Mapping[str, Any]) -> Pair:
    """Return (start, end) in bytes of an answer's span in TyDi QA's layout; ``offsets`` are those
    of `ldt.benchmarks.tydiqa.offsets`."""
    places = offsets["minimal_answer"]
    return places["start_byte_offset"], places["end_byte_offset"]


def answer_of(answer: Mapping[str, Any]) -> PassageAnswer:
    """Convert an answer of the task to a `PassageAnswer`, its span in bytes (TyDi QA), in tokens
    (Natural Questions) or else in characters, as in `PassageGold`.

    Args:
        answer: ``best_passage``, ``best_start`` and ``best_end`` (None without a span), ``yes_no``,
            ``passage_score``, ``span_score``, and ``offsets`` for a file of one of the two sets.
    """
    offsets = answer.get("offsets", {})
    if answer["best_start"] is None:  # yes, no, or not a word
        spans = []
    elif "minimal_answer" in offsets:
        spans = [in_bytes(offsets)]
    elif offsets:
        places = offsets["short_answers"][0]
        spans = [(places["start_token"], places["end_token"])]
    else:
        spans = [(answer["best_start"], answer["best_end"])]
    scores = answer["passage_score"], answer["span_score"]
    return PassageAnswer(answer["best_passage"], scores[0], spans, scores[1], answer["yes_no"])


def measure(
    golds: Sequence[PassageGold], answers: Sequence[PassageAnswer]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Compute F1, precision and recall of passages and of spans, and a row for each language.

    Each is at the best threshold of its score on these very questions, 0 to 100. With languages it
    is the mean over them, each with thresholds of its own, without English unless that is the only
    one. ``f1`` is the mean of both F1. With them come passage_threshold and span_threshold, the
    best ones over all questions together, midway to the next lower score.
    """
    pairs = [scored(*pair) for pair in zip(golds, answers, strict=True)]
    parts: dict[str, list[tuple[Scored, Scored]]] = {}
    for gold, pair in zip(golds, pairs, strict=True):
        if gold.language is not None:
            parts.setdefault(gold.language, []).append(pair)
    metrics, thresholds = _best(pairs)
    figures = {language: _best(parts[language])[0] for language in sorted(parts)}
    if counted := [name for name in figures if name != LEFT_OUT] or [*figures]:
        for name in metrics:
            metrics[name] = float(np.mean([figures[language][name] for language in counted]))
    metrics["f1"] = sum(metrics[f"{part}_f1"] for part in PARTS) / len(PARTS)
    rows: list[dict[str, Any]] = [
        {"language": language, "questions": len(parts[language])}
        | {f"{part}_f1": figures[language][f"{part}_f1"] for part in PARTS}
        for language in figures
    ]
    return metrics | thresholds, rows


def _best(pairs: Sequence[tuple[Scored, Scored]]) -> tuple[dict[str, float], dict[str, float]]:
    figures, thresholds = {}, {}
    for part, each in zip(PARTS, zip(*pairs, strict=True), strict=True):
        values = Curve(each).best(np.ones((1, len(pairs)), int), "")
        for name in ("f1", "precision", "recall"):
            figures[f"{part}_{name}"] = float(values[f"best-threshold-{name}"][0])
        best = float(values["best-threshold"][0])
        if any(one.right for one in each):
            lower = [one.score for one in each if one.answered and one.score < best]
            best = (best + max(lower, default=best)) / 2
        thresholds[f"{part}_threshold"] = best
    return figures, thresholds


def _spoken(value: Any) -> Any:
    value = value.lower() if isinstance(value, str) else value
    return None if value == "none" else value


YesNo = Annotated[Literal["yes", "no"] | None, BeforeValidator(_spoken)]  # in any case


class PageBenchmark(Benchmark):
    """Base class of sets of questions on pages, each of which has a long and a short answer."""

    units = "pages"
    no_place = "the annotations of a question stand in several places"
    needs = ("passage_score", "span_score", "yes_no", "offsets")
    shards = True
    right = ("annotations",)
    line: ClassVar[Shape]  # of its files

    def read(self, source: str, data: DataSection) -> Iterator[Example]:
        """Yield the lines of a file as examples with all their fields, and ``example_id`` as id;
        DataError for another layout."""
        return lines(source, self.line, data.encoding)


def lines(source: str, shape: Shape, encoding: str | None = None) -> Iterator[Example]:
    """Yield the records of a file of JSON lines, one in memory at a time, with ``example_id`` as
    id; DataError for one of another ``shape``. Without an encoding it is UTF-8."""
    for example in records.read(source, format="jsonl", encoding=encoding):
        fields = shape(example.fields, example.where)
        yield replace(example, fields=fields, id=fields["example_id"])


def pair(item: Mapping[str, Any], unit: str, within: Units | int | None, where: str) -> Pair:
    """Read (start, end), end exclusive, from an object; (-1, -1) if both are negative or missing.
    DataError if only one is, if the start is not before the end, and if they are outside of the
    text or inside of a character.

    Args:
        item: the object that holds them.
        unit: key of the start with ``start`` in it, "start_byte"; that of the end has ``end``.
        within: the text that bytes are of, or the largest end; None if not known.
        where: place of the object, for messages.
    """
    names = unit, unit.replace("start", "end")
    first, last = (item.get(name, -1) for name in names)
    if first < 0 and last < 0:
        return -1, -1
    most = within.size if isinstance(within, Units) else within
    if not 0 <= first < last or (most is not None and last > most):
        bound = "" if most is None else f" <= {most}"
        what = f"expected 0 <= start < end{bound}, or -1 for both"
        raise DataError(f"{where}: {names[0]} {first}, {names[1]} {last}; {what}")
    for name, byte in zip(names, (first, last), strict=True):
        if isinstance(within, Units) and within.character(byte) is None:
            raise DataError(f"{where}: {name} {byte:,} is inside of a character of the UTF-8")
    return first, last


def index(number: int, candidates: int, where: str) -> int | None:
    """Return the number of a candidate, None for -1; DataError, with the place ``where``, if it is
    neither -1 nor from 0 to ``candidates`` - 1."""
    if not -1 <= number < candidates:
        raise DataError(
            f"{where}: candidate_index is {number}, expected 0 to {candidates - 1:,}, or -1"
        )
    return None if number < 0 else number


def page_key(example: Example) -> str | int:
    """Key that questions on one page share: its address, else its title, else the question's id."""
    return example.fields.get("document_url") or example.fields.get("document_title") or example.id
