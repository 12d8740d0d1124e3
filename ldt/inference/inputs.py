"""Input files of a prediction run, checked before a model is loaded, and their records.

Records of a pipe are read ahead by a thread. Fields of a record can be copied into its answer.
"""

import logging
import math
import os
import queue
import re
import stat
import sys
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ldt.benchmarks.formats import LINES
from ldt.benchmarks.recognition import MOST, recognised
from ldt.errors import DataError, UserError
from ldt.inference.options import flag
from ldt.inference.stream import Beside, Records
from ldt.io.files import is_stream
from ldt.io.records import Example, OnError, field
from ldt.io.sources import is_hub_set, is_remote
from ldt.io.streams import beginning, open_source
from ldt.tasks.base import ANSWER_KEYS, AnyTask

log = logging.getLogger("ldt")

PATIENCE = 0.05  # seconds that a pipe may pause before what waits is answered
QUEUED = 4  # records that a thread reads ahead of a pipe's reader


def rejects_path(input: str, output: str | None) -> Path:
    """Path for rejected records: ``FILE.rejects.jsonl`` for answers in FILE, else made from the
    input.

    ``docs.jsonl.gz`` gives ``docs.jsonl.gz.rejects.jsonl`` in the current directory, standard input
    ``stdin.rejects.jsonl``.
    """
    if not is_stream(output):
        return Path(f"{output}.rejects.jsonl")
    name = "stdin" if input == "-" else re.sub(r"[^\w.-]+", "-", os.path.basename(input))
    return Path(f"{name}.rejects.jsonl")


def check_paths(input: str, output: str | None, rejects: Path, resume: bool) -> None:
    """Refuse impossible inputs and outputs before a model is loaded.

    Args:
        input: file, folder or address; "-" for standard input.
        output: file of answers; None or "-" for standard output.
        rejects: file of rejected records.
        resume: True if the run is to be resumed, which needs a file.

    Raises:
        UserError: the input is missing, a terminal or a recipe, or is also an output.
        DataError: the input's compression is not supported.
    """
    if resume and is_stream(output):
        raise UserError("--resume needs --output FILE; what went into a pipe is not kept")
    if is_hub_set(input):
        return
    if input == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UserError("standard input is a terminal; pipe documents into it or name a file")
    elif input.lower().endswith((".yaml", ".yml")):
        raise UserError(f"{input}: YAML, such as a recipe, not documents; --model names a run")
    elif not (os.path.isdir(input) or (os.path.exists(input) and pauses(input))):
        with open_source(input):
            pass
    source: str | int = 0 if input == "-" else input
    for file in (rejects, *((output, f"{output}.partial") if output else ())):
        if is_remote(input):
            continue
        if os.path.isfile(file) and os.path.samefile(source, file):
            raise UserError(f"{file}: this is the input; name another file for the answers")
    if _is_loop(source, output):
        name = "standard output" if output in (None, "-") else output
        raise UserError(f"{name}: this is the input as well; name another file for the answers")


def _is_loop(input: str | int, output: str | None) -> bool:
    """True if answers would be read as documents."""
    try:
        target = os.stat(1 if output in (None, "-") else output)
        same = os.path.samestat(os.stat(input), target)
    except (OSError, TypeError):  # not there yet; a closed stream
        return False
    return same and (stat.S_ISFIFO(target.st_mode) or stat.S_ISREG(target.st_mode))


def pauses(source: str) -> bool:
    """True for a pipe, terminal or device ("-": standard input), whose next line may take long."""
    if source.startswith("hf:") or is_remote(source):
        return False
    mode = os.stat(0 if source == "-" else source).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def encoding_of_training(inputs: Sequence[str], trained: str | None) -> str | None:
    """Encoding to read the inputs in: that of the training data, or "utf-8" if every input begins
    with non-ASCII UTF-8.

    Text in another encoding with non-ASCII letters is never valid UTF-8 by chance. The choice is
    logged; folders, hub datasets and pipes are not examined.

    Args:
        inputs: names of the inputs.
        trained: encoding of the training data; None and "utf-8" are returned as they are.
    """
    if trained in (None, "utf-8"):
        return trained
    looked = [not (is_hub_set(it) or os.path.isdir(it) or pauses(it)) for it in inputs]
    heads = [beginning(it, MOST, lambda head: False) for it in inputs] if all(looked) else []
    read = "utf-8" if heads and all(map(_is_utf8, heads)) else trained
    if any(heads) or not heads:  # of tables there are none
        other = flag("data.encoding", "NAME")
        log.info(
            "%s: read as %s; the training read %s; %s reads another",
            inputs[0],
            read,
            trained,
            other,
        )
    return read


def _is_utf8(head: bytes) -> bool:
    try:
        getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return not head.isascii() or not head


def layout_of_training(inputs: Sequence[str], trained: str | None) -> str | None:
    """Published layout of the training data, if the inputs begin like it (logged), else None.

    Args:
        inputs: names of the inputs.
        trained: format of the training data; None for lines.

    Raises:
        DataError: some of several files do and others do not.
    """
    if trained is None or trained in LINES:
        return None
    like = [
        not is_hub_set(input) and not os.path.isdir(input) and recognised(input, trained)
        for input in inputs
    ]
    if not like[0]:
        return None
    if not all(like):
        raise DataError(
            f"{inputs[like.index(False)]}: does not begin as {trained}, as {inputs[0]} does; files "
            "that are read together have one layout"
        )
    other = flag("data.format", "NAME")
    log.info("%s: read as %s, as the training was; %s reads another", inputs[0], trained, other)
    return trained


def prefetch(
    records: Records,
    on_error: OnError | None,
    patience: float = PATIENCE,
    busy: Callable[[], bool] = lambda: False,
) -> Iterator[Example | None]:
    """Yield records of a pipe, read ahead by a thread, and a None in each pause.

    There is one None per pause, or one after another while ``busy()``. Errors of ``records`` are
    raised.

    Args:
        records: function whose ``on_error`` is a callback or None, and which yields the records.
        on_error: called with the error and the bytes of a broken record, in the caller's thread and
            the order of the records; None raises the error.
        patience: seconds to wait before a None.
        busy: True while work on earlier records needs attention.
    """
    # Records, calls of ``on_error``, and the error that ended the reading, or None.
    waiting: queue.Queue[Any] = queue.Queue(QUEUED)
    stopped = threading.Event()

    def put(item: Any) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                return waiting.put(item, timeout=1)
        raise _StoppedError

    def work() -> None:
        bad = None if on_error is None else lambda *broken: put(partial(on_error, *broken))
        with suppress(_StoppedError):
            try:
                for record in records(on_error=bad):
                    put(record)
                put(None)
            except Exception as error:
                put(error)

    threading.Thread(target=work, daemon=True, name="input").start()
    paused = True  # and a None has been given for it
    try:
        while True:
            try:
                item = waiting.get(timeout=patience if busy() or not paused else None)
            except queue.Empty:
                paused = True
                yield None
                continue
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Example):
                paused = False
                yield item
            else:
                item()
    finally:
        stopped.set()


class _StoppedError(BaseException):
    """The reader is no longer wanted."""


def copier(keep: Sequence[str], task: AnyTask, more: Sequence[str] = ()) -> Beside | None:
    """Function from a record to some of its fields, by their names in the answer; None without any.

    UserError if a name is used by the task's answers, or occurs twice.

    Args:
        keep: FIELD, or NAME=FIELD to rename it in the answer.
        task: task of the model.
        more: further keys of the answers.
    """
    copied: dict[str, str] = {}
    for option in keep:
        name, _, path = option.rpartition("=")
        name = name or path
        if not path:
            raise UserError(f"--keep {','.join(keep)!r}: a name is empty; FIELD,FIELD names fields")
        if name.partition(".")[0] in (*ANSWER_KEYS, *task.answers.keys, *more):
            raise UserError(
                f"--keep {option}: answers of {task.name} have {name!r} themselves; "
                f"--keep my_{name}={path} gives it another name"
            )
        if name in copied:
            raise UserError(f"--keep {option}: {name!r} stands twice; each name once")
        copied[name] = path
    return partial(_copied, fields=copied) if copied else None


def _copied(example: Example, fields: dict[str, str]) -> dict[str, Any]:
    return {name: _json(field(example, path)) for name, path in fields.items()}


def _json(value: Any) -> Any:
    """JSON value: dates and the like of Parquet as text, NaN and infinity as null."""
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
