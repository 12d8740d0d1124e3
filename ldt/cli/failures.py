"""Exceptions turned into a line and an exit code.

Exit codes are in `ldt.errors`; 141 is a reader of our output that went away.
"""

import errno
import os
import sys
import tempfile
import traceback

import typer

from ldt import __version__, errors
from ldt.errors import plain

EXIT_SIGPIPE = 141
_BETWEEN_PROCESSES = ("third_party/gloo", "[Gloo]", "NCCL")  # libraries that join processes
OTHER_PROCESS = (
    "another process of this run has ended, killed or with a message of its own; --resume goes on "
    "from the last checkpoint"
)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
LESS_MEMORY = (
    "a smaller data.max_length or training.per_device_train_batch_size (finetune) "
    "or --batch-tokens (predict) needs less"
)


def explain(error: BaseException) -> tuple[str | int | None, str, str]:
    """(exit code for `sys.exit`, prefix of each line, lines to print or nothing)."""
    if isinstance(error, SystemExit | typer.Abort):  # typer and rich wrap some of what they catch
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, BrokenPipeError | EOFError):
            code = error.code if isinstance(error, SystemExit) else errors.EXIT_SIGINT
            return code, "", ""
        error = inner
    if isinstance(error, KeyboardInterrupt):
        return errors.EXIT_SIGINT, "", ""
    if isinstance(error, BrokenPipeError):
        return EXIT_SIGPIPE, "", ""
    if isinstance(error, errors.UserError):
        return error.exit_code, "error: ", str(error)
    if hasattr(error, "format_message"):  # a usage error of typer
        return errors.EXIT_USAGE, "error: ", _usage(error)
    if isinstance(error, RuntimeError) and any(name in str(error) for name in _BETWEEN_PROCESSES):
        return errors.EXIT_RESOURCES, "error: ", OTHER_PROCESS
    if _out_of_memory(error):
        return errors.EXIT_RESOURCES, "error: ", f"out of memory; {LESS_MEMORY}"
    if getattr(error, "errno", None) in DISK_FULL or "No space left on device" in str(error):
        file = getattr(error, "filename", None)
        where = f"{file}: " if file else ""
        return errors.EXIT_RESOURCES, "error: ", f"{where}the disk is full; free space on it"
    if isinstance(error, PermissionError) and error.filename:
        return errors.EXIT_USAGE, "error: ", f"{error.filename}: {error.strerror}"
    return errors.EXIT_BUG, "", _bug(error)


def _usage(error):
    """``no such option: --max-leng ...; see 'ldt convert --help'``."""
    text = error.format_message().replace("Value error, ", "")
    text = " ".join(text.split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ldt"
    return f"{text[:1].lower()}{text[1:]}; see '{command} --help'"


def _out_of_memory(error):
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)  # of a GPU
    return isinstance(error, MemoryError | kind) or "can't allocate memory" in str(error)


def _bug(error):
    """``bug: TypeError: ...; traceback in /tmp/ldt-....txt``, or the traceback itself."""
    trace = "".join(traceback.format_exception(error))
    if os.environ.get("LDT_TRACEBACK") == "1":
        return trace
    summary = plain(str(error)).strip().split("\n")[0][:200]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="ldt-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(f"ldt {__version__}, Python {sys.version}\n{sys.argv}\n\n{trace}")
    except OSError:
        return trace
    return f"bug: {type(error).__name__}: {summary}; traceback in {file.name}"
