"""Compare runs or answers: settings, scores on the same documents by paired bootstrap, and changed
documents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.errors import DataError, plural
from ldt.metrics.result import BLOCK, LEVEL, RESAMPLES, SEED, Figures, Item, Result, draws, some
from ldt.report.model import Document
from ldt.tasks.deciding import in_words

if TYPE_CHECKING:
    from ldt.report.subject import Subject

ROUNDING = 1e-9  # as far apart equal metrics may be that were added up in different orders


@dataclass(frozen=True)
class Difference:
    """A metric of the first and of other answers, on the same documents.

    Args:
        metric: name of the metric.
        first, value: its two values; None if undefined on these documents.
        difference: value minus first.
        interval: paired bootstrap interval of the difference; None if the metric has none.
        above: share of the resamples with a difference above 0.
    """

    metric: str
    first: float | None
    value: float | None
    difference: float | None
    interval: tuple[float, float] | None = None
    above: float | None = None


@dataclass(frozen=True)
class Change:
    """Document that scores differently.

    Args:
        id, where: id and place of the document.
        change: such as "right to wrong", with "right", "wrong" and "no answer"; "score" if
            correctness is a matter of degree.
        metric: score that changed most, "right" if the documents have no scores.
        difference: change of that score, from -1 to 1.
        gold: gold answer.
        before, after: first and other answer.
    """

    id: str
    where: str
    change: str
    metric: str
    difference: float
    gold: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Beside:
    """Comparison of other answers with the first ones.

    Args:
        name: name of the other answers.
        differences: differences of the metrics.
        changes: changed documents, largest change first.
    """

    name: str
    differences: Sequence[Difference]
    changes: Sequence[Change]


@dataclass(frozen=True)
class Comparison:
    """Complete comparison.

    Args:
        names: names of all answers, the first ones first.
        facts: settings that differ: by name, one value per answers.
        documents: number of compared documents.
        noun: name of a document.
        units: name of the bootstrap units.
        others: comparisons of all but the first.
        warnings: remarks about the answers.
        decisions: decision policy of each, in words; empty for a file of answers or without a
            policy.
    """

    names: Sequence[str]
    facts: dict[str, list[str]]
    documents: int
    noun: str
    units: str
    others: Sequence[Beside]
    warnings: Sequence[str] = field(default_factory=list)
    decisions: Sequence[str] = ()


def compare(subjects: Sequence[Subject]) -> Comparison:
    """Compare answers on the documents that all have in common: the others with the first, by
    paired bootstrap.

    Args:
        subjects: two or more, each with a result.

    Raises:
        DataError: there is no common document.
    """
    results = [each.result for each in subjects if each.result]
    first = results[0]
    ids, warnings = _common(subjects, results)
    units = {item.id: item.unit for item in first.items if item.id in ids}
    measured = _paired(results, units)
    before = [each for each in subjects[0].documents if each.id in ids]
    others = []
    for subject, other in zip(subjects[1:], measured[1:], strict=True):
        after = {each.id: each for each in subject.documents}
        pairs = [(each, after[each.id]) for each in before if each.id in after]
        differences = _differences(measured[0], other)
        others.append(Beside(subject.name, differences, _changes(pairs)))
    facts = [each.facts() for each in subjects]
    keys = dict.fromkeys(key for each in facts for key in each)
    table = {key: [each.get(key, "") for each in facts] for key in keys}
    return Comparison(
        names=[each.name for each in subjects],
        facts={key: row for key, row in table.items() if len(set(row)) > 1},
        documents=len(ids),
        noun=first.noun,
        units=first.units,
        others=others,
        warnings=warnings,
        decisions=[in_words(each.run.decisions) if each.run else "" for each in subjects],
    )


def _common(subjects: Sequence[Subject], results: Sequence[Result]) -> tuple[set[str], list[str]]:
    """Common ids, and warnings about ids that some lack."""
    asked = [{item.id for item in result.items} for result in results]
    common = set.intersection(*asked)
    if not common:
        there = "; ".join(
            f"{each.name}: {some([item.id for item in result.items])}"
            for each, result in zip(subjects, results, strict=True)
        )
        raise DataError(f"no document in common, so there is nothing to compare: {there}")
    warnings = []
    for each, ids in zip(subjects, asked, strict=True):
        if len(ids) > len(common):
            count = plural(len(ids) - len(common), results[0].noun)
            warnings.append(f"{each.name}: {count} that not all were asked, left out")
    return common, warnings


def _paired(
    results: Sequence[Result], units: Mapping[str, Hashable]
) -> list[tuple[dict[str, float], dict[str, np.ndarray]]]:
    """Return, for each result, its metrics and their values in every resample, on the same
    documents.

    All results are recomputed on the same `RESAMPLES` resamples of units, drawn with replacement,
    each with all of its questions (Efron and Tibshirani 1993, chapter 8; Koehn 2004,
    https://aclanthology.org/W04-3250). So document difficulty that both share does not widen the
    interval of a difference. ``units`` has the unit by id, for ids that all results have.
    """
    places = {unit: place for place, unit in enumerate(dict.fromkeys(units.values()))}
    place_of = {id: places[unit] for id, unit in units.items()}
    parts: list[list[dict[str, np.ndarray]]] = [[] for _ in results]
    size = max(len(result.items) for result in results)
    if len(places) > 1:
        for counts in _counts(len(places), max(1, BLOCK // size)):
            for result, part in zip(results, parts, strict=True):
                part.append(_figures(result, place_of, counts))
    measured = []
    for result, part in zip(results, parts, strict=True):
        values = dict(result.metrics)
        if len(result.items) > len(units):
            once = _figures(result, place_of, np.ones((1, len(places))))
            values = {name: float(value[0]) for name, value in once.items()}
        names = part[0] if part else ()
        drawn = {name: np.concatenate([each[name] for each in part]) for name in names}
        measured.append(({name: v for name, v in values.items() if not np.isnan(v)}, drawn))
    return measured


def _counts(units: int, at_once: int) -> Iterator[np.ndarray]:
    """Yield how often each unit is drawn, [rows, units], `RESAMPLES` rows in total."""
    for drawn in draws(units, at_once):
        rows = np.arange(len(drawn))[:, None] * units
        yield np.bincount((drawn + rows).ravel(), minlength=drawn.size).reshape(-1, units)


def _figures(
    result: Result, place_of: Mapping[str, int], counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Metrics of a result for each row of counts [rows, units], including its parts."""
    figures = result.figures or _means(result.items, result.derive)
    figures_of_all = figures(_weights(result.items, place_of, counts))
    for prefix, items in result.parts.items():
        part = _means(items, dict)(_weights(items, place_of, counts))
        figures_of_all |= {prefix + name: values for name, values in part.items()}
    return figures_of_all


def _weights(items: Sequence[Item], place_of: Mapping[str, int], counts: np.ndarray) -> np.ndarray:
    """Weights of the items, [rows, items]: the counts of their units, 0 for other items."""
    with_none = np.column_stack([counts, np.zeros(len(counts), counts.dtype)])
    return with_none[:, np.array([place_of.get(item.id, -1) for item in items])]


def _means(items: Sequence[Item], derive) -> Figures:
    names = list(items[0].scores)
    scores = np.array([[item.scores[name] for name in names] for item in items], np.float64)

    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        with np.errstate(invalid="ignore", divide="ignore"):
            means = 100 * (weights @ scores) / weights.sum(1, keepdims=True)
        return derive(dict(zip(names, means.T, strict=True)))

    return figures


def _differences(first, other) -> list[Difference]:
    """Differences of all metrics that either has, in the order of the first."""
    (values, drawn), (others, drawn_too) = first, other
    differences = []
    for name in dict.fromkeys([*values, *others]):
        if name not in values or name not in others:
            differences.append(Difference(name, values.get(name), others.get(name), None))
            continue
        apart = float(_unrounded(np.array(others[name] - values[name])))
        known = np.empty(0)
        if name in drawn and name in drawn_too:
            known = _unrounded(drawn_too[name] - drawn[name])
            known = known[~np.isnan(known)]
        interval = above = None
        if len(known):
            low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
            interval = min(low, apart), max(high, apart)
            above = float((known > 0).mean())
        differences.append(Difference(name, values[name], others[name], apart, interval, above))
    return differences


def _unrounded(differences: np.ndarray) -> np.ndarray:
    return np.where(np.abs(differences) < ROUNDING, 0.0, differences)


def _changes(pairs: Sequence[tuple[Document, Document]]) -> list[Change]:
    """Documents whose score or correctness changed, largest change first."""
    changed = []
    for old, new in pairs:
        both = [name for name in old.scores if name in new.scores]
        apart = {name: new.scores[name] - old.scores[name] for name in both}
        # The score of both that differs most, of equal ones the first; else whether each is right.
        apart = apart or {"right": float(new.right or 0) - float(old.right or 0)}
        metric = max(apart, key=lambda name: abs(apart[name]))
        if old.verdict == new.verdict and abs(apart[metric]) < ROUNDING:
            continue
        words = f"{old.verdict} to {new.verdict}"
        if old.verdict is None or new.verdict is None or old.verdict == new.verdict:
            words = "score"
        answers = (old.gold, old.answer, new.answer)
        change = Change(old.id, old.where, words, metric, apart[metric], *answers)
        changed.append((abs(apart[metric]), abs(_belief(new) - _belief(old)), change))
    changed.sort(key=lambda each: each[:2], reverse=True)
    return [change for *_, change in changed]


def _belief(document: Document) -> float:
    """Confidence, negative for a wrong answer."""
    sure = document.confidence or 0.0
    return sure if document.right else -sure


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a dict of JSON values, not rounded, with ``interval``: level, resamples and
    seed."""
    values = asdict(comparison)
    interval = {"level": LEVEL, "resamples": RESAMPLES, "resampled": comparison.units}
    return values | {"interval": interval | {"seed": SEED}}
