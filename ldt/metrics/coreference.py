"""Coreference: MUC, B-cubed, CEAF-e, LEA and mentions, by the definition of the CoNLL scorer.

Of the clusters of a gold document (key) and of an answer (response) each metric has four counts:
what is found and what there is, for recall and for precision. Counts of documents are added up
before they are divided. Mentions are equal if both of their ends are. A mention that stands twice
in the clusters of a document counts where it stands first. What is 0 / 0 is 0.

Sources: Pradhan et al. 2014 (P14-2006), the rules of their script for MUC (Vilain et al. 1995),
B-cubed (Bagga and Baldwin 1998) and CEAF (Luo 2005, phi 4); Moosavi and Strube 2016 (P16-1060) for
LEA; Webster et al. 2018 (arXiv:1810.05201) for GAP.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ldt.metrics.entities import NAMES
from ldt.metrics.result import mean

Clusters = Sequence[Sequence[Hashable]]
Counts = tuple[float, float, float, float]  # recall and precision, each found and there

CONLL = ("muc", "b_cubed", "ceaf_e")  # CoNLL F1 is their mean
MULTIPLE = "no_singletons_"  # before figures of clusters of two mentions at least
# Least words between a mention and the one before in its cluster, for figures by distance.
DISTANCES = (0, 10, 50, 250, 1000, 4000, 16000)


def _distinct(clusters: Clusters, singletons: bool = True) -> list[list[Hashable]]:
    """The clusters, each mention once, without empty ones; ``singletons`` False: nor with one
    mention."""
    seen: set[Hashable] = set()
    parts = []
    for cluster in clusters:
        mentions = [mention for mention in dict.fromkeys(cluster) if mention not in seen]
        seen.update(mentions)
        if len(mentions) > (not singletons):
            parts.append(mentions)
    return parts


def _numbers(clusters: Clusters) -> dict[Hashable, int]:
    return {mention: number for number, each in enumerate(clusters) for mention in each}


def _shared(cluster: Sequence[Hashable], numbers: Mapping[Hashable, int]) -> Counter[int]:
    """Mentions that a cluster shares with others, by their numbers."""
    return Counter(numbers[mention] for mention in cluster if mention in numbers)


def _muc(key: Clusters, numbers: Mapping[Hashable, int], sizes: Sequence[int]):
    for cluster in key:
        shared = _shared(cluster, numbers)
        yield shared.total() - len(shared), len(cluster) - 1


def _b_cubed(key: Clusters, numbers: Mapping[Hashable, int], sizes: Sequence[int]):
    for cluster in key:
        shared = _shared(cluster, numbers)
        yield sum(n * n for n in shared.values()) / len(cluster), len(cluster)


def _lea(key: Clusters, numbers: Mapping[Hashable, int], sizes: Sequence[int]):
    for cluster in key:
        size, shared = len(cluster), _shared(cluster, numbers)
        if size == 1:  # a link to itself
            yield float(any(sizes[number] == 1 for number in shared)), 1
        else:
            links = sum(n * (n - 1) for n in shared.values())
            yield size * links / (size * (size - 1)), size


def _mention(key: Clusters, numbers: Mapping[Hashable, int], sizes: Sequence[int]):
    for cluster in key:
        yield sum(mention in numbers for mention in cluster), len(cluster)


_BY_CLUSTER: dict[str, Callable[..., Iterable[tuple[float, float]]]] = {
    **{"muc": _muc, "b_cubed": _b_cubed, "lea": _lea, "mention": _mention},
}
METRICS = (*CONLL, "lea", "mention")


def _ceaf_e(key: Clusters, response: Clusters) -> Counts:
    total, numbers = 0.0, _numbers(response)
    scores: dict[tuple[int, int], float] = {}
    for number, cluster in enumerate(key):
        for other, n in _shared(cluster, numbers).items():
            scores[number, other] = 2 * n / (len(cluster) + len(response[other]))
    for rows, columns in _components(scores):
        matrix = [[scores.get((row, column), 0.0) for column in columns] for row in rows]
        total += best_assignment(np.array(matrix))
    return total, len(key), total, len(response)


def _components(pairs: Iterable[tuple[int, int]]) -> Iterable[tuple[list[int], list[int]]]:
    """Parts of a bipartite graph that no edge joins: most clusters meet few others."""
    sides: tuple[defaultdict, defaultdict] = (defaultdict(list), defaultdict(list))
    for row, column in pairs:
        sides[0][row].append(column)
        sides[1][column].append(row)
    while sides[0]:
        nodes: tuple[list[int], list[int]] = ([], [])
        waiting = [(0, next(iter(sides[0])))]
        while waiting:
            side, node = waiting.pop()
            if node in sides[side]:
                nodes[side].append(node)
                waiting += [(1 - side, other) for other in sides[side].pop(node)]
        yield nodes


def best_assignment(scores: np.ndarray) -> float:
    """Largest sum of scores [rows, columns] that takes at most one of each row and of each column.

    Rows are added one by one along shortest augmenting paths (Jonker and Volgenant 1987).
    """
    costs = -(scores if len(scores) <= scores.shape[1] else scores.T)
    rows, columns = costs.shape
    of_rows, of_columns = np.zeros(rows), np.zeros(columns + 1)  # potentials
    match = np.full(columns + 1, -1)  # the row of each column; the last one holds the new row
    for row in range(rows):
        match[columns], column = row, columns
        distances, before = np.full(columns, np.inf), np.full(columns, columns)
        done = np.zeros(columns + 1, bool)
        while match[column] >= 0:
            done[column] = True
            here = match[column]
            through = costs[here] - of_rows[here] - of_columns[:-1]
            nearer = ~done[:-1] & (through < distances)
            distances[nearer], before[nearer] = through[nearer], column
            column = int(np.where(done[:-1], np.inf, distances).argmin())
            step = distances[column]
            of_rows[match[done]] += step
            of_columns[done] -= step
            distances[~done[:-1]] -= step
        while column != columns:
            match[column] = match[before[column]]
            column = int(before[column])
    taken = np.flatnonzero(match[:-1] >= 0)
    return float(-costs[match[taken], taken].sum())


def counts(key: Clusters, response: Clusters) -> dict[str, Counts]:
    """Counts of each of `METRICS` for a document, {name: (recall found, recall there, precision
    found, precision there)}; with the prefix `MULTIPLE` those of clusters of two mentions at least.

    Args:
        key: gold clusters, each a list of mentions, which can be anything hashable.
        response: clusters of the answer.
    """
    result = {}
    for prefix in ("", MULTIPLE):
        sides = [_distinct(side, singletons=not prefix) for side in (key, response)]
        numbers, sizes = [*map(_numbers, sides)], [[*map(len, side)] for side in sides]
        for name in METRICS:
            if name == "ceaf_e":
                result[f"{prefix}{name}"] = _ceaf_e(*sides)
                continue
            of = _BY_CLUSTER[name]
            parts = [[*of(sides[n], numbers[1 - n], sizes[1 - n])] for n in (0, 1)]
            sums = [sum(part[n] for part in side) for side in parts for n in (0, 1)]
            result[f"{prefix}{name}"] = (sums[0], sums[1], sums[2], sums[3])
    return result


_COUNTED = ("recall:found", "recall:there", "precision:found", "precision:there")


def score(key: Clusters, response: Clusters) -> dict[str, float]:
    """`counts` of a document as {"muc:recall:found": number, ...}, of which `figures` makes
    metrics."""
    return {
        f"{name}:{counted}": float(value)
        for name, values in counts(key, response).items()
        for counted, value in zip(_COUNTED, values, strict=True)
    }


def figures(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics from 0 to 100: conll_f1, then precision, recall and f1 of each of `METRICS`, as
    muc_f1.

    Args:
        sums: sums or means of what `score` gives, or arrays of them.
    """
    metrics: dict[str, Any] = {}
    for prefix in ("", MULTIPLE):
        of_prefix: dict[str, Any] = {}
        for name in METRICS:
            parts = [sums[f"{prefix}{name}:{counted}"] for counted in _COUNTED]
            of_prefix |= {
                f"{prefix}{name}_{figure}": 100 * value
                for figure, value in zip(NAMES, ratios(*parts), strict=True)
            }
        mean = sum(of_prefix[f"{prefix}{name}_f1"] for name in CONLL) / len(CONLL)
        metrics |= {f"{prefix}conll_f1": mean} | of_prefix
    return metrics


def ratios(right: Any, there: Any, correct: Any, claimed: Any) -> tuple[Any, Any, Any]:
    """Precision, recall and F1, from 0 to 1; 0 where undefined. All are numbers, or arrays of them.

    Args:
        right, there: how much of the gold is found, and how much there is.
        correct, claimed: how much of the answer is correct, and how much it claims.
    """
    recall, precision = right / (there + (there == 0)), correct / (claimed + (claimed == 0))
    both = precision + recall
    return precision, recall, 2 * precision * recall / (both + (both == 0))


def measure(pairs: Iterable[tuple[Clusters, Clusters]]) -> dict[str, float]:
    """`figures`, from 0 to 100, of all documents together, given (gold clusters, clusters of the
    answer) of each."""
    return mean([score(*pair) for pair in pairs], figures)


def _links(clusters: Clusters) -> list[tuple[Any, Any]]:
    return [pair for cluster in _distinct(clusters) for pair in pairwise(sorted(cluster))]  # type: ignore[type-var]


def by_distance(documents: Iterable[tuple[Clusters, Clusters]]) -> list[dict[str, Any]]:
    """Precision, recall and f1, 0 to 100, of links by the words between the starts of their
    mentions: a row {words, links, precision, recall, f1} for each of `DISTANCES` with links. A link
    joins a mention with the one before it in its cluster; ``links`` is the number of gold ones.

    A gold link is found if the answer has both mentions in one cluster, and one of the answer is
    right if the gold document has; so far as that is defined, F1 is that of both shares.

    Args:
        documents: gold clusters and those of the answer, their mentions as (first word, the one
            behind the last).
    """
    sums = np.zeros((len(DISTANCES), 4))
    for sides in documents:
        numbers = [_numbers(_distinct(side)) for side in sides]
        for side in (0, 1):
            for one, other in _links(sides[side]):
                row = np.searchsorted(DISTANCES, other[0] - one[0], "right") - 1
                cluster = numbers[1 - side].get(one)
                right = cluster is not None and cluster == numbers[1 - side].get(other)
                sums[row, 2 * side : 2 * side + 2] += right, 1
    rows = []
    for place, values in enumerate(sums):
        if values[1] or values[3]:
            label = f"{DISTANCES[place]:,} or more"
            if place + 1 < len(DISTANCES):
                label = f"{DISTANCES[place]:,} to {DISTANCES[place + 1] - 1:,}"
            figures = zip(NAMES, (100 * float(x) for x in ratios(*values)), strict=True)
            rows.append({"words": label, "links": int(values[1]), **dict(figures)})
    return rows
