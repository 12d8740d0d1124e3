"""From scores of examples to metrics with bootstrap intervals, groups by length and place, and
JSON.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ldt.errors import plural
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import is_share
from ldt.metrics.word_overlap import CJK

LEVEL = 0.95
RESAMPLES = 2000
SEED = 0
LENGTHS = (0, 250, 500, 1000, 2000, 4000, 8000, 16000)  # words
PARTS = ("first quarter", "second quarter", "third quarter", "last quarter")
BLOCK = 1 << 20  # numbers drawn at once
NAMED = 3  # ids of a warning

# Metrics of the scores' means, or of arrays of them; all times 100.
Derive = Callable[[dict[str, Any]], dict[str, Any]]
# How often each item counts, [resamples, items], to metrics, 0 to 100, each [resamples].
Figures = Callable[[np.ndarray], dict[str, np.ndarray]]

_Id = TypeVar("_Id", bound=Hashable)
_LETTER = re.compile(f"[{CJK}]")  # each counts as a word


@dataclass(slots=True)
class Item:
    """Scored question.

    Args:
        id: id of its document or question in the gold file.
        unit: bootstrap unit, shared by questions that depend on each other, such as those on one
            document.
        scores: scores from 0 to 1, by metric.
        words: number of words of its document; None if unknown.
        place: position of the answer in the document, from 0 to 1, or a text saying why there is
            none; None if unknown.
        right: gold answer in the scorer's own form.
    """

    id: str
    unit: Hashable
    scores: dict[str, float]
    words: int | None = None
    place: float | str | None = None
    right: Any = None


@dataclass
class Result:
    """Metrics of a file of predictions, with everything that is shown beside them.

    Args:
        title: heading, names the benchmark or task.
        items: scored questions.
        metrics: published metrics under their published names, from 0 to 100.
        units: plural name of the bootstrap units.
        missing, extra: ids without a prediction, and predictions without a gold example.
        subsets: the same metrics on subsets of the questions.
        parts: questions with their own bootstrap interval, by the prefix of their metrics' names,
            such as "HasAns_".
        curves: series of numbers, for JSON only.
        tables: rows of further figures by title of the table, most informative rows first.
        scale: unit of the metrics where they are not from 0 to 100.
        warnings: lines shown under the metrics.
        shown: metrics printed for groups; all if empty.
        no_length, no_place: reasons why there are no groups by length or place.
        derive: computes metrics from mean scores where they are not the means themselves.
        figures: computes metrics with intervals where they do not follow from means, such as a
            maximum over thresholds.
        notes: remarks printed beside a metric.
        noun: name of an item, in the singular.
        baselines: metrics of trivial answers.
    """

    title: str
    items: list[Item]
    metrics: dict[str, float | int]
    units: str
    missing: list[str]
    extra: list[str]
    subsets: dict[str, dict[str, float | int]] = field(default_factory=dict)
    parts: dict[str, list[Item]] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scale: str = "0 to 100"
    warnings: list[str] = field(default_factory=list)
    shown: tuple[str, ...] = ()
    no_length: str = ""
    no_place: str = ""
    derive: Derive = dict
    figures: Figures | None = None
    notes: dict[str, str] = field(default_factory=dict)
    noun: str = "question"
    baselines: Baselines = field(default_factory=dict)

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals of the metrics, {name: (low, high)}, including those of ``parts``
        with their prefix; computed once."""
        bounds = intervals(self.items, self.derive, self.figures)
        for prefix, items in self.parts.items():
            bounds |= {prefix + name: pair for name, pair in intervals(items).items()}
        return bounds


@dataclass(slots=True)
class Group:
    """Questions whose document length or answer position lies within ``limits``, with their defined
    ``metrics`` from 0 to 100.
    """

    label: str
    limits: tuple[float | None, float | None]
    questions: int
    metrics: dict[str, float]


def count_words(text: str) -> int:
    """Number of whitespace-separated words; Chinese and Japanese characters count one each."""
    letters = len(_LETTER.findall(text))
    return letters + len((_LETTER.sub(" ", text) if letters else text).split())


def mean(scores: Sequence[Mapping[str, float]], derive: Derive = dict) -> dict[str, float]:
    """Mean of each score, times 100, passed through ``derive``.

    Args:
        scores: scores from 0 to 1 of each example, at least one, with the same names in all.
        derive: computes metrics from {name: mean}; dict takes the means themselves.
    """
    return derive(
        {name: 100.0 * sum(each[name] for each in scores) / len(scores) for name in scores[0]}
    )


def intervals(
    items: Sequence[Item], derive: Derive = dict, figures: Figures | None = None
) -> dict[str, tuple[float, float]]:
    """Return bootstrap intervals {name: (low, high)}, from 0 to 100, of the mean scores of items,
    of what ``derive`` computes from them, or of ``figures``; {} for a single unit.

    Units are drawn with replacement, `RESAMPLES` times, each with all of its questions. The
    interval holds the middle `LEVEL` of the resamples and the figure itself. Resamples where a
    figure is undefined (NaN) are skipped. A share that is 0 or 100 in all resamples gets the exact
    binomial bound (Clopper and Pearson 1934).
    """
    places = {unit: place for place, unit in enumerate(dict.fromkeys(i.unit for i in items))}
    if len(places) < 2:
        return {}
    units = [places[item.unit] for item in items]
    drawn = _figures(units, figures) if figures else derive(_means(items, units))
    edges = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    known = {name: values[~np.isnan(values)] for name, values in drawn.items()}
    whole = (
        defined(figures, np.ones((1, len(items))))
        if figures
        else mean([item.scores for item in items], derive)
    )
    bounds = {}
    for name, values in known.items():
        if len(values):
            low, high = np.quantile(values, edges).tolist()
            at = whole.get(name, low)
            bounds[name] = _exact(name, min(low, at), max(high, at), len(places))
    return bounds


def _exact(name: str, low: float, high: float, units: int) -> tuple[float, float]:
    """The interval, or the exact binomial bound if it has no width at 0 or 100."""
    if low != high or low not in (0, 100) or not is_share(name):
        return low, high
    bound = 100 * ((1 - LEVEL) / 2) ** (1 / units)
    return (bound, 100.0) if low else (0.0, 100 - bound)


def draws(units: int, at_once: int) -> Iterator[np.ndarray]:
    """Yield `RESAMPLES` rows of random numbers below ``units``, [rows, units], at most ``at_once``
    rows at a time; they are the same in each call."""
    random = np.random.default_rng(SEED)
    for start in range(0, RESAMPLES, at_once):
        yield random.integers(units, size=(min(at_once, RESAMPLES - start), units))


def _means(items: Sequence[Item], units: Sequence[int]) -> dict[str, np.ndarray]:
    names = list(items[0].scores)
    sums = np.zeros((max(units) + 1, len(names) + 1))  # the last column counts
    for item, unit in zip(items, units, strict=True):
        sums[unit] += [*item.scores.values(), 1]
    means = []
    for drawn in draws(len(sums), max(1, BLOCK // sums.size)):
        total = sums[drawn].sum(1)
        means.append(100 * total[:, :-1] / total[:, -1:])
    return dict(zip(names, np.concatenate(means).T, strict=True))


def _figures(units: Sequence[int], figures: Figures) -> dict[str, np.ndarray]:
    number, of = max(units) + 1, np.array(units)
    parts = []
    for drawn in draws(number, max(1, BLOCK // len(units))):
        rows = np.arange(len(drawn))[:, None] * number
        counts = np.bincount((drawn + rows).ravel(), minlength=drawn.size)
        parts.append(figures(counts.reshape(-1, number)[:, of]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def defined(figures: Figures, counts: np.ndarray) -> dict[str, float]:
    """Metrics that ``figures`` computes when each item counts as often as ``counts`` [1, items]
    says, without those that are NaN."""
    values = {name: float(value[0]) for name, value in figures(counts).items()}
    return {name: value for name, value in values.items() if not np.isnan(value)}


def by_length(
    items: Sequence[Item], derive: Derive = dict, figures: Figures | None = None
) -> list[Group]:
    """Group items by number of words of the document (`LENGTHS`), with the metrics of each group,
    which ``derive`` or ``figures`` compute as in `Result`; [] if no length is known."""

    def key(item):
        if item.words is None:
            return None
        place = max(place for place, least in enumerate(LENGTHS) if item.words >= least)
        least, most = (*LENGTHS, None)[place : place + 2]
        label = f"{least:,} to {most - 1:,}" if most else f"{least:,} or more"
        return place, label, (least, most)

    return _groups(items, key, derive, figures)


def by_place(items: Sequence[Item]) -> list[Group]:
    """Group items by the quarter of the document that holds the answer, and by reason where there
    is none; [] if no place is known."""
    number = len(PARTS)

    def key(item):
        if item.place is None or isinstance(item.place, str):
            return item.place and (number, item.place, (None, None))
        quarter = min(int(item.place * number), number - 1)
        return quarter, PARTS[quarter], (quarter / number, (quarter + 1) / number)

    if all(item.place is None or isinstance(item.place, str) for item in items):
        return []
    return _groups(items, key)


def _groups(
    items: Sequence[Item], key: Callable, derive: Derive = dict, figures: Figures | None = None
) -> list[Group]:
    """Group items by key (rank, label, limits); items with key None are left out."""
    groups: dict[Any, list[int]] = {}
    for number, item in enumerate(items):
        if (place := key(item)) is not None:
            groups.setdefault(place, []).append(number)
    listed = []
    for place, members in sorted(groups.items()):
        if figures:
            metrics = defined(figures, np.bincount(members, minlength=len(items))[None])
        else:
            metrics = mean([items[number].scores for number in members], derive)
        _, label, limits = place
        listed.append(Group(label, limits, len(members), metrics))
    return listed


def compare(gold: Sequence[_Id], predictions: Collection[Any]) -> tuple[list[_Id], list[_Id]]:
    """Return gold ids without a prediction, and prediction ids that are not in the gold file, each
    in order. ``predictions`` are ids, or a mapping by them."""
    known = set(gold)
    return (
        [key for key in gold if key not in predictions],
        [key for key in predictions if key not in known],
    )


def unmatched(result: Result, predictions: str) -> list[str]:
    """Warnings about ids that occur in only one of two files, a line for each of ``result.missing``
    and ``result.extra`` that is not empty; ``predictions`` is the name of the file of
    predictions."""
    lines = []
    for ids, what in (
        (result.missing, "without a whole prediction; what lacks counts 0"),
        (result.extra, "predicted but not in the gold file, left out"),
    ):
        if ids:
            lines.append(f"{predictions}: {plural(len(ids), result.noun)} {what}: {some(ids)}")
    return lines


def some(ids: Sequence[Hashable]) -> str:
    """Format the first `NAMED` ids for a message, as "'a', 'b', 'c', ..."."""
    return ", ".join(map(repr, ids[:NAMED])) + (", ..." if len(ids) > NAMED else "")


def as_json(result: Result) -> dict[str, Any]:
    """The whole result at full precision as a dict for JSON; metrics, intervals and groups are in
    its ``scale``, 0 to 100."""
    return {
        "format": result.title,
        "scale": result.scale,
        "metrics": result.metrics,
        "subsets": result.subsets,
        **({"curves": result.curves} if result.curves else {}),
        **({"tables": result.tables} if result.tables else {}),
        "notes": result.notes,
        "baseline": {name: each._asdict() for name, each in result.baselines.items()},
        "interval": {
            "level": LEVEL,
            "resamples": RESAMPLES,
            "resampled": result.units,
            "seed": SEED,
            "metrics": {name: list(pair) for name, pair in result.intervals.items()},
        },
        "missing": {"count": len(result.missing), "first": result.missing[:NAMED]},
        "extra": {"count": len(result.extra), "first": result.extra[:NAMED]},
        "by_length": _as_json(by_length(result.items, result.derive, result.figures), "words"),
        "by_position": _as_json(by_place(result.items), "part"),
    }


def _as_json(groups: Sequence[Group], key: str) -> list[dict[str, Any]]:
    return [
        {"label": g.label, key: g.limits, "questions": g.questions, "metrics": g.metrics}
        for g in groups
    ]
