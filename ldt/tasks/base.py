"""The base of tasks: text to features, logits to answers, answers to metrics.

Nothing here imports torch before a head is asked for.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, model_validator

from ldt.data.corpus import fingerprint, normalised
from ldt.data.features import Feature
from ldt.data.options import Section
from ldt.errors import DataError, kind
from ldt.io.records import Example, field, flat, text
from ldt.io.sources import named
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines

if TYPE_CHECKING:
    from ldt.data.options import DataSection
    from ldt.data.sentences import Unit
    from ldt.tasks.explained import Reading, Target

NO_LABEL = -100  # a label that has no part in the loss
WRITTEN = "sequences"  # output of a model that writes: ids of tokens, -100 where there is none
# Keys of answers of any task: those of the flags among them.
ANSWER_KEYS = ("id", "windows", "empty", "truncated", "unread_tokens", "question_cut")
Outputs = dict[str, np.ndarray]  # of one input, by name
# Makes of answers, each with its ``id``, what a published evaluator reads: one JSON value, an
# iterator of JSON lines, or text.
Writer = Callable[[Iterable[dict]], Any]


class Decision(NamedTuple):
    """Decisions by the answers for held-out documents (`Task.decide`).

    Args:
        answers: as they count for the metrics.
        changes: to the config of the model.
        report: figures for metrics.json.
        columns: further ones of each row of the table of metrics; may be empty.
    """

    answers: Sequence[dict]
    changes: Mapping[str, Any] = MappingProxyType({})
    report: Mapping[str, Any] = MappingProxyType({})
    columns: Sequence[dict[str, Any]] = ()


class Fault(NamedTuple):
    """A fault of an example: its kind in `ldt.data.findings`, and a description."""

    kind: str
    what: str


def named_labels(names: Sequence[str]) -> dict[str, Any]:
    """id2label, label2id and num_labels of a config, for labels in the order of the outputs."""
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers, "num_labels": len(names)}


def training_set(data: "DataSection") -> str:
    """Name of the training set in messages."""
    return named(data.train) if data.train else "the training set"


def evaluation_set(data: "DataSection") -> str:
    """Name of the evaluation set in messages."""
    return named(data.eval) if data.eval else "the evaluation set"


class AnyTask(Section, ABC):
    """Members of every task, whatever kind of data it learns from."""

    kind: ClassVar[str]  # of data: a key of `ldt.data.options.OPTIONS`
    document: ClassVar[str] = "text"  # field of the document where data.text names none
    fields: ClassVar[tuple[str, ...]] = ()  # further ones, which data.fields can rename
    label_keys: ClassVar[tuple[str, ...]] = ()  # of the data section, by which labels are read
    label_names: ClassVar[tuple[str, ...]] = ("labels",)  # arguments of the head, for its loss
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss"})
    extras: ClassVar[tuple[str, ...]] = ()  # keys of its features that the head does not take
    # Values of data.overflow with which it reads long documents, the usual one first.
    overflows: ClassVar[tuple[str, ...]] = ("windows", "truncate", "error")
    generates: ClassVar[bool] = False  # its answers are written token by token
    answer_keys: ClassVar[tuple[str, ...]] = ()  # keys of its answers, besides `ANSWER_KEYS`
    layouts: ClassVar[Mapping[str, Writer]] = {}  # the published ones, by name
    layouts_of_own: ClassVar[bool] = False  # they need documents that are read in the same one
    # Options of `ldt.inference.predict.predict` that a layout wants at least, by its name.
    layout_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    name: str

    @abstractmethod
    def head(self) -> type:
        """The model class of ``ldt.model`` that learns it."""

    def default_layout(self, formats: Iterable[str | None]) -> str | None:
        """Name of the layout of a file of answers that ends in .json, None for none: the first
        of the formats of documents and training data that is one, else the first of all.
        """
        named = (name for name in formats if name in self.layouts)
        return next(named, None) or next(iter(self.layouts), None)

    def check_layout(self, layout: str, classes: Sequence[str]) -> None:
        """Raise a UserError where one of ``layouts`` has no place for a model of these classes."""

    def has_one_class(self, config=None) -> bool:
        """True where each label is one class, of which its logits are, as label smoothing takes it.

        Args:
            config: of the model; None before the data are read, where they have a say.
        """
        return False

    def check_scorer(self) -> None:
        """Raise a UserError where a package that scores the answers is not installed."""

    def model_types(self) -> tuple[str, ...]:
        """What ``model.config`` of a recipe may name as ``model_type``; nothing where a model from
        scratch is of one kind."""
        return ()

    def config_class(self, model_type: str | None = None) -> Any:
        """The class of its config, of the head's own encoder or of that of a model_type."""
        from ldt.model.encoders import encoder_class

        made: Any = encoder_class(model_type) if model_type else self.head()
        return made.config_class

    def config_fields(self, model_type: str | None = None) -> type[BaseModel]:
        """A model whose fields are those of `config_class` with their types; imports torch."""
        from ldt.model.config_file import fields_of

        return fields_of(self.config_class(model_type))


class Task(AnyTask):
    """The fields of the ``task:`` section of a recipe, and what they do with text and answers.

    A feature is one input of the model: input_ids, global_attention_mask, token_type_ids and what
    else the head takes (``positions``, the labels), ``document`` (number of the example in its
    file, from 0), ``tokens`` (of the whole document, special ones included, whether or not all are
    read) and ``flags`` (what the answer must say about the input); ``chunks``, the number of parts
    the document is read in, where that is not the number of its features; ``read`` (first, start,
    end): from place ``first`` on stand the tokens of the document from ``start`` to before ``end``.
    Other keys are the task's own. All are kept on the disk (`ldt.data.features.Features`), a long
    text once where the features of a document share it.
    """

    kind: ClassVar[str] = "examples"
    roles: ClassVar[tuple[str, ...]]  # of the segments that `encode` joins
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss", "mse", "mae"})
    outputs: ClassVar[tuple[str, ...]] = ("logits",)  # of the head, which `decode` reads
    together: ClassVar[bool] = False  # all features of a document are trained on by one loss
    shuffles: ClassVar[bool] = False  # training sees each example anew in every epoch
    new_tokens: ClassVar[tuple[str, ...]] = ()  # special tokens that the vocabulary is to have
    noun: ClassVar[str] = "questions"  # what examples are called in messages
    asked: ClassVar[tuple[str, ...]] = ()  # fields of the input beside the document
    # What names the passages of an answer: the logits that decide it (`targets`), its own places
    # in the text (`places`), or nothing.
    rests_on: ClassVar[Literal["logits", "places"] | None] = None
    reads_files: ClassVar[bool] = False  # documents may be in files of their own (`data.evidence`)

    global_attention: list[str]

    @model_validator(mode="after")
    def _check_roles(self):
        if unknown := [role for role in self.global_attention if role not in self.roles]:
            raise ValueError(
                f"global_attention: no {', '.join(map(repr, unknown))} in the input of "
                f"{self.name}, which has {', '.join(self.roles)}"
            )
        return self

    def path(self, name: str, data: "DataSection") -> str:
        """The path of a field of this task in the user's files, for `ldt.io.records.field`."""
        if name == self.document and data.text is not None:
            return data.text
        return data.fields.get(name, name)

    def question(self, example: Example, data: "DataSection", name: str = "question") -> str:
        """Return the text of a question.

        Args:
            name: of its field.

        Raises:
            DataError: there is no such field, or not a word in it.
        """
        question = text(example, self.path(name, data))
        if not question.strip():
            raise DataError(f"{example.where}: the question is empty")
        return question

    def parts(self, example: Example, data: "DataSection") -> tuple[str, str]:
        """What the model reads of an example, as text: the document, and what is asked about it.

        Raises:
            DataError: a field is missing, or the document is no text.
        """
        path = self.path(self.document, data)
        document = field(example, path)
        if not isinstance(document, str | list):
            raise DataError(f"{example.where}: field {path!r} is {kind(document)}, expected text")
        asked = [flat(field(example, self.path(name, data))) for name in self.asked]
        return flat(document), "\n".join(asked)

    def classes(self, example: Example, data: "DataSection") -> str | list[str] | None:
        """The class that is the right answer, or the list of classes in it; None of a blank one,
        and an empty list where the task has no classes.

        Raises:
            DataError: they cannot be read.
        """
        return []

    def answer_key(self, example: Example, data: "DataSection") -> str:
        """The right answer as text that is the same for equal answers.

        Raises:
            DataError: it cannot be read.
        """
        return json.dumps(self.gold(example, data, None), default=sorted, sort_keys=True)

    def faults(self, example: Example, data: "DataSection") -> Iterator[Fault]:
        """Yield what is wrong with an example by what the task knows, for `ldt check`.

        Raises:
            DataError: the example cannot be read.
        """
        return iter(())

    def each(self, examples: Iterable[Example], source: str) -> Iterator[Example]:
        """Yield the examples of a set.

        Raises:
            DataError: there was none.
        """
        example = None
        for example in examples:
            yield example
        if example is None:
            raise DataError(f"{source}: no {self.noun}")

    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return what the training set says about the model's config, as class names.

        Here nothing, once every right answer has been read. Warnings go to the logger "ldt".

        Raises:
            DataError: there is nothing to learn from these examples.
        """
        for example in self.each(examples, training_set(data)):
            self.gold(example, data, None)
        return {}

    def check(self, examples: Iterable[Example], data: "DataSection", config) -> None:
        """Read every right answer of the evaluation set.

        Raises:
            DataError: the set has what the model cannot answer, or nothing.
        """
        for example in self.each(examples, evaluation_set(data)):
            self.gold(example, data, config)

    def strata(self, example: Example, data: "DataSection") -> Collection[Hashable]:
        """The groups of an example whose shares a split keeps: its classes that can be read."""
        try:
            names = self.classes(example, data)
        except DataError:
            return []
        return [names] if isinstance(names, str) else names or []

    def unit(self, example: Example, data: "DataSection") -> Hashable:
        """The group of an example that a split leaves together, as the questions on one text; here
        the example and its copies, so that none is evaluated on that was trained on."""
        return fingerprint("\0".join(map(normalised, self.parts(example, data))))

    @abstractmethod
    def encode(
        self, example: Example, tokenizer, *, data: "DataSection", max_length: int, config=None
    ) -> list[Feature]:
        """Return the features of an example, one per chunk; with labels if there is a config.

        Raises:
            DataError: the example lacks a field or does not fit; the message says where.
        """

    def keeps(self, features: Sequence[Feature]) -> bool:
        """Tell whether a training document is trained on, by its features."""
        return True

    def instances(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return what is trained on of a training document, by its features: here these."""
        return features

    def thin(self, features: Sequence[Feature], seed: int) -> tuple[list[int] | None, list[str]]:
        """Return which inputs are trained on, None for all; and lines to print about it."""
        return None, []

    def beyond(self, features: Sequence[Feature]) -> tuple[str, int] | None:
        """A kind of `ldt.data.findings`, by which a right answer is not learnt, and its tokens."""
        return None

    def shuffle(
        self, example: Example, generator: np.random.Generator, data: "DataSection"
    ) -> Example:
        """The example as one epoch of training sees it, with the order of its parts drawn anew."""
        return example

    def meaning(self, config) -> str:
        """A line on how labels are read, with the keys that would have it otherwise, or none."""
        return ""

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Lines to print about an encoded training set, less ``left_out`` documents (`keeps`)."""
        return []

    def run(self, model, inputs: Mapping[str, Any], *, quick: bool = False) -> Mapping[str, Any]:
        """Return tensors by the names of `outputs`, and maybe others, for a batch.

        Args:
            model: of the class `head`.
            inputs: of its forward; without labels, or with them.
            quick: whether a rougher answer will do, as in an evaluation while the model trains.
        """
        return model(**inputs)

    def sampled(self, documents: int) -> Collection[int]:
        """Return the numbers of the documents of an evaluation set, here all of so many, that are
        answered for while a model trains."""
        return range(documents)

    @abstractmethod
    def gold(self, example: Example, data: "DataSection", config) -> Any:
        """Return the right answer in the form that `score` takes."""

    @abstractmethod
    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return the answer for one document.

        Args:
            outputs: of the head for each feature, by the names of `Task.outputs`; what has a number
                for each token may be longer than the feature, by padding.
            config: the model's.
            example: the document.
            features: those of the document; the answer carries their flags.
        """

    def reading(
        self, example: Example, tokenizer, data: "DataSection", unit: "Unit" = "sentence"
    ) -> "Reading":
        """The document as `encode` reads it, in passages; of tasks whose answers rest on some."""
        raise NotImplementedError

    def targets(
        self, answer: dict, config, features: Sequence[Feature], labels: Sequence[str] = ()
    ) -> "list[Target]":
        """Return the logits that decided an answer, or those of ``labels``."""
        raise NotImplementedError

    def places(
        self, answer: dict, example: Example, data: "DataSection"
    ) -> list[tuple[int, float]]:
        """Return where in the document's text an answer stands: (character, score) of each."""
        raise NotImplementedError

    def score(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return metrics and the rows of the table to print beside them (`measure`).

        Raises:
            DataError: there are no answers.
        """
        if not answers:
            raise DataError(f"no {self.noun} to score")
        return self.measure(answers, golds, config)

    @abstractmethod
    def measure(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return the metrics of one answer or more, and the rows of the table beside them."""

    def trivial(self, golds: Sequence[Any], config) -> dict[str, dict]:
        """Return answers that need no reading, by their names in words, as `measure` takes them.

        Args:
            golds: the right answers of the training set, by which they are chosen.
        """
        return {}

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return of each metric what the best one of the `trivial` answers has.

        Args:
            trained: the right answers of the training set.
            golds: those of the evaluation set, each of which gets the same answer.
        """
        figures = {}
        for name, answer in self.trivial(trained, config).items():
            metrics, _ = self.score([answer] * len(golds), golds, config)
            settings = self.settle(metrics)  # these tell nothing about the quality
            figures[name] = {key: v for key, v in metrics.items() if key not in settings}
        return baseline.best(figures, self.lower_is_better)

    @abstractmethod
    def default_metric(self, config) -> str:
        """The metric by which the best checkpoint is chosen; see ``lower_is_better``."""

    def weigh(self, features: Sequence[Feature], config) -> tuple[dict[str, Any], list[str]]:
        """Return what the inputs to train on change in the config, and lines to print about it.

        Where the model writes, ``generation`` among the changes are settings of its
        GenerationConfig.
        """
        return {}, []

    def in_full(self) -> Self:
        """The task, with answers that have all that `decide` reads."""
        return self

    @property
    def decides(self) -> bool:
        """Whether the recipe leaves something to held-out documents (`decide`)."""
        return False

    def decide(
        self, answers: Sequence[dict], golds: Sequence[Any], config, lengths: Sequence[int]
    ) -> Decision:
        """Choose by the answers for held-out documents what a model decides by; here nothing.

        Args:
            answers: of the task `in_full`, by a model that decides by nothing yet.
            golds: the right answers.
            config: the model's.
            lengths: tokens of each document.
        """
        return Decision(answers)

    def settle(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Changes to the config of the finished model by its metrics (without ``eval_``)."""
        return {}
