"""Vectors of texts, by which a query finds its documents, or by which texts are alike.

Input: [cls] text [sep], each text in one of its own; a longer one is read in chunks, each with a
vector. The similarity of two texts is the largest of their vectors' cosines.
"""

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from ldt.benchmarks.retrieval import search
from ldt.data.features import Feature, Segment, ends
from ldt.data.labels import REGRESSION
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import Count, DataSection, Rate, Section
from ldt.data.tokenization import tokenize
from ldt.errors import DataError
from ldt.io.records import Example, flat, has, text
from ldt.metrics.baseline import Baselines, best
from ldt.metrics.classification import number_metrics
from ldt.metrics.ranking import measures, ndcg_by_chance, ranked, similarities
from ldt.metrics.result import mean
from ldt.tasks.base import (
    Continuing,
    DocumentTokens,
    Drawing,
    Outputs,
    Scores,
    Task,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    in_chunks,
    not_empty,
    path_of,
    training_set,
)
from ldt.tasks.query_groups import field_path, judged_texts, numbers_of, teacher_scores
from ldt.tasks.units import UnitSettings, encode_units, token_vectors, unit_length, unit_vectors

QUERY, RIGHT, WRONG = range(3)  # labels, as the head takes them
CUT = 10  # documents of a ranking that count
METRICS = (f"ndcg@{CUT}", f"mrr@{CUT}", f"recall@{CUT}")
PAIRS = "query and pos, anchor and positive, sentence1 and sentence2"  # fields of examples
MARKS = {*string.punctuation}
# Keys of `config.embedding` that a model may have been trained with.
CONTINUED = ("pooling", "normalize", "vectors", "size", "dimensions", "prompts", "skip")


class QueryGroup(NamedTuple):
    """Query, documents that are right for it and others, as one example has them.

    Args:
        query: text.
        positives, negatives: texts.
        scores: scores of all documents by a teacher, or of the only one by a person; or None.
        kind: loss that learns it: ``contrastive``, ``kl`` for a teacher's scores, ``graded`` for a
            person's.
    """

    query: str
    positives: list[str]
    negatives: list[str]
    scores: list[float] | None
    kind: str


class Prompts(Section):
    """Texts in front of what is embedded.

    Args:
        query: text in front of queries.
        document: text in front of documents.
    """

    query: str = ""
    document: str = ""


class Embedding(Continuing, Drawing):
    """Vectors of documents and queries.

    An example to learn from has a query, documents that are right for it and others that are not:
    ``query``, ``pos`` and ``neg`` (a text or a list of them), or ``anchor``, ``positive`` and
    ``negative``, or ``sentence1`` and ``sentence2``. All other documents of a batch are wrong for a
    query too. With ``score`` beside the two texts the vectors learn which pairs are more alike;
    with ``pos_scores`` and ``neg_scores``, lists, they learn a teacher's scores.

    A record with ``text`` alone is a document, one with ``query`` alone a query; both are answered
    with their ``vectors``, one with more by those of each text.

    A key that the recipe has not is as the model that is trained has it: pooling, prompts and all
    that tells how vectors are made, also in a folder of sentence-transformers.

    Args:
        pooling: vector of a text: the ``mean`` or ``max`` of its tokens' states, or the state of
            the first (``cls``) or of the ``last`` token.
        normalize: whether vectors have the length 1.
        vectors: one of each ``document``, or one of each of its ``tokens`` (late interaction).
        size: numbers in a vector, made by a layer of their own; none is as many as a state has, of
            tokens 128.
        dimensions: shorter sizes that the beginning of a vector is trained to be good at
            (Matryoshka).
        temperature: number that divides similarities in the loss; none is 0.05, of tokens 1.
        negatives: negatives of an example that an epoch trains on at most, drawn anew in each; none
            takes all.
        prompts: texts in front of queries and documents.
        skip: ids of tokens that documents have no vectors of where each token has one;
            ``punctuation`` is those of marks such as a comma.
        distillation: loss of teacher's scores: ``kl``, the divergence of the softmax over a query's
            own documents, or ``margin_mse``, the squared error of the differences between a right
            document and the others.
    """

    reads: ClassVar[TaskReads] = replace(
        Task.reads,
        fields=("query", "pos", "neg", "score", "pos_scores", "neg_scores"),
        noun="examples",
        signs=(("query", "pos"), ("anchor", "positive"), ("sentence1", "sentence2", "score")),
        instead=("pos", "positive", "sentence2"),
    )
    inputs: ClassVar[TaskInputs] = replace(
        Task.inputs,
        head="LdtForEmbedding",
        roles=("cls", "query", "document", "sep"),
        extras=("text", "role", "units", "rows", "places"),
        loss_per_document=True,
    )
    answers: ClassVar[TaskAnswers] = replace(
        Task.answers,
        kind="vectors",
        outputs=("vectors",),
        keys=("vectors", "spans", "unit", "tokens", "query", "documents"),
        metric=METRICS[0],
        number_metric="spearman",
        means=False,
    )

    name: Literal["embedding"] = "embedding"
    global_attention: list[str] = []
    pooling: Literal["mean", "cls", "last", "max"] = "mean"
    normalize: bool = True
    vectors: Literal["document", "tokens"] = "document"
    size: Count | None = None
    dimensions: list[Count] = []
    temperature: Rate | None = None
    negatives: Count | None = None
    prompts: Prompts = Prompts()
    skip: list[int] | Literal["punctuation"] = []
    distillation: Literal["kl", "margin_mse"] = "kl"

    asked: ClassVar[Mapping[str, Any]] = {}  # options of the vectors of a document

    @model_validator(mode="before")
    @classmethod
    def _global_where_pooled(cls, keys: Any) -> Any:
        if isinstance(keys, dict) and keys.get("pooling") == "cls":
            return {"global_attention": ["cls"]} | keys
        return keys

    def continued(self, config, folder: Path) -> Self:
        """Return a copy of the task with the settings of vectors in a model's ``config`` that the
        recipe does not give; ``skip: punctuation`` becomes ids of the tokenizer in its
        ``folder``."""
        settings = {name: config.embedding.get(name) for name in CONTINUED}
        settings |= {"global_attention": config.global_attention}
        known = {
            name: value
            for name, value in settings.items()
            if value is not None and name not in self.model_fields_set
        }
        if "prompts" in known:
            known["prompts"] = Prompts(**known["prompts"])
        known = known if config.embedding else {}
        if self.skip == "punctuation":
            from ldt.model.loading import read_tokenizer

            tokens = read_tokenizer(folder).get_vocab().items()
            known["skip"] = sorted(id for token, id in tokens if token.lstrip("Ġ▁") in MARKS)
        return self.model_copy(update=known)

    # -- read

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        """Return the documents, a line for each, and the query; "" for a side that the example
        lacks."""
        roles = self._texts(example, data)
        queries = [content for role, content in roles if role == "query"]
        return flat([content for role, content in roles if role == "document"]), flat(queries)

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return ``documents``, a hash of each document's text, the right ones first; ``right``,
        the number of right ones; and of a graded pair the ``score``."""
        group = self.group(example, data)
        documents = [fingerprint(each) for each in (*group.positives, *group.negatives)]
        score = {"score": group.scores[0]} if group.scores and group.kind == "graded" else {}
        return {"documents": documents, "right": len(group.positives)} | score

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return the config's ``embedding``, the settings of vectors from the recipe, and
        ``problem_type``, regression if the examples are graded pairs. DataError if examples are
        of several kinds."""
        kind = None
        for example in not_empty(self, examples, training_set(data)):
            other = self.group(example, data).kind
            if kind not in (None, other):
                raise DataError(
                    f"{example.where}: {other}, examples before are {kind}; scores stand in all of "
                    "a training set or in none"
                )
            kind = other
        tokens = self.vectors == "tokens"
        return {
            "problem_type": REGRESSION if kind == "graded" else None,
            "embedding": {
                "pooling": self.pooling,
                "normalize": self.normalize,
                "vectors": self.vectors,
                "size": self.size or (128 if tokens else None),
                "dimensions": sorted(self.dimensions, reverse=True),
                "prompts": self.prompts.model_dump(),
                "skip": self.skip,
                "loss": self.distillation if kind == "kl" else kind,
                "temperature": self.temperature or (1.0 if tokens else 0.05),
            },
        }

    def group(self, example: Example, data: DataSection) -> QueryGroup:
        """Return the query of an example and its documents; DataError if one side is missing, or
        the scores are not those of its documents."""
        query = field_path(self, example, data, "query")
        if query is None or field_path(self, example, data, "pos") is None:
            raise DataError(f"{example.where}: no {PAIRS}; expected two such fields")
        lists = judged_texts(self, example, data)
        right, wrong = lists["pos"], lists.get("neg", [])
        scores, kind = teacher_scores(self, example, data, lists), "contrastive"
        if scores is not None:
            kind = "kl"
        grade = path_of(self, "score", data)
        if has(example, grade):
            scores, kind = numbers_of(example, grade, len(right + wrong)), "graded"
        return QueryGroup(text(example, query), right, wrong, scores, kind)

    def _texts(self, example: Example, data: DataSection) -> list[tuple[str, str]]:
        """(role, text) of all that is embedded of an example."""
        if all(field_path(self, example, data, name) for name in ("query", "pos")):
            group = self.group(example, data)
            documents = [*group.positives, *group.negatives]
            return [("query", group.query), *(("document", each) for each in documents)]
        document, query = (path_of(self, name, data) for name in ("text", "query"))
        if has(example, query) and not has(example, document):
            return [("query", text(example, query))]
        return [("document", text(example, document))]

    # -- encode

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return the features of each text, the query's first, each feature with the number of its
        ``text``; for training also ``labels`` (query 0, right 1, wrong 2), ``texts`` (a hash)
        and ``scores``. A text alone has, without a config, the features of its units
        (`ldt.tasks.units.encode_units`)."""
        contents = self._texts(example, data)
        cls, sep = ends(tokenizer)
        features: list[Feature] = []
        tokens = 0
        for number, (role, content) in enumerate(contents):
            other = "query" if role == "document" else "document"  # may be global, and is not there
            head = [cls, Segment(other, ())]
            prompt = getattr(self.prompts, role)
            if config is None and len(contents) == 1:
                sides, both = (head, [sep]), (prompt, content)
                reading = example, tokenizer, data, max_length
                inputs = encode_units(self, self._units, *reading, role, both, sides)
                return [feature | {"text": 0, "role": role} for feature in inputs]
            read = DocumentTokens(role, tokenize(tokenizer, prompt + content))
            inputs = in_chunks(self, example, data, max_length, head, read, [sep], content)
            features += [feature | {"text": number} for feature in inputs]
            tokens += inputs[0]["tokens"]
        features = [feature | {"tokens": tokens} for feature in features]
        if config is not None:
            group = self.group(example, data)
            if group.scores is None and config.embedding["loss"] != "contrastive":
                raise DataError(f"{example.where}: no scores, which the training set has")
            self._label(features, group, contents)
        return features

    @property
    def _units(self) -> UnitSettings:
        kind, size = self.asked.get("unit", "document"), self.asked.get("unit_tokens", 256)
        return UnitSettings(kind, size, self.asked.get("late", True), self.vectors == "tokens")

    def _label(self, features: list[Feature], group: QueryGroup, contents: Sequence[tuple]) -> None:
        """Add what the loss reads, in place."""
        for feature in features:
            number = feature["text"]
            label = WRONG if number > len(group.positives) else RIGHT if number else QUERY
            feature |= {"labels": label, "texts": fingerprint(contents[number][1]) >> 1}
            if group.scores is not None:
                feature["scores"] = float(group.scores[number - 1]) if number else 0.0

    def draw(self, features: Sequence[Feature], generator: np.random.Generator) -> list[Feature]:
        """Return the features of the query, of its right documents and of ``task.negatives`` wrong
        ones, drawn at random."""
        wrong = sorted({each["text"] for each in features if each["labels"] == WRONG})
        drawn = {*generator.permutation(wrong)[: self.negatives].tolist()}
        return [each for each in features if each["labels"] != WRONG or each["text"] in drawn]

    # -- answer

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``vectors`` [n, size] of a text alone, and their ``spans`` in characters; for a
        query with documents the vectors of ``query`` and, in a list, of each of its
        ``documents``; the number of ``chunks``, and flags such as ``truncated``."""
        if "units" in features[0]:
            return self._of_text(outputs, config, features) | _flags_of(features)
        by_text: dict[int, list[np.ndarray]] = {}
        for output, feature in zip(outputs, features, strict=True):
            size = len(feature["input_ids"]) if self.vectors == "tokens" else 1
            by_text.setdefault(feature["text"], []).append(output["vectors"][:size])
        query, *documents = map(np.concatenate, by_text.values())
        answer = {"query": query, "documents": documents} if documents else {"vectors": query}
        chunks = max(map(len, by_text.values()))
        return answer | {"chunks": chunks} | _flags_of(features)

    def _of_text(self, outputs, config, features) -> dict[str, Any]:
        if self.vectors == "tokens":
            skip = config.embedding.get("skip", ()) if features[0]["role"] == "document" else ()
            vectors, places = token_vectors(outputs, features, skip)
        else:
            places = [[*place] for place in features[0]["places"]]
            vectors = unit_vectors(outputs, features, self.normalize)
        if size := self.asked.get("dimensions"):
            vectors = unit_length(vectors[:, :size]) if self.normalize else vectors[:, :size]
        kind = "token" if self.vectors == "tokens" else self._units.kind
        named = {} if kind == "document" else {"unit": kind}
        facts = {"tokens": features[0]["tokens"], "chunks": max(x["chunks"] for x in features)}
        return {"vectors": vectors, "spans": places} | named | facts

    # -- score

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return ndcg@10, mrr@10 and recall@10, 0 to 100, of ranking the documents of all examples
        for each query; of graded pairs the rank correlation of similarity and score,
        ``spearman``. No rows."""
        total = self.vectors == "tokens"
        queries = [unit_length(answer["query"]) for answer in answers]
        if all("score" in gold for gold in golds):
            pairs = zip(
                queries, (unit_length(answer["documents"][0]) for answer in answers), strict=True
            )
            alike = [similarities([one], [other], total=total).item() for one, other in pairs]
            wanted = np.array([gold["score"] for gold in golds], float)
            return {"spearman": number_metrics(wanted, np.array(alike))["spearman"]}, []
        documents: dict[str, np.ndarray] = {}
        for answer, gold in zip(answers, golds, strict=True):
            vectors = map(unit_length, answer["documents"])
            documents |= zip(map(str, gold["documents"]), vectors, strict=True)
        asked = {str(number): vectors for number, vectors in enumerate(queries)}
        falling = sorted(documents.items(), key=itemgetter(0), reverse=True)
        rankings = search(asked, falling, depth=CUT, total=total)
        rows = []
        for ranking, gold in zip(rankings.values(), golds, strict=True):
            right = {str(number) for number in gold["documents"][: gold["right"]]}
            hits = [float(id in right) for id in ranked(ranking)]
            figures = measures(hits, [1.0] * len(right), (CUT,))
            rows.append({name: figures[name] for name in METRICS})
        return mean(rows), []

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the expected nDCG and recall of a random ranking; of graded pairs a correlation of
        0."""
        if all("score" in gold for gold in golds):
            return best({"always the same similarity": {"spearman": 0.0}})
        count = len({number for gold in golds for number in gold["documents"]})
        rows = []
        for gold in golds:
            right = [1.0] * len(set(gold["documents"][: gold["right"]]))
            ndcg = ndcg_by_chance(right, CUT, count)
            rows.append({METRICS[0]: ndcg, METRICS[2]: min(CUT, count) / count})
        return best({"documents in a random order": mean(rows)})


def _flags_of(features: Sequence[Feature]) -> dict[str, Any]:
    """Flags of all texts, with the sum of the unread tokens."""
    firsts = {feature["text"]: feature["flags"] for feature in reversed(features)}.values()
    unread = sum(flags.get("unread_tokens", 0) for flags in firsts)
    flags = {key: value for each in firsts for key, value in each.items()}
    return flags | ({"unread_tokens": unread} if unread else {})
