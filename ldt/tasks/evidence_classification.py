"""Classification of a claim about a document, with evidence passages, as in ContractNLI."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ldt.benchmarks import contractnli
from ldt.benchmarks.contractnli import LABELS
from ldt.data.features import Feature
from ldt.data.labels import SINGLE, LabelReader
from ldt.data.options import DataSection, Names
from ldt.data.sentences import Span
from ldt.errors import DataError, listed
from ldt.io.records import Example, field, text
from ldt.metrics import baseline, classification
from ldt.metrics.baseline import Baselines
from ldt.tasks.base import (
    Outputs,
    PublishedLayout,
    Scores,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    named_labels,
    names_of,
    not_empty,
    path_of,
    question_of,
    score_all,
    training_set,
)
from ldt.tasks.explained import ByPlaces
from ldt.tasks.questions import (
    QuestionTask,
    RightAnswer,
    Weight,
    class_with_evidence,
    numbers_of,
    probabilities,
    spans_of,
    with_evidence,
)


class EvidenceClassification(QuestionTask, ByPlaces):
    """Class of a hypothesis about a document of any length, and its evidence spans.

    An example has ``hypothesis``, ``text``, ``spans`` (possible evidence passages as a list of
    [start, end) in characters), ``label`` and ``evidence`` (indices of spans from 0). Hypotheses
    asked about many documents have a ``key`` and each document an id in ``document``; then scoring
    is as in ContractNLI.

    Input: <s> hypothesis </s> [SPAN] span [SPAN] span ... </s>, as in Span NLI BERT (Koreeda and
    Manning 2021, arXiv:2110.01799, section 4), plus global attention of the hypothesis and the
    markers. Evidence is read at a span's marker, the class at the first token; spans of hypotheses
    without evidence are trained as negatives. A long document is read in chunks that split no span
    unless it is longer than one (`ldt.tasks.questions`).

    Args:
        labels: classes in the order of the model's outputs; none takes ContractNLI's if the
            training set has no others, else those of the training set, sorted.
        weights: weights of the losses ``class`` and ``passages``; 1 if not given.
        threshold: probability above which a span is evidence.
    """

    reads: ClassVar[TaskReads] = replace(
        QuestionTask.reads,
        document="text",
        query_fields=("hypothesis",),
        fields=("hypothesis", "spans", "evidence", "key", "document"),
        label_keys=("label", "label_separator"),
        noun="hypotheses",
        signs=(("hypothesis", "spans", "label", "evidence"),),
        formats=("contractnli",),
    )
    inputs: ClassVar[TaskInputs] = replace(
        QuestionTask.inputs,
        head="LdtForEvidenceClassification",
        roles=(*QuestionTask.inputs.roles, "passages"),
        markers=("[SPAN]",),
        extras=(*QuestionTask.inputs.extras, "passages", "spans", "about"),
        label_names=("labels", "passage_labels"),
    )
    answers: ClassVar[TaskAnswers] = replace(
        QuestionTask.answers,
        kind="evidence",
        score=contractnli.score,
        outputs=("logits", "passage_logits"),
        keys=(
            *("label", "scores", "score", "evidence", "span_probs"),
            *("key", "document", "hypothesis"),
        ),
        metric="class.accuracy",  # by which ContractNLI's authors choose
        means=False,
        layouts={"contractnli": PublishedLayout(contractnli.published)},
    )

    name: Literal["evidence_classification"] = "evidence_classification"
    global_attention: list[str] = ["cls", "question", "passages"]
    labels: Names | None = None
    weights: dict[Literal["class", "passages"], Weight] = {}
    threshold: float = Field(0.5, ge=0, le=1)

    def classes(self, example: Example, data: DataSection) -> str | list[str] | None:
        """Return the class of the hypothesis; None for a blank label."""
        reader = self._reader(data)
        return reader.classes(reader.raw(example), example.where)

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return id2label, label2id, num_labels, and the settings of the loss, evidence_weights and
        passage_loss. DataError if a label is not in ``task.labels``, or all labels are equal."""
        source, seen = training_set(data), Counter[str]()
        for example in not_empty(self, examples, source):
            seen[self._gold(example, data, self.labels or ())["label"]] += 1
        if len(seen) == 1:
            raise DataError(
                f"{source}: nothing to learn, all {seen.total():,} hypotheses have the label "
                f"{next(iter(seen))!r}"
            )
        names = self.labels or (LABELS if seen.keys() <= set(LABELS) else sorted(seen))
        weights = {"evidence_weights": self.weights, "passage_loss": "each"}
        return {**named_labels(names), **weights}

    def meaning(self, config) -> str:
        """Return a line with the names of the classes in their order."""
        names = listed(names_of(config), 5)
        return f"labels: one class a hypothesis, in the order {names} (task.labels names another)"

    def marks(self, example: Example, data: DataSection) -> list[tuple[Span, str]]:
        """Return the characters of each span, all with the marker [SPAN]."""
        return [(span, self.inputs.markers[0]) for span in self._spans(example, data)]

    def labelling(self, example: Example, data: DataSection, config, context: str) -> RightAnswer:
        """Return the evidence, and a class that is trained on chunks with evidence if it
        has any."""
        gold = self.gold(example, data, config)
        number, evidence = names_of(config).index(gold["label"]), gold["evidence"]
        return RightAnswer(passages=evidence, label=class_with_evidence(number, evidence))

    def shared_keys(self, example: Example, data: DataSection) -> dict[str, Any]:
        """Return {"spans": characters of each, [spans, 2] int32, "about": fields to copy into the
        answer}."""
        named = {"hypothesis": question_of(self, example, data, "hypothesis")}
        places = np.array(self._spans(example, data), np.int32).reshape(-1, 2)
        return {"spans": places, "about": named | self._named(example, data)}

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return a line with the number of inputs that have evidence."""
        return [with_evidence(features)]

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return ``label``, ``evidence`` (indices of spans), ``spans`` (their number), and ``key``
        and ``document``, each None if the example has none; DataError for a label that the model
        of ``config`` does not know."""
        return self._gold(example, data, () if config is None else names_of(config))

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return the answer, and flags such as ``truncated``.

        ``label`` and ``scores``, the probability of each class; ``evidence``, spans above the
        threshold as {span (its index), start, end, text, score}; ``span_probs``, one per span, 0 if
        unread; hypothesis, and key and document if the example has them.
        """
        context, spans = features[0]["context"], features[0]["spans"].tolist()
        scores, probs = probabilities(outputs, features, len(spans))
        names = names_of(config)
        evidence = [
            {"span": n, "start": start, "end": end, "text": context[start:end], "score": share}
            for n, ((start, end), share) in enumerate(zip(spans, probs.tolist(), strict=True))
            if share > self.threshold
        ]
        answer = {
            "label": names[int(scores.argmax())],
            "scores": dict(zip(names, scores.tolist(), strict=True)),
            "evidence": evidence,
            "span_probs": probs.tolist(),
        }
        return answer | features[0]["about"] | features[0]["flags"]

    def places(self, answer: dict, example: Example, data: DataSection) -> list[tuple[int, float]]:
        """Return the start of every span, in characters, with its probability."""
        starts = [start for start, _ in self._spans(example, data)]
        return list(zip(starts, answer["span_probs"], strict=True))

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return metrics under ContractNLI's names, from 0 to 100, and a row per class.

        If all hypotheses have a key and a document and the classes are ContractNLI's, its own
        metrics, means over hypotheses (`ldt.benchmarks.contractnli.SHOWN`); else class.accuracy and
        class.macro_f1 over all, and span.map, the mean average precision of spans over those with
        evidence.
        """
        names = names_of(config)
        right = classification.indicators([gold["label"] for gold in golds], names)
        predicted = classification.indicators([answer["label"] for answer in answers], names)
        rows = classification.class_rows(right, predicted, names)
        keyed = all(gold["key"] is not None and gold["document"] is not None for gold in golds)
        if keyed and set(names) == set(LABELS):
            return contractnli.score_all(golds, answers), rows
        metrics = classification.class_metrics(right, predicted, several=False)
        figures = {f"class.{name}": metrics[name] for name in ("accuracy", "macro_f1")}
        return figures | contractnli.evidence_map(golds, answers), rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the metrics of the class that is most frequent in training, for each ``key`` if
        examples have keys, with a probability of 0 for all spans."""
        usual = baseline.commonest([gold["label"]] for gold in trained)
        seen: dict[Any, list[list[str]]] = {}
        for gold in trained:
            seen.setdefault(gold["key"], []).append([gold["label"]])
        by_key = {key: baseline.commonest(labels) for key, labels in seen.items()}
        answers = []
        for gold in golds:
            name = by_key.get(gold["key"], usual)
            scores = {label: float(label == name) for label in names_of(config)}
            zeros = [0.0] * gold["spans"]
            answers.append({"label": name, "scores": scores, "span_probs": zeros})
        metrics, _ = score_all(self, answers, golds, config)
        what = baseline.quoted(usual)
        if len(by_key) > 1:
            what = "always the commonest class of a hypothesis"
        return baseline.best({what: metrics})

    def _reader(self, data: DataSection) -> LabelReader:
        return LabelReader(data.label, data.label_separator, self.labels)

    def _gold(self, example: Example, data: DataSection, names: Sequence[str]) -> dict[str, Any]:
        """Gold answer; if names are given its label must be one of them."""
        label = self._reader(data).gold(example, SINGLE)
        if names and label not in names:
            raise DataError(f"{example.where}: label {label!r}, expected one of {listed(names)}")
        spans, path = len(self._spans(example, data)), path_of(self, "evidence", data)
        where = f"{example.where}: field {path!r}"
        numbers = numbers_of(field(example, path), spans, where, "spans")
        named = {"key": None, "document": None} | self._named(example, data)
        return {"label": label, "evidence": numbers, "spans": spans} | named

    def _named(self, example: Example, data: DataSection) -> dict[str, Any]:
        paths = {name: path_of(self, name, data) for name in ("key", "document")}
        return {
            name: field(example, path) for name, path in paths.items() if path in example.fields
        }

    def _spans(self, example: Example, data: DataSection) -> list[Span]:
        path, length = path_of(self, "spans", data), len(text(example, path_of(self, "text", data)))
        return spans_of(field(example, path), length, f"{example.where}: field {path!r}")
