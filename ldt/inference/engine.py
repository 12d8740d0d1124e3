"""The model of a run, opened with its options, which answers here or in processes.

The command, `ldt.load`, the server, Ray and spaCy ask an `Engine`. Torch is imported when its model
is loaded, so that a wrong folder or option is an error at once.
"""

import ctypes
import inspect
import logging
import os
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self

from ldt import system
from ldt.errors import DataError, ModelError, UserError, kind, plural
from ldt.inference import EXPORTED, PREDICTORS
from ldt.inference.agreement import Agreement
from ldt.inference.answer_file import AnswerFile, AnswerStream
from ldt.inference.executor import Seat, Settings, Workers
from ldt.inference.options import PredictOptions, meanings, named
from ldt.inference.runtimes import FORMATS, RUNTIMES, Runtime
from ldt.inference.stream import (
    Answer,
    Answering,
    DocumentEncoder,
    DocumentPredictor,
    Pipeline,
    Refuse,
)
from ldt.io.records import Example, identified
from ldt.io.strict_json import json_line
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import RECIPE, Recipe
from ldt.recipe.run import Run, recipe_file

log = logging.getLogger("ldt")

CORES = 4  # of a worker on the CPU, where their number is chosen here

Record = AnswerFile | AnswerStream  # which remember what answers were computed with
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "adapter_model.*")
_stack = ExitStack()  # of a worker, left with its process


class Engine:
    """The model of a run; `open` makes one, and the first question loads it.

    It answers for texts and records as ``ldt predict`` does for the lines of a file. Threads may
    ask at the same time. A pickle of it is small: the loaded weights stay behind, and whoever opens
    it needs the folder. It is a context, whose end ends its processes.

    Args:
        run: folder of the finished run.
        trained: recipe of its training.
        options: options of its answers.

    Attributes:
        recipe: the recipe with what differs at prediction.
        model: makes inputs and, without worker processes, is a predictor; None until it is loaded.

    Raises:
        UserError: an option cannot be used.
    """

    def __init__(self, run: Run, trained: Recipe, options: PredictOptions):
        options.check(trained.task)
        self.run, self.folder = run, run.folder
        self.trained, self.options = trained, options
        self.recipe = options.applied(trained)
        self.model: Any = None
        self.agreement: Agreement | None = None
        self._workers: Workers | None = None
        self._stack = ExitStack()
        self._loading, self._asking, self._together = (threading.Lock() for _ in range(3))

    @classmethod
    def open(
        cls, folder: str | None = None, options: PredictOptions | None = None, **changes: Any
    ) -> Self:
        """The engine of a folder, which is read but for its weights.

        Args:
            folder: folder of a finished run; None is runs/latest in the current directory.
            options: options of its answers; None for those of ``changes``.
            changes: options by name, see `ldt.load`.

        Raises:
            ModelError: there is no fine-tuned model.
            UserError: an option cannot be used.
        """
        options = options.with_(**changes) if options else PredictOptions.of(changes)
        run = Run.find(folder)
        return cls(run, read_recipe(run.folder, options.runtime), options)

    def with_(self, **changes: Any) -> Self:
        """The engine of the same folder with other options; raises as `open` does."""
        return type(self)(self.run, self.trained, self.options.with_(**changes))

    def __reduce__(self) -> Any:
        values = self.options.model_dump(exclude_defaults=True)
        return _reopened, (type(self), str(self.folder), values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and let go of the model; the next question loads it again."""
        with self._loading:
            self.model = self._workers = None
            self._stack.close()

    def maker(self, seat: Seat | None = None) -> "ModelMaker":
        """The maker of the model, in a seat where that is given."""
        options = self.options.model_copy(update={"device": seat.device}) if seat else self.options
        return ModelMaker(self.folder, self.recipe, options)

    def load(self, record: Record | None = None) -> Self:
        """Load the model, if that was not done; the first question does it as well.

        Args:
            record: answers of a run, which is computed as they were begun. Only with these are
                answers in int8 compared with those in fp32.

        Raises:
            UserError: the folder or an option cannot be used.
        """
        with self._loading:
            if self.model is None:
                places = self.seats()
                self.model = self._employ(places, record) if places else self._load(record)
        return self

    def seats(self) -> list[Seat]:
        """The places of the processes; none where this one answers."""
        return seats(self.options.workers, self.options.device)

    def _load(self, record: Record | None) -> DocumentPredictor:
        """The model in this process."""
        maker = self.maker()
        precision = self._precision(maker.automatic, record)
        model, exact = maker.predictor(precision)
        if record:
            from ldt.attention import matmul

            # The matrix library of the run that began the answers, for the same last digits.
            products = record.remember("arithmetic", matmul.choices)
            self._stack.enter_context(matmul.chosen(products))
        self._compare(precision, exact, record)
        return model

    def _employ(self, places: Sequence[Seat], record: Record | None) -> DocumentEncoder:
        """Processes with the model; what makes inputs for them is here."""
        workers = self._stack.enter_context(Workers([*map(self.maker, places)], places))
        workers.start()
        inputs = self.maker().inputs()
        proposed = workers.settings()
        precision = self._precision(lambda: proposed["precision"], record)
        products = proposed["arithmetic"]
        if record:
            products = record.remember("arithmetic", lambda: proposed["arithmetic"])
        workers.load({"precision": precision, "arithmetic": products, "memory": workers.memory})
        log.info(f"{len(places):,} worker processes, {plural(places[0].threads, 'thread')} each")
        self._compare(precision, None, record)
        self._workers = workers
        return inputs

    def _precision(self, automatic: Callable[[], str], record: Record | None) -> str:
        """The precision to compute in; "auto" keeps that of the run that began the answers."""
        precision = self.options.precision
        if precision != "auto":
            return precision
        if record is None:
            return automatic()
        precision = record.remember("precision", automatic)
        if precision != "fp32":
            other = named("precision", "fp32")
            why = f"this device multiplies faster in it; {other} is slower and more exact"
            if record.count:
                why = "as the answers that are there already"
            log.info("%s: %s", precision, why)
        return precision

    def _compare(self, precision: str, exact: Any, record: Record | None) -> None:
        """Compare answers in int8 with fp32, unless an earlier run has gone on with it."""
        if precision != "int8" or record is None:
            return
        if not record.count:
            self.agreement = Agreement(
                exact,
                self.options.int8_bound,
                lambda counts: record.remember("int8", lambda: counts),
            )
            return
        before = record.remember("int8", dict)  # nothing where that run did not come so far
        counts = "; of the first {documents:,}, {changed:,} changed against fp32" if before else ""
        log.info(f"int8: as the answers that are there already{counts.format(**before)}")

    def pipeline(self, **options: Any) -> Pipeline:
        """Documents to groups of answers by the loaded model.

        Args:
            options: of `Pipeline`, beside its model and executor.
        """
        size, lock = self.options.batch_tokens, self._asking
        executor: Any = self._workers
        if executor is None:
            exact = self.agreement.exact if self.agreement else None
            executor = Answering(self.model, size, exact, lock)
        return Pipeline(self.model, executor, size, agreement=self.agreement, lock=lock, **options)

    def busy(self) -> bool:
        """True while worker processes have documents without an answer."""
        return self._workers is not None and self._workers.busy()

    def answer(self, documents: Iterable[Any]) -> Iterator[Answer]:
        """Yield the answers for texts and records, in their order.

        Answers are those that ``ldt predict`` writes for a file of these records; a document
        without an id has its number, from 1. They come in groups, so some documents are read ahead.

        Raises:
            DataError: a document cannot be used, and ``on_error`` is "stop".
            UserError: the folder or an option cannot be used.
            ResourceError: the memory does not hold a single chunk.
        """
        self.load()
        refused: deque[tuple[int, Answer]] = deque()  # with the number of each

        def refuse(error: DataError, example: Example) -> None:
            if self.options.on_error == "answer":
                answer = {"id": example.id, "error": str(error)}
                refused.append((int(example.record or 0), answer))

        pipeline = self.pipeline(refuse=None if self.options.on_error == "stop" else refuse)
        groups = pipeline.answer(self._examples(documents, pipeline.refuse))
        number = 0
        with self._alone() if self._workers else nullcontext():
            for answer in chain.from_iterable(groups):
                number += 1
                while refused and refused[0][0] == number:
                    yield refused.popleft()[1]
                    number += 1
                yield answer
        yield from (answer for _, answer in refused)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else asks the worker processes; they end where not all is answered."""
        with self._together:
            try:
                yield
            except BaseException:
                self.close()
                raise

    def __call__(self, documents: Any) -> Any:
        """The answer for a text or a record, or a list of those for an iterable of them.

        See `answer`, which yields them and raises what this raises.
        """
        single = isinstance(documents, str | Mapping)
        answers = list(self.answer([documents] if single else documents))
        return answers[0] if single else answers

    def columns(self, batch: Mapping[str, Iterable[Any]]) -> dict[str, list[str]]:
        """The answers for the rows of a table, for Ray Data, Spark, pandas and ``datasets``.

        Args:
            batch: the values of each column, such as numpy arrays of one length.

        Returns:
            ``id`` and ``answer`` of each row, texts: the answer is JSON, as in a line of
            ``ldt predict``.
        """
        rows = zip(*map(_plain, batch.values()), strict=True)
        answers = list(self.answer(dict(zip(batch, row, strict=True)) for row in rows))
        return {
            "id": [str(answer["id"]) for answer in answers],
            "answer": [json_line(answer).decode().rstrip() for answer in answers],
        }

    def _examples(self, documents: Iterable[Any], refuse: Refuse | None) -> Iterator[Example]:
        """Yield texts and records as the records of a file."""
        data = self.recipe.data
        for number, document in enumerate(documents, 1):
            is_text = isinstance(document, str)
            fields = (
                {data.text or self.recipe.task.reads.document: document} if is_text else document
            )
            example = Example({}, number, f"document {number:,}", record=number)
            try:
                if not isinstance(fields, Mapping):
                    what = f"{kind(document)}, expected a text or a record"
                    raise DataError(f"{example.where}: {what}")
                example.fields = dict(fields)
                example.id = identified(example, "" if is_text else data.id)
            except DataError as error:
                if refuse is None:
                    raise
                refuse(error, example)
                continue
            yield example


def _reopened(cls: type[Engine], folder: str, values: dict[str, Any]) -> Engine:
    """The engine of a pickle."""
    return cls.open(folder, **values)


def _plain(value: Any) -> Any:
    """The value with lists and numbers of Python in the place of numpy's."""
    if hasattr(value, "tolist"):
        value = value.tolist()  # of objects, these stay as they are
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def read_recipe(folder: Path, runtime: Runtime = "torch") -> Recipe:
    """The recipe that the model in ``folder`` was trained by; a checkpoint has that of its run,
    and a model that makes vectors of texts or ranks them need not have one.

    Args:
        runtime: runs the model.

    Raises:
        ModelError: there is no recipe, so the model is not fine-tuned, or no weights, or models
            of its task have no answers.
    """
    file = recipe_file(folder)
    if not file.is_file():
        if usual := _without(folder):
            return usual
        raise ModelError(
            f"{folder}: no {RECIPE}, so this is not a fine-tuned model and has no answers; "
            f"ldt finetune RECIPE model.path={folder} trains it"
        )
    _check_weights(folder, runtime, file)
    recipe = recipes.load(file, search=False)
    if recipe.task.reads.kind not in PREDICTORS:
        raise ModelError(
            f"{folder}: {recipe.task.name} has no answers; ldt finetune RECIPE "
            f"model.path={folder} trains a model that has"
        )
    return recipe


def _without(folder: Path) -> Recipe | None:
    """A recipe of a model that needs none: its config, or modules of sentence-transformers, say how
    texts become vectors; or it is a classifier of one label, as cross-encoders are."""
    from ldt.model.adapters import values
    from ldt.model.loading import read_config

    if not (folder / "config.json").is_file():
        return None
    there = values(folder)
    facts, heads = there.get("embedding"), there.get("architectures") or ()
    classifies = any(str(head).endswith("ForSequenceClassification") for head in heads)
    if not facts and not (classifies and len(there.get("id2label") or ()) == 1):
        return None
    config = read_config(folder)  # refuses a model that is to be converted first
    if facts:
        names = ("pooling", "normalize", "vectors", "size", "dimensions", "prompts")
        keys = {name: facts[name] for name in names if name in facts}
        keys |= {"name": "embedding", "global_attention": config.global_attention or []}
    else:
        keys = {"name": "reranking", "global_attention": config.global_attention or ["cls"]}
    return recipes.of_keys(keys, (), str(folder))


def _check_weights(folder: Path, runtime: Runtime, recipe: Path) -> None:
    """Refuse a folder without the weights that a runtime runs."""
    asked = RUNTIMES.get(runtime)
    if any(any(folder.glob(pattern)) for pattern in ((asked.file,) if asked else _WEIGHTS)):
        return
    there = [each for each in FORMATS.values() if (folder / each.file).is_file()]
    what = f"no weights, this run is not finished; ldt finetune {recipe} --resume goes on with it"
    if there:
        what = f"an exported model; {named('runtime', there[0].runtime)} runs it"
    elif asked:
        what = f"no {asked.file}; ldt export {folder} TARGET --format {asked.name} makes it"
    raise ModelError(f"{folder}: {what}")


@dataclass(frozen=True)
class ModelMaker:
    """Folder, recipe and options that a predictor is made of: a `ldt.inference.executor.Maker`."""

    folder: Path
    recipe: Recipe
    options: PredictOptions

    def automatic(self) -> str:
        """The precision of "auto"."""
        return self._class().automatic(self.options.device)

    def inputs(self) -> DocumentEncoder:
        """The maker of inputs, which has no weights."""
        return self._class().inputs(self.folder, self.recipe)

    def predictor(
        self, precision: str, memory: int | None = None
    ) -> tuple[DocumentPredictor, DocumentPredictor | None]:
        """The predictor and, of one in int8, the same in fp32.

        Args:
            precision: a name in `ldt.model.precision.PRECISIONS`.
            memory: of lowered weights that processes share, for `ldt.model.precision.lowered_in`.
        """
        from ldt.inference.passages import Explaining

        shown = self.options.shown()
        if self.options.runtime in RUNTIMES:
            shown["runtime"] = self.options.runtime
        if precision != "fp32" and memory is not None:
            shown["memory"] = memory
        device = self.options.device
        predictor = self._class()(self.folder, self.recipe, device, precision, **shown)
        exact = None
        if precision == "int8":
            exact, predictor.exact = predictor.exact, None  # whose weights are let go of
        explained = self.options.explained
        return Explaining(predictor, self.options) if explained else predictor, exact

    def prepare(self) -> None:
        """Import what the model needs."""
        self._class()
        self.recipe.task.head()

    def settings(self) -> Settings:
        """The precision of "auto" and the libraries for matrix products that are faster here."""
        from ldt.attention import matmul

        return {"precision": self.automatic(), "arithmetic": matmul.choices()}

    def load(self, settings: Settings) -> Answering:
        """The model as ``settings`` have it, for the rest of a worker's life."""
        from ldt.attention import matmul

        model, exact = self.predictor(settings["precision"], settings.get("memory"))
        _stack.enter_context(matmul.chosen(settings["arithmetic"]))
        return Answering(model, self.options.batch_tokens, exact)

    def _class(self) -> Any:
        exported = self.options.runtime in RUNTIMES
        return resolve_name(EXPORTED if exported else PREDICTORS[self.recipe.task.reads.kind])


def seats(workers: int | str, device: str) -> list[Seat]:
    """The place of each process; none where this process answers itself.

    "auto" is a process for each GPU. On a CPU it is one for every `CORES` cores: up to a fifth of a
    forward pass of a short document runs in one thread, so more cores for each gain little, while
    fewer would take more memory, as each process has activations of its own.

    Args:
        workers: their number, or "auto".
        device: a torch device, or "auto".

    Raises:
        UserError: there are not as many GPUs.
    """
    count = None if workers == "auto" else int(workers)
    if count == 1:
        return []
    asked = named("workers", count)
    gpus = _gpus() if device in ("auto", "cuda") else 0
    if not gpus and device in ("auto", "cpu"):
        count = count or max(1, system.thread_count() // CORES)
        threads, processors = system.shares(count)
        places = [Seat("cpu", threads, part) for part in processors]
    elif count and device not in ("auto", "cuda"):
        raise UserError(
            f"{asked}: several processes take all GPUs ({named('device', 'cuda')}) or the CPU, not "
            f"{device}"
        )
    elif count and count > gpus:
        raise UserError(f"{asked}: more than {plural(gpus, 'GPU')}, one for each process")
    else:
        count = count or gpus
        threads, _ = system.shares(max(1, count))  # a GPU may be nearer to other processors
        places = [Seat(f"cuda:{number}", threads) for number in range(count)]
    return places if len(places) > 1 else []


def _gpus() -> int:
    """The GPUs that torch finds; no memory of theirs is taken.

    Without a driver, NVIDIA's library or AMD's device, there is none: then torch is not imported,
    so that processes can fork.
    """
    if sys.platform == "linux" and not _has_driver():
        return 0
    import torch

    return torch.cuda.device_count()


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return os.path.exists("/dev/kfd")
    return True


def load(folder: str | None = None, **options: Any) -> Engine:
    """The model of a finished run, to be called in Python: it answers as ``ldt predict`` does.

    The folder is read at once, but for its weights; torch is imported at the first call. ::

        import ldt

        model = ldt.load("runs/contracts")
        model("This agreement ends in May.")           # {"id": 1, "label": …, "scores": …}
        model([{"id": "a", "text": "…"}, {"id": "b", "text": "…"}])     # a list
        for answer in model.answer(records): ...       # one after the other, of any number

    Args:
        folder: folder of the run; None is runs/latest in the current directory.
    """
    return Engine.open(folder, **options)


def _documented(text: str, options: Mapping[str, str]) -> str:
    """A docstring with the options of prediction behind its arguments."""
    lines = [inspect.cleandoc(text)]
    for name, meaning in options.items():
        key = name.removeprefix("data.")
        shown = name if key == name else f'data={{"{key}": …}}'
        lines.append(
            textwrap.fill(
                f"{shown}: {meaning}", 100, initial_indent="    ", subsequent_indent="        "
            )
        )
    return "\n".join(lines)


load.__doc__ = _documented(load.__doc__ or "", meanings())
