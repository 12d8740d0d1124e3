"""Retrieval metrics as trec_eval computes them: nDCG, MRR, recall and MAP.

A document is relevant if its relevance is 1 or more. Each figure is of one query, from 0 to 1, and
0 for a query without relevant documents.
"""

from collections.abc import Mapping, Sequence

import numpy as np

CUTS = (1, 5, 10, 100, 1000)


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Sort document ids by falling score (compared in float32), ties by falling id."""
    return sorted(scores, key=lambda id: (np.float32(scores[id]), id), reverse=True)


def measures(
    relevance: Sequence[float], judged: Sequence[float], cuts: Sequence[int] = CUTS
) -> dict[str, float]:
    """Return ``ndcg@k``, ``mrr@k`` and ``recall@k`` at each cut-off k, and ``map``, from 0 to 1, of
    one query.

    Args:
        relevance: relevance of the ranked documents, best first; 0 for unjudged ones.
        judged: relevance of all judged documents, in any order.
        cuts: the cut-offs k, numbers of documents.
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
    """Expected nDCG@k of a random order, from 0 to 1.

    Args:
        judged: relevance of the documents, in any order.
        cut: cut-off k.
        count: number of documents, those beyond ``judged`` being irrelevant; None if there are
            none.
    """
    gains = _gains(judged)
    best = _discounted(-np.sort(-gains)[:cut])
    count = len(gains) if count is None else count
    mean = float(gains.sum()) / count * _discounted(np.ones(min(cut, count)))
    return mean / best if best else 0.0


def similarities(
    queries: Sequence[np.ndarray], documents: Sequence[np.ndarray], *, total: bool = False
) -> np.ndarray:
    """Return [queries, documents]: MaxSim, the largest dot product of each query vector with a
    document's vectors, averaged or summed over the query's vectors.

    Args:
        queries, documents: vectors [n, dim] of each, at least one.
        total: True sums, as for token vectors; False averages.
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
