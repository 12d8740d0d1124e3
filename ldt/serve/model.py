"""Trained model that answers requests, each with its own options. No HTTP here.

The model's libraries are imported when it is loaded.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from ldt.data.tokenization import tokenize
from ldt.errors import DataError, UserError, did_you_mean, listed
from ldt.inference.engine import Engine, ModelMaker
from ldt.inference.executor import LostError, Seat, Settings, Workers
from ldt.inference.options import PredictOptions
from ldt.inference.predictor import Answer, Outputs
from ldt.inference.stream import Document, Feature
from ldt.io.records import JOIN, Example, has, identified
from ldt.recipe.recipe import Recipe
from ldt.serve.scheduler import LocalReplica, Replica
from ldt.tasks.base import AnyTask
from ldt.tasks.explained import ByLogits

log = logging.getLogger("ldt")

LEAST, MOST = 2048, 16384  # tokens of a batch where nobody says how many
WORK = 1 << 30  # tokens x layers x width², which take a core some tenths of a second
VARIANTS = 64  # combinations of options that are kept
MOST_READ = 50_000_000  # characters: those of a document times those asked about it


class RequestOptions(PredictOptions):
    """Prediction options of a request.

    Args:
        truncate: True reads only the beginning of a document that exceeds one input, False reads
            all of it in chunks.
    """

    truncate: bool = False


class Served:
    """Trained model of the server.

    Args:
        folder: folder of a finished run; None is runs/latest.
        options: prediction options; ``batch_tokens`` defaults to `automatic_batch`.
        places: seats of the worker processes; None for those of ``options.workers``.

    Attributes:
        replicas: copies of the model, for `ldt.serve.scheduler.Scheduler`.
        device: device of the copies.
        precision: precision of the copies.
        predictor: the model, or with worker processes the encoder of documents.
        folder: the folder, which no response may contain.
        name: name of the folder, used in responses.
        sha: hash of the files that determine the answers.
        variant: cached function from `RequestOptions` to `Variant`.
    """

    def __init__(
        self, folder: str | None = None, places: Sequence[Seat] | None = None, **options: Any
    ):
        engine = Engine.open(folder, **options)
        if engine.trained.task.reads.kind != "examples":
            raise UserError(
                f"{engine.folder}: a model of {engine.trained.task.name} generates text and is not "
                "served; ldt predict runs it"
            )
        places = engine.seats() if places is None else places
        # No request names a file of this machine.
        data = engine.recipe.data.model_copy(update={"evidence": None})
        self.recipe = replace(engine.recipe, data=data)
        maker = replace(engine.maker(), recipe=self.recipe)
        self.predictor: Any
        self._stack = ExitStack()
        self.precision: str = engine.options.precision
        if places:
            self.device, self.predictor = places[0].device, maker.inputs()
        else:
            if self.precision == "auto":
                self.precision = maker.automatic()
            self.predictor, _ = maker.predictor(self.precision)
            self.device = str(getattr(self.predictor, "device", "cpu"))
        self.batch_tokens = engine.options.batch_tokens
        if "batch_tokens" not in engine.options.model_fields_set:
            self.batch_tokens = automatic_batch(self.device, self.predictor.config)
        changed = engine.options.with_(batch_tokens=self.batch_tokens)
        self.replicas: Sequence[Replica] = [LocalReplica(self.predictor)]
        if places:
            seated = [replace(maker, options=changed.with_(device=each.device)) for each in places]
            workers = Workers([*map(ReplicaMaker, seated)], places)
            with self._stack as stack:
                stack.enter_context(workers)
                workers.start()
                settings = workers.settings() | {"memory": workers.memory}
                if self.precision != "auto":
                    settings["precision"] = self.precision
                workers.load(settings)
                self._stack = stack.pop_all()
            self.precision = settings["precision"]
            self.replicas = [ProcessReplica(workers)] * len(places)
        self.variant = _variants(self.recipe, self.predictor, changed)
        self.folder, self.name = engine.folder, engine.folder.resolve().name
        self.sha = engine.run.fingerprint(self.recipe)
        # Once before there are threads: the tokenizers' library cannot be set while another reads.
        if self.predictor.tokenizer.is_fast:
            tokenize(self.predictor.tokenizer, "a b")

    def close(self) -> None:
        """End the worker processes; without any nothing happens."""
        self._stack.close()

    @property
    def task(self) -> AnyTask:
        """Task of the run."""
        return self.recipe.task

    def examples(
        self, documents: Sequence[Mapping[str, Any]], strict: bool = True
    ) -> list[Example]:
        """Documents of a request as examples, their fields under the names of the user's files.

        Args:
            documents: fields under the task's names or those of the user's files, ``id`` for all or
                none.
            strict: True refuses unknown fields.

        Raises:
            DataError: an id is neither text nor integer or is given for some documents only, a
                field is unknown or given twice, or there are too many choices.
        """
        numbered = enumerate(documents, 1)
        examples = [Example(dict(each), n, f"input {n:,}", record=n) for n, each in numbered]
        named = self.recipe.data.id
        there = not named or any(has(each, named) for each in examples)
        for each in examples:
            each.id = identified(each, named if there else "")
            each.fields = self._record(each.fields, strict)
        return examples

    def _record(self, given: Mapping[str, Any], strict: bool) -> dict[str, Any]:
        reads = self.task.reads
        also = {"text": reads.document, **reads.also}
        paths = {name: self.path(name) for name in (reads.document, *reads.fields)}
        here = [name for name in paths if name != "context_file"]
        parts = [part for name in here for part in paths[name].split(JOIN)]
        known = {"id", *here, *(part.partition(".")[0] for part in parts)}
        fields: dict[str, Any] = {}
        for name, value in given.items():
            right = name if name in known else also.get(name, name)
            if right not in known and strict:
                near = did_you_mean(name, [*known, *RequestOptions.model_fields])
                raise DataError(f"no field {name[:100]!r}{near}; it has {listed(sorted(known))}")
            if right not in known and reads.files:  # a request names no file of this machine
                continue
            if right in fields:
                raise DataError(f"field {right!r} is there under two names")
            fields[right] = value
        if reads.several and isinstance(fields.get(reads.document), str):
            fields[reads.document] = [fields[reads.document]]
        several = [
            len(fields[name]) for name in reads.query_fields if isinstance(fields.get(name), list)
        ]
        if several and max(several) * characters(fields) > MOST_READ:
            raise DataError(f"{max(several):,} choices for a document of this length are too many")
        return {paths.get(name, name): value for name, value in fields.items()}

    def path(self, name: str) -> str:
        """Name of a task's field, such as "question", in the training's records; dotted if
        nested."""
        return self.predictor.path(name)


def characters(value: Any) -> int:
    """Number of characters of all texts in a JSON value without keys; other scalars count as 1."""
    total, stack = 0, [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict | list):
            stack.extend(each.values() if isinstance(each, dict) else each)
        else:
            total += len(each) if isinstance(each, str) else 1
    return total


class Variant:
    """Model with the options of a request: a `ldt.inference.stream.DocumentPredictor`. With worker
    processes it only encodes. UserError if the task's answers lack what the request asks for.

    Args:
        recipe: recipe of the training.
        predictor: the model, or the encoder of documents.
        options: options that requests cannot change.
        asked: options of the request.

    Attributes:
        alone: True if decoding uses the model too.
    """

    def __init__(
        self, recipe: Recipe, predictor: Any, options: PredictOptions, asked: RequestOptions
    ):
        fixed = {name: getattr(options, name) for name in ("precision", "runtime", "batch_tokens")}
        self.options, self.asked = asked.with_(**fixed), asked
        self.options.check(recipe.task)
        recipe = self.options.applied(recipe)
        self.task, data = recipe.task, recipe.data
        if asked.truncate and "truncate" in self.task.inputs.overflows:
            data = data.model_copy(update={"overflow": "truncate"})
        self.predictor = copy(predictor)
        shown = {"raw_scores": asked.raw_scores, "label_sets": asked.label_sets}
        vars(self.predictor).update(shown, task=self.task, data=data)
        self.max_length = predictor.max_length
        self.alone = bool(self.options.explained) and isinstance(self.task, ByLogits)

    def encode(self, example: Example) -> list[Feature]:
        """Inputs of a document, one per chunk.

        DataError if it cannot be used, or would be cut although the request does not permit that.
        """
        features = self.predictor.encode(example)
        flags = features[0].get("flags", {})
        if self.asked.truncate or not (flags.get("truncated") or flags.get("question_cut")):
            return features
        what = "the question is too long"
        if unread := flags.get("unread_tokens"):
            what = f"{unread:,} of {features[0]['tokens']:,} tokens would not be read"
        raise DataError(f'{example.where}: {what}; "truncate": true has it cut')

    @cached_property
    def _answering(self) -> Any:
        from ldt.inference.passages import Explaining

        return (
            Explaining(self.predictor, self.options) if self.options.explained else self.predictor
        )

    def outputs(self, features: list[Feature]) -> list[Outputs]:
        """Run inputs as one batch: output arrays by name for each of them."""
        return self._answering.outputs(features)

    def decode(self, outputs: list[Outputs], example: Example, features: list[Feature]) -> Answer:
        """Answer to a document from its inputs' outputs, with explanations if they were
        asked for."""
        return self._answering.decode(outputs, example, features)


def _variants(
    recipe: Recipe, predictor: Any, options: PredictOptions
) -> Callable[[RequestOptions], Variant]:
    """Function from the options of a request to a `Variant`, which caches the newest ones."""

    @lru_cache(VARIANTS)
    def variant(asked: str) -> Variant:
        return Variant(recipe, predictor, options, RequestOptions.model_validate_json(asked))

    return lambda asked: variant(asked.model_dump_json())


class ProcessReplica:
    """`ldt.serve.scheduler.Replica` that uses the next free worker process."""

    aside = False

    def __init__(self, workers: Workers):
        self._workers = workers

    def outputs(self, documents: list[Document]) -> list[Outputs]:
        """Have a worker run documents, (example, [feature]) each; returns arrays by name
        for each."""
        return self._ask([(replace(example, fields={}), inputs) for example, inputs in documents])

    def answer(
        self, model: Any, outputs: list[Outputs], example: Example, features: list[Feature]
    ) -> Answer:
        """Have a worker decode the answer to a document from the outputs of its inputs, by the
        options ``model.asked``."""
        return self._ask([(example, features)], model.asked, outputs)

    def _ask(self, *asked: Any) -> Any:
        try:
            return self._workers.ask(*asked)
        except LostError as error:
            log.error("%s", error)
            raise


@dataclass(frozen=True)
class ReplicaMaker:
    """`ldt.inference.executor.Maker` of a worker process's model."""

    model: ModelMaker

    def prepare(self) -> None:
        """Import the libraries of the model."""
        self.model.prepare()

    def settings(self) -> Settings:
        """Settings chosen for this machine, such as {"precision": "bf16"}."""
        return self.model.settings()

    def load(self, settings: Settings) -> Callable[..., Any]:
        """Load the model; returns a function for `Workers.ask` that runs documents of one input
        each, or, if options and outputs follow, decodes the answer to one document."""
        predictor: Any = self.model.load(settings).model
        replica = LocalReplica(predictor)
        variant = _variants(self.model.recipe, predictor, self.model.options)

        def ask(documents: Sequence[Document], *asked: Any) -> Any:
            if len(asked) == 1:
                return replica.outputs(list(documents))
            options, outputs, _ = asked
            ((example, features),) = documents
            return replica.answer(variant(options), outputs, example, features)

        return ask


def automatic_batch(device: str, config: Any) -> int:
    """Default number of tokens of a batch, `LEAST` to `MOST`, by device and the width and layers of
    a model.

    A GPU needs many; so does a small model on a CPU, where overhead between operators dominates. A
    large model is as fast with few, and short documents wait less for a batch to end.
    """
    if device.startswith("cuda"):
        return MOST
    return min(MOST, max(LEAST, WORK // (config.num_hidden_layers * config.hidden_size**2)))
