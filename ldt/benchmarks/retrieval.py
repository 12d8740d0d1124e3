"""Retrieval: collections in BEIR's layout, rankings and judgements of TREC, search and BM25.

A collection is a folder with ``corpus.jsonl`` (_id, title, text), ``queries.jsonl`` (_id, text) and
``qrels/test.tsv`` (query-id, corpus-id, score), or with tables of these names, or in folders of
these names; ids may be called ``id``, ``doc_id`` or ``qid`` too. A query may have ``spans``, a list
of {start, end}, the characters of its evidence in the document that is right for it.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.benchmarks.base import AnswersById, Benchmark, Shape, Whole, checked, name_of
from ldt.errors import DataError, UserError, quote
from ldt.io import records, streams
from ldt.io.records import Example
from ldt.io.sources import only
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.ranking import measures, ranked, similarities
from ldt.metrics.result import Item, count_words

if TYPE_CHECKING:
    from ldt.data.options import DataSection

log = logging.getLogger("ldt")

Qrels = dict[str, dict[str, int]]  # relevance by query and document
Rankings = dict[str, dict[str, float]]  # scores by query and document

DEPTH = 1000  # documents of a ranking
_PRODUCTS = 1 << 26  # that are computed at a time
_BLOCK = 1 << 16  # vectors that are held at a time
_TABLE = (b"query-id", b"qid", b"query_id")  # first column of judgements with a header
_QUERY, _DOCUMENT = ("_id", "id", "qid"), ("_id", "id", "doc_id")
_JUDGED = ("query-id", "qid", "query_id"), ("corpus-id", "doc_id", "corpus_id")
_SPANS: Any = Shape([{"start": Whole, "end": Whole}])


def read_qrels(source: str) -> Qrels:
    """Read judgements as {query id: {document id: relevance}} from lines of query, 0, document and
    relevance (TREC), or a table with a header (query-id, corpus-id, score); DataError for other
    lines, or a document that is judged again."""
    if source.endswith(".parquet") or streams.beginning(
        source, 1 << 12, lambda head: b"\n" in head
    ).startswith(_TABLE):
        rows = _judged(source)
    else:
        lines = _lines(source, "query 0 document score")
        rows = ((where, w[0], w[2], w[3]) for where, _, w in lines)
    return _by_query(rows, int)


def read_run(source: str) -> Rankings:
    """Read a TREC run, lines of query, Q0, document, rank, score and tag, as {query id: {document
    id: score}}, without the ranks; DataError for other lines, or a document that is ranked
    again."""
    lines = _lines(source, "query Q0 document rank score tag")
    return _by_query(((where, w[0], w[2], w[4]) for where, _, w in lines), float)


def run_lines(rankings: Rankings, tag: str = "ldt") -> str:
    """Write rankings as the text of a TREC run, the best documents first, with ``tag`` in the last
    column; DataError for an id with white space."""
    return "".join(
        f"{_word(query)} Q0 {_word(id)} {rank} {float(np.float32(scores[id]))!r} {tag}\n"
        for query, scores in rankings.items()
        for rank, id in enumerate(ranked(scores), 1)
    )


def qrels_lines(qrels: Qrels) -> str:
    """Write judgements as the text of a TREC qrels file; DataError for an id with white space."""
    return "".join(
        f"{_word(query)} 0 {_word(id)} {relevance}\n"
        for query, judged in qrels.items()
        for id, relevance in judged.items()
    )


def _word(id: str) -> str:
    if id.split() != [id]:
        raise DataError(
            f"the id {quote(id)} has white space, which parts the columns of TREC files"
        )
    return id


def _lines(
    source: str, columns: str, between: str | None = None
) -> Iterator[tuple[str, int, list[str]]]:
    """Place, number and words of each line that is not blank, or its texts ``between`` marks."""
    for line in records.lines(source, max_line_bytes=1 << 28):
        where = f"{name_of(source)}:{line.number:,}"
        try:
            words = line.raw.decode().strip("\r\n").split(between) if line.raw.strip() else []
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: {streams.not_utf8(line.raw, error, line.offset)}") from None
        if words and len(words) != len(columns.split()):
            raise DataError(f"{where}: {len(words)} columns, expected {columns}")
        if words:
            yield where, line.number, words


def _judged(source: str) -> Iterator[tuple[str, str, str, Any]]:
    for row in records.read(source, id_field="", format="tsv"):
        query, document = (str(_first(row, names)) for names in _JUDGED)
        yield row.where, query, document, row.fields.get("score", 1)


def _by_query(rows: Iterable[tuple[str, str, str, Any]], number: type) -> dict[str, dict]:
    queries: dict[str, dict] = {}
    for where, query, document, written in rows:
        try:
            value = number(str(written))
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            kind = "a whole number" if number is int else "a number"
            raise DataError(f"{where}: found {quote(written)}, expected {kind}")
        documents = queries.setdefault(query, {})
        if document in documents:
            raise DataError(f"{where}: document {quote(document)} stands twice for this query")
        documents[document] = value
    return queries


def _first(row: Example, names: Sequence[str]) -> Any:
    return records.field(row, next((name for name in names if name in row.fields), names[0]))


@dataclass
class Collection:
    """Documents, queries and judgements of a retrieval set.

    Args:
        documents: texts by id.
        queries: texts by id; only those with judgements.
        qrels: judgements.
        places: position of the evidence in its document, from 0 to 1, by query, where it is known.
    """

    documents: dict[str, str]
    queries: dict[str, str]
    qrels: Qrels
    places: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str) -> "Collection":
        """Read the collection of a folder, or of a file of judgements in its folder ``qrels``.

        Raises:
            UserError: a part of it is not there, or there are several and none is called test.
            DataError: a part is damaged or does not fit another.
        """
        folder = Path(name)
        if folder.is_file():
            qrels, folder = read_qrels(name), folder.parent.parent
        else:
            files = _files(folder, "qrels")
            tests = [file for file in files if file.name.startswith("test")]
            qrels = read_qrels(only([*map(str, tests or files)], "judgements of a collection"))
        documents = {id: text for id, text, _ in _texts(folder, "corpus", _DOCUMENT)}
        asked = {id: (text, row) for id, text, row in _texts(folder, "queries", _QUERY)}
        places = {}
        for query, judged in qrels.items():
            if query not in asked:
                raise DataError(f"{folder}: query {quote(query)} is judged, and has no text")
            row = asked[query][1]
            right = [documents[id] for id, value in judged.items() if value > 0 and id in documents]
            if right and (spans := _SPANS(row.fields.get("spans") or [], row.where)):
                places[query] = min(spans[0]["start"] / max(len(right[0]), 1), 1.0)
        return cls(documents, {query: asked[query][0] for query in qrels}, qrels, places)

    def without_itself(self, query: str, scores: dict[str, float]) -> dict[str, float]:
        """Return ``scores`` of documents by id, after removing in place that of the query's own id
        if the document of this id has the query's text."""
        if self.documents.get(query) == self.queries[query]:
            scores.pop(query, None)
        return scores


def read(source: str, data: "DataSection") -> Iterator[Example]:
    """Yield an example for each judged query: query, a text; pos, texts of documents with a
    relevance of 1 or more; and neg, texts of the others. Queries without a pos are left out. Errors
    are those of `Collection.read`.

    Args:
        source: file of judgements in the folder ``qrels`` of a collection; or the collection's
            folder, of whose judgements those called train are read.
        data: unused.
    """
    if Path(source).is_dir():
        parts = [file for file in _files(Path(source), "qrels") if file.name.startswith("train")]
        source = only([*map(str, parts)], f"{source}: judgements called train")
    collection = Collection.read(source)
    for query, judged in collection.qrels.items():
        sides: tuple[list[str], list[str]] = ([], [])
        for id, value in judged.items():
            if id in collection.documents:
                sides[value < 1].append(collection.documents[id])
        if sides[0]:
            fields = {"query": collection.queries[query], "pos": sides[0], "neg": sides[1]}
            yield Example(fields, query, f"{source}: query {query}")


def read_triples(source: str, data: "DataSection") -> Iterator[Example]:
    """Yield an example, {query, pos: [text], neg: [text]}, from each line of a table of query,
    right and wrong document, without a header, as MS MARCO's; DataError for other columns.
    ``data`` is unused."""
    for where, number, (query, right, wrong) in _lines(source, "query positive negative", "\t"):
        yield Example({"query": query, "pos": [right], "neg": [wrong]}, number, where)


def is_collection(name: str) -> bool:
    """True for a folder with files of a corpus and of queries, or a file in a subfolder of one."""
    path = Path(name)
    folder = path.parent.parent if path.is_file() else path
    return path.exists() and bool(_files(folder, "corpus") and _files(folder, "queries"))


def _files(folder: Path, part: str) -> list[Path]:
    listed = [*folder.glob(f"{part}.*"), *folder.glob(f"{part}/*"), *folder.glob(f"{part}-*")]
    return sorted(file for file in listed if file.is_file())


def _texts(folder: Path, part: str, ids: Sequence[str]) -> Iterator[tuple[str, str, Example]]:
    """Id, text and record of each document or query; a title stands in front of its text."""
    seen = set()
    for row in (row for file in _files(folder, part) for row in records.read(file, id_field="")):
        id = str(_first(row, ids))
        if id in seen:
            raise DataError(f"{row.where}: the id {quote(id)} stands twice")
        seen.add(id)
        title = records.text(row, "title", blank=True) if "title" in row.fields else ""
        yield id, records.titled(title, records.text(row, "text")), row


def search(
    queries: Mapping[str, np.ndarray],
    documents: Iterable[tuple[str, np.ndarray]],
    *,
    depth: int = DEPTH,
    total: bool = False,
) -> Rankings:
    """Find for each query the documents most similar to it, by all vectors of each: {query id:
    {document id: score}}.

    Args:
        queries: vectors [n, dim] by id.
        documents: id and vectors of each, sorted by falling id, so that of equally similar ones
            those are left that `ldt.metrics.ranking.ranked` puts first; read in blocks.
        depth: number of documents of a query at most.
        total: True sums over the vectors of a query, False averages (`similarities`).
    """
    asked = [*queries.values()]
    most = min(_BLOCK, max(1, _PRODUCTS // sum(map(len, asked))))
    ids: list[str] = []
    chosen = [(np.zeros(0, np.float32), np.zeros(0, int)) for _ in asked]

    def add(block: list[np.ndarray]) -> None:
        numbers = np.arange(len(ids) - len(block), len(ids))
        for row, scores in enumerate(similarities(asked, block, total=total)):
            pairs = zip(chosen[row], (scores, numbers), strict=True)
            joined, places = map(np.concatenate, pairs)
            best = _top(joined, depth)
            chosen[row] = joined[best], places[best]

    block: list[np.ndarray] = []
    count = 0
    for id, vectors in documents:
        ids.append(id)
        block.append(vectors)
        count += len(vectors)
        if count >= most:
            add(block)
            block, count = [], 0
    if block:
        add(block)
    return {
        query: {ids[number]: float(score) for score, number in zip(*best, strict=True)}
        for query, best in zip(queries, chosen, strict=True)
    }


def _top(scores: np.ndarray, depth: int) -> np.ndarray:
    """Indices of the ``depth`` largest scores in falling order, of equal ones the first."""
    places = np.arange(len(scores))
    if len(scores) > depth:
        places = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
    return places[np.argsort(-scores[places], kind="stable")][:depth]


def bm25(collection: Collection, depth: int = DEPTH) -> Rankings:
    """Rank the documents of a collection by BM25, on stemmed English words without stop words: for
    each query the scores of its best ``depth`` documents by id, without the query itself.
    UserError if bm25s is not installed."""
    try:
        import bm25s
        from Stemmer import Stemmer
    except ImportError:
        raise UserError("BM25 needs bm25s: pip install 'ldt-toolkit[retrieval]'") from None
    ids = sorted(collection.documents, reverse=True)
    options: Any = {"stemmer": Stemmer("english"), "show_progress": False, "return_ids": False}
    words = bm25s.tokenize([collection.documents[id] for id in ids], stopwords="en", **options)
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    rankings = {}
    asked = bm25s.tokenize([*collection.queries.values()], stopwords="en", **options)
    for query, tokens in zip(collection.queries, asked, strict=True):
        scores = np.zeros(len(ids), np.float32)
        if tokens:
            scores = np.asarray(index.get_scores(tokens), np.float32)
        best = {ids[place]: float(scores[place]) for place in _top(scores, depth)}
        rankings[query] = collection.without_itself(query, best)
    return rankings


@dataclass
class TrecScorer(Benchmark):
    """Rankings by trec_eval's measures; gold is a file of judgements, or a collection, which gives
    lengths of documents, places of evidence, and the figures of BM25."""

    collection: Collection | None = field(default=None, init=False)

    title = "trec"
    units = "queries"
    noun = "query"
    shown = ("ndcg@10", "mrr@10", "recall@100")
    no_length = no_place = "judgements have no texts; --gold takes a folder in BEIR's layout too"

    def gold(self, files: Sequence[str]) -> list[Item]:
        """Read judgements by query from one file, or from a collection, which stays in
        ``collection``; an item's ``right`` is {document id: relevance}."""
        file = only(files, "judgements")
        if not is_collection(file):
            items = [Item(id, id, {}, right=judged) for id, judged in read_qrels(file).items()]
            return checked(items, name_of(file), "judgements")
        self.collection = Collection.read(file)
        self.no_place = "a query has spans, the characters of its evidence"  # type: ignore[misc]
        return checked([*map(self._item, self.collection.qrels)], file, "judgements")

    def _item(self, query: str) -> Item:
        assert self.collection
        judged, documents = self.collection.qrels[query], self.collection.documents
        right = (documents.get(id, "") for id, relevance in judged.items() if relevance > 0)
        words = max(map(count_words, right), default=None)
        return Item(query, query, {}, words, self.collection.places.get(query), judged)

    def answers(self, files: Sequence[str]) -> AnswersById:
        """Read one TREC run: scores of documents by query."""
        return read_run(only(files, "a run"))

    def score(self, right: dict[str, int], answer: dict[str, float] | None) -> dict[str, float]:
        """nDCG, MRR, recall and MAP (`measures`), 0 to 1, of a query's ranking.

        Args:
            right: relevance by document; other documents have 0.
            answer: score by document; None is an empty ranking.
        """
        return measures([right.get(id, 0) for id in ranked(answer or {})], [*right.values()])

    def baselines(self, items: Sequence[Item], answers: AnswersById, name: str) -> Baselines:
        """Metrics of BM25 on the queries of ``items``; {} without a collection, or, with a warning
        in the log, without bm25s. The other arguments are not used."""
        if self.collection is None:
            return {}
        try:
            rankings = bm25(self.collection)
        except UserError as error:
            log.warning("%s", error)
            return {}
        return baseline.best({"BM25": self.aggregate(items, rankings, "BM25").metrics})
