"""A fine-tuned model folder and a file or pipe of documents to a file or pipe of answers.

Torch and the model are imported when they are needed: a wrong path is told at once.
"""

import hashlib
import logging
import os
import re
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from ldt.data.formats import FORMATS, LINES, read
from ldt.data.streams import opened
from ldt.errors import (
    EXIT_OK,
    EXIT_REJECTS,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    DataError,
    ModelError,
    ResourceError,
    UserError,
    plural,
)
from ldt.inference.answer_file import AnswerFile, AnswerStream, Rejects
from ldt.inference.predictor import FineTuned
from ldt.inference.stream import Counts, ahead, answer_all
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import Recipe

log = logging.getLogger("ldt")

LATEST = "runs/latest"
RECIPE = "recipe.yaml"
_MAKES_ONE = "ldt finetune RECIPE makes one"
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_DECIDES = ("config.json", "tokenizer*", "vocab*", "*.safetensors", "*.bin")
_EVERY = 0.2  # seconds between two pictures of the progress


def predict(
    input: str,
    *,
    model: str | None = None,
    output: str | None = None,
    on_error: str = "stop",
    resume: bool = False,
    batch_tokens: int = 16384,
    max_line_bytes: int = 256 << 20,
    format: str | None = None,
    evidence: str | None = None,
    text: str | None = None,
    id: str | None = None,
    n_best: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> int:
    """Answer every document of ``input``, one JSON line each, in the order of the input.

    A line has ``id``, what the task decides (``label``, ``scores``), its flags and ``windows``.
    An ``output`` named .json gets one JSON value instead, as the task's published evaluator reads
    it (`Task.published`). Messages go to stderr.

    Args:
        input: file, "-" for standard input, or what else `ldt.data.records.read` takes.
        model: folder of a finished run; None is `LATEST` in the current directory.
        output: file, which appears when all answers are there (`AnswerFile`); a pipe or device is
            written as it is; None or "-" is standard output.
        on_error: "stop" ends at the first record that cannot be used, after the answers before
            it; "skip" puts such records into `rejects_path` and goes on.
        resume: go on with the unfinished ``output``; the input must begin with the same records.
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        max_line_bytes: a longer line cannot be used.
        format: a name in `ldt.data.formats.FORMATS`; None is JSON lines, CSV or Parquet by content.
        evidence: folder of the documents that triviaqa files name.
        text, id: fields of the text and of the id; None is what the model was trained with, as for
            ``evidence``.
        n_best: answers a document, of tasks that have several.
        device: "cpu", "cuda" …; "auto" is the GPU if there is one.
        precision: "fp32"; "bf16" or "int8" (on the CPU) are faster, and the first batch, computed
            both ways, tells how far the answers are off.

    Returns:
        The exit code: 0; 7 when records were skipped; 130 and 143 after SIGINT and SIGTERM.

    Raises:
        UserError: with its exit code, when a path, a record, the model or the memory is to blame.
        BrokenPipeError: nobody reads the output any more.
    """
    if on_error not in ("stop", "skip"):
        raise ValueError(f"on_error must be stop or skip, got {on_error!r}")
    if batch_tokens < 1:
        raise UserError(f"--batch-tokens must be at least 1, got {batch_tokens}")
    if format is not None and format not in FORMATS:
        raise UserError(f"--format must be one of {', '.join(FORMATS)}, got {format!r}")
    skip = on_error == "skip"
    rejects = Rejects(rejects_path(input, output))
    check_paths(input, output, rejects.path, resume)
    sink: AnswerFile | AnswerStream | None = None
    with ExitStack() as stack:
        try:
            stack.enter_context(_sigterm_raises())
            folder = find_model(model)
            recipe = read_recipe(folder, n_best, evidence=evidence, text=text, id=id)
            trained_on = recipe.data.format
            recipe.data = recipe.data.model_copy(update={"format": format})
            sink = _open_sink(output, folder, recipe, precision, resume, stack)
            answerer = _answerer(recipe)(folder, recipe, device, precision)
            if isinstance(sink, AnswerFile):
                _same_arithmetic(sink, stack)
            stack.enter_context(closing(rejects))
            if skip:
                rejects.forget()
            records = partial(read, input, recipe.data, max_line_bytes=max_line_bytes)
            broken = rejects.write if skip else None
            counts = answer_all(
                ahead(records, broken) if _pauses(input) else records(on_error=broken),
                answerer,
                sink,
                batch_tokens=batch_tokens,
                refuse=rejects.refuse if skip else None,
                progress=stack.enter_context(_progress(shown=isinstance(sink, AnswerFile))),
            )
            sink.finish()
        except KeyboardInterrupt:
            return _interrupted("SIGINT", EXIT_SIGINT, sink)
        except _TerminatedError:
            return _interrupted("SIGTERM", EXIT_SIGTERM, sink)
        except DataError as error:
            _say_kept("", sink)
            if format is None and trained_on not in (None, *LINES):
                raise DataError(f"{error}; trained with --format {trained_on}") from error
            raise
        except (ModelError, ResourceError):
            _say_kept("", sink)
            raise
    _say_summary(counts, rejects, answerer.max_length)
    return EXIT_REJECTS if rejects.count else EXIT_OK


def rejects_path(input: str, output: str | None) -> Path:
    """``FILE.rejects.jsonl`` for the answers in FILE, else in the current directory for the input.

    ``docs.jsonl.gz`` gives ``docs.jsonl.gz.rejects.jsonl``, standard input
    ``stdin.rejects.jsonl``.
    """
    if not _is_stream(output):
        return Path(f"{output}.rejects.jsonl")
    name = "stdin" if input == "-" else re.sub(r"[^\w.-]+", "-", os.path.basename(input))
    return Path(f"{name}.rejects.jsonl")


def check_paths(input: str, output: str | None, rejects: Path, resume: bool) -> None:
    """Refuse what cannot work before a model is loaded.

    Raises:
        UserError: the input is missing or a terminal, or one of the files to write is the input.
        DataError: the input is packed in a way that cannot be read.
    """
    if resume and _is_stream(output):
        raise UserError("--resume needs --output FILE; what went into a pipe is not kept")
    if input.startswith("hf:"):
        return
    if input == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UserError(
                "standard input is a terminal; pipe documents into it "
                "(cat docs.jsonl | ldt predict --input -) or name a file"
            )
    elif not (os.path.exists(input) and _pauses(input)):
        with opened(input):
            pass
    for file in (rejects, *((output, f"{output}.partial") if output else ())):
        if os.path.isfile(file) and os.path.samefile(0 if input == "-" else input, file):
            raise UserError(f"{file}: this is the input; name another file for the answers")


def find_model(model: str | None) -> Path:
    """The folder of a fine-tuned model; None is the newest run of the current directory.

    Raises:
        ModelError: there is no such folder.
    """
    folder = Path(model or LATEST).expanduser()
    if not folder.is_dir():
        other = "--model FOLDER names another" if model is None else "--model takes its folder"
        raise ModelError(f"{folder}: no model there; {_MAKES_ONE}, {other}")
    if model is None:
        log.info("model: %s -> %s", folder, os.path.relpath(folder.resolve()))
    return folder


def read_recipe(folder: Path, n_best: int | None = None, **data: str | None) -> Recipe:
    """What the model in ``folder`` was trained for; a checkpoint has the recipe of its run.

    Args:
        n_best: of the task, and
        data: of the data section, what replaces the recipe's where it is not None.

    Raises:
        ModelError: there is no recipe, so the model is not fine-tuned, or no weights.
        UserError: the task has one answer only.
    """
    file = folder / RECIPE
    if not file.is_file() and folder.name.startswith("checkpoint-"):
        file = folder.parent / RECIPE
    if not file.is_file():
        raise ModelError(
            f"{folder}: no {RECIPE}, so this is not a fine-tuned model and has no answers; "
            f"ldt finetune RECIPE model.path={folder} trains it"
        )
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelError(
            f"{folder}: no weights, this run is not finished; ldt finetune {file} --resume "
            "goes on with it"
        )
    recipe = recipes.load(file)
    changes = {key: value for key, value in data.items() if value is not None}
    recipe.data = recipe.data.model_copy(update=changes)
    if n_best is not None:
        if "n_best" not in type(recipe.task).model_fields:
            raise UserError(f"--n-best: {recipe.task.name} has one answer a document")
        recipe.task = recipe.task.model_copy(update={"n_best": n_best})
    return recipe


def fingerprint(folder: Path, recipe: Recipe) -> str:
    """A hash of the files that decide what the model answers."""
    files = {file for pattern in _DECIDES for file in folder.glob(pattern) if file.is_file()}
    total = hashlib.sha256()
    for file in [recipe.path, *sorted(files)]:
        with open(file, "rb") as data:
            total.update(hashlib.file_digest(data, "sha256").digest())
    return total.hexdigest()


def _answerer(recipe: Recipe) -> type:
    """The class that answers for a task."""
    if recipe.task.name != "charlm":
        return FineTuned
    from ldt.inference.generate import Sampler

    return Sampler


def _open_sink(
    output: str | None,
    folder: Path,
    recipe: Recipe,
    precision: str,
    resume: bool,
    stack: ExitStack,
) -> AnswerFile | AnswerStream:
    if output is None or output == "-":
        return AnswerStream(sys.stdout.buffer)
    if _is_stream(output):
        return AnswerStream(stack.enter_context(open(output, "wb")))
    made_by = {
        "model": fingerprint(folder, recipe),
        "text field": recipe.data.text or recipe.task.document,
        "id field": recipe.data.id,
        "format": recipe.data.format or "lines",
        "n best": getattr(recipe.task, "n_best", 1),
        "precision": precision,
    }
    whole = None
    if Path(output).suffix == ".json":
        whole = recipe.task.published
        whole(())  # says so where there is no such layout
    file = AnswerFile(Path(output), made_by=made_by, resume=resume, whole=whole)
    return stack.enter_context(closing(file))


def _same_arithmetic(sink: AnswerFile, stack: ExitStack) -> None:
    """Compute with the matrix library of the run that began the file, for the same last digits."""
    from ldt.attention import matmul

    stack.enter_context(matmul.chosen(sink.remember("arithmetic", matmul.choices)))


def _is_stream(output: str | None) -> bool:
    """Whether answers go straight out: standard output, a pipe, a device such as /dev/null."""
    if output is None or output == "-":
        return True
    return os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output)


def _pauses(source: str) -> bool:
    """Whether the input is a pipe or the like, whose next line may be long in coming."""
    if source.startswith("hf:"):
        return False
    return not stat.S_ISREG(os.stat(0 if source == "-" else source).st_mode)


class _TerminatedError(BaseException):
    """SIGTERM came."""


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM end the work as Ctrl-C does; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[Counts], None]]:
    """A line that is drawn again and again on a terminal, and nothing elsewhere."""
    last = 0.0

    def draw(counts: Counts) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _EVERY:
            last = now
            line = counts.rate()[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)

    if not (shown and sys.stderr.isatty()):
        yield lambda counts: None
        return
    try:
        yield draw
    finally:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _interrupted(name: str, code: int, sink: AnswerFile | AnswerStream | None) -> int:
    _say_kept(f"{name}: ", sink, f"{name}: stopped")
    return code


def _say_kept(why: str, sink: AnswerFile | AnswerStream | None, otherwise: str = "") -> None:
    """Say where the answers so far are, if they are in a file."""
    if isinstance(sink, AnswerFile) and sink.count:
        log.info(
            f"{why}{plural(sink.count, 'answer')} kept in {sink.partial}; the same command with "
            "--resume goes on there"
        )
    elif otherwise:
        log.info(otherwise)


def _say_summary(counts: Counts, rejects: Rejects, max_length: int) -> None:
    parts = [counts.rate(), f"{plural(counts.long, 'document')} longer than {max_length:,} tokens"]
    if counts.resumed:
        parts.append(f"{plural(counts.resumed, 'document')} answered before")
    if rejects.count:
        parts.append(f"{plural(rejects.count, 'record')} rejected, see {rejects.path}")
    log.info("; ".join(parts))
