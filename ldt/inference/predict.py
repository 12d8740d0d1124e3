"""From a run folder and a file or pipe of documents to a file or pipe of answers.

Torch and the model are imported late, so that a wrong path is reported at once. Answers for a
remote store are written and resumed locally, and uploaded when complete.
"""

import hashlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ldt.benchmarks.formats import PUBLISHED, read
from ldt.errors import (
    EXIT_OK,
    EXIT_REJECTS,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    DataError,
    ModelError,
    ResourceError,
    Terminated,
    UserError,
    counted,
    plural,
)
from ldt.inference import vectors
from ldt.inference.answer_file import AnswerFile, AnswerStream, Rejects, layout_of, published_layout
from ldt.inference.engine import Engine
from ldt.inference.executor import THREADS
from ldt.inference.inputs import (
    check_paths,
    copier,
    encoding_of_training,
    layout_of_training,
    pauses,
    prefetch,
    rejects_path,
)
from ldt.inference.options import PredictOptions, check_reading
from ldt.inference.runtimes import RUNTIMES
from ldt.inference.stream import Beside, Counts, InputDocuments, Shard
from ldt.inference.vectors import DType
from ldt.io import sources
from ldt.io.files import is_stream, remove
from ldt.io.progress import progress_line
from ldt.io.records import Example
from ldt.io.sources import Names, each
from ldt.system import handled, raise_stopped
from ldt.tasks.writing import wordless

log = logging.getLogger("ldt")

UNSENT = Path("ldt-unsent")  # in the current directory


def predict(
    input: Names,
    *,
    model: str | None = None,
    output: str | None = None,
    layout: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    keep: Sequence[str] = (),
    shard: str | None = None,
    dtype: DType = "float32",
    options: PredictOptions | None = None,
    **changes: Any,
) -> int:
    """Answer every document of ``input``, one JSON line each, in input order.

    A line has ``id``, the task's decision (``label``, ``scores``), flags and the number of chunks.
    Messages go to the log.

    Args:
        input: a file, "-" for standard input, or anything else that `ldt.io.records.read` takes; a
            text file or a folder of them, one document each; a pattern; or several of these.
        model: folder of a finished run; None is `LATEST` in the current directory.
        output: output file, see `AnswerFile`, also in a remote store; a pipe or device is written
            directly; None or "-" is standard output. The suffix decides the format
            (`answer_file.layout_of`).
        layout: a published layout of the task, whatever the suffix; None uses one for .json only
            (`answer_file.published_layout`).
        resume: True continues an unfinished ``output``, whose input must begin with the same
            records. If it is finished and the records are the same, nothing is done.
        overwrite: True replaces an existing ``output``, at the end.
        keep: record fields to copy into the answer, as FIELD or NAME=FIELD.
        shard: "2/7" answers only the second of every seven records, into ``output`` with ".2-of-7"
            appended; `ldt.inference.merge` combines all seven.
        dtype: number type of vectors.
        options: prediction options; None takes them from ``changes``.
        changes: options by name.

    Returns:
        The exit code: 0; 7 if records were skipped; 130 and 143 after SIGINT and SIGTERM.

    Raises:
        UserError: a path, a record, the model or the memory is at fault; it has its own exit code.
        BrokenPipeError: the reader of the output has gone.
    """
    options = options.with_(**changes) if options else PredictOptions.of(changes)
    if shard and output and sources.is_remote(output):
        raise UserError(f"--shard {shard}: parts are merged here; name a local --output")
    with _sending(output, overwrite=overwrite, resume=resume) as target:
        return _Run(each(input), target, shard, options, overwrite, resume, dtype).answer(
            model, layout, keep
        )


class _Run:
    def __init__(
        self,
        inputs: list[str],
        output: str | None,
        shard: str | None,
        options: PredictOptions,
        overwrite: bool,
        resume: bool,
        dtype: DType,
    ):
        self.dtype = dtype
        self.inputs, self.output, self.options = inputs, output, options
        self.overwrite, self.resume = overwrite, resume
        self.shard = Shard.parse(shard) if shard is not None else None
        if self.shard and (output is None or is_stream(output)):
            raise UserError(f"--shard {shard} needs --output FILE, of which it makes a part")
        written = self.shard.part(str(output)) if self.shard else output
        self.rejects = Rejects(rejects_path(inputs[0], written))
        for source in inputs:
            check_paths(source, written, self.rejects.path, resume)

    def answer(self, model: str | None, layout: str | None, keep: Sequence[str]) -> int:
        """Run and return the exit code; see `predict`."""
        with ExitHandler() as ending, ExitStack() as stack:
            engine = Engine.open(model, self.options)
            trained = engine.trained
            # What is wrong with input and output is found before the model is loaded.
            beside = self._beside(keep, engine)
            reading = self._reading(engine)
            layout = published_layout(
                layout, self.output, trained.task, (reading["format"], trained.data.format)
            )
            if layout and (classes := engine.run.classes()) is not None:
                trained.task.answers.layouts[layout].check(layout, classes)
            engine = stack.enter_context(engine.with_(data=reading, **_wanted_by(layout, engine)))
            made_by = self._made_by(engine, keep, layout)
            sink = ending.sink = self._open_sink(engine, made_by, stack)
            documents = self._documents(engine)
            if isinstance(sink, AnswerFile) and sink.finished is not None:
                ending.code = self._nothing_left(sink, documents)
                return ending.code
            waits = any(map(pauses, self.inputs))
            if not (waits or sources.is_hub_set(self.inputs[0]) or reading["format"] in PUBLISHED):
                self._read_first(documents, beside)
            engine.load(sink)
            stack.enter_context(closing(self.rejects))
            counts = self._write(documents, waits, engine, sink, beside)
            _log_summary(counts, self.rejects, engine.model.max_length)
            ending.code = EXIT_REJECTS if self.rejects.count else EXIT_OK
        return ending.code

    def _beside(self, keep: Sequence[str], engine: Engine) -> Beside | None:
        more = ["label_set"] if self.options.label_sets is not None else []
        more += ["record"] if self.shard else []
        beside = copier(keep, engine.trained.task, [*self.options.explained, *more])
        return partial(_numbered, beside=beside) if self.shard else beside

    def _reading(self, engine: Engine) -> dict[str, Any]:
        trained, data = engine.trained, self.options.data
        format = data.format or layout_of_training(self.inputs, trained.data.format)
        reading = data.model_dump(exclude_defaults=True) | {"format": format}
        filed = trained.task.reads.files or getattr(trained.data, "text_files", None)
        check_reading(self.inputs[0], reading, bool(filed))
        if hasattr(trained.data, "encoding") and data.encoding is None:
            reading["encoding"] = encoding_of_training(self.inputs, trained.data.encoding)
        return reading

    def _documents(self, engine: Engine) -> InputDocuments:
        data, task = engine.recipe.data, engine.recipe.task
        most = self.options.data.max_line_bytes
        reading = partial(
            read, self.inputs, data, document=task.reads.document, max_line_bytes=most
        )
        return InputDocuments(reading, self.shard)

    def _made_by(self, engine: Engine, keep: Sequence[str], layout: str | None) -> dict[str, str]:
        """Settings that determine the answers, by names for messages."""
        recipe, options = engine.recipe, engine.options
        precision, places = options.precision, engine.seats()
        data = {"text", "id", "format", "encoding", "max_line_bytes"}
        more = self.options.data.model_dump(exclude_defaults=True, exclude=data | {"evidence"})
        return {
            "model": engine.run.fingerprint(recipe),
            "text field": recipe.data.text or recipe.task.reads.document,
            "id field": recipe.data.id or "id",
            "format": recipe.data.format or "lines",
            "encoding": getattr(recipe.data, "encoding", "utf-8"),
            **{f"data.{name}": str(value) for name, value in more.items()},
            "n best": recipe.task.model_dump().get("n_best", 1),
            **({"resolved": "true"} if options.resolved else {}),
            **({} if precision == "auto" else {"precision": precision}),
            "--keep": ",".join(keep),
            "passages": options.explanation(),
            **{name: str(value) for name, value in options.shown().items()},
            **{name: str(value) for name, value in options.of_vectors().items()},
            **({"dtype": self.dtype} if recipe.task.answers.kind == vectors.KIND else {}),
            **({"runtime": options.runtime} if options.runtime in RUNTIMES else {}),
            "--output-format": layout or "",
            # Threads of a GPU's worker change no answer.
            THREADS: "".join(str(seat.threads) for seat in places[:1] if seat.device == "cpu"),
            **({"--shard": str(self.shard), "task": recipe.task.name} if self.shard else {}),
        }

    def _open_sink(
        self, engine: Engine, made_by: dict[str, str], stack: ExitStack
    ) -> AnswerFile | AnswerStream:
        output = self.output
        if output is None or output == "-":
            return AnswerStream(sys.stdout.buffer)
        if is_stream(output):
            return AnswerStream(stack.enter_context(open(output, "wb")))
        target, answers = Path(output), engine.recipe.task.answers
        if made_by["--keep"] and made_by["--output-format"]:
            raise UserError(
                f"--keep: no place in {output}, in format {made_by['--output-format']}; name it "
                ".jsonl, .csv or .parquet, without --output-format"
            )
        layout = layout_of(target, answers.layouts.get(made_by["--output-format"]), answers.kind)
        if self.shard:
            target, layout = Path(self.shard.part(output)), None
        file = AnswerFile(
            target, made_by=made_by, resume=self.resume, overwrite=self.overwrite, layout=layout
        )
        return stack.enter_context(closing(file))

    def _write(
        self,
        documents: InputDocuments,
        waits: bool,
        engine: Engine,
        sink: AnswerFile | AnswerStream,
        beside: Beside | None,
    ) -> Counts:
        """Write the answer to every record; skipped records go to the rejects."""
        broken = refuse = None
        if self.options.on_error != "stop":
            self.rejects.forget()
            broken, refuse = self.rejects.write, self.rejects.refuse
        file = sink if isinstance(sink, AnswerFile) else None
        lines = vectors.lines_for(engine.recipe.task, self.dtype, file is not None)
        records = partial(prefetch, documents, busy=engine.busy) if waits else documents
        with progress_line(shown=file is not None) as progress:
            pipeline = engine.pipeline(refuse=refuse, beside=beside, progress=progress)
            for group in pipeline.answer(records(on_error=broken), file):
                sink.write([line for answer in group for line in lines(answer)])
        facts = {"records": documents.count} if self.shard else {}
        sink.finish(documents=documents.sha256(), rejects=self.rejects.count, **facts)
        return pipeline.counts

    def _nothing_left(self, sink: AnswerFile, documents: InputDocuments) -> int:
        assert sink.finished is not None
        for _ in documents(on_error=None if self.options.on_error == "stop" else _ignore):
            pass
        if documents.sha256() != sink.finished.get("documents"):
            raise UserError(
                f"{sink.target}: finished, of other documents than there are now; --overwrite "
                "replaces it"
            )
        rejected = sink.finished.get("rejects")
        without = f", without {plural(rejected, 'rejected record')}" if rejected else ""
        what = "finished by the same model and options"
        log.info("%s: %s%s; nothing to do", sink.target, what, without)
        return EXIT_REJECTS if rejected else EXIT_OK

    def _read_first(self, documents: InputDocuments, beside: Beside | None) -> None:
        """Read the first record, which fails if the input is not a file of documents."""
        stop = self.options.on_error == "stop"
        with closing(documents(on_error=None if stop else _ignore)) as records:
            first = next(records, None)
        if first and beside and stop:
            beside(first)


def _wanted_by(layout: str | None, engine: Engine) -> dict[str, Any]:
    least = engine.trained.task.answers.layouts[layout].options if layout else {}
    return {name: max(getattr(engine.options, name) or 0, value) for name, value in least.items()}


def _numbered(example: Example, beside: Beside | None) -> dict[str, Any]:
    """Number of a shard's record, and what ``beside`` adds."""
    return {"record": example.record, **(beside(example) if beside else {})}


def _ignore(error: DataError, raw: bytes) -> None:
    """Skip an unreadable record."""


def _log_summary(counts: Counts, rejects: Rejects, max_length: int) -> None:
    if counts.labels:
        log.info("answers: %s", counted(counts.labels))
    parts = [counts.rate(), f"{plural(counts.long, 'document')} longer than {max_length:,} tokens"]
    if counts.cut:
        parts.append(
            f"{counts.cut:,} cut off: {plural(counts.unread, 'token')} "
            f"({counts.unread / max(counts.lengths, 1):.1%}) not read"
        )
    if counts.resumed:
        parts.append(f"{plural(counts.resumed, 'document')} answered before")
    if rejects.count:
        parts.append(f"{plural(rejects.count, 'record')} rejected, see {rejects.path}")
    log.info("%s", "; ".join(parts))
    if not counts.documents and not counts.resumed and not rejects.count:
        log.warning("no documents in the input, so no answers")
    if doubt := wordless(counts.wordless, counts.documents):
        log.warning("%s", doubt)


class ExitHandler:
    """Context of a run: turns signals into an exit code, and says where unfinished answers are
    kept.

    Attributes:
        sink: output, once it is open.
        code: exit code of the run, or of the signal that ended it.
    """

    def __init__(self) -> None:
        self.sink: AnswerFile | AnswerStream | None = None
        self.code = EXIT_OK
        self._open = ExitStack()

    def __enter__(self):
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:  # the command line has a handler
            self._open.enter_context(handled(raise_stopped, [signal.SIGTERM]))
        return self

    def __exit__(self, kind, error, trace):
        self._open.close()
        advice = ""
        if isinstance(self.sink, AnswerFile) and self.sink.count:
            advice = (
                f"{plural(self.sink.count, 'answer')} kept in {self.sink.partial}; the same "
                "command with --resume goes on there"
            )
        if isinstance(error, KeyboardInterrupt):
            terminated = isinstance(error, Terminated)
            self.code = EXIT_SIGTERM if terminated else EXIT_SIGINT
            log.info("%s: %s", "SIGTERM" if terminated else "SIGINT", advice or "stopped")
            return True
        if advice and isinstance(error, DataError | ModelError | ResourceError):
            log.info("%s", advice)
        return False


@contextmanager
def _sending(output: str | None, *, overwrite: bool, resume: bool) -> Iterator[str | None]:
    """Yield the file to write answers to: ``output``, or a local one in `UNSENT` if it is remote.

    Complete answers and their rejects are uploaded and removed at the end. Otherwise, or if
    uploading fails, they are kept for ``resume``, which also uploads complete ones.
    """
    if output is None or not sources.is_remote(output):
        yield output
        return
    name = output.rstrip("/").rpartition("/")[2]
    folder = UNSENT / hashlib.sha256(output.encode()).hexdigest()[:12]
    file = folder / name
    if not overwrite and sources.exists_remote(output):
        raise UserError(f"{output}: exists already; --overwrite replaces it")
    if file.exists() and not (resume or overwrite):
        raise UserError(f"{file}: answers for {output} that were not sent; --resume sends them")
    folder.mkdir(parents=True, exist_ok=True)
    log.info("%s: %s until it is complete", output, file)
    try:
        yield str(file)
        if file.exists():
            _send(file, output)
    finally:
        _clean(folder)


def _send(file: Path, output: str) -> None:
    rejects = rejects_path("", str(file))
    try:
        # The rejects first: who finds the answers finds them as well.
        if rejects.exists():
            sources.put_remote(rejects, output + rejects.name.removeprefix(file.name))
        if (ids := vectors.ids_of(file)).exists():
            sources.put_remote(ids, output.removesuffix(file.name) + ids.name)
        sources.put_remote(file, output)
    except UserError as error:
        raise ResourceError(f"{error}; the answers are in {file}, --resume sends them") from None
    for path in file.parent.iterdir():
        remove(path)
    log.info("%s: complete", output)


def _clean(folder: Path) -> None:
    for path in (folder, UNSENT):
        try:
            path.rmdir()
        except OSError:
            return
