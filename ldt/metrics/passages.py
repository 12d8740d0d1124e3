"""Hits of gold spans by the passages that an answer rests on."""

from collections.abc import Mapping, Sequence
from typing import Any

from ldt.data.answer_files import answers
from ldt.errors import DataError, shown
from ldt.io import records
from ldt.metrics.result import Item, Result, compare, mean, unmatched

KS = (1, 3, 5, 10)

Passage = Mapping[str, Any]


def hit(passages: Sequence[Passage], spans: Sequence[Passage], k: int) -> float:
    """1.0 if one of the first k passages shares a character with one of the gold spans, else 0.0.

    Where a span has a ``label``, only passages of that label count, the first k of them.
    """
    for span in spans:
        label = span.get("label")
        mine = [each for each in passages if label is None or each.get("label") == label]
        if any(p["start"] < span["end"] and span["start"] < p["end"] for p in mine[:k]):
            return 1.0
    return 0.0


def evaluate(gold: str, pred: str) -> Result:
    """Score the passages of `ldt predict --passages K`.

    Questions without a gold span do not count; a missing answer is no hit. Scores are given for
    each k of `KS` up to the most passages that an answer has.

    Args:
        gold: JSON lines with id and ``spans``, a list of {start, end}, in characters of the
            document's text; a span may have a ``label``.
        pred: the answers, JSON lines with id and ``passages``.

    Raises:
        UserError: a file is not there.
        DataError: a file that cannot be used, and where.
    """
    right = {id: spans for id, spans in _places(gold, "spans").items() if spans}
    if not right:
        raise DataError(f"{gold}: no gold span in it; a line has id and spans [{{start, end}}]")
    passages = _places(pred, "passages")
    most = max(map(len, passages.values()), default=0)
    ks = [k for k in KS if k <= most] or [1]
    items = [
        Item(id, id, {f"hit@{k}": hit(passages.get(id, ()), spans, k) for k in ks})
        for id, spans in right.items()
    ]
    metrics = mean([item.scores for item in items]) | {"total": len(items)}
    result = Result("passages", items, metrics, "documents", *compare(list(right), passages))
    result.noun = "document"
    result.no_length = result.no_place = "the gold file has spans, no text"
    result.warnings += unmatched(result, pred)
    return result


def _places(source: str, key: str) -> dict[str, list[Passage]]:
    """The spans of each line of a file, by id."""
    by_id: dict[str, list[Passage]] = {}
    for example in answers(source):
        listed = records.field(example, key)
        if not isinstance(listed, list) or not all(map(_is_span, listed)):
            raise DataError(
                f"{example.where}: field {key!r} is {shown(listed)}, expected a list of "
                "{start, end}, whole numbers"
            )
        if str(example.id) in by_id:
            raise DataError(f"{example.where}: id {example.id!r} came before")
        by_id[str(example.id)] = listed
    return by_id


def _is_span(value: Any) -> bool:
    numbers = [value.get(key) for key in ("start", "end")] if isinstance(value, dict) else [None]
    return all(isinstance(each, int) and not isinstance(each, bool) for each in numbers)
