"""The base of tasks: text to features, logits to answers, answers to metrics.

A document goes through four groups of hooks. Read: its record has the text (`Task.parts`) and the
right answer (`gold`). Encode: text to tokens, and one input for each chunk of them (`encode`).
Answer: the head's outputs for all chunks to one answer (`decode`). Score: answers and right ones
to metrics (`measure`). A task must say `gold`, `encode`, `decode` and `measure`, and the
name of its head. Nothing here imports torch before a head is asked for.
"""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, PrivateAttr, model_validator

from ldt.data.features import Feature, Segment, fit, join
from ldt.data.labels import REGRESSION
from ldt.data.near_duplicates import fingerprint, normalised
from ldt.data.options import DataSection, Section
from ldt.errors import DataError, ModelError, kind, listed
from ldt.io.records import Example, field, flat, text
from ldt.io.sources import named
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import mean

if TYPE_CHECKING:
    import numpy as np

NO_LABEL = -100  # a label that has no part in the loss
WRITTEN = "sequences"  # output of a model that writes: ids of tokens, -100 where there is none
# Keys of answers of any task: those of the flags among them.
ANSWER_KEYS = ("id", "windows", "empty", "truncated", "unread_tokens", "question_cut")
Outputs = dict[str, "np.ndarray"]  # of one input, by name
Scores = tuple[dict[str, float], list[dict]]  # metrics, and rows of the table beside them
# Makes of answers, each with its ``id``, what a published evaluator reads: one JSON value, an
# iterator of JSON lines, or text.
Writer = Callable[[Iterable[dict]], Any]


class Fault(NamedTuple):
    """A fault of an example: its kind in `ldt.data.findings`, and a description."""

    kind: str
    what: str


class SplitGroups(NamedTuple):
    """The groups of an example in a split into training and evaluation.

    Args:
        unit: group that stays together, so that none is evaluated on that was trained on.
        strata: groups whose shares are the same in both parts.
    """

    unit: Hashable
    strata: Collection[Hashable] = ()


@dataclass(frozen=True)
class TaskReads:
    """Fields and labels that a task reads of a record.

    Args:
        kind: kind of data, a key of `ldt.data.options.OPTIONS`.
        document: field of the document where data.text names none.
        asked: fields of the input beside the document.
        fields: all fields beside the document, which data.fields can rename.
        also: further names of fields in requests to a server.
        label_keys: keys of the data section, by which labels are read.
        noun: name of the examples in messages.
        files: True if documents may be in files of their own (`data.evidence`).
        several: True if a document is a list of texts.
        signs: fields that tell a record of this task, the usual ones first.
        placed: True if the answers of ``signs`` have a place in the document, or there are none.
        instead: further fields that may hold the document.
        formats: layouts of data of this task that have another name.
    """

    kind: str = "examples"
    document: str = "text"
    asked: tuple[str, ...] = ()
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
    """The model of a task, and its inputs that the task makes of an example.

    Args:
        head: name of its class in ``ldt.model``.
        roles: roles of the segments that `Task.encode` joins, which may have global attention.
        markers: special tokens that the vocabulary is to have.
        extras: keys of features that the head does not take.
        label_names: arguments of the head, for its loss.
        overflows: values of data.overflow with which it reads long documents, the usual one first.
        together: True if all features of a document are trained on by one loss.
        shuffled: fields, lists whose order training draws anew in every epoch.
        one_class: True if each label is one class, as label smoothing takes it.
        any_encoder: True if ``model.config`` of a recipe may name a ``model_type``.
        stride: data.stride of a first recipe, where answers may be cut in two.
    """

    head: str = ""
    roles: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ("labels",)
    overflows: tuple[str, ...] = ("windows", "truncate", "error")
    together: bool = False
    shuffled: tuple[str, ...] = ()
    one_class: bool = False
    any_encoder: bool = False
    stride: int = 0


@dataclass(frozen=True)
class PublishedLayout:
    """A published layout of answers.

    Args:
        write: writer of the file.
        options: options of `ldt predict` that it wants at least.
        default: formats of documents or training data with which a file that ends in .json has this
            layout; None for any.
        own: True if it needs documents that are read in the same layout.
        check: raises a UserError where it has no place for a model of these classes; it takes the
            name of the layout and the classes.
    """

    write: Writer
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    default: Collection[str] | None = None
    own: bool = False
    check: Callable[[str, Sequence[str]], Any] = lambda layout, classes: None


@dataclass(frozen=True)
class TaskAnswers:
    """Answers of a task, and the ways to score, show and write them.

    Args:
        kind: kind of answer, by which reports show it and servers shape it: label, entities,
            choice, candidate, span, mention, facts, passage, evidence, paper, summary or vectors;
            "" shows and serves the answer as it is.
        outputs: outputs of the head, which `Task.decode` reads.
        keys: keys of an answer besides `ANSWER_KEYS`.
        metric: metric by which the best checkpoint is chosen.
        number_metric: the same of a regression.
        settings: metrics that are settings of the model, found on the evaluation set, with the
            path of each in the config.
        means: True if each metric is a mean over documents.
        scorer: raises a UserError where a package that scores the answers is not installed.
        layouts: published layouts, by name.
        own: names of `ldt evaluate --format` for files of these answers.
        score: scores of one answer, from 0 to 1, by the names of the metrics; it takes the right
            answer, as `Task.gold` has it, and the answer or None.
        result: scorer of a file of answers, see `ldt.tasks.results`; None is the means of score.
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
    own: tuple[str, ...] = ()
    score: Callable[[Any, Mapping[str, Any] | None], dict[str, float]] | None = None
    result: Callable[..., Any] | None = None


class AnyTask(Section, ABC):
    """Members of every task, whatever kind of data it learns from."""

    reads: ClassVar[TaskReads] = TaskReads()
    inputs: ClassVar[TaskInputs] = TaskInputs()
    answers: ClassVar[TaskAnswers] = TaskAnswers()

    name: str

    def head(self) -> type:
        """The model class of ``ldt.model`` that learns it; it alone imports torch."""
        return getattr(import_module("ldt.model"), self.inputs.head)


class Task(AnyTask):
    """The fields of the ``task:`` section of a recipe, and what they do with text and answers.

    Three records (`TaskReads`, `TaskInputs`, `TaskAnswers`) say what is fixed; the methods read an
    example, encode it, answer it and score answers. Further abilities are classes to inherit:
    `ldt.tasks.explained.ByLogits` and `ByPlaces` (passages that an answer rests on),
    `ldt.tasks.deciding.Calibrated` and `Deciding` (probabilities, thresholds, abstention),
    `ldt.tasks.deciding.Weighted` (weights of classes), `ldt.tasks.writing.WritingTask` (text
    that a decoder writes).

    A feature is one input of the model: input_ids, global_attention_mask, token_type_ids and what
    else the head takes (``positions``, the labels), ``document`` (number of the example in its
    file, from 0), ``tokens`` (of the whole document, special ones included, whether or not all are
    read) and ``flags`` (what the answer must say about the input); ``chunks``, the number of parts
    the document is read in, where that is not the number of its features; ``read`` (first, start,
    end): from place ``first`` on stand the tokens of the document from ``start`` to before ``end``;
    ``unlearnt`` (kind, tokens): of the first feature of a document whose right answer cannot be
    learnt, a kind of `ldt.data.findings` and the tokens of the answer. Other keys are the task's
    own. All are kept on the disk (`ldt.data.features.Features`), a long text once where the
    features of a document share it.
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
        """Text of an example that the model reads: the document, and what is asked about it.

        Raises:
            DataError: a field is missing, or the document is no text.
        """
        path = path_of(self, self.reads.document, data)
        document = field(example, path)
        if not isinstance(document, str | list):
            raise DataError(f"{example.where}: field {path!r} is {kind(document)}, expected text")
        asked = [flat(field(example, path_of(self, name, data))) for name in self.reads.asked]
        return flat(document), "\n".join(asked)

    def classes(self, example: Example, data: DataSection) -> str | list[str] | None:
        """The class that is the right answer, or the list of classes in it; None of a blank one,
        and an empty list where the task has no classes.

        Raises:
            DataError: they cannot be read.
        """
        return []

    @abstractmethod
    def gold(self, example: Example, data: DataSection, config) -> Any:
        """Return the right answer in the form that `measure` takes."""

    def answer_key(self, example: Example, data: DataSection) -> str:
        """The right answer as text that is the same for equal answers.

        Raises:
            DataError: it cannot be read.
        """
        return json.dumps(self.gold(example, data, None), default=sorted, sort_keys=True)

    def groups(self, example: Example, data: DataSection) -> SplitGroups:
        """The groups of an example in a split: here the example and its copies stay together, and
        classes keep their shares."""
        unit = fingerprint("\0".join(map(normalised, self.parts(example, data))))
        return SplitGroups(unit, strata_of(self, example, data))

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield what is wrong with an example by what the task knows, for `ldt check`.

        Raises:
            DataError: the example cannot be read.
        """
        return iter(())

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return what the training set says about the model's config, as class names.

        Here nothing, once every right answer has been read. Warnings go to the logger "ldt".

        Raises:
            DataError: there is nothing to learn from these examples.
        """
        for example in not_empty(self, examples, training_set(data)):
            self.gold(example, data, None)
        return {}

    def meaning(self, config) -> str:
        """A line on how labels are read, with the keys that would have it otherwise, or none."""
        return ""

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Read every right answer of the evaluation set.

        Raises:
            DataError: the set has what the model cannot answer, or nothing.
        """
        for example in not_empty(self, examples, evaluation_set(data)):
            self.gold(example, data, config)

    # -- encode

    @abstractmethod
    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return the features of an example, one per chunk; with labels if there is a config.

        Raises:
            DataError: the example lacks a field or does not fit; the message says where.
        """

    def instances(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return what is trained on of a training document, by its features; nothing leaves it
        out."""
        return features

    def thin(self, features: Sequence[Feature], seed: int) -> tuple[list[int] | None, list[str]]:
        """Return which inputs are trained on, None for all; and lines to print about it."""
        return None, []

    def weigh(self, features: Sequence[Feature], config) -> tuple[dict[str, Any], list[str]]:
        """Return what the inputs to train on change in the config, and lines to print about it.

        Where the model writes, ``generation`` among the changes are settings of its
        GenerationConfig.
        """
        return {}, []

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Lines to print about an encoded training set, less ``left_out`` documents."""
        return []

    # -- answer

    def run(self, model, inputs: Mapping[str, Any], *, quick: bool = False) -> Mapping[str, Any]:
        """Return tensors by the names of `TaskAnswers.outputs`, and maybe others, for a batch.

        Args:
            model: of the class `head`.
            inputs: of its forward; without labels, or with them.
            quick: whether a rougher answer will do, as in an evaluation while the model trains.
        """
        return model(**inputs)

    def policy(self, config) -> Any:
        """The `ldt.metrics.decisions.Policy` that a model decides by, made once; None: by nothing.

        Raises:
            ModelError: its config has decisions that are not those of such a model.
        """
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
        """The policy of the decisions in a config.

        Raises:
            LookupError, TypeError, ValueError: they are not those of such a model.
        """

    @abstractmethod
    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return the answer for one document.

        Args:
            outputs: of the head for each feature, by the names of `TaskAnswers.outputs`; what has a
                number for each token may be longer than the feature, by padding.
            config: the model's.
            example: the document.
            features: those of the document; the answer carries their flags.
        """

    # -- score

    @abstractmethod
    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return the metrics of one answer or more, and the rows of the table beside them."""

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return of each metric what the best answer has that needs no reading (`best_constant`).

        Args:
            trained: the right answers of the training set, by which it is chosen.
            golds: those of the evaluation set.
        """
        return {}


class RawScored(Task):
    """A task whose answers have ``scores``, in whose place their logits can be asked for."""

    @abstractmethod
    def raw_scores(
        self, outputs: Sequence[Outputs], answer: dict, features: Sequence[Feature]
    ) -> Any:
        """Return the logits of an answer in the shape of its scores; arguments as of `decode`."""


class Drawing(Task):
    """A task whose epochs train on a part of each document, drawn anew."""

    @abstractmethod
    def draw(self, features: list[Feature], generator: "np.random.Generator") -> list[Feature]:
        """Return what an epoch trains on of the features of a training document."""


class Continuing(Task):
    """A task that goes on with settings of the model it begins with, where its recipe has none."""

    @abstractmethod
    def continued(self, config) -> Self:
        """The task with the settings of the config of a model."""


def path_of(task: AnyTask, name: str, data: Any) -> str:
    """The path of a field of a task in the user's files, for `ldt.io.records.field`."""
    if name == task.reads.document and data.text is not None:
        return data.text
    return data.fields.get(name, name) if isinstance(task, Task) else name


def question_of(task: Task, example: Example, data: DataSection, name: str = "question") -> str:
    """Return the text of a question, which the field ``name`` has.

    Raises:
        DataError: there is no such field, or not a word in it.
    """
    question = text(example, path_of(task, name, data))
    if not question.strip():
        raise DataError(f"{example.where}: the question is empty")
    return question


def strata_of(task: Task, example: Example, data: DataSection) -> Collection[Hashable]:
    """The classes of an example that can be read."""
    try:
        names = task.classes(example, data)
    except DataError:
        return []
    return [names] if isinstance(names, str) else names or []


def not_empty(task: Task, examples: Iterable[Example], source: str) -> Iterator[Example]:
    """Yield the examples of a set.

    Raises:
        DataError: there was none.
    """
    example = None
    for example in examples:
        yield example
    if example is None:
        raise DataError(f"{source}: no {task.reads.noun}")


class DocumentTokens(NamedTuple):
    """A document as tokens, all of one role."""

    role: str
    ids: Sequence[int]
    token_type: int = 0

    def segments(self, start: int, end: int) -> list[Segment]:
        """The tokens from one to before another."""
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
    """Return a feature for each chunk of a document, which stands between the same segments.

    Args:
        max_length: tokens of an input.
        head, tail: segments around the document.
        document: a `DocumentTokens`, or another one with its ``ids`` and ``segments``.
        text: of the document.
        parted: as of `ldt.data.features.fit`.
        token_types: True if features have token_type_ids.

    Raises:
        DataError: what is asked leaves no room for the document, or that does not fit and
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
    """Return the means of scores from 0 to 1, in percent, and a row of each group that has some.

    Args:
        name, noun: headings of the groups and of the number of answers.
        scores: group and scores of each answer.
        groups: in the order of the rows.
    """
    pairs = [*scores]
    members = [(group, [each for of, each in pairs if of == group]) for group in groups]
    rows = [{name: group, noun: len(some), **mean(some)} for group, some in members if some]
    return mean([each for _, each in pairs]), rows


def refuse_unseen(classes: Iterable[tuple[str, str]], known: Sequence[str], noun: str) -> None:
    """Refuse classes of the evaluation set, each behind its place, that training does not know.

    Raises:
        DataError: there is one.
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
    """Return metrics and the rows of the table to print beside them (`Task.measure`).

    Raises:
        DataError: there are no answers.
    """
    if not answers:
        raise DataError(f"no {task.reads.noun} to score")
    return task.measure(answers, golds, config)


def settings_of(task: AnyTask, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Changes to the config of the finished model by its metrics (without ``eval_``)."""
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
    """Return of each metric what the best one of some answers, by their names in words, has if it
    is given for every document."""
    figures = {}
    for name, answer in answers.items():
        metrics, _ = score_all(task, [answer] * len(golds), golds, config)
        settings = settings_of(task, metrics)  # these tell nothing about the quality
        figures[name] = {key: v for key, v in metrics.items() if key not in settings}
    return baseline.best(figures)


def metric_of(task: AnyTask, config) -> str:
    """The metric by which the best checkpoint is chosen."""
    answers = task.answers
    return answers.number_metric if config.problem_type == REGRESSION else answers.metric


def default_layout(task: AnyTask, formats: Iterable[str | None]) -> str | None:
    """Name of the layout of a file of answers that ends in .json, by the formats of the documents
    and of the training data; None for none."""
    read, layouts = [*formats], task.answers.layouts
    free = [name for name, layout in layouts.items() if layout.default is None]
    suit = [
        name
        for name, layout in layouts.items()
        if layout.default and not {*layout.default}.isdisjoint(read[: 1 if layout.own else None])
    ]
    return next(iter([*(name for name in read if name in free), *suit, *free]), None)


def model_types(task: AnyTask) -> tuple[str, ...]:
    """Values that ``model.config`` of a recipe may have as ``model_type``; none where a model from
    scratch is of one kind."""
    if not task.inputs.any_encoder:
        return ()
    from ldt.model.encoders import ENCODERS

    return tuple(ENCODERS)


def config_class(task: AnyTask, model_type: str | None = None) -> Any:
    """The class of a task's config, of the head's own encoder or of that of a model_type."""
    from ldt.model.encoders import encoder_class

    model: Any = encoder_class(model_type) if model_type else task.head()
    return model.config_class


def config_fields(task: AnyTask, model_type: str | None = None) -> type[BaseModel]:
    """A model whose fields are those of `config_class` with their types; imports torch."""
    from ldt.model.config_file import fields_of

    return fields_of(config_class(task, model_type))


def names_of(config) -> list[str]:
    """The labels in the order of the outputs."""
    return [config.id2label[number] for number in range(len(config.id2label))]


def named_labels(names: Sequence[str]) -> dict[str, Any]:
    """id2label, label2id and num_labels of a config, for labels in the order of the outputs."""
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers, "num_labels": len(names)}


def training_set(data: DataSection) -> str:
    """Name of the training set in messages."""
    return named(data.train) if data.train else "the training set"


def evaluation_set(data: DataSection) -> str:
    """Name of the evaluation set in messages."""
    return named(data.eval) if data.eval else "the evaluation set"
