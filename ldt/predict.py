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
from typing import Any

import numpy as np

from ldt import recipe as recipes
from ldt.answering import Counts, Feature, ahead, answer_all
from ldt.errors import (
    EXIT_OK,
    EXIT_REJECTS,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    DataError,
    ModelError,
    RecipeError,
    ResourceError,
    UserError,
)
from ldt.opening import opened
from ldt.output import AnswerFile, AnswerStream, Rejects, plural
from ldt.reading import Example, read
from ldt.recipe import Recipe

log = logging.getLogger("ldt")

LATEST = "runs/latest"
RECIPE = "recipe.yaml"
_MAKES_ONE = "ldt finetune RECIPE makes one"
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_DECIDES = ("config.json", "tokenizer*", "vocab*", "*.safetensors", "*.bin")
_INPUTS = ("input_ids", "attention_mask", "global_attention_mask", "token_type_ids")
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
    text: str | None = None,
    id: str | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> int:
    """Answer every document of ``input``, one JSON line each, in the order of the input.

    A line has ``id``, what the task decides (``label``, ``scores``), its flags and ``windows``.
    Messages go to stderr.

    Args:
        input: file, "-" for standard input, or what else `ldt.reading.read` takes.
        model: folder of a finished run; None is `LATEST` in the current directory.
        output: file, which appears when all answers are there (`AnswerFile`); a pipe or device is
            written as it is; None or "-" is standard output.
        on_error: "stop" ends at the first record that cannot be used, after the answers before
            it; "skip" puts such records into `rejects_path` and goes on.
        resume: go on with the unfinished ``output``; the input must begin with the same records.
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        max_line_bytes: a longer line cannot be used.
        text, id: fields of the text and of the id; None is what the model was trained with.
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
    skip = on_error == "skip"
    rejects = Rejects(rejects_path(input, output))
    check_paths(input, output, rejects.path, resume)
    sink: AnswerFile | AnswerStream | None = None
    with ExitStack() as stack:
        try:
            stack.enter_context(_sigterm_raises())
            folder = find_model(model)
            recipe = read_recipe(folder, text, id)
            sink = _open_sink(output, folder, recipe, precision, resume, stack)
            answerer = FineTuned(folder, recipe, device, precision)
            if isinstance(sink, AnswerFile):
                _same_arithmetic(sink, stack)
            stack.enter_context(closing(rejects))
            if skip:
                rejects.forget()
            records = partial(read, input, id_field=recipe.data.id, max_line_bytes=max_line_bytes)
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
        except (DataError, ModelError, ResourceError):
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


def read_recipe(folder: Path, text: str | None = None, id: str | None = None) -> Recipe:
    """What the model in ``folder`` was trained for; a checkpoint has the recipe of its run.

    Args:
        text, id: fields that replace those of the recipe.

    Raises:
        ModelError: there is no recipe, so the model is not fine-tuned, or no weights.
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
    recipe.data = recipe.data.model_copy(
        update={key: value for key, value in (("text", text), ("id", id)) if value is not None}
    )
    return recipe


class FineTuned:
    """A fine-tuned model with its task and tokenizer, as `answering.Answerer`.

    Args:
        folder: of the model.
        recipe: that it was trained by.
        device: a torch device, or "auto".
        precision: a name in `ldt.model.precision.PRECISIONS`.

    Raises:
        ModelError: the folder cannot be used, or its weights are not those of the recipe's task.
        UserError: there is no such device, or it does not have the precision.
    """

    def __init__(self, folder: Path, recipe: Recipe, device: str = "auto", precision: str = "fp32"):
        from ldt.data import Collator
        from ldt.model import load, load_tokenizer, usable_length

        self.task, self.data = recipe.task, recipe.data
        self.device = find_device(device)
        if precision == "int8" and self.device.type != "cpu":
            raise UserError(f"--precision int8 runs on the CPU, not on {self.device}; bf16 does")
        self._asked = precision  # what the model turns into after its first batch
        self.model = load(folder, self.task.head())
        if self.model.new_weights:
            raise ModelError(
                f"{folder}: not fine-tuned for {self.task.name}: there are no weights for "
                f"{', '.join(self.model.new_weights)}; ldt finetune RECIPE model.path={folder} "
                "trains them"
            )
        self.config = self.model.config
        self.tokenizer = load_tokenizer(folder, self.config)
        self.collate = Collator(self.config.pad_token_id)
        self.max_length = self.data.max_length or usable_length(self.config)
        if self.max_length > usable_length(self.config):
            raise RecipeError(
                f"{recipe.where('data', 'max_length')}: {self.max_length:,} tokens, the model "
                f"takes {usable_length(self.config):,}"
            )
        self.model.to(self.device)

    def encode(self, example: Example) -> list[Feature]:
        """The windows of a document."""
        return self.task.encode(example, self.tokenizer, data=self.data, max_length=self.max_length)

    def logits(self, features: list[Feature]) -> np.ndarray:
        """[windows, labels] in float32.

        Raises:
            ResourceError: the memory does not hold the batch.
        """
        import torch

        try:
            inputs = self.collate(features)
            inputs = {key: inputs[key].to(self.device) for key in _INPUTS if key in inputs}
            with torch.inference_mode():
                found = self.model(**inputs).logits.float().cpu().numpy()
                if self._asked != "fp32":
                    found = self._lowered(inputs, exact=found)
                return found
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
                raise
            longest = max(len(feature["input_ids"]) for feature in features)
            advice = (
                f"--batch-tokens {longest * max(1, len(features) // 2)} takes less"
                if len(features) > 1
                else "a shorter data.max_length takes less"
            )
            raise ResourceError(
                f"out of memory on {self.device} with {len(features)} windows of up to "
                f"{longest:,} tokens; {advice}"
            ) from error

    def _lowered(self, inputs, exact: np.ndarray) -> np.ndarray:
        """The logits in the precision asked for, which the model has from now on."""
        from ldt.model.precision import lower

        lower(self.model, self._asked)
        found = self.model(**inputs).logits.float().cpu().numpy()
        same = int((found.argmax(1) == exact.argmax(1)).sum())
        log.info(
            f"{self._asked} against fp32 on the first {plural(len(exact), 'window')}: the highest "
            f"logit is the same in {same}; logits are {np.abs(found - exact).max():.2g} off at "
            f"most, and range from {exact.min():.2g} to {exact.max():.2g}"
        )
        self._asked = "fp32"
        return found

    def decode(self, logits: np.ndarray, features: list[Feature]) -> dict[str, Any]:
        """The answer for one document."""
        return self.task.decode(logits, self.config, features)


def find_device(name: str):
    """The torch device of that name; "auto" is the GPU if there is one.

    Raises:
        UserError: there is none.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name}: cannot be used: {reason}") from None
    return device


def fingerprint(folder: Path, recipe: Recipe) -> str:
    """A hash of the files that decide what the model answers."""
    files = {file for pattern in _DECIDES for file in folder.glob(pattern) if file.is_file()}
    total = hashlib.sha256()
    for file in [recipe.path, *sorted(files)]:
        with open(file, "rb") as data:
            total.update(hashlib.file_digest(data, "sha256").digest())
    return total.hexdigest()


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
        "text field": recipe.data.text,
        "id field": recipe.data.id,
        "precision": precision,
    }
    return stack.enter_context(closing(AnswerFile(Path(output), made_by=made_by, resume=resume)))


def _same_arithmetic(sink: AnswerFile, stack: ExitStack) -> None:
    """Compute with the matrix library of the run that began the file, for the same last digits."""
    from ldt.kernels import cpu

    stack.enter_context(cpu.chosen(sink.remember("arithmetic", cpu.choices)))


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
