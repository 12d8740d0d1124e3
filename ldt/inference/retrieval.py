"""Rankings of a collection by a model that makes vectors, for ldt's metrics and mteb, and training
lines with hard negatives."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ldt.benchmarks.retrieval import (
    DEPTH,
    Collection,
    Rankings,
    TrecScorer,
    bm25,
    is_collection,
    run_lines,
    search,
)
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import DataSection
from ldt.errors import UserError
from ldt.inference.engine import Engine
from ldt.inference.vectors import KIND
from ldt.io import records
from ldt.io.files import write_result
from ldt.io.progress import reported
from ldt.io.strict_json import json_line
from ldt.metrics.ranking import ranked
from ldt.metrics.result import Result
from ldt.tasks.base import path_of
from ldt.tasks.embedding import Embedding
from ldt.tasks.units import unit_length


def evaluate(
    folder: str, gold: str, *, target: str | None = None, options: Mapping[str, Any]
) -> Result:
    """Rank the documents of a collection by the vectors of a model, and score the rankings.

    Args:
        folder: folder of a run, or of a model whose files say how vectors are made.
        gold: folder of the collection (corpus, queries, qrels), or one file in its ``qrels``.
        target: file to write the rankings to, as a TREC run; None writes none.
        options: options for document vectors by name, such as unit="chunk".

    Raises:
        UserError: answers of the model are no vectors; an option cannot be used.
        DataError: the collection cannot be used.
    """
    engine = _opened(folder, options)
    scorer = TrecScorer()
    items = scorer.gold([gold])
    assert scorer.collection
    with engine:
        rankings = _rank(engine, scorer.collection)
    if target:
        write_result(Path(target), run_lines(rankings))
    return scorer.scored(items, rankings, folder)


def _opened(folder: str, options: Mapping[str, Any]) -> Engine:
    engine = Engine.open(folder, **options)
    task = engine.recipe.task
    if task.answers.kind != KIND:
        raise UserError(f"{folder}: answers of {task.name} are no vectors, which find documents")
    return engine


def _rank(engine: Engine, collection: Collection, depth: int = DEPTH) -> Rankings:
    """Rank at most ``depth`` documents for each query by the best similarity of their vectors."""
    queries = dict(
        zip(collection.queries, _asked(engine, collection.queries.values()), strict=True)
    )
    ids = sorted(collection.documents, reverse=True)
    texts = reported((collection.documents[id] for id in ids), "embedding", total=len(ids))
    documents = zip(ids, _vectors(engine, texts, "text"), strict=True)
    total = engine.recipe.task.vectors == "tokens"
    rankings = search(queries, documents, depth=depth + 1, total=total)  # one may be the query
    return {
        query: dict([*collection.without_itself(query, scores).items()][:depth])
        for query, scores in rankings.items()
    }


def _asked(engine: Engine, texts: Iterable[str]) -> list[np.ndarray]:
    with engine.with_(unit=None, unit_tokens=None, late=None) as whole:
        return [*_vectors(whole, texts, "query")]


def _vectors(engine: Engine, texts: Iterable[str], role: str) -> Iterator[np.ndarray]:
    """Yield the unit vectors [n, dim] of each text; a text without any has one of zeros."""
    name = path_of(engine.recipe.task, role, engine.recipe.data)
    for answer in engine.answer({name: text} for text in texts):
        vectors = unit_length(answer["vectors"])
        yield vectors if len(vectors) else np.zeros((1, vectors.shape[1]), np.float32)


def mine(
    source: str,
    target: str,
    *,
    model: str | None = None,
    negatives: int = 3,
    ranks: tuple[int, int] = (0, 100),
    margin: float | None = None,
    **options: Any,
) -> None:
    """Write training lines of ``query``, ``pos`` and ``neg``: texts of the documents that are right
    for a query, and of the most similar ones among the others (hard negatives).

    The documents are all of the lines that are read, or of a collection. Lines of one query become
    one. ::

        mine("pairs.jsonl", "mined.jsonl", ranks=(5, 50))  # by BM25
        mine("pairs.jsonl", "mined.jsonl", model="runs/embedding", margin=0.05)

    Args:
        source: file of lines that the task embedding learns from, or a collection as ``gold`` of
            `evaluate`, such as ``scifact/qrels/train.tsv``.
        target: file for the lines.
        model: folder as of `evaluate`; None ranks by BM25.
        negatives: largest number of negatives of a query.
        ranks: first and last rank among the similar documents, from 0; the first ones are left out
            where they may be right although nobody said so.
        margin: part of the score of the least similar right document, by which a negative's is
            lower at least; None takes any.
        options: options for document vectors by name, such as unit="chunk".

    Raises:
        UserError: answers of the model are no vectors; an option cannot be used.
        DataError: the source cannot be used.
    """
    collection = Collection.read(source) if is_collection(source) else _collected(source)
    documents = collection.documents
    right = {
        query: [id for id, relevance in judged.items() if relevance > 0 and id in documents]
        for query, judged in collection.qrels.items()
    }
    depth = ranks[1] + max(map(len, right.values()), default=0)
    if model is None:
        rankings = bm25(collection, depth)
    else:
        with _opened(model, options) as engine:
            rankings = _rank(engine, collection, depth)
    lines = []
    for query in filter(right.get, rankings):
        scores, most = rankings[query], math.inf
        if margin is not None:  # of a document below the ranking nothing in it is low enough
            least = min(scores.get(id, -math.inf) for id in right[query])
            most = least - abs(least) * margin
        wrong = [id for id in ranked(scores) if id not in right[query] and scores[id] <= most]
        ids = {"pos": right[query], "neg": wrong[: ranks[1]][ranks[0] :][:negatives]}
        texts = {name: [documents[id] for id in side] for name, side in ids.items()}
        lines.append(json_line({"query": collection.queries[query]} | texts).decode())
    write_result(Path(target), "".join(lines))


def _collected(source: str) -> Collection:
    task, data, collection = Embedding(), DataSection.model_validate({}), Collection({}, {}, {})
    for example in records.read(source):
        group = task.group(example, data)
        query, *documents = group.query, *group.positives, *group.negatives
        number, *ids = (str(fingerprint(text)) for text in (query, *documents))
        collection.queries[number] = query
        collection.documents |= zip(ids, documents, strict=True)
        judged = collection.qrels.setdefault(number, {})
        judged |= dict.fromkeys(ids[: len(group.positives)], 1)
    return collection


class MtebModel:
    """A model of vectors as ``mteb.evaluate`` takes it.

    In retrieval a document has all of its vectors, as with ``unit="chunk"``, and the score of the
    best; in other tasks each text has one. ::

        model = MtebModel("runs/embedding", unit="chunk", unit_tokens=256)
        mteb.evaluate(model, mteb.get_tasks(["LEMBQMSumRetrieval"]))

    Args:
        folder: folder of a run, or of a model whose files say how vectors are made.
        options: options for document vectors by name, as of `ldt.load`.
    """

    def __init__(self, folder: str, **options: Any):
        self._engine = _opened(folder, options)
        self._documents: dict[str, str] = {}

    @property
    def mteb_model_meta(self) -> Any:
        """Description of the model for mteb: its name, "ldt/FOLDER", alone."""
        from mteb.models.model_meta import ModelMeta

        return ModelMeta.create_empty({"name": f"ldt/{Path(self._engine.folder).name}"})

    def encode(self, inputs: Iterable[Any], *, prompt_type: Any = None, **_: Any) -> np.ndarray:
        """Unit vectors [texts, size] of all texts in batches of {"text": [texts]}.

        With a ``unit`` other than the document there is a row for each vector of a text.

        Args:
            inputs: the batches.
            prompt_type: mteb's ``PromptType``; its query encodes queries, all else documents.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        if getattr(prompt_type, "value", None) == "query":
            return np.concatenate(_asked(self._engine, texts))
        return np.concatenate([*_vectors(self._engine, texts, "text")])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Cosines [n, m] of all pairs of vectors of two arrays [n, size] and [m, size]."""
        return unit_length(embeddings1) @ unit_length(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Cosines [n] of the rows with the same number in two arrays [n, size]."""
        return (unit_length(embeddings1) * unit_length(embeddings2)).sum(-1)

    def index(self, corpus: Iterable[Mapping[str, Any]], **_: Any) -> None:
        """Keep these records of ``id``, ``title``, ``text`` for `search`; earlier ones are
        dropped."""
        self._documents = {
            row["id"]: records.titled(row.get("title"), row["text"]) for row in corpus
        }

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, Iterable[str]] | None = None,
        **_: Any,
    ) -> Rankings:
        """Scores of the best documents of `index` for each query: {query id: {document id: score}}.

        Args:
            queries: records of ``id`` and ``text``.
            top_k: number of documents of a query at most; ignored with ``top_ranked``.
            top_ranked: by query, ids of the documents to score; None: all.
        """
        asked = {row["id"]: row["text"] for row in queries}
        collection = Collection(self._documents, asked, {})
        rankings = _rank(self._engine, collection, len(self._documents) if top_ranked else top_k)
        if top_ranked is None:
            return rankings
        return {
            query: {id: scores[id] for id in top_ranked[query] if id in scores}
            for query, scores in rankings.items()
        }
