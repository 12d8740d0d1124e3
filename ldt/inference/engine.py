"""Engine: a trained model with its prediction options, run here or in worker processes.

The command, `ldt.load`, the server, Ray and spaCy all use an `Engine`. Torch is imported when the
model is loaded, so a wrong folder or option is reported at once.
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
from ldt.inference.agreement import PrecisionCheck
from ldt.inference.answer_file import AnswerFile, AnswerStream
from ldt.inference.executor import Seat, Settings, Workers
from ldt.inference.options import PredictOptions, flag, meanings
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
    """Trained model that answers documents; create it with `open`. The first question loads it.

    Texts and records get the answers that ``ldt predict`` writes. Several threads may ask at once.
    Pickling does not include the loaded weights; the folder must exist where it is unpickled. As a
    context manager it ends its worker processes.

    Attributes:
        run: folder of the finished run.
        trained: recipe of the training.
        options: prediction options.
        recipe: the recipe with the prediction options applied.
        model: encodes documents and, without worker processes, answers them; None until loaded.
    """

    def __init__(self, run: Run, trained: Recipe, options: PredictOptions):
        options.check(trained.task)
        self.run, self.folder = run, run.folder
        self.trained, self.options = trained, options
        self.recipe = options.applied(trained)
        self.model: Any = None
        self.agreement: PrecisionCheck | None = None
        self._workers: Workers | None = None
        self._stack = ExitStack()
        self._loading, self._asking, self._together = (threading.Lock() for _ in range(3))

    @classmethod
    def open(
        cls, folder: str | None = None, options: PredictOptions | None = None, **changes: Any
    ) -> Self:
        """Open a folder, without loading its weights.

        Args:
            folder: folder of a finished run; None is runs/latest in the current directory.
            options: prediction options; None takes them from ``changes``.
            changes: options by name, see `ldt.load`.

        Raises:
            ModelError: there is no fine-tuned model.
            UserError: an option cannot be used.
        """
        options = options.with_(**changes) if options else PredictOptions.of(changes)
        run = Run.find(folder)
        return cls(run, read_recipe(run.folder, options.runtime), options)

    def with_(self, **changes: Any) -> Self:
        """New engine of the same folder, not loaded, with changed options; UserError for a
        bad one."""
        return type(self)(self.run, self.trained, self.options.with_(**changes))

    def __reduce__(self) -> Any:
        values = self.options.model_dump(exclude_defaults=True)
        return _reopened, (type(self), str(self.folder), values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes and release the model; the next question loads it again."""
        with self._loading:
            self.model = self._workers = None
            self._stack.close()

    def maker(self, seat: Seat | None = None) -> "ModelMaker":
        """Picklable object that loads the model, on the device of ``seat`` if one is given."""
        options = self.options.model_copy(update={"device": seat.device}) if seat else self.options
        return ModelMaker(self.folder, self.recipe, options)

    def load(self, record: Record | None = None) -> Self:
        """Load the model unless it is loaded, as the first question does; returns this engine.

        Args:
            record: file or stream for the answers of a run; the precision and the like are saved in
                it, or taken from it when it is resumed. Only with a record are int8 answers
                compared with fp32.

        Raises:
            UserError: the folder or an option cannot be used.
        """
        with self._loading:
            if self.model is None:
                places = self.seats()
                self.model = self._employ(places, record) if places else self._load(record)
        return self

    def seats(self) -> list[Seat]:
        """Seats of the worker processes that the options ask for; empty if this process answers."""
        return seats(self.options.workers, self.options.device)

    def _load(self, record: Record | None) -> DocumentPredictor:
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
        """Start worker processes with the model; documents are encoded here."""
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
        """Precision to compute in; "auto" keeps that of the run being resumed."""
        precision = self.options.precision
        if precision != "auto":
            return precision
        if record is None:
            return automatic()
        precision = record.remember("precision", automatic)
        if precision != "fp32":
            other = flag("precision", "fp32")
            why = f"this device multiplies faster in it; {other} is slower and more exact"
            if record.count:
                why = "as the answers that are there already"
            log.info("%s: %s", precision, why)
        return precision

    def _compare(self, precision: str, exact: Any, record: Record | None) -> None:
        """Set up the comparison of int8 answers with fp32, unless the resumed run has passed it."""
        if precision != "int8" or record is None:
            return
        if not record.count:
            self.agreement = PrecisionCheck(
                exact,
                self.options.max_changed,
                lambda counts: record.remember("int8", lambda: counts),
            )
            return
        before = record.remember("int8", dict)  # nothing where that run did not come so far
        counts = "; of the first {documents:,}, {changed:,} changed against fp32" if before else ""
        log.info(f"int8: as the answers that are there already{counts.format(**before)}")

    def pipeline(self, **options: Any) -> Pipeline:
        """New pipeline of the model, which must have been loaded by `load`.

        Args:
            options: arguments of `Pipeline` other than model, executor, batch_tokens, agreement and
                lock.
        """
        size, lock = self.options.batch_tokens, self._asking
        executor: Any = self._workers
        if executor is None:
            exact = self.agreement.exact if self.agreement else None
            executor = Answering(self.model, size, exact, lock)
        return Pipeline(self.model, executor, size, agreement=self.agreement, lock=lock, **options)

    def busy(self) -> bool:
        """True while worker processes are answering documents."""
        return self._workers is not None and self._workers.busy()

    def answer(self, documents: Iterable[str | Mapping[str, Any]]) -> Iterator[Answer]:
        """Yield the answers to texts and records, in order.

        They are the answers ``ldt predict`` writes for a file of these records; documents without
        an id are numbered from 1. Documents are answered in groups, so some are read ahead. One
        that cannot be used raises, is left out or gets {"id", "error"}, by the option ``on_error``.

        Args:
            documents: texts, or records as dicts of fields.

        Raises:
            DataError: a document cannot be used and ``on_error`` is "stop".
            UserError: the folder or an option cannot be used.
            ResourceError: memory is too small for a single chunk.
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
        """Exclusive use of the worker processes, which end if the block is left early."""
        with self._together:
            try:
                yield
            except BaseException:
                self.close()
                raise

    def __call__(self, documents: Any) -> Any:
        """Answer a text or a record, or a list for an iterable of them; raises as `answer`."""
        single = isinstance(documents, str | Mapping)
        answers = list(self.answer([documents] if single else documents))
        return answers[0] if single else answers

    def columns(self, batch: Mapping[str, Iterable[Any]]) -> dict[str, list[str]]:
        """Answer the rows of a table, for Ray Data, Spark, pandas and ``datasets``.

        Args:
            batch: values by column, such as numpy arrays of equal length.

        Returns:
            {"id": texts, "answer": texts}, one for each row; an answer is a JSON line of ``ldt
                predict``.
        """
        rows = zip(*map(_plain, batch.values()), strict=True)
        answers = list(self.answer(dict(zip(batch, row, strict=True)) for row in rows))
        return {
            "id": [str(answer["id"]) for answer in answers],
            "answer": [json_line(answer).decode().rstrip() for answer in answers],
        }

    def _examples(self, documents: Iterable[Any], refuse: Refuse | None) -> Iterator[Example]:
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
    return cls.open(folder, **values)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()  # of objects, these stay as they are
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def read_recipe(folder: Path, runtime: Runtime = "torch") -> Recipe:
    """Recipe of the trained model in ``folder``. A checkpoint uses that of its run; embedding and
    reranking models need none. The ``runtime`` decides which weights must be there.

    Raises:
        ModelError: the model is not fine-tuned, has no weights, or its task has no answers.
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
    """Recipe for a model without one: an embedding model by its config or sentence-transformers
    modules, a published coreference head, or a cross-encoder (a classifier with one label)."""
    from ldt.model.adapters import values
    from ldt.model.loading import read_config

    if not (folder / "config.json").is_file():
        return None
    there = values(folder)
    facts, heads = there.get("embedding"), there.get("architectures") or ()
    classifies = any(str(head).endswith("ForSequenceClassification") for head in heads)
    links = there.get("coref_head")
    if not facts and not links and not (classifies and len(there.get("id2label") or ()) == 1):
        return None
    config = read_config(folder)  # refuses a model that is to be converted first
    if facts:
        names = ("pooling", "normalize", "vectors", "size", "dimensions", "prompts")
        keys = {name: facts[name] for name in names if name in facts}
        keys |= {"name": "embedding", "global_attention": config.global_attention or []}
    elif links:
        keys = {"name": "coreference", "global_attention": config.global_attention or []}
    else:
        keys = {"name": "reranking", "global_attention": config.global_attention or ["cls"]}
    return recipes.of_keys(keys, (), str(folder))


def _check_weights(folder: Path, runtime: Runtime, recipe: Path) -> None:
    """Refuse a folder without weights for a runtime."""
    asked = RUNTIMES.get(runtime)
    if any(any(folder.glob(pattern)) for pattern in ((asked.file,) if asked else _WEIGHTS)):
        return
    there = [each for each in FORMATS.values() if (folder / each.file).is_file()]
    what = f"no weights, this run is not finished; ldt finetune {recipe} --resume goes on with it"
    if there:
        what = f"an exported model; {flag('runtime', there[0].runtime)} runs it"
    elif asked:
        what = f"no {asked.file}; ldt export {folder} TARGET --format {asked.name} makes it"
    raise ModelError(f"{folder}: {what}")


@dataclass(frozen=True)
class ModelMaker:
    """Loads predictors of one model, also in another process: an `ldt.inference.executor.Maker`."""

    folder: Path
    recipe: Recipe
    options: PredictOptions

    def automatic(self) -> str:
        """Precision that "auto" stands for on the options' device, such as "bf16"."""
        return self._class().automatic(self.options.device)

    def inputs(self) -> DocumentEncoder:
        """Encoder of documents, without weights."""
        return self._class().inputs(self.folder, self.recipe)

    def predictor(
        self, precision: str, memory: int | None = None
    ) -> tuple[DocumentPredictor, DocumentPredictor | None]:
        """Load the model: (predictor, for int8 the fp32 predictor to compare with, else None).

        Args:
            precision: a name in `ldt.model.precision.PRECISIONS`.
            memory: file descriptor for lowered weights shared by processes, for
                `ldt.model.precision.lowered_in`; None keeps them in this process.
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
        """Import the libraries of the model, without its weights."""
        self._class()
        self.recipe.task.head()

    def settings(self) -> Settings:
        """{"precision": that of "auto", "arithmetic": the faster library of matrix products}."""
        from ldt.attention import matmul

        return {"precision": self.automatic(), "arithmetic": matmul.choices()}

    def load(self, settings: Settings) -> Answering:
        """Load the model with the settings of `settings`, for the rest of the worker's life.

        Args:
            settings: also ``memory``, as for `predictor`, if workers share weights.
        """
        from ldt.attention import matmul

        model, exact = self.predictor(settings["precision"], settings.get("memory"))
        _stack.enter_context(matmul.chosen(settings["arithmetic"]))
        return Answering(model, self.options.batch_tokens, exact)

    def _class(self) -> Any:
        exported = self.options.runtime in RUNTIMES
        return resolve_name(EXPORTED if exported else PREDICTORS[self.recipe.task.reads.kind])


def seats(workers: int | str, device: str) -> list[Seat]:
    """Seats of the worker processes; empty if this process answers itself. UserError without so
    many GPUs.

    "auto" is one process per GPU, or on a CPU one per `CORES` cores. Up to a fifth of a short
    document's forward pass is single-threaded, so more cores per process gain little, while more
    processes take more memory for activations.

    Args:
        workers: number of processes, or "auto".
        device: a torch device, or "auto".
    """
    count = None if workers == "auto" else int(workers)
    if count == 1:
        return []
    asked = flag("workers", count)
    gpus = _gpus() if device in ("auto", "cuda") else 0
    if not gpus and device in ("auto", "cpu"):
        count = count or max(1, system.thread_count() // CORES)
        threads, processors = system.shares(count)
        places = [Seat("cpu", threads, part) for part in processors]
    elif count and device not in ("auto", "cuda"):
        raise UserError(
            f"{asked}: several processes take all GPUs ({flag('device', 'cuda')}) or the CPU, not "
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
    """Number of GPUs, without allocating memory on them.

    Without a driver or device file torch is not imported, so that processes can fork.
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
    """Open a trained model in Python; it answers as ``ldt predict`` does.

    Everything but the weights is read at once; torch is imported at the first call. ::

        import ldt

        model = ldt.load("runs/contracts")
        model("This agreement ends in May.")           # {"id": 1, "label": …, "scores": …}
        model([{"id": "a", "text": "…"}, {"id": "b", "text": "…"}])     # a list
        for answer in model.answer(records): ...       # streamed, any number of records

    Args:
        folder: folder of the run; None is runs/latest in the current directory.
    """
    return Engine.open(folder, **options)


def _documented(text: str, options: Mapping[str, str]) -> str:
    """Docstring with the prediction options appended to its arguments."""
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
