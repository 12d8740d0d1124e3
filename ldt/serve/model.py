"""The model of a run as it answers requests, each with options of its own. No HTTP here.

What runs a model is imported when there is one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from ldt.data.tokenization import tokenize
from ldt.errors import DataError, UserError
from ldt.inference.engine import Engine
from ldt.inference.executor import Seat
from ldt.inference.options import PredictOptions
from ldt.inference.stream import Feature
from ldt.io.records import Example, has, identified
from ldt.recipe.recipe import Recipe
from ldt.serve.scheduler import LocalReplica, Replica
from ldt.tasks.base import AnyTask, path_of
from ldt.tasks.explained import ByLogits

LEAST, MOST = 2048, 16384  # tokens of a batch where nobody says how many
WORK = 1 << 30  # tokens x layers x width², which take a core some tenths of a second
VARIANTS = 64  # combinations of options that are kept


class RequestOptions(PredictOptions):
    """Options of a request.

    Args:
        truncate: True reads of a document that does not fit one input only its beginning; else all
            of it is read, in chunks.
    """

    truncate: bool = False


@dataclass(frozen=True)
class LoadedModel:
    """A model that answers for a server, here or in a process.

    Args:
        recipe: recipe of its training, with what differs here.
        predictor: the model or, where processes have it, what makes inputs.
        options: options that requests do not change.
    """

    recipe: Recipe
    predictor: Any
    options: PredictOptions


class Served:
    """The model of a run.

    Args:
        folder: of a finished run; None is runs/latest.
        places: of processes that have the model; None for those of ``options.workers``.
        options: of `PredictOptions`, of which ``batch_tokens`` is else `automatic_batch`.

    Attributes:
        replicas: copies of the model, for `ldt.serve.scheduler.Scheduler`.
        device: that they are on.
        precision: that they compute in.
        predictor: the model or, of processes, what makes inputs.
        folder: the folder, which no answer names.
        name: the name of the folder, which answers have in its place.
        sha: a hash of the files that decide what the model answers.
        variant: the `Variant` of `RequestOptions`, or their `RequestReader`, made once.

    Raises:
        UserError: the folder or an option cannot be used.
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
        self.replicas: Sequence[Replica]
        if places:
            self.device, self.predictor = places[0].device, maker.inputs()
        else:
            precision = engine.options.precision
            self.precision = maker.automatic() if precision == "auto" else precision
            self.predictor, _ = maker.predictor(self.precision)
            self.device = str(getattr(self.predictor, "device", "cpu"))
        if "batch_tokens" in engine.options.model_fields_set:
            self.batch_tokens = engine.options.batch_tokens
        else:
            self.batch_tokens = automatic_batch(self.device, self.predictor.config)
        changed = engine.options.with_(batch_tokens=self.batch_tokens)
        model = LoadedModel(self.recipe, self.predictor, changed)
        self.variant: Callable[[RequestOptions], Any]
        with ExitStack() as stack:
            if places:
                from ldt.serve.crew import replicas

                makers = [
                    replace(maker, options=changed.with_(device=seat.device)) for seat in places
                ]
                self.precision, self.replicas = stack.enter_context(
                    replicas(makers, places, changed.precision)
                )
                self.variant = cached(RequestReader, model)
            else:
                self.replicas = [LocalReplica(self.predictor)]
                self.variant = cached(Variant, model)
            self._stack = stack.pop_all()
        self.folder, self.name = engine.folder, engine.folder.resolve().name
        self.sha = engine.run.fingerprint(self.recipe)
        # Once before there are threads: the tokenizers' library cannot be set while another reads.
        if self.predictor.tokenizer.is_fast:
            tokenize(self.predictor.tokenizer, "a b")

    def close(self) -> None:
        """End the processes that have the model."""
        self._stack.close()

    @property
    def task(self) -> AnyTask:
        """The task of the run."""
        return self.recipe.task

    def examples(self, documents: Sequence[Mapping[str, Any]]) -> list[Example]:
        """The documents of a request as `example` has them.

        Raises:
            DataError: as there; the field that ``data.id`` names is missing where another has it.
        """
        found = [self.example(fields, number) for number, fields in enumerate(documents, 1)]
        named = self.recipe.data.id
        if named and any(has(each, named) for each in found):
            for each in found:
                identified(each, named)
        return found

    def example(self, fields: Mapping[str, Any], number: int) -> Example:
        """A document of a request as a record of the user's files.

        Args:
            fields: by the names that the task has for them, or by those of the files.
            number: of the document in its request, from 1; its id where it has none, as texts
                alone have not.

        Raises:
            DataError: its id is neither text nor a whole number.
        """
        names = (self.task.reads.document, *self.task.reads.fields)
        paths = {name: self.path(name) for name in names}
        record = {paths.get(name, name): value for name, value in fields.items()}
        example = Example(record, number, f"input {number:,}", record=number)
        named = self.recipe.data.id
        example.id = identified(example, named if not named or has(example, named) else "")
        return example

    def path(self, name: str) -> str:
        """Where the records of the training have a field of the task."""
        return path_of(self.task, name, self.recipe.data)


class RequestReader:
    """The maker of a request's inputs, as it asks for them: a `ldt.inference.stream.Encoder`.

    Attributes:
        asked: options of the request.
        alone: True where decoding takes the model as well.

    Raises:
        UserError: answers of the task do not have what the request asks for.
    """

    def __init__(self, model: LoadedModel, asked: RequestOptions):
        fixed = {name: getattr(model.options, name) for name in ("precision", "runtime")}
        options = asked.with_(**fixed, batch_tokens=model.options.batch_tokens)
        options.check(model.recipe.task)
        recipe = options.applied(model.recipe)
        task, data = recipe.task, recipe.data
        if asked.truncate and "truncate" in task.inputs.overflows:
            data = data.model_copy(update={"overflow": "truncate"})
        predictor = copy(model.predictor)
        shown = {"raw_scores": asked.raw_scores, "label_sets": asked.label_sets}
        vars(predictor).update(shown, task=task, data=data)
        self.asked, self.task, self.options = asked, task, options
        self.max_length = predictor.max_length
        self.predictor = predictor
        self.alone = bool(options.explained) and isinstance(task, ByLogits)

    def encode(self, example: Example) -> list[Feature]:
        """The inputs of a document.

        Raises:
            DataError: it cannot be used, or would not be read to its end, which nobody allowed.
        """
        features = self.predictor.encode(example)
        flags = features[0].get("flags", {})
        if self.asked.truncate or not (flags.get("truncated") or flags.get("question_cut")):
            return features
        what = "the question is too long"
        if unread := flags.get("unread_tokens"):
            what = f"{unread:,} of {features[0]['tokens']:,} tokens would not be read"
        raise DataError(f'{example.where}: {what}; "truncate": true has it cut')


def cached(variant: type[RequestReader], model: LoadedModel) -> Callable[[RequestOptions], Any]:
    """The variants of a model, of which the newest are kept."""
    return lru_cache(VARIANTS)(partial(variant, model))


class Variant(RequestReader):
    """A model that answers as a request asks for it: a `ldt.inference.stream.Predictor`."""

    def __init__(self, model: LoadedModel, asked: RequestOptions):
        from ldt.inference.passages import Explaining

        super().__init__(model, asked)
        if self.options.explained:
            self.predictor = Explaining(self.predictor, self.options)
        self.outputs, self.decode = self.predictor.outputs, self.predictor.decode


def automatic_batch(device: str, config: Any) -> int:
    """Tokens of a batch where nobody says how many.

    A GPU wants many, and on a CPU a small model, which spends its time between the operators. A
    large one is as fast with few, and a short document that came a moment too late waits the less
    for a batch to end.
    """
    if device.startswith("cuda"):
        return MOST
    return min(MOST, max(LEAST, WORK // (config.num_hidden_layers * config.hidden_size**2)))
