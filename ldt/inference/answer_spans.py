"""Places in a text that answers name."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from ldt.data.sentences import trimmed
from ldt.errors import DataError, plural
from ldt.io.records import Example

ANSWER, EVIDENCE, PASSAGE = "answer", "evidence", "passage"  # labels of spans without a type
KEYS = ("entities", "evidence", "passages", "answer")  # of an answer, which hold places


class Span(NamedTuple):
    """Characters of a text, and what they are."""

    start: int
    end: int
    label: str
    score: float | None = None  # a probability


def spans_in(
    answer: Example, text: str, document: str, keys: Collection[str] = KEYS
) -> Iterator[Span]:
    """Yield the places that an answer names, each of which has the words that it quotes.

    Args:
        document: where the text is from, for messages.
        keys: those of `KEYS` that are looked at.

    Raises:
        DataError: a place that is none, is beyond the text, or has other words there.
    """
    fields = answer.fields
    for key, usual, probable in (
        ("entities", "", True),
        ("evidence", EVIDENCE, True),
        ("passages", PASSAGE, False),
    ):
        for item in (fields.get(key) if key in keys else None) or ():
            if isinstance(item, dict):
                span = _span(item, item.get("label") or usual, probable, answer.where)
                yield checked(span, item.get("text"), text, answer.where, document)
    if "answer" in keys and fields.get("answer") and isinstance(fields.get("start"), int):
        span = _span(fields, ANSWER, False, answer.where)
        yield checked(span, fields["answer"], text, answer.where, document)


def _span(item: dict[str, Any], label: str, probable: bool, where: str) -> Span:
    match item:
        case {"start": int(start), "end": int(end)} if isinstance(label, str) and label:
            score = item.get("score") if probable else None
            return Span(start, end, label, float(score) if isinstance(score, int | float) else None)
    raise DataError(f"{where}: {str(item)[:60]}, expected an object with start, end and label")


def checked(span: Span, words: Any, text: str, where: str, document: str) -> Span:
    """The span without what is no part of its words (`ldt.data.sentences.trimmed`).

    Args:
        words: that it quotes; None for none.

    Raises:
        DataError: it reaches beyond the text, or has other words.
    """
    start, end, label, _ = span
    here = f"{where}: {label} from {start:,} to {end:,}"
    if not 0 <= start < end <= len(text):
        raise DataError(
            f"{here}: no words there; the text has {plural(len(text), 'character')} ({document})"
        )
    if words is not None and text[start:end] != words:
        raise DataError(
            f"{here} is {str(words)[:40]!r}, where the text has {text[start:end][:40]!r} "
            f"({document}); was it another document, or changed since?"
        )
    start, end = trimmed(text, start, end)
    return span._replace(start=start, end=end)
