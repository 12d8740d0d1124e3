"""Rankings of documents, measured as trec_eval does: nDCG, MRR, recall and MAP.

A document is relevant if its relevance is 1 or more. Figures are from 0 to 1, of one query each;
a query without relevant documents has 0 in all.
"""

from collections.abc import Mapping, Sequence

import numpy as np

CUTS = (1, 5, 10, 100, 1000)


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Ids of documents, the best first: by score in float32, equal ones by id, the last first."""
    return sorted(scores, key=lambda id: (np.float32(scores[id]), id), reverse=True)


def measures(
    relevance: Sequence[float], judged: Sequence[float], cuts: Sequence[int] = CUTS
) -> dict[str, float]:
    """Return ``ndcg@k``, ``mrr@k`` and ``recall@k`` at each cut k, and ``map``.

    Args:
        relevance: of the documents of a ranking, the best first; 0 where nobody has judged it.
        judged: relevance of all documents that have been judged, in any order.
    """
    gains, ideal = _gains(relevance), -np.sort(-_gains(judged))
    hits, total = np.flatnonzero(gains >= 1), max(np.count_nonzero(ideal >= 1), 1)
    values = {}
    for k in cuts:
        best = _discounted(ideal[:k])
        values[f"ndcg@{k}"] = _discounted(gains[:k]) / best if best else 0.0
    for k in cuts:
        values[f"mrr@{k}"] = 1 / (1 + float(hits[0])) if len(hits) and hits[0] < k else 0.0
    for k in cuts:
        values[f"recall@{k}"] = float((hits < k).sum() / total)
    return values | {"map": float((np.arange(1, len(hits) + 1) / (hits + 1)).sum() / total)}


def ndcg_by_chance(judged: Sequence[float], cut: int, count: int | None = None) -> float:
    """The nDCG at a cut that a random order of documents is expected to have.

    Args:
        judged: relevance of documents, in any order.
        count: number of documents; those beside ``judged`` are not relevant. None: no others.
    """
    gains = _gains(judged)
    best = _discounted(-np.sort(-gains)[:cut])
    count = len(gains) if count is None else count
    mean = float(gains.sum()) / count * _discounted(np.ones(min(cut, count)))
    return mean / best if best else 0.0


def similarities(
    queries: Sequence[np.ndarray], documents: Sequence[np.ndarray], *, total: bool = False
) -> np.ndarray:
    """[queries, documents]: for each vector of a query the largest product with a vector of the
    document; their mean, or their sum.

    Args:
        queries, documents: vectors [n, dim] of each, one at least.
        total: whether it is the sum, as of vectors of tokens.
    """
    counts = [[*map(len, parts)] for parts in (queries, documents)]
    starts = [np.cumsum([0, *numbers[:-1]]) for numbers in counts]
    products = np.concatenate(queries) @ np.concatenate(documents).T
    best = np.maximum.reduceat(products, starts[1], axis=1)
    sums = np.add.reduceat(best, starts[0], axis=0)
    return sums if total else sums / np.array(counts[0], sums.dtype)[:, None]


def _gains(relevance: Sequence[float]) -> np.ndarray:
    return np.maximum(np.asarray(relevance, float), 0)


def _discounted(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())
