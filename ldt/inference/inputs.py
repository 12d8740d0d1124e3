"""Documents to answer for, before a model is loaded: which files, and whether they can work."""

import logging
import os
import re
import stat
import sys
from codecs import getincrementaldecoder
from collections.abc import Sequence
from pathlib import Path

from ldt.data.formats import LINES
from ldt.data.formats.recognition import MOST, recognised
from ldt.errors import DataError, UserError
from ldt.io.sources import is_hub_set, is_remote
from ldt.io.streams import beginning, opened

log = logging.getLogger("ldt")


def rejects_path(input: str, output: str | None) -> Path:
    """``FILE.rejects.jsonl`` for the answers in FILE, else in the current directory for the input.

    ``docs.jsonl.gz`` gives ``docs.jsonl.gz.rejects.jsonl``, standard input
    ``stdin.rejects.jsonl``.
    """
    if not is_stream(output):
        return Path(f"{output}.rejects.jsonl")
    name = "stdin" if input == "-" else re.sub(r"[^\w.-]+", "-", os.path.basename(input))
    return Path(f"{name}.rejects.jsonl")


def check_paths(input: str, output: str | None, rejects: Path, resume: bool) -> None:
    """Refuse what cannot work before a model is loaded.

    Raises:
        UserError: the input is missing or a terminal, or one of the files to write is the input.
        DataError: the input is compressed in a way that cannot be read.
    """
    if resume and is_stream(output):
        raise UserError("--resume needs --output FILE; what went into a pipe is not kept")
    if is_hub_set(input):
        return
    if input == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UserError(
                "standard input is a terminal; pipe documents into it "
                "(cat docs.jsonl | ldt predict --input -) or name a file"
            )
    elif input.lower().endswith((".yaml", ".yml")):
        raise UserError(
            f"{input}: YAML, such as a recipe, not documents; ldt predict FILE takes JSON lines, "
            "CSV or Parquet, --model the folder of a run"
        )
    elif not (os.path.isdir(input) or (os.path.exists(input) and pauses(input))):
        with opened(input):
            pass
    for file in (rejects, *((output, f"{output}.partial") if output else ())):
        if is_remote(input):
            continue
        if os.path.isfile(file) and os.path.samefile(0 if input == "-" else input, file):
            raise UserError(f"{file}: this is the input; name another file for the answers")
    if _is_loop(0 if input == "-" else input, output):
        name = "standard output" if output in (None, "-") else output
        raise UserError(f"{name}: this is the input as well; name another file for the answers")


def _is_loop(input: str | int, output: str | None) -> bool:
    """True if answers would be read as documents: through a pipe, or a file that is appended to."""
    try:
        about = os.stat(1 if output in (None, "-") else output)
        same = os.path.samestat(os.stat(input), about)
    except (OSError, TypeError):  # not there yet; a closed stream
        return False
    return same and (stat.S_ISFIFO(about.st_mode) or stat.S_ISREG(about.st_mode))


def is_stream(output: str | None) -> bool:
    """True if answers go straight out: to standard output, a pipe, a device such as /dev/null."""
    if output is None or output == "-":
        return True
    return os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output)


def pauses(source: str) -> bool:
    """True for a pipe or the like, whose next line may be long in coming."""
    if source.startswith("hf:") or is_remote(source):
        return False
    mode = os.stat(0 if source == "-" else source).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def encoding_of_training(inputs: Sequence[str], trained: str | None) -> str | None:
    """The encoding that the training read, unless all inputs begin with letters of UTF-8.

    No text of another encoding that has letters beyond ASCII is UTF-8 by chance. Which one is read
    is told; folders, sets of the hub and what `pauses` are not looked at.
    """
    if trained in (None, "utf-8"):
        return trained
    looked = [not (is_hub_set(it) or os.path.isdir(it) or pauses(it)) for it in inputs]
    heads = [beginning(it, MOST, lambda head: False) for it in inputs] if all(looked) else []
    if heads and all(map(_is_utf8, heads)):
        if any(heads):  # of tables there are none
            log.info("%s: read as utf-8, which it is; the training read %s", inputs[0], trained)
        return "utf-8"
    log.info("%s: read as %s, as the training was; --encoding names another", inputs[0], trained)
    return trained


def _is_utf8(head: bytes) -> bool:
    """True for the first bytes of a text with letters of UTF-8 that are more than a byte, and for
    none."""
    try:
        getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return not head.isascii() or not head


def layout_of_training(inputs: Sequence[str], trained: str | None) -> str | None:
    """The published layout that the training read, where the input begins like that.

    Raises:
        DataError: of several files some do, others do not.
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
    log.info("%s: read as %s, as the training was; --format names another", inputs[0], trained)
    return trained
