"""Base of tasks: from text to features, from outputs to answers, from answers to metrics.

A task has four groups of hooks. Read: text (`Task.parts`) and gold answer (`gold`) of a record.
Encode: text to tokens and to one input per chunk (`encode`). Answer: outputs of all chunks to one
answer (`decode`). Score: answers and gold answers to metrics (`measure`). A task must define
`gold`, `encode`, `decode`, `measure` and the name of its head. Torch is imported only when the head
is.
"""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, PrivateAttr, model_validator

from ldt.data.features import Feature, Segment, fit, join
from ldt.data.labels import REGRESSION
from ldt.data.near_duplicates import fingerprint, normalised
from ldt.data.options import DataSection, Section
from ldt.errors import DataError, ModelError, kind, listed
from ldt.io.records import Example, field, flat, text
from ldt.io.sources import brief
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import mean

if TYPE_CHECKING:
    import numpy as np

NO_LABEL = -100  # a label that has no part in the loss
WRITTEN = "sequences"  # output of a model that writes: ids of tokens, -100 where there is none
# Keys of answers of any task: those of the flags among them.
ANSWER_KEYS = ("id", "chunks", "empty", "truncated", "unread_tokens", "question_cut")
Outputs = dict[str, "np.ndarray"]  # of one input, by name
Scores = tuple[dict[str, float], list[dict]]  # metrics, and rows of the table beside them
# Makes of answers, each with its ``id``, what a published evaluator reads: one JSON value, an
# iterator of JSON lines, or text.
Writer = Callable[[Iterable[dict]], Any]


class Fault(NamedTuple):
    """Fault of an example: its kind, a key of `ldt.data.findings`, and a description."""

    kind: str
    what: str


class SplitGroups(NamedTuple):
    """Place of an example in a split into training and evaluation.

    Args:
        unit: key of examples that stay on one side, such as a hash of their document.
        strata: classes of the example; each has about the same share on both sides.
    """

    unit: Hashable
    strata: Collection[Hashable] = ()


@dataclass(frozen=True)
class TaskReads:
    """Fields and labels that a task reads from a record.

    Args:
        kind: kind of data, a key of `ldt.data.options.OPTIONS`.
        document: default field of the document.
        query_fields: input fields besides the document, such as a question.
        fields: all fields besides the document, which data.fields can rename.
        also: further names of fields in requests to a server.
        label_keys: keys of the data section about labels.
        noun: name of the examples in messages.
        files: True if documents may be in files of their own (`data.evidence`).
        several: True if a document is a list of texts.
        signs: combinations of fields by which the task is recognised, the usual one first.
        placed: True if answers in ``signs`` must have positions in the document, or be absent.
        instead: further fields that may hold the document.
        formats: data layouts of this task with another name.
    """

    kind: str = "examples"
    document: str = "text"
    query_fields: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    also: Mapping[str, str] = dataclasses.field(default_factory=dict)
    label_keys: tuple[str, ...] = ()
    noun: str = "documents"
    files: bool = False
    several: bool = False
    signs: tuple[tuple[str, ...], ...] = ()
    placed: bool = False
    instead: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskInputs:
    """Model class of a task, and the inputs that it makes of an example.

    Args:
        head: name of the class in ``ldt.model``.
        roles: roles of the segments that `Task.encode` joins, for ``global_attention``.
        markers: special tokens to add to the vocabulary.
        extras: keys of features that are not inputs of the head.
        label_names: label arguments of the head.
        overflows: permitted values of data.overflow, the default first.
        loss_per_document: True if all features of a document share one loss.
        shuffled: list fields whose order training shuffles in every epoch.
        one_class: True if each label is a single class, as label smoothing needs.
        any_encoder: True if ``model.config`` of a recipe may name a ``model_type``.
        stride: data.stride of a new recipe, for answers that chunks could cut.
    """

    head: str = ""
    roles: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ("labels",)
    overflows: tuple[str, ...] = ("chunks", "truncate", "error")
    loss_per_document: bool = False
    shuffled: tuple[str, ...] = ()
    one_class: bool = False
    any_encoder: bool = False
    stride: int = 0


@dataclass(frozen=True)
class PublishedLayout:
    """Published layout of answers.

    Args:
        write: writer of the file.
        options: options of `ldt predict` that it requires.
        default: formats of documents or training data for which a .json file has this layout; None
            for any.
        same_format: True if the documents must be read in the same layout.
        check: raises UserError if the layout does not fit a model; takes the name of the layout and
            the model's classes.
    """

    write: Writer
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    default: Collection[str] | None = None
    same_format: bool = False
    check: Callable[[str, Sequence[str]], Any] = lambda layout, classes: None


@dataclass(frozen=True)
class TaskAnswers:
    """Answers of a task, and how to score, show and write them.

    Args:
        kind: kind of answer, for reports and servers: label, entities, choice, candidate, span,
            mention, facts, passage, evidence, paper, summary or vectors; empty shows the answer
            unchanged.
        outputs: outputs of the head that `Task.decode` reads.
        keys: keys of an answer besides `ANSWER_KEYS`.
        metric: metric for choosing the best checkpoint.
        number_metric: the same for numeric answers.
        settings: metrics that are settings fitted on the evaluation set, with the path of each in
            the config.
        means: True if every metric is a mean over documents.
        scorer: raises UserError if a package for scoring is missing.
        layouts: published layouts, by name.
        formats: names of `ldt evaluate --format` for these answers.
        score: scores of one answer, from 0 to 1 by metric; takes the gold answer (`Task.gold`) and
            the answer or None.
        result: scorer of a file of answers, see `ldt.tasks.results`; None averages score.
    """

    kind: str = ""
    outputs: tuple[str, ...] = ("logits",)
    keys: tuple[str, ...] = ()
    metric: str = "f1"
    number_metric: str = "mse"
    settings: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    means: bool = True
    scorer: Callable[[], Any] | None = None
    layouts: Mapping[str, PublishedLayout] = dataclasses.field(default_factory=dict)
    formats: tuple[str, ...] = ()
    score: Callable[[Any, Mapping[str, Any] | None], dict[str, float]] | None = None
    result: Callable[..., Any] | None = None


class AnyTask(Section, ABC):
    """Members of all tasks, for any kind of data."""

    reads: ClassVar[TaskReads] = TaskReads()
    inputs: ClassVar[TaskInputs] = TaskInputs()
    answers: ClassVar[TaskAnswers] = TaskAnswers()

    name: str

    def head(self) -> type:
        """Return the model class that ``inputs.head`` names in ``ldt.model``; imports torch."""
        return getattr(import_module("ldt.model"), self.inputs.head)


class Task(AnyTask):
    """Fields of a recipe's ``task:`` section, and the hooks that process text and answers.

    Three records (`TaskReads`, `TaskInputs`, `TaskAnswers`) hold what is fixed; the methods read an
    example, encode it, answer it and score answers. Further abilities are base classes:
    `ldt.tasks.explained.ByLogits` and `ByPlaces` (explaining passages),
    `ldt.tasks.deciding.Calibrated` and `Deciding` (probabilities, thresholds, abstention),
    `ldt.tasks.deciding.Weighted` (class weights), `ldt.tasks.writing.WritingTask` (generated text).

    A feature is one input of the model with these keys: input_ids, global_attention_mask,
    token_type_ids and other inputs of the head (``positions``, labels); ``document`` (number of the
    example in its file, from 0); ``tokens`` (of the whole document with special tokens, read or
    not); ``flags`` (keys for the answer); ``chunks`` (number of parts of the document, if not its
    number of features); ``read`` (first, start, end): from position ``first`` on stand the
    document's tokens from ``start`` to ``end``, exclusive; ``unlearnt`` (kind, tokens), in the
    first feature of a document whose gold answer cannot be learned: a kind of `ldt.data.findings`
    and the tokens of the answer. Other keys are the task's own. Features are stored on disk
    (`ldt.data.features.Features`), a long text shared by features only once.
    """

    global_attention: list[str]

    _policy = PrivateAttr((None, None))

    @model_validator(mode="after")
    def _check_roles(self):
        if unknown := [role for role in self.global_attention if role not in self.inputs.roles]:
            raise ValueError(
                f"global_attention: no {', '.join(map(repr, unknown))} in the input of "
                f"{self.name}, which has {', '.join(self.inputs.roles)}"
            )
        return self

    # -- read

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        """Return document and question of an example as texts; "" stands for no question, and a
        list of texts is joined by line ends. DataError if a field is missing, or the document
        neither text nor list."""
        path = path_of(self, self.reads.document, data)
        document = field(example, path)
        if not isinstance(document, str | list):
            raise DataError(f"{example.where}: field {path!r} is {kind(document)}, expected text")
        asked = [
            flat(field(example, path_of(self, name, data))) for name in self.reads.query_fields
        ]
        return flat(document), "\n".join(asked)

    def classes(self, example: Example, data: DataSection) -> str | list[str] | None:
        """Return the gold class or classes, as names, for splits and checks; None if the label is
        blank, [] for a task or an example without one. DataError if it cannot be read."""
        return []

    @abstractmethod
    def gold(self, example: Example, data: DataSection, config) -> Any:
        """Return the gold answer in the form that `measure` takes; DataError if it cannot be read.

        ``config`` is the model's, which must know the class of the answer; None before it is made.
        """

    def answer_key(self, example: Example, data: DataSection) -> str:
        """Return the gold answer as a text that is the same for equal answers, by which `ldt check`
        finds documents with two answers. Raises DataError if it cannot be read."""
        return json.dumps(self.gold(example, data, None), default=sorted, sort_keys=True)

    def groups(self, example: Example, data: DataSection) -> SplitGroups:
        """Return what a split keeps together and in equal shares: by default examples of the same
        text, and classes."""
        unit = fingerprint("\0".join(map(normalised, self.parts(example, data))))
        return SplitGroups(unit, strata_of(self, example, data))

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield the faults of an example that only the task can see, for `ldt check`, by default
        none; DataError if it cannot be read."""
        return iter(())

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return the entries of the model's config that follow from the training set, such as
        {"id2label": ...}; by default none, after reading every gold answer. Warnings go to the
        logger "ldt". DataError if there is nothing to learn from these examples."""
        for example in not_empty(self, examples, training_set(data)):
            self.gold(example, data, None)
        return {}

    def meaning(self, config) -> str:
        """Return a line that training prints: how labels were read, and by which keys of the recipe
        to change that; "" for none."""
        return ""

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Read every gold answer of the evaluation set before training; DataError if there are no
        examples, or an answer that the model of this ``config`` cannot give."""
        for example in not_empty(self, examples, evaluation_set(data)):
            self.gold(example, data, config)

    # -- encode

    @abstractmethod
    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return the features of an example, one for each chunk of ``max_length`` tokens at most;
        with a ``config`` of the model they have labels. DataError if the example lacks a field
        or does not fit."""

    def training_features(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return the features that are trained on, from all of one document: by default the same,
        [] leaves the document out."""
        return features

    def subsample(
        self, features: Sequence[Feature], seed: int
    ) -> tuple[list[int] | None, list[str]]:
        """Choose inputs to train on, once before training, from the ``features`` of all training
        documents; ``seed`` is for random choices. Returns their indices, None for all; and lines
        about it for the user."""
        return None, []

    def config_changes(
        self, features: Sequence[Feature], config
    ) -> tuple[dict[str, Any], list[str]]:
        """Return changes of the model's ``config`` that follow from all training features, such as
        class weights, by key, and lines about them for the user; by default none. For a
        generating model the key ``generation`` holds settings of its GenerationConfig."""
        return {}, []

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return lines for the user about the training features, and about the number of documents
        that `training_features` left out."""
        return []

    # -- answer

    def run(self, model, inputs: Mapping[str, Any], *, quick: bool = False) -> Mapping[str, Any]:
        """Run the model on a batch; returns tensors [inputs, ...] by the names of
        `TaskAnswers.outputs`, and possibly others.

        Args:
            model: model of the class `head`.
            inputs: arguments of its forward, with or without labels.
            quick: True permits a faster approximation, for evaluations during training.
        """
        return model(**inputs)

    def policy(self, config) -> Any:
        """Return the `ldt.metrics.decisions.Policy` (calibration, thresholds, abstention) that a
        model's config has under ``decisions``, kept for the next call; None if it has none.
        ModelError if it does not fit the model."""
        facts = getattr(config, "decisions", None)
        if facts is not None and self._policy[0] is not facts:
            try:
                self._policy = facts, self._policy_of(facts, config)
            except (LookupError, TypeError, ValueError) as error:
                raise ModelError(
                    f"config.json: decisions: not those of this model ({error!r}); "
                    "ldt evaluate RUN --choose-thresholds sets them anew"
                ) from error
        return self._policy[1]

    def _policy_of(self, facts: dict[str, Any], config) -> Any:
        """Build the policy of decisions in a config; LookupError, TypeError or ValueError if they
        do not fit."""

    @abstractmethod
    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return the answer to one document as a dict, with the keys `TaskAnswers.keys` and the
        flags.

        Args:
            outputs: head outputs of each feature, by the names of `TaskAnswers.outputs`; per-token
                arrays may be padded.
            config: config of the model.
            example: the document.
            features: features of the document, the first of which has the flags, such as
                ``truncated``.
        """

    # -- score

    @abstractmethod
    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return metrics by name, from 0 to 100 unless they are errors or correlations, and rows of
        a table, dicts, such as one for each class; from answers of `decode` and, in the same
        order, gold answers."""

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return, for each metric, the value of the best answer that ignores the text; by default
        {}.

        Args:
            trained: gold answers of the training set, by which that answer is chosen.
            golds: gold answers of the evaluation set, by which it is scored.
            config: config of the model.
        """
        return {}


class RawScored(Task):
    """Task whose answers have ``scores`` that can be replaced by logits."""

    @abstractmethod
    def raw_scores(
        self, outputs: Sequence[Outputs], answer: dict, features: Sequence[Feature]
    ) -> Any:
        """Return the logits behind the ``scores`` of an answer, in the same shape; arguments as for
        `decode`."""


class Joining(Task):
    """Task that decodes from what the model makes of all chunks of a document together."""

    @abstractmethod
    def joined(
        self, model, outputs: Sequence[Outputs], features: Sequence[Feature]
    ) -> list[Outputs]:
        """Run a last part of the model (of class `head`) on the outputs of all chunks of a
        document; returns the outputs that `decode` gets in their place."""


class Drawing(Task):
    """Task that trains on a new sample of each document's features in every epoch."""

    @abstractmethod
    def draw(self, features: list[Feature], generator: "np.random.Generator") -> list[Feature]:
        """Return a random sample of a document's features for one epoch, in their order."""


class Continuing(Task):
    """Task that takes settings missing in the recipe from the initial model."""

    @abstractmethod
    def continued(self, config, folder: Path) -> Self:
        """Return a copy of the task in which settings that the recipe does not give are those of a
        model, by its ``config`` and its ``folder``."""


def path_of(task: AnyTask, name: str, data: Any) -> str:
    """Return the path of a field in the user's files, such as "meta.title" for "text" or
    "question", by the renaming of the data section ``data``; for `ldt.io.records.field`."""
    if name == task.reads.document and data.text is not None:
        return data.text
    return data.fields.get(name, name) if isinstance(task, Task) else name


def question_of(task: Task, example: Example, data: DataSection, name: str = "question") -> str:
    """Return the text of the task's field ``name``, which data.fields may rename; DataError if it
    is missing, blank or not a text."""
    question = text(example, path_of(task, name, data))
    if not question.strip():
        raise DataError(f"{example.where}: the question is empty")
    return question


def strata_of(task: Task, example: Example, data: DataSection) -> Collection[Hashable]:
    """Return the classes of an example (`Task.classes`) as a list; [] if there are none or the
    label cannot be read."""
    try:
        names = task.classes(example, data)
    except DataError:
        return []
    return [names] if isinstance(names, str) else names or []


def not_empty(task: Task, examples: Iterable[Example], source: str) -> Iterator[Example]:
    """Yield the examples unchanged, and raise DataError at the end if there was none; ``source`` is
    the name of the set in the message."""
    example = None
    for example in examples:
        yield example
    if example is None:
        raise DataError(f"{source}: no {task.reads.noun}")


class DocumentTokens(NamedTuple):
    """Tokens of a document, which `in_chunks` divides; all have one role and one token type."""

    role: str
    ids: Sequence[int]
    token_type: int = 0

    def segments(self, start: int, end: int) -> list[Segment]:
        """Return the tokens from ``start`` up to before ``end`` as a list of one segment."""
        return [Segment(self.role, self.ids[start:end], self.token_type)]


def in_chunks(
    task: Task,
    example: Example,
    data: DataSection,
    max_length: int,
    head: Sequence[Segment],
    document: Any,
    tail: Sequence[Segment],
    text: str,
    parted: "np.ndarray | None" = None,
    token_types: bool = False,
) -> list[Feature]:
    """Return a feature for each chunk of a document, each between the same segments; without
    labels.

    Args:
        task: task whose ``global_attention`` the features follow.
        example, data: example, for messages, and data section with ``overflow``, ``stride`` and
            ``max_chunks``.
        max_length: longest input in tokens.
        head, tail: segments before and after the document.
        document: a `DocumentTokens`, or an object with such ``ids`` and ``segments``.
        text: text of the document; a blank one is flagged ``empty``.
        parted: as for `ldt.data.features.fit`: passages split by a cut before each token.
        token_types: True adds token_type_ids.

    Raises:
        DataError: the other segments leave no room for the document, or it does not fit and
            ``data.overflow`` is "error".
    """
    first, last = (sum(len(each.ids) for each in side) for side in (head, tail))
    room, size = max_length - first - last, len(document.ids)
    if first > 1 and room <= data.stride:
        raise DataError(
            f"{example.where}: what is asked leaves {max(room, 0):,} tokens of an input for the "
            f"{task.reads.document}, chunks share {data.stride:,}; ask less, or have a larger "
            "data.max_length (ldt convert SOURCE --max-length N makes a longer model)"
        )
    chunks, flags = fit(size, room, example, data, text, parted)
    shared = {"document": 0, "flags": flags, "tokens": first + size + last, "chunks": len(chunks)}
    features = []
    for start, end in chunks:
        segments = [*head, *document.segments(start, end), *tail]
        feature = join(segments, task.global_attention, token_types=token_types)
        features.append(feature | shared | {"read": (first, start, end)})
    return features


def grouped(
    name: str, scores: Iterable[tuple[Any, dict[str, float]]], groups: Sequence[Any], noun: str
) -> Scores:
    """Return the mean of all scores by metric, in percent, and a row of a table for each group that
    occurs, with its number of answers and its mean scores.

    Args:
        name, noun: headings of the groups and of the number of answers.
        scores: group, and scores from 0 to 1 by metric, of each answer.
        groups: groups in the order of the rows.
    """
    pairs = [*scores]
    members = [(group, [each for of, each in pairs if of == group]) for group in groups]
    rows = [{name: group, noun: len(some), **mean(some)} for group, some in members if some]
    return mean([each for _, each in pairs]), rows


def refuse_unseen(classes: Iterable[tuple[str, str]], known: Sequence[str], noun: str) -> None:
    """Raise DataError if the evaluation set has classes that do not occur in training.

    Args:
        classes: place and class of each gold label, such as ("eval.jsonl:3", "contract").
        known: classes of the training set.
        noun: name of such classes in the message, in the plural.
    """
    places: dict[str, list[str]] = {}
    for where, name in classes:
        if name not in known:
            places.setdefault(name, []).append(where)
    if places:
        ranked = sorted(places, key=lambda name: -len(places[name]))
        counts = ", ".join(f"{name!r} ({len(places[name]):,})" for name in ranked[:5])
        raise DataError(
            f"{places[ranked[0]][0]}: {noun} that the training set does not have, with their "
            f"number: {counts}; it has {listed(known)}"
        )


def score_all(task: Task, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
    """Return metrics and table rows as `Task.measure` does, but raise DataError if there is no
    answer."""
    if not answers:
        raise DataError(f"no {task.reads.noun} to score")
    return task.measure(answers, golds, config)


def settings_of(task: AnyTask, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the entries of the model's config, by key, among the metrics of `Task.measure`:
    thresholds that a task fits as it measures (`TaskAnswers.settings`)."""
    changes: dict[str, Any] = {}
    for name, (key, *inner) in task.answers.settings.items():
        if name in metrics and inner:
            changes.setdefault(key, {})[inner[0]] = metrics[name]
        elif name in metrics:
            changes[key] = metrics[name]
    return changes


def best_constant(
    task: Task, answers: Mapping[str, dict], golds: Sequence[Any], config
) -> Baselines:
    """Return, for each metric, the best of some constant answers, each given to every document.

    Args:
        task: task that measures them.
        answers: answers by a description for the user, such as "always 'no'".
        golds: gold answers of the documents.
        config: config of the model.
    """
    figures = {}
    for name, answer in answers.items():
        metrics, _ = score_all(task, [answer] * len(golds), golds, config)
        settings = settings_of(task, metrics)  # these tell nothing about the quality
        figures[name] = {key: v for key, v in metrics.items() if key not in settings}
    return baseline.best(figures)


def metric_of(task: AnyTask, config) -> str:
    """Name of the metric that chooses the best checkpoint; ``config`` is the model's."""
    answers = task.answers
    return answers.number_metric if config.problem_type == REGRESSION else answers.metric


def default_layout(task: AnyTask, formats: Iterable[str | None]) -> str | None:
    """Return the published layout, a key of `TaskAnswers.layouts`, in which answers are written to
    a .json file if no --output-format is given; None if the task has none for these documents.
    ``formats`` are data formats of the documents, then of the training data; None for ldt's own."""
    read, layouts = [*formats], task.answers.layouts
    free = [name for name, layout in layouts.items() if layout.default is None]
    suit = [
        name
        for name, layout in layouts.items()
        if {*(layout.default or ())}.intersection(read[: 1 if layout.same_format else None])
    ]
    return next(iter([*(name for name in read if name in free), *suit, *free]), None)


def model_types(task: AnyTask) -> tuple[str, ...]:
    """Return the encoders, such as "modernbert", that ``model.config`` may name for a model from
    scratch; () if the head permits no choice."""
    if not task.inputs.any_encoder:
        return ()
    from ldt.model.encoders import ENCODERS

    return tuple(ENCODERS)


def config_class(task: AnyTask, model_type: str | None = None) -> Any:
    """Return the config class of an encoder by its ``model_type``; None takes that of the task's
    head."""
    from ldt.model.encoders import encoder_class

    model: Any = encoder_class(model_type) if model_type else task.head()
    return model.config_class


def config_fields(task: AnyTask, model_type: str | None = None) -> type[BaseModel]:
    """Return a pydantic model with the typed fields of `config_class`; imports torch."""
    from ldt.model.config_file import fields_of

    return fields_of(config_class(task, model_type))


def names_of(config) -> list[str]:
    """Return the labels of a model's config in the order of the outputs."""
    return [config.id2label[number] for number in range(len(config.id2label))]


def named_labels(names: Sequence[str]) -> dict[str, Any]:
    """Return the config entries id2label, label2id and num_labels of labels in the order of the
    outputs."""
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers, "num_labels": len(names)}


def training_set(data: DataSection) -> str:
    """Return the name of the training set in messages: its files, else "the training set"."""
    return brief(data.train) if data.train else "the training set"


def evaluation_set(data: DataSection) -> str:
    """Return the name of the evaluation set in messages: its files, else "the evaluation set"."""
    return brief(data.eval) if data.eval else "the evaluation set"
