"""How well passages name what an answer rests on: hits of gold spans, and faithfulness.

Source: DeYoung et al. 2020 (ERASER, arXiv:1911.03429), section 4, for comprehensiveness and
sufficiency; Samek et al. 2017 (arXiv:1509.06321) for the area over the perturbation curve.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ldt.data import records
from ldt.errors import DataError, shown
from ldt.metrics import prediction_files
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


def comprehensiveness(full: float, without: float) -> float:
    """How far the probability of an answer falls without its passages; the more, the better."""
    return full - without


def sufficiency(full: float, alone: float) -> float:
    """How far the probability of an answer falls where only its passages are left; the less, the
    better."""
    return full - alone


def aopc(deletion: Sequence[float]) -> float:
    """The area over a perturbation curve: the mean over k of how far the probability has fallen
    where the first k passages are hidden, k from 0 on; the more, the better.

    Args:
        deletion: the probability without the first 0, 1, 2, ... passages.
    """
    return deletion[0] - sum(deletion) / len(deletion)


def mean_curve(curves: Sequence[Sequence[float]], points: int = 0) -> list[float]:
    """The mean of deletion curves at each number of hidden passages.

    A shorter curve goes on at the height of its end, where there is no passage left to hide.

    Args:
        curves: one or more, of one point or more.
        points: of the mean, where it is to have more than the longest curve.
    """
    size = max(points, *map(len, curves))
    longer = [[*curve, *[curve[-1]] * (size - len(curve))] for curve in curves]
    return [sum(values) / len(values) for values in zip(*longer, strict=True)]


def evaluate(gold: str, pred: str) -> Result:
    """Score the passages of `ldt predict --passages K`.

    Questions without a gold span do not count; a missing answer is no hit. Scores are given for
    each k of `KS` up to the most passages that an answer has; where answers have ``faithfulness``
    (`ldt predict --passages-test`), also the means of that over all of them, with the mean `aopc`
    of their deletion curves and the `mean_curve`, all of the length of the longest one.

    Args:
        gold: JSON lines with id and ``spans``, a list of {start, end}, in characters of the
            document's text; a span may have a ``label``.
        pred: the answers, JSON lines with id and ``passages``.

    Raises:
        UserError: a file is not there.
        DataError: a file that cannot be used, and where.
    """
    right = {id: spans for id, (spans, _) in _places(gold, "spans").items() if spans}
    if not right:
        raise DataError(f"{gold}: no gold span in it; a line has id and spans [{{start, end}}]")
    found = _places(pred, "passages")
    passages = {id: listed for id, (listed, _) in found.items()}
    most = max(map(len, passages.values()), default=0)
    ks = [k for k in KS if k <= most] or [1]
    items = [
        Item(id, id, {f"hit@{k}": hit(passages.get(id, ()), spans, k) for k in ks})
        for id, spans in right.items()
    ]
    tested, curves = _tested({id: facts for id, (_, facts) in found.items() if facts})
    metrics = mean([item.scores for item in items])
    metrics |= mean([item.scores for item in tested]) if tested else {}
    metrics |= {"total": len(items)}
    result = Result("passages", items, metrics, "documents", *compare(list(right), passages))
    result.parts, result.curves = {"": tested} if tested else {}, curves
    result.noun = "document"
    result.no_length = result.no_place = "the gold file has spans, no text"
    result.warnings += unmatched(result, pred)
    return result


def _tested(
    faithfulness: Mapping[str, Mapping[str, Any]],
) -> tuple[list[Item], dict[str, list[float]]]:
    """The figures of the answers that were tested, and their mean curves, from 0 to 100.

    Args:
        faithfulness: of each answer, by id. Of what only some of them have nothing is told.
    """
    every = list(faithfulness.values())
    shared = [name for name in (every or [{}])[0] if all(name in facts for facts in every)]
    deletions = {
        name: [facts[name] for facts in every] for name in shared if name.endswith("deletion")
    }
    items = [
        Item(id, id, {name: facts[name] for name in shared if name not in deletions})
        for id, facts in faithfulness.items()
    ]
    curves = {}
    for name, listed in deletions.items():
        mean_of_all = mean_curve(listed)
        curves[name] = [100 * value for value in mean_of_all]
        for item, curve in zip(items, listed, strict=True):
            key = name.removesuffix("deletion") + "aopc"
            item.scores[key] = aopc(mean_curve([curve], len(mean_of_all)))
    return items, curves


def _places(source: str, key: str) -> dict[str, tuple[list[Passage], dict[str, Any]]]:
    """The spans of each line of a file and its ``faithfulness``, empty where it has none, by id.

    Raises:
        DataError: a line without them, or an id that comes twice.
    """
    found: dict[str, tuple[list[Passage], dict[str, Any]]] = {}
    for example in prediction_files.answers(source):
        listed, facts = records.field(example, key), example.fields.get("faithfulness") or {}
        if not isinstance(listed, list) or not all(map(_is_span, listed)):
            raise DataError(
                f"{example.where}: field {key!r} is {shown(listed)}, expected a list of "
                "{start, end}, whole numbers"
            )
        if not isinstance(facts, dict) or not all(map(_is_figure, facts.items())):
            raise DataError(
                f"{example.where}: field 'faithfulness' is {shown(facts)}, expected that of "
                "ldt predict --passages-test"
            )
        if str(example.id) in found:
            raise DataError(f"{example.where}: id {example.id!r} came before")
        found[str(example.id)] = listed, facts
    return found


def _is_span(value: Any) -> bool:
    numbers = [value.get(key) for key in ("start", "end")] if isinstance(value, dict) else [None]
    return all(isinstance(each, int) and not isinstance(each, bool) for each in numbers)


def _is_figure(fact: tuple[str, Any]) -> bool:
    """Whether it is a number, or of a deletion curve a list of them."""
    name, value = fact
    values = value if name.endswith("deletion") and isinstance(value, list) else [value]
    return bool(values) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in values
    )
