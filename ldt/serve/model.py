"""The model of a run as it answers requests, each with options of its own. No HTTP here.

What runs a model is imported when there is one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ldt.data.sentences import Unit
from ldt.data.tokenization import tokenize
from ldt.errors import DataError, UserError
from ldt.inference import options
from ldt.inference.group import Feature
from ldt.inference.runtimes import Runtime
from ldt.io.records import Example, has, identified
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import Run
from ldt.serve.scheduler import Hand, Here
from ldt.tasks.base import AnyTask

if TYPE_CHECKING:
    from ldt.inference.executor import Seat
    from ldt.inference.passages import By

LEAST, MOST = 2048, 16384  # tokens of a batch where nobody says how many
WORK = 1 << 30  # tokens x layers x width², which take a core some tenths of a second
VARIANTS = 64  # combinations of options that are kept


@dataclass(frozen=True)
class Options:
    """What a request asks for, by the names of ``ldt predict``.

    Args:
        truncate: whether of a document that does not fit one input only its beginning is read;
            else all of it is, in chunks.
        n_best, raw_scores, label_sets, passages, passages_by, passages_unit, chunks: as
            `ldt.inference.predict.predict` takes them. Passages by occlusion run the model once
            for each, which nobody else could wait for.
    """

    truncate: bool = False
    n_best: int | None = None
    raw_scores: bool = False
    label_sets: float | None = None
    passages: int = 0
    passages_by: "By" = "gradient"
    passages_unit: Unit = "sentence"
    chunks: bool = False


class Served:
    """The model of a run.

    Args:
        folder: of a finished run; None is runs/latest.
        device, precision: as `ldt.inference.answerer.Answerer` has them.
        batch_tokens: most tokens of a batch; None is `automatic_batch`.
        runtime: "torch", or one of `RUNTIMES` for a folder of ``ldt export``.
        seats: of processes that have the model; none where it is in this one.

    Attributes:
        hands: copies of the model, for `ldt.serve.scheduler.Scheduler`.
        device: that they are on.
        predictor: the model or, of processes, what makes inputs.
        folder: the folder, which no answer names.
        name: the name of the folder, which answers have in its place.
        sha: a hash of the files that decide what the model answers.
        variant: the `Variant` of `Options`, or their `Reading`, made once.

    Raises:
        UserError: the folder or an option cannot be used.
    """

    def __init__(
        self,
        folder: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        batch_tokens: int | None = None,
        runtime: Runtime = "torch",
        seats: "Sequence[Seat]" = (),
    ):
        from ldt.inference.passages import Wanted
        from ldt.inference.run_model import RunModel, read_recipe
        from ldt.serve.crew import crew

        place = Run.find(folder)
        found = place.folder
        trained = read_recipe(found, runtime)
        options.check("stop", 1 if batch_tokens is None else batch_tokens, None, None, 0)
        options.check_runtime(runtime, precision)
        if trained.task.kind != "examples":
            raise UserError(
                f"{found}: {trained.task.name} goes on with texts at random; ldt predict does that"
            )
        recipe = options.changed(trained, None, None, None)
        # No request names a file of this machine.
        self.recipe = replace(recipe, data=recipe.data.model_copy(update={"evidence": None}))
        self.runtime = runtime
        run = RunModel(found, self.recipe, device, {}, Wanted(), 1, runtime)
        self.predictor: Any
        self.hands: Sequence[Hand]
        self.variant: Callable[[Options], Any]
        if seats:
            self.device, self.predictor = seats[0].device, run.inputs()
        else:
            self.precision = run.automatic() if precision == "auto" else precision
            self.predictor, _ = run.predictor(self.precision)
            self.device = str(getattr(self.predictor, "device", "cpu"))
        self.batch_tokens = batch_tokens or automatic_batch(self.device, self.predictor.config)
        with ExitStack() as stack:
            if seats:
                run = replace(run, batch_tokens=self.batch_tokens)
                self.precision, self.hands = stack.enter_context(crew(run, seats, precision))
                self.variant = cached(Reading, self)
            else:
                self.hands, self.variant = [Here(self.predictor)], cached(Variant, self)
            self._stack = stack.pop_all()
        self.folder, self.name = found, found.resolve().name
        self.sha = place.fingerprint(self.recipe)
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
        names = (self.task.document, *self.task.fields)
        paths = {name: self.path(name) for name in names}
        record = {paths.get(name, name): value for name, value in fields.items()}
        example = Example(record, number, f"input {number:,}", record=number)
        named = self.recipe.data.id
        example.id = identified(example, named if not named or has(example, named) else "")
        return example

    def path(self, name: str) -> str:
        """Where the records of the training have a field of the task."""
        task = self.task
        if hasattr(task, "path"):
            return task.path(name, self.recipe.data)
        return self.recipe.data.text if name == task.document else name


@dataclass(frozen=True)
class Loaded:
    """A model in a process that answers for a server, by the names of `Served`."""

    recipe: Recipe
    predictor: Any
    precision: str
    runtime: Runtime
    batch_tokens: int


class Reading:
    """What makes the inputs of a request, as it asks for them: a `ldt.inference.group.Encoder`.

    Attributes:
        asked: what it asks for.
        alone: whether decoding takes the model as well.

    Raises:
        UserError: answers of the task do not have what the request asks for.
    """

    def __init__(self, served: Served | Loaded, asked: Options):
        from ldt.inference.passages import Wanted

        task, data = served.recipe.task, served.recipe.data
        shown = {"raw_scores": asked.raw_scores, "label_sets": asked.label_sets}
        options.check_shown(task, asked.raw_scores, asked.label_sets)
        about = asked.passages, asked.passages_by, (), asked.chunks
        wanted = Wanted(*about, batch_tokens=served.batch_tokens, unit=asked.passages_unit)
        wanted.check(task, served.precision, served.runtime)
        task = options.changed(served.recipe, asked.n_best, None, None).task
        if asked.truncate and "truncate" in task.overflows:
            data = data.model_copy(update={"overflow": "truncate"})
        predictor = copy(served.predictor)
        vars(predictor).update(shown, task=task, data=data)
        self.asked, self.task, self.wanted = asked, task, wanted
        self.max_length = predictor.max_length
        self.predictor = predictor
        self.alone = bool(wanted.keys()) and getattr(task, "rests_on", None) == "logits"

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


def cached(variant: "type[Reading]", model: Served | Loaded) -> Callable[[Options], Any]:
    """The variants of a model, of which the newest are kept."""
    return lru_cache(VARIANTS)(partial(variant, model))


class Variant(Reading):
    """A model that answers as a request asks for it: a `ldt.inference.group.Predictor`."""

    def __init__(self, served: Served | Loaded, asked: Options):
        from ldt.inference.passages import Explaining

        super().__init__(served, asked)
        if self.wanted.keys():
            self.predictor = Explaining(self.predictor, self.wanted)
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
