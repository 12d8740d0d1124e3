"""Documents in the order of their relevance to a query: a cross-encoder.

Each document is an input of its own, [cls] query [sep] document [sep], scored by one logit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np

from ldt.data.features import Feature, Segment, cut_off, ends
from ldt.data.labels import REGRESSION
from ldt.data.near_duplicates import fingerprint, normalised
from ldt.data.options import Count, DataSection
from ldt.data.tokenization import numbers_pairs, pair_separators, tokenize
from ldt.errors import DataError
from ldt.io.records import Example, has, text
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.classification import number_metrics
from ldt.metrics.numbers import logistic
from ldt.metrics.ranking import measures, ndcg_by_chance, ranked
from ldt.metrics.result import mean
from ldt.tasks import results
from ldt.tasks.base import (
    DocumentTokens,
    Drawing,
    Outputs,
    RawScored,
    Scores,
    SplitGroups,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    evaluation_set,
    in_chunks,
    named_labels,
    not_empty,
    path_of,
    training_set,
)
from ldt.tasks.query_groups import field_path, judged_texts, numbers_of, teacher_scores, texts_of


def score(gold: Sequence[float], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return ndcg@10, mrr@10, recall@10 and map, 0 to 1, of an answer's ``ranking`` or ``scores``
    of a query's documents, all 0 for None; ``gold`` is their relevance. KeyError if others are
    ranked."""
    order = (answer.get("ranking") or _order(answer["scores"])) if answer else []
    if answer and sorted(order) != [*range(len(gold))]:
        raise KeyError(f"{len(order):,} documents ranked, of {len(gold):,}")
    return measures([gold[place] for place in order], gold, (10,))


def _order(scores: Iterable[float]) -> list[int]:
    """Places from the highest score on; equal ones as trec_eval orders ids."""
    return [*map(int, ranked({str(place): score for place, score in enumerate(scores)}))]


class Reranking(RawScored, Drawing):
    """Order of documents by their relevance to a query.

    A record has ``query`` and ``pos``, documents that are relevant, and maybe ``neg``, documents
    that are not; or ``documents``, in whose order the field that `data.label` names has their
    relevance, numbers from 0 on; ``anchor``, ``positive`` and ``negative``, or ``sentence1``,
    ``sentence2`` and ``score``, are read too. In place of a list may stand one document; a document
    is a text, or an object of ``title`` and ``text``. Scores of a teacher, ``pos_scores`` and
    ``neg_scores`` where all training records have them, are learned as well.

    A document that does not fit is read in chunks, with the query in front of each. Where each
    record has one document, scores are measured as numbers, else the order.

    Args:
        loss: ``listwise``, the cross entropy of the softmax over the documents of a query;
            ``pointwise``, the binary cross entropy of each document, whose relevance is from 0 to
            1; none takes listwise, and pointwise where each record has one document.
        group_size: documents of a query that are trained on in an epoch: a relevant one and less
            relevant ones, drawn anew in each.
        best_chunks: chunks of a long document, the best ones, whose mean logit is that of the
            document; 1 is the best chunk's (MaxP).
    """

    reads: ClassVar[TaskReads] = TaskReads(
        document="documents",
        query_fields=("query",),
        fields=("query", "pos", "neg", "pos_scores", "neg_scores"),
        also={"question": "query", "texts": "documents", "document": "documents"},
        label_keys=("label",),
        noun="queries",
        several=True,
        signs=(
            ("query", "documents"),
            ("query", "pos"),
            ("query", "document"),
            ("anchor", "positive"),
        ),
        instead=("pos", "document"),
    )
    inputs: ClassVar[TaskInputs] = TaskInputs(
        head="LdtForSequenceClassification",
        roles=("cls", "query", "sep", "document"),
        loss_per_document=True,
    )
    answers: ClassVar[TaskAnswers] = TaskAnswers(
        kind="ranking",
        keys=("ranking", "scores"),
        metric="ndcg@10",
        score=score,
        result=results.evaluate_rankings,
    )

    name: Literal["reranking"] = "reranking"
    global_attention: list[str] = ["cls", "query"]
    loss: Literal["listwise", "pointwise"] | None = None
    group_size: Count = 8
    best_chunks: Count = 1

    def documents(self, example: Example, data: DataSection) -> list[str]:
        """Return the texts of all documents, titles in front; DataError if there are none, or they
        are no texts."""
        path = field_path(self, example, data, "documents")
        return (
            texts_of(example, path)
            if path
            else [*chain(*judged_texts(self, example, data).values())]
        )

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        return "\n".join(self.documents(example, data)), self.query(example, data)

    def query(self, example: Example, data: DataSection) -> str:
        """Return the text of the query; DataError if it is missing or blank."""
        path = field_path(self, example, data, "query") or path_of(self, "query", data)
        query = text(example, path)
        if not query.strip():
            raise DataError(f"{example.where}: the question is empty")
        return query

    def gold(self, example: Example, data: DataSection, config) -> list[float]:
        """Return the relevance of each document: its label, 0 or more, or 1.0 for ``pos`` and 0.0
        for ``neg``."""
        if not (path := field_path(self, example, data, "documents")):
            lists = judged_texts(self, example, data).items()
            return [float(name == "pos") for name, texts in lists for _ in texts]
        count = len(texts_of(example, path))
        label = "score" if path == "sentence2" else str(data.label)
        labels = numbers_of(example, label, count)
        if min(labels) < 0:
            raise DataError(f"{example.where}: relevance {min(labels):g}, expected 0 or more")
        return labels

    def groups(self, example: Example, data: DataSection) -> SplitGroups:
        """Keep records of one query together; there are no strata."""
        return SplitGroups(fingerprint(normalised(self.query(example, data))))

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return the config entries of one label, relevance, and of the loss (``ranking``);
        problem_type is regression where each record has one document. DataError if there is
        nothing to learn, a teacher's scores are of some records alone, or a relevance is above 1
        where the loss is pointwise."""
        source, several, useful = training_set(data), False, False
        most, taught = (0.0, source), dict[bool, str]()
        for example in not_empty(self, examples, source):
            labels = self.gold(example, data, None)
            several |= len(labels) > 1
            useful |= max(labels) > min(labels)
            most = max(most, (max(labels), example.where))
            taught.setdefault(has(example, path_of(self, "pos_scores", data)), example.where)
        if len(taught) > 1:
            raise DataError(f"{taught[False]}: no pos_scores, which {taught[True]} has")
        loss = self.loss or ("listwise" if several else "pointwise")
        if loss == "listwise" and not useful and True not in taught:
            raise DataError(
                f"{source}: no query has documents of which one is more relevant than another; "
                "task.loss=pointwise learns of each alone"
            )
        if loss == "pointwise" and most[0] > 1:
            raise DataError(f"{most[1]}: relevance {most[0]:g}; a pointwise loss takes 0 to 1")
        facts = {"loss": loss, "teacher": True in taught, "best_chunks": self.best_chunks}
        problem = None if several else REGRESSION
        theirs = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
        changes = {"problem_type": problem, "ranking": facts, "sentence_transformers": theirs}
        return named_labels(["relevance"]) | changes

    def meaning(self, config) -> str:
        """Return a line with the loss and the number of documents of a query in a step, and a hint
        if sentence-transformers cannot load the model."""
        line = f"loss: {config.ranking['loss']}, of up to {self.group_size:,} documents of a query"
        if "query" in self.global_attention and config.global_tokens_matter:
            line += (
                "; sentence-transformers loads it after `import ldt.model` alone, "
                "one with task.global_attention=[cls] without that too"
            )
        return line

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Read every relevance of the evaluation set; DataError if a model of rankings has one
        document per query."""
        source = evaluation_set(data)
        sizes = [len(self.gold(each, data, config)) for each in not_empty(self, examples, source)]
        if max(sizes) == 1 and config.problem_type != REGRESSION:
            raise DataError(f"{source}: one document a query, of which there is no order")

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature for each document and chunk, those of a document together.

        ``documents`` is the index of the feature's document, ``labels`` its relevance, ``teacher``
        the score of a teacher. Flags and ``tokens`` are those of all documents.
        """
        query = tokenize(tokenizer, self.query(example, data))
        cls, sep = ends(tokenizer)
        # Separators and types of tokens as in other programs, where the tokenizer joins two texts.
        types, between = numbers_pairs(tokenizer), [sep] * pair_separators(tokenizer)
        head, tail = [cls, Segment("query", query), *between], [replace(sep, token_type=1)]
        targets: dict[str, list[float]] = {}
        if config is not None:
            targets["labels"] = self.gold(example, data, config)
            if config.ranking["teacher"]:
                scores = teacher_scores(self, example, data, judged_texts(self, example, data))
                if scores is None:
                    raise DataError(f"{example.where}: no scores, which the training set has")
                targets["teacher"] = scores
        features, texts = [], self.documents(example, data)
        tokens = unread = 0
        for place, document in enumerate(texts):
            read = DocumentTokens("document", tokenize(tokenizer, document), token_type=1)
            around = (head, read, tail, document)
            chunks = in_chunks(self, example, data, max_length, *around, token_types=types)
            tokens += chunks[0]["tokens"]
            unread += chunks[0]["flags"].get("unread_tokens", 0)
            more = {"documents": place, **{name: each[place] for name, each in targets.items()}}
            features += [chunk | more for chunk in chunks]
        flags = cut_off(unread) | ({} if any(map(str.strip, texts)) else {"empty": True})
        return [feature | {"tokens": tokens, "flags": flags} for feature in features]

    def draw(self, features: Sequence[Feature], generator: np.random.Generator) -> list[Feature]:
        """Return the features of a random relevant document and of ``task.group_size`` - 1 less
        relevant ones; of a query without such a pair, of any documents."""
        labels = {feature["documents"]: feature["labels"] for feature in features}
        relevant = [place for place, label in labels.items() if label > 0] or [*labels]
        first = int(generator.choice(relevant))
        others = [place for place, label in labels.items() if label < labels[first]]
        others = others or [place for place in labels if place != first]
        drawn = generator.permutation(others)[: self.group_size - 1].tolist()
        return [feature for feature in features if feature["documents"] in {first, *drawn}]

    def raw_scores(self, outputs: Sequence[Outputs], answer: dict, features) -> list[float]:
        """Return a logit for each document, the mean of its ``task.best_chunks`` best chunks;
        ``answer`` is not read."""
        logits = np.array([output["logits"][0] for output in outputs], np.float64)
        places = np.array([feature["documents"] for feature in features])
        parts = np.split(logits, np.flatnonzero(np.diff(places)) + 1)
        return [float(np.sort(part)[-self.best_chunks :].mean()) for part in parts]

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``scores`` of the documents, from 0 to 1, and the ``ranking``, their indices, best
        first; the number of ``chunks`` of the longest document, and flags such as ``truncated``."""
        logits = self.raw_scores(outputs, {}, features)
        answer = {"scores": [*map(logistic, logits)], "ranking": _order(logits)}
        chunks = max(feature["chunks"] for feature in features)
        return answer | {"chunks": chunks} | features[0]["flags"]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return ndcg@10, mrr@10, recall@10 and map, 0 to 100; of a model of pairs mse, mae,
        pearson and spearman of the scores. No rows."""
        if config.problem_type == REGRESSION:
            scores = [score for answer in answers for score in answer["scores"]]
            return number_metrics(np.array([*chain(*golds)]), np.array(scores)), []
        return mean([score(*pair) for pair in zip(golds, answers, strict=True)]), []

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the expected ndcg@10 of a random ranking; for a model of pairs the errors of a
        constant score, the mean of the training set."""
        if config.problem_type == REGRESSION:
            constant = float(np.mean([*chain(*trained)]))
            answer = {f"always {constant:.4g}": {"scores": [constant]}}
            return best_constant(self, answer, golds, config)
        rows = [{"ndcg@10": ndcg_by_chance(gold, 10)} for gold in golds]
        return baseline.best({"documents in a random order": mean(rows)})
