"""Passages and answers of one model, scored by the rules of Natural Questions or of TyDi QA.

The figures are those of `ldt.metrics.nq` and `ldt.metrics.tydiqa`, under one name for both, so that
a training can be steered by them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ldt.data.formats.nq import NO_BYTES, Span
from ldt.metrics import nq, tydiqa
from ldt.metrics.thresholds import NEEDED, Curve, Scored

PARTS = ("passage", "span")
Pair = tuple[int, int]
Annotation = tuple[int | None, Sequence[Pair], str | None]  # passage, spans, yes or no


class Gold(NamedTuple):
    """The right answers to a question.

    Args:
        annotations: at least one; numbers of passages, and spans in the unit of the answers
            (tokens, bytes or characters).
        first: number of the passage that an answer without reading names.
        language: where there is one, it is scored as TyDi QA, else as Natural Questions.
    """

    annotations: tuple[Annotation, ...]
    first: int | None
    language: str | None


def right_of(annotations: Sequence[Annotation]) -> tuple[bool, bool]:
    """Tell whether a question has a passage, and whether it has a span, yes or no.

    It has where `NEEDED` annotations say so, or the only one.
    """
    needed = min(NEEDED, len(annotations))
    passages = sum(passage is not None for passage, _, _ in annotations)
    spans = sum(bool(spans or yes_no) for _, spans, yes_no in annotations)
    return passages >= needed > 0, spans >= needed > 0


def scored(gold: Gold, answer: tydiqa.Prediction) -> tuple[Scored, Scored]:
    """The passage and the span of an answer, each by the published rule.

    Where a question has one annotation, as in training data, it counts as two that say the same;
    by the published rules there would be no answer.
    """
    annotations = gold.annotations * (NEEDED if len(gold.annotations) == 1 else 1)
    if gold.language is not None:
        listed = [(passage, list(spans), yes_no) for passage, spans, yes_no in annotations]
        return tydiqa.score_passage(listed, answer), tydiqa.score_minimal(listed, answer)
    pages = [
        (_span(passage), [Span(*NO_BYTES, *span) for span in spans], yes_no)
        for passage, spans, yes_no in annotations
    ]
    short = [Span(*NO_BYTES, *answer.span)] if answer.span and not answer.yes_no else []
    prediction = nq.Prediction(
        _span(answer.passage), answer.passage_score, short, answer.span_score, answer.yes_no
    )
    return nq.score_long(pages, prediction), nq.score_short(pages, prediction)


def in_bytes(offsets: Mapping[str, Any]) -> Pair:
    """The span of an answer in the published layout of TyDi QA."""
    places = offsets["minimal_answer"]
    return places["start_byte_offset"], places["end_byte_offset"]


def prediction(answer: Mapping[str, Any]) -> tydiqa.Prediction:
    """An answer with its span in the unit of the golds (`Gold`)."""
    offsets = answer.get("offsets", {})
    span: Pair | None
    if answer["best_start"] is None:  # yes, no, or not a word
        span = None
    elif "minimal_answer" in offsets:
        span = in_bytes(offsets)
    elif offsets:
        places = offsets["short_answers"][0]
        span = places["start_token"], places["end_token"]
    else:
        span = answer["best_start"], answer["best_end"]
    scores = answer["passage_score"], answer["span_score"]
    return tydiqa.Prediction(answer["best_passage"], scores[0], span, scores[1], answer["yes_no"])


def _span(passage: int | None) -> Span | None:
    """A span that is the same for the same passage: candidates may have the same words."""
    return None if passage is None else Span(*NO_BYTES, passage, passage + 1)


def measure(
    golds: Sequence[Gold], answers: Sequence[tydiqa.Prediction]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return F1, precision and recall of passages and of spans, and rows of the languages.

    Each is at the best threshold of its score on these very questions, 0 to 100. With languages
    it is the mean over them, each with thresholds of its own, without English unless that is the
    only one. ``f1`` is the mean of both F1. Beside them passage_threshold and span_threshold, the
    best ones over all questions together, midway to the next lower score.
    """
    pairs = [scored(*pair) for pair in zip(golds, answers, strict=True)]
    languages = sorted({gold.language for gold in golds if gold.language is not None})
    parts = {
        language: [
            pair for pair, gold in zip(pairs, golds, strict=True) if gold.language == language
        ]
        for language in languages
    }
    figures = {language: _best(part) for language, part in parts.items()}
    counted = [name for name in languages if name != tydiqa.LEFT_OUT] or languages
    whole = _best(pairs)
    metrics = {
        name: float(np.mean([figures[language][name] for language in counted]))
        if counted
        else value
        for name, value in whole.items()
    }
    metrics["f1"] = sum(metrics[f"{part}_f1"] for part in PARTS) / len(PARTS)
    for part, each in zip(PARTS, zip(*pairs, strict=True), strict=True):
        metrics[f"{part}_threshold"] = _threshold(each)
    rows: list[dict[str, Any]] = [
        {"language": language, "questions": len(parts[language])}
        | {f"{part}_f1": figures[language][f"{part}_f1"] for part in PARTS}
        for language in languages
    ]
    return metrics, rows


def _best(pairs: Sequence[tuple[Scored, Scored]]) -> dict[str, float]:
    """The figures of both parts at their best thresholds."""
    once, figures = np.ones((1, len(pairs)), int), {}
    for part, each in zip(PARTS, zip(*pairs, strict=True), strict=True):
        values = Curve(each).best(once, "")
        for name in ("f1", "precision", "recall"):
            figures[f"{part}_{name}"] = float(values[f"best-threshold-{name}"][0])
    return figures


def _threshold(answers: Sequence[Scored]) -> float:
    once = np.ones((1, len(answers)), int)
    best = float(Curve(answers).best(once, "")["best-threshold"][0])
    if not any(each.right for each in answers):
        return best
    lower = [each.score for each in answers if each.answered and each.score < best]
    return (best + max(lower, default=best)) / 2
