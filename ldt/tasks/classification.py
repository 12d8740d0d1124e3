"""Classification and regression of whole documents: [cls] document [sep], read at the
first token."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ldt.benchmarks import formats, lexglue
from ldt.data.features import Feature, cut_off, ends
from ldt.data.labels import (
    MULTI,
    REGRESSION,
    SINGLE,
    WHOLE,
    Gold,
    LabelReader,
    check_meaning,
    count_classes,
    infer_problem,
    is_decimal,
    is_stray,
)
from ldt.data.options import Count, DataSection, Names
from ldt.data.sentences import UNITS, Unit
from ldt.data.tokenization import tokenize, tokenize_with_offsets
from ldt.errors import DataError, RecipeError, UserError, listed, quote
from ldt.io.records import Example, field, text, texts
from ldt.metrics import baseline, classification
from ldt.metrics.baseline import Baselines
from ldt.metrics.classification import as_list, indicators
from ldt.tasks import results
from ldt.tasks.base import (
    DocumentTokens,
    Fault,
    Outputs,
    PublishedLayout,
    Scores,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    evaluation_set,
    in_chunks,
    named_labels,
    names_of,
    not_empty,
    path_of,
    refuse_unseen,
    training_set,
)
from ldt.tasks.deciding import Deciding, Weighted
from ldt.tasks.explained import MERGES, ByLogits, Reading, Target
from ldt.tasks.text import Joined, join_paragraphs

_PROBLEMS = {"single_label": SINGLE, "multi_label": MULTI, "regression": REGRESSION}


def _check_layout(layout: str, classes: Sequence[str]) -> None:
    """Refuse classes that belong to no part of LexGLUE."""
    if lexglue.part_of(classes) is None:
        raise UserError(
            f"--output-format {layout}: has the classes of {', '.join(lexglue.TASKS)}, the model "
            f"has {listed(classes)}; name the output .jsonl, without --output-format"
        )


class Classification(Deciding, Weighted, ByLogits):
    """One class, several classes or a number for each document, a text or a list of paragraphs.

    Paragraphs are joined with a separator between them (`join_paragraphs`).

    Args:
        problem: kind of answer; none infers it from the labels of the training set: texts, integers
            and booleans are single_label; lists of texts, several classes in a cell
            (`data.label_separator`), vectors of 0 and 1, objects and several yes/no fields are
            multi_label; many different decimal numbers are regression. Ambiguous numbers are
            refused with a question.
        labels: classes in the order of the model's outputs, and of vectors of 0 and 1; none takes
            those of the training set, sorted as text. Integers and booleans are classes by their
            text, 1.0 is the class 1.
        pooling: where the answer is read: at the ``cls`` token, or from the ``mean`` or ``max``
            over all tokens; none follows the model's config: cls for a Longformer, mean for the
            published ModernBERTs. With few labelled documents in which a single clause decides, max
            is the safer choice.
        merge: how the logits of a document's chunks are combined: ``mean``, ``max``, or
            ``logsumexp``, which grows with the number of chunks. Probabilities are computed
            afterwards.
        sample: ``balanced`` draws all classes equally often, as far as documents have one class,
            repeating documents of rare classes; none takes each document once per epoch.
        max_paragraphs: number of paragraphs that are read, from the first; none reads all.
        max_paragraph_words: number of words of each paragraph that are read; none reads all.
    """

    reads: ClassVar[TaskReads] = replace(
        Deciding.reads, label_keys=("label", "label_separator"), formats=(*lexglue.TASKS,)
    )
    inputs: ClassVar[TaskInputs] = replace(
        Deciding.inputs,
        head="LdtForSequenceClassification",
        roles=("cls", "document", "sep"),
        one_class=True,
    )
    answers: ClassVar[TaskAnswers] = replace(
        Deciding.answers,
        formats=("classification", "regression"),
        score=results.score_label,
        result=results.evaluate_classes,
        layouts={
            "lexglue": PublishedLayout(
                lexglue.published, default=lexglue.TASKS, check=_check_layout
            ),
            "lexglue-logits": PublishedLayout(
                lexglue.published_logits, {"raw_scores": True}, default=(), check=_check_layout
            ),
        },
    )

    name: Literal["classification"] = "classification"
    global_attention: list[str] = ["cls"]
    problem: Literal["single_label", "multi_label", "regression"] | None = None
    labels: Names | None = None
    pooling: Literal["cls", "mean", "max"] | None = None
    merge: Literal["mean", "max", "logsumexp"] = "mean"
    sample: Literal["balanced"] | None = None
    max_paragraphs: Count | None = None
    max_paragraph_words: Count | None = None

    def problem_of(self, config=None) -> str:
        """Return the problem of a model's ``config``, without one that of the recipe, single_label
        by default, in transformers' words such as "single_label_classification"."""
        return config.problem_type if config else _PROBLEMS[self.problem or "single_label"]

    @property
    def balanced(self) -> bool:
        """True if ``sample`` is balanced."""
        return self.sample == "balanced"

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return id2label, label2id, num_labels, problem_type, classifier_pooling if the recipe
        sets it, and an empty decision policy. DataError if labels are unreadable, ambiguous or
        all equal; RecipeError if a key of the recipe does not fit the problem."""
        source = training_set(data)
        reader = self.labels_of(data)
        problem, values, golds = self.read_labels(examples, data, source)
        if all(gold == golds[0] for gold in golds):
            raise DataError(
                f"{source}: nothing to learn, all {len(golds):,} "
                f"documents have the same label, {golds[0]!r}"
            )
        if problem == REGRESSION:
            names = as_list(data.label)
        else:
            counts = count_classes(values, golds, reader)
            official = formats.classes(data.format)
            names = list(reader.columns.values()) or self.labels or official or sorted(counts)
            known = set(names)
            for gold, (_, where) in zip(golds, values, strict=True):
                for name in as_list(gold):
                    if name not in known:
                        raise DataError(
                            f"{where}: label {name!r} is not in task.labels: {listed(names)}"
                        )
        self.check_decisions(problem, names, data)
        return {
            **named_labels(names),
            "problem_type": problem,
            **({"classifier_pooling": self.pooling} if self.pooling else {}),
            "decisions": {},
        }

    def meaning(self, config) -> str:
        """Return a line: whether labels are numbers, one class or several, how many classes and in
        which order, and the keys of the recipe that change this."""
        if config.problem_type == REGRESSION:
            return "labels: a number a document (task.problem=single_label reads classes)"
        one = config.problem_type == SINGLE
        what = "one class a document" if one else "several classes a document, or none"
        order = "as task.labels orders them" if self.labels else "sorted as text"
        others = "data.label_separator parts a cell, task.problem=regression reads numbers"
        return (
            f"labels: {what}, {len(names_of(config)):,} classes {order} (task.labels names them in "
            f"order{f'; {others}' if one else ''})"
        )

    def read_labels(
        self, examples: Iterable[Example], data: DataSection, source: str
    ) -> tuple[str, list[tuple[Any, str]], list[Gold]]:
        """Return the problem (of ``task.problem``, else inferred from all labels), the raw label of
        each example with its place, and its gold answer; ``source`` names the examples in
        messages."""
        reader = self.labels_of(data)
        values = [(reader.raw(each), each.where) for each in not_empty(self, examples, source)]
        problem = _PROBLEMS[self.problem] if self.problem else infer_problem(values, reader)
        self._check_recipe(problem, data)
        if problem != REGRESSION:
            check_meaning(values, reader)
        return problem, values, [reader.read(value, problem, where) for value, where in values]

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Read the labels of all evaluation examples; DataError if one is unreadable or not in the
        training set."""
        reader, problem = self.labels_of(data), config.problem_type
        golds = (
            (example.where, name)
            for example in not_empty(self, examples, evaluation_set(data))
            for gold in [reader.gold(example, problem)]
            for name in (as_list(gold) if problem != REGRESSION else ())
        )
        refuse_unseen(golds, names_of(config), "labels")

    def classes(self, example: Example, data: DataSection) -> str | list[str] | None:
        """Return the class or classes of the label; None for a blank one, [] for a number."""
        reader = self.labels_of(data)
        value = reader.raw(example)
        if self.problem == "regression" or (self.problem is None and is_decimal(value)):
            return []  # a number, or `learn` will ask what it is meant to be
        return reader.classes(value, example.where)

    def answer_key(self, example: Example, data: DataSection) -> str:
        """Return the label as JSON, as in the file; for several fields those that are
        true, sorted."""
        value = self.labels_of(data).raw(example)
        return json.dumps(
            sorted(map(str, value)) if isinstance(value, list) else value, default=str
        )

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield a label with white space around it."""
        value = self.labels_of(data).raw(example)
        if is_stray(value):
            yield Fault("stray_blanks", f"the label {quote(value)}")

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature per chunk; an empty text has one, [cls] [sep], flagged ``empty``.

        ``labels`` are a class number, [classes] bool, or a number, by the ``problem_type`` of
        ``config``.
        """
        document, ids, _, unread = self._read(example, tokenizer, data, places=False)
        cls, sep = ends(tokenizer)
        read = DocumentTokens("document", ids)
        features = in_chunks(self, example, data, max_length, [cls], read, [sep], document)
        more: Feature = {"tokens": len(ids) + unread + 2}
        flags = features[0]["flags"]
        more["flags"] = flags | cut_off(unread + flags.get("unread_tokens", 0))
        if config is not None:
            more["labels"] = self._target(example, data, config)
        return [feature | more for feature in features]

    def gold(self, example: Example, data: DataSection, config) -> Gold:
        """Return the class, the list of classes or the number; DataError for a class that the model
        does not have."""
        gold = self.labels_of(data).gold(example, config.problem_type)
        if config.problem_type != REGRESSION:
            names = names_of(config)
            for name in as_list(gold):
                if name not in names:
                    raise DataError(
                        f"{example.where}: label {name!r}, the model knows {listed(names)}"
                    )
        return gold

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``label``, ``scores`` by class, the number of ``chunks``, and flags such as
        ``truncated``.

        ``label`` is the most probable class, the list of classes at or above ``threshold``, or a
        number; ``scores`` are probabilities, for a regression the number itself. If the model
        abstains, ``label`` is None, ``abstained`` true, and ``why`` gives the reason.
        """
        silence: dict[str, Any] = {}
        merged, flags = self.merged(outputs), features[0].get("flags", {})
        if config.problem_type == REGRESSION:
            label, scores = float(merged[0]), merged
        else:
            label, scores, silence = self.policy(config).decided(
                merged, names_of(config), "empty" in flags
            )
        answer = {
            "label": label,
            "scores": dict(zip(names_of(config), scores.tolist(), strict=True)),
            "chunks": len(outputs),
        }
        return answer | flags | silence

    def merged(self, outputs: Sequence[Outputs]) -> np.ndarray:
        """Return the logits of a document, [labels] float64, combined from those of its chunks by
        ``task.merge``."""
        logits = np.array([output["logits"] for output in outputs], np.float64)
        return MERGES[self.merge].value(logits)

    def raw_scores(self, outputs: Sequence[Outputs], answer: dict, features) -> dict[str, float]:
        """Return {class: logit} of an answer; for a regression the number."""
        return dict(zip(answer["scores"], self.merged(outputs).tolist(), strict=True))

    def reading(self, example: Example, tokenizer, data, unit: Unit = "sentence") -> Reading:
        document, _, offsets, _ = self._read(example, tokenizer, data, places=True)
        return Reading(document, offsets, UNITS[unit](document))

    def targets(self, answer: dict, config, features, labels: Sequence[str] = ()) -> list[Target]:
        """Return the logits of ``labels``; without any those of the answer's classes, and if it has
        none that of the most probable class."""
        rows, names = range(len(features)), names_of(config)
        if config.problem_type == REGRESSION:
            return [Target(None, rows, 0, self.merge, signed=False)]
        scores = answer["scores"]
        chosen = labels or as_list(answer["label"] or []) or [max(scores, key=scores.get)]
        return [Target(name, rows, names.index(name), self.merge) for name in chosen]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return accuracy (multi-label: exact_match), macro_f1 and micro_f1, 0 to 100, with a row
        per class; for a regression mse, mae, pearson and spearman, without rows."""
        labels = [answer["label"] for answer in answers]
        if config.problem_type == REGRESSION:
            return classification.number_metrics(np.array(golds), np.array(labels)), []
        names = names_of(config)
        right, predicted = indicators(golds, names), indicators(labels, names)
        rows = classification.class_rows(right, predicted, names)
        several = config.problem_type == MULTI
        return classification.class_metrics(right, predicted, several=several), rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the scores of the most frequent class in training; for multi-label the best of
        those of classes that most documents have and of all classes; for a regression those of
        the mean."""
        return best_constant(self, _constants(trained, config), golds, config)

    def labels_of(self, data: DataSection) -> LabelReader:
        """Return the reader of labels by the data section's ``label`` and ``label_separator``."""
        return LabelReader(data.label, data.label_separator, self.labels)

    def _read(self, example: Example, tokenizer, data: DataSection, *, places: bool) -> Joined:
        """Tokenized document; with token offsets on request."""
        path = path_of(self, "text", data)
        if not isinstance(field(example, path), list):
            document, nowhere = text(example, path), np.empty((0, 2), np.int32)
            if places:
                return Joined(document, *tokenize_with_offsets(tokenizer, document), 0)
            return Joined(document, tokenize(tokenizer, document), nowhere, 0)
        limits = {"most": self.max_paragraphs, "words": self.max_paragraph_words}
        return join_paragraphs(tokenizer, texts(example, path), **limits)

    def _check_recipe(self, problem: str, data: DataSection) -> None:
        if isinstance(data.label, list) and problem != MULTI:
            raise RecipeError(f"data.label: several fields, task.problem is {self.problem}")
        columns = self.labels_of(data).columns
        if columns and self.labels not in (None, data.label, list(columns.values())):
            raise RecipeError("task.labels: data.label names the classes already")
        if data.label_separator not in (None, WHOLE) and (problem != MULTI or columns):
            what = "data.label names several" if columns else f"the problem is {problem}"
            raise RecipeError(f"data.label_separator: parts the classes of one field, {what}")
        for key, names in (("data.label", data.label), ("task.labels", self.labels)):
            if isinstance(names, list) and len(set(names)) < len(names):
                raise RecipeError(f"{key}: a class stands twice in {listed(names)}")
        if problem == REGRESSION:
            plain = {"labels": None, "class_weights": "none", "focal_gamma": 0, "sample": None}
            for key, value in plain.items():
                if getattr(self, key) not in (value, []):
                    raise RecipeError(f"task.{key}: a regression has no classes")
        if problem == REGRESSION and self.merge == "logsumexp":
            raise RecipeError("task.merge: logsumexp of numbers means nothing, mean and max do")

    def _target(self, example: Example, data: DataSection, config) -> int | float | np.ndarray:
        gold: Any = self.gold(example, data, config)  # as the problem has it
        if config.problem_type == SINGLE:
            return names_of(config).index(gold)
        if config.problem_type == MULTI:
            names = names_of(config)
            flags = np.zeros(len(names), bool)
            flags[[names.index(name) for name in gold]] = True
            return flags
        return gold


def _constants(golds: Sequence[Any], config) -> dict[str, dict]:
    if config.problem_type == REGRESSION:
        mean = float(np.mean(golds))
        return {f"always {mean:.4g}": {"label": mean}}
    if config.problem_type == SINGLE:
        label = baseline.commonest([gold] for gold in golds)
        return {baseline.quoted(label): {"label": label}}
    names = names_of(config)
    shares = indicators(golds, names).mean(0)
    usual = [name for name, share in zip(names, shares, strict=True) if share > 0.5]
    few = f"always {listed(usual, 3)}" if usual else "always no class"
    return {few: {"label": usual}, "always all classes": {"label": names}}
