"""Scores of answers in ldt's own layout: classes, numbers, entities and choices.

Training's evaluation computes the same metrics by the same functions. For a file of answers there
are also ranking, calibration, confusions and the worst errors. A missing answer is wrong.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ldt.metrics import calibration, classification
from ldt.metrics.curves import RECALLS, curve, ranking_of_draws
from ldt.metrics.entities import Entity, result_of, score
from ldt.metrics.result import Item, Result, defined

WORST = 20  # errors that are named
SUM = 1e-3  # as far from 1 the probabilities of a document may add up
_NOTHING = "none"

Rows = list[dict[str, Any]]


class Judged(NamedTuple):
    """Document or question with its gold answer and its predicted answer.

    Args:
        id: id in the gold file, for messages.
        where: file and line in the gold file, for messages.
        unit: bootstrap unit, shared by questions that depend on each other.
        words: number of words of the document; None if unknown.
        gold: gold answer.
        answer: prediction with ``label`` (a class, a list of classes, a number, or None for an
            abstention), ``choice`` (an index or None) or ``entities`` (a list of `Entity`), and
            ``scores`` by class, choice or entity (None without scores); None if it is missing.
    """

    id: str
    where: str
    unit: Hashable
    words: int | None
    gold: Any
    answer: Mapping[str, Any] | None


def classes(judged: Sequence[Judged], names: Sequence[str], *, several: bool) -> Result:
    """Score class predictions: `class_metrics`, macro means of `ranking_of_draws`, and calibration,
    with tables of classes, confusions and the worst errors.

    Ranking places missing answers last and averages over the classes where it is defined.
    Calibration covers the answered documents if scores are probabilities. Answers without scores
    are left out of both.

    Args:
        judged: documents with gold and predicted labels.
        names: all classes, in the order of the scores.
        several: True for multi-label classification.
    """
    labels = [None if each.answer is None else each.answer["label"] for each in judged]
    right = classification.indicators([each.gold for each in judged], names)
    predicted = classification.indicators([x if x is not None else [] for x in labels], names)
    answered = np.array([label is not None for label in labels])
    known = np.array([each.answer is not None for each in judged])
    scores, scored = _score_table(judged, names), _scored(judged)
    ranked = scored | ~known  # an answer without scores has no rank
    calibrated = _Calibrated(scores, right, scored, several)

    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        values = classification.class_figures(
            right, predicted, weights, several=several, answered=answered
        )
        if scores is not None:
            values |= _macro(scores, right, weights * ranked)
        return _answered(values | calibrated.means(weights), weights, answered, known)

    metrics = defined(figures, np.ones((1, len(judged))))
    rows = classification.class_rows(right, predicted, names)
    result = _result("classification", judged, metrics, figures=figures)
    if scores is not None:
        rankings = _rankings(scores, right, 1.0 * ranked[None])
        for row, ranking in zip(rows, rankings, strict=True):
            row |= {name: float(each[0]) for name, each in ranking.items() if not np.isnan(each[0])}
        result.curves["precision_at_recall"] = {
            name: [list(point) for point in zip(RECALLS, curve(*columns), strict=True)]
            for name, *columns in zip(names, scores[ranked].T, right[ranked].T, strict=True)
            if columns[1].any()
        }
        if not calibrated.each:
            what = "scores are no probabilities from 0 to 1, so there is no calibration to tell"
            result.warnings.append(what)
    calibrated.tell(result)
    result.shown = (next(iter(metrics)), "macro_f1")
    counts = classification.confusion(right, predicted, several=several)
    table = _confusion_of_each if several else _confusion
    result.tables = {"classes": rows, "confusion": table(counts, names)}
    wrong = answered & ~(right == predicted).all(1)
    result.tables["worst"] = [
        row | ({"nll": float(calibrated.loss[n])} if calibrated.each and scored[n] else {})
        for n, row in _worst(judged, "label", calibrated.loss, wrong)
    ]
    return result


def numbers(judged: Sequence[Judged]) -> Result:
    """Score predicted numbers: `number_metrics`, in the unit of the labels, of the documents that
    have one; where some have none also ``coverage``, the share, 0 to 100, of those that have."""
    gold = np.array([each.gold for each in judged], float)
    labels = [each.answer and each.answer["label"] for each in judged]
    predicted = np.array([np.nan if label is None else label for label in labels], float)
    there = ~np.isnan(predicted)

    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        if not there.any():
            return {"coverage": np.zeros(len(weights))}
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = classification.number_figures(gold[there], predicted[there], weights[:, there])
        drawn = weights[:, there].any(1)
        shares = {name: np.where(drawn, values, np.nan) for name, values in shares.items()}
        if there.all():
            return shares
        return shares | {"coverage": 100 * (weights @ there) / weights.sum(1)}

    metrics = defined(figures, np.ones((1, len(judged))))
    result = _result("regression", judged, metrics, figures=figures)
    result.scale = "in the unit of the labels, correlations from -1 to 1"
    errors = np.where(there, np.abs(gold - predicted), 0)
    result.tables["worst"] = [
        _row(judged[n], float(gold[n]), float(predicted[n]), error=float(errors[n]))
        for n in _largest(errors, errors > 0)
    ]
    return result


def choices(judged: Sequence[Judged]) -> Result:
    """Score multiple choice: accuracy, 0 to 100, and calibration if scores are probabilities, with
    a table of the worst errors."""
    scores, scored = _choice_table(judged), _scored(judged)
    known = np.array([each.answer is not None for each in judged])
    chosen = [None if each.answer is None else each.answer["choice"] for each in judged]
    answered = np.array([place is not None for place in chosen])
    golds = np.array([each.gold for each in judged])
    right = np.array([place == gold for place, gold in zip(chosen, golds, strict=True)])
    truth = np.arange(0 if scores is None else scores.shape[1]) == golds[:, None]
    calibrated = _Calibrated(scores, truth, scored, several=False)

    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        values = {"accuracy": 100 * (weights @ right) / weights.sum(1)}
        return _answered(values | calibrated.means(weights), weights, answered, known)

    metrics = defined(figures, np.ones((1, len(judged))))
    result = _result("multiple_choice", judged, metrics, figures=figures)
    result.noun = "question"
    calibrated.tell(result)
    worst = _worst(judged, "choice", calibrated.loss, answered & ~right)
    result.tables["worst"] = [row for _, row in worst]
    return result


def entities(judged: Sequence[Judged]) -> Result:
    """Score entities as conlleval does: precision, recall and F1, 0 to 100, over all and by type,
    an entity being right with place and type; with calibration if their scores are
    probabilities, and tables of confusions and the worst errors."""
    answers = [list(each.answer["entities"]) if each.answer else [] for each in judged]
    items = []
    for each, mine in zip(judged, answers, strict=True):
        counts = score({"entities": {*each.gold}}, {"entities": {*mine}})
        items.append(Item(each.id, each.unit, counts, each.words))
    result = result_of("token_classification", items)
    pairs: Counter[tuple[str, str]] = Counter()
    wrong = np.zeros(len(judged))
    for number, (each, mine) in enumerate(zip(judged, answers, strict=True)):
        pairs.update(_pairs(set(each.gold), set(mine)))
        wrong[number] = len(set(each.gold) ^ set(mine))
    result.tables = {"confusion": _ordered(pairs, "entities")}
    result.tables["worst"] = [
        {"where": judged[n].where, "id": judged[n].id, "missed": _listed(missed)}
        | {"not_there": _listed(false)}
        for n in _largest(wrong, wrong > 0)
        for missed, false in [
            ({*judged[n].gold} - {*answers[n]}, {*answers[n]} - {*judged[n].gold})
        ]
    ]
    scored = [
        (score, entity in set(each.gold))
        for each in judged
        if each.answer and each.answer["scores"]
        for entity, score in zip(each.answer["entities"], each.answer["scores"], strict=True)
    ]
    if scored and all(0 <= score <= 1 for score, _ in scored):
        _reliability(result, *(np.array(column) for column in zip(*scored, strict=True)))
    return _told(result, judged)


def _result(title: str, judged: Sequence[Judged], metrics: dict[str, float], **more: Any) -> Result:
    items = [Item(each.id, each.unit, {}, each.words) for each in judged]
    return _told(Result(title, items, metrics, "documents", [], [], **more), judged)


def _told(result: Result, judged: Sequence[Judged]) -> Result:
    result.missing = [each.id for each in judged if each.answer is None]
    result.noun = "document"
    result.no_length = "the gold file has no text"
    result.no_place = "an answer has no place"
    return result


def _scored(judged: Sequence[Judged]) -> np.ndarray:
    return np.array([bool(each.answer and each.answer["scores"]) for each in judged])


def _score_table(judged: Sequence[Judged], names: Sequence[str]) -> np.ndarray | None:
    """Scores [documents, classes], lowest where missing; None if no answer has scores."""
    answers = [each.answer for each in judged]
    if not any(answer and answer["scores"] for answer in answers):
        return None
    nothing = dict.fromkeys(names, -np.inf)
    rows = [nothing | ((answer and answer["scores"]) or {}) for answer in answers]
    return np.array([[row[name] for name in names] for row in rows], float)


def _choice_table(judged: Sequence[Judged]) -> np.ndarray | None:
    """Scores [questions, choices], 0 beyond a question's choices; None if no answer has scores."""
    listed = [(each.answer and each.answer["scores"]) or [] for each in judged]
    most = max((max(len(x), y.gold + 1) for x, y in zip(listed, judged, strict=True)), default=0)
    if not any(listed):
        return None
    return np.array([[*scores, *[0.0] * (most - len(scores))] for scores in listed])


class _Calibrated:
    """Calibration of the answers with scores, if all scores are probabilities.

    ``each`` holds brier and nll of each document, scaled so that the mean over all documents is
    that over the scored ones; ``loss`` is the nll, 0 where there is none.
    """

    def __init__(
        self, scores: np.ndarray | None, right: np.ndarray, scored: np.ndarray, several: bool
    ):
        self.scored, self.loss = scored, np.zeros(len(scored))
        self.each: dict[str, np.ndarray] = {}
        if scores is None or not scored.any():
            return
        plain = np.where(np.isneginf(scores), 0.0, scores)
        values = plain[scored]
        inside = ((values >= 0) & (values <= 1)).all()
        if inside and (several or (np.abs(values.sum(1) - 1) <= SUM).all()):
            rows = [
                calibration.figures(plain[n : n + 1], right[n : n + 1], several)
                for n in range(len(right))
            ]
            for name in ("brier", "nll"):
                self.each[name] = np.array([row[name] for row in rows]) * scored
            self.loss = self.each["nll"]
            self.answers = calibration.answers_of(values, right[scored], several)

    def means(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = weights[:, self.scored].sum(1)
            return {name: weights @ values / total for name, values in self.each.items()}

    def tell(self, result: Result) -> None:
        if self.each:
            _reliability(result, *self.answers)


def _reliability(result: Result, probabilities: np.ndarray, right: np.ndarray) -> None:
    rows = calibration.reliability(probabilities, right)
    result.metrics["ece"] = calibration.expected_calibration_error(probabilities, right)
    result.curves["reliability"] = [row._asdict() for row in rows]


def _rankings(scores: np.ndarray, right: np.ndarray, weights: np.ndarray) -> list[dict]:
    return [ranking_of_draws(*columns, weights) for columns in zip(scores.T, right.T, strict=True)]


def _macro(scores: np.ndarray, right: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Mean over the classes where a figure is defined. A class missing from a draw takes its figure
    from all documents `drawn`, so that every mean has the same number of terms."""
    rankings = _rankings(scores, right, np.concatenate([classification.drawn(weights), weights]))
    figures = {}
    for name in ("average_precision", "roc_auc"):
        values = np.array([ranking[name] for ranking in rankings])
        values = values[~np.isnan(values[:, 0])]
        values = np.where(np.isnan(values), values[:, :1], values)[:, 1:]
        figures[f"macro_{name}"] = values.mean(0) if len(values) else np.full(len(weights), np.nan)
    return figures


def _answered(found: Mapping[str, np.ndarray], weights, answered, known) -> dict[str, np.ndarray]:
    """The figures and, if the model abstains, the share of answered documents and the figures of
    those."""
    if answered[known].all():
        return dict(found)
    name = next(iter(found))  # accuracy, or exact_match
    share = weights @ answered / weights.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        beside = {f"answered_{name}": found[name] / share, "coverage": 100 * share}
    return {name: found[name], **beside, **found}


def _confusion(counts: np.ndarray, names: Sequence[str]) -> Rows:
    answers = [*names, _NOTHING]
    places = zip(*np.nonzero(counts), strict=True)
    pairs = Counter({(names[g], answers[p]): int(counts[g, p]) for g, p in places})
    return _ordered(pairs, "documents")


def _ordered(pairs: Counter[tuple[str, str]], noun: str) -> Rows:
    def key(pair):
        return pair[0][0] == pair[0][1], -pair[1]

    return [{"gold": g, "answer": a, noun: n} for (g, a), n in sorted(pairs.items(), key=key)]


def _confusion_of_each(counts: np.ndarray, names: Sequence[str]) -> Rows:
    rows = [
        {"class": name, "right": int(t[1, 1]), "missed": int(t[1, 0])}
        | {"not_there": int(t[0, 1]), "rightly_without": int(t[0, 0])}
        for name, t in zip(names, counts, strict=True)
    ]
    return sorted(rows, key=lambda row: -row["missed"] - row["not_there"])


def _worst(
    judged: Sequence[Judged], key: str, loss: np.ndarray, wrong: np.ndarray
) -> list[tuple[int, dict[str, Any]]]:
    """Wrong documents as (number, row), by falling loss if there is one, else in file order."""
    rows = []
    for n in _largest(loss, wrong):
        value = judged[n].answer and judged[n].answer[key]  # type: ignore[index]
        rows.append((n, _row(judged[n], judged[n].gold, _NOTHING if value is None else value)))
    return rows


def _largest(values: np.ndarray, chosen: np.ndarray) -> list[int]:
    places = np.flatnonzero(chosen)
    return places[np.argsort(-values[places], kind="stable")][:WORST].tolist()


def _row(each: Judged, gold: Any, answer: Any, **more: float) -> dict[str, Any]:
    return {"where": each.where, "id": each.id, "gold": gold, "answer": answer} | more


def _pairs(gold: set[Entity], found: set[Entity]) -> Counter[tuple[str, str]]:
    """Count (gold type, predicted type) of entities at the same place, "none" if one side is
    missing."""
    sides = [{(each.start, each.end): each.label for each in side} for side in (gold, found)]
    places = sides[0].keys() | sides[1].keys()
    return Counter(
        (sides[0].get(place, _NOTHING), sides[1].get(place, _NOTHING)) for place in places
    )


def _listed(entities: set[Entity]) -> list[list[Any]]:
    return [list(entity) for entity in sorted(entities)]
