"""Exceptions turned into a line and an exit code.

Exit codes are in `ldt.errors`; 141 is a reader of our output that went away.
"""

import errno
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator

import typer

from ldt import __version__, errors
from ldt.errors import refusal, without_controls

EXIT_SIGPIPE = 141
_BETWEEN_PROCESSES = ("third_party/gloo", "[Gloo]", "NCCL")  # libraries that join processes
OTHER_PROCESS = (
    "another process of this run has ended, killed or with a message of its own; --resume goes on "
    "from the last checkpoint"
)

LESS_MEMORY = (
    "free some, or let ulimit -v allow more; a smaller data.max_length or "
    "training.per_device_train_batch_size (finetune) or --batch-tokens (predict) needs less"
)
NO_THREAD = "the system starts no more threads; a higher ulimit -u, or more memory, allows them"
NOT_WRITTEN = "the disk did not take a file that was written; free space on it, or use another"

_THREAD = re.compile(r"can't start new thread|Resource temporarily unavailable|pthread_create")
_SYSTEM = re.compile(r"\(os error (\d+)\)")  # of Rust: safetensors, tokenizers
_WRITING = re.compile(r"PytorchStreamWriter|unexpected pos \d|I/O error|IoError")
# An OSError of another number is a bug, unless it names the file that it is about.
_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_REFUSED |= {errno.EAGAIN, errno.EIO, errno.ESTALE, errno.EROFS, errno.EACCES, errno.EPERM}


def explain(error: BaseException) -> tuple[str | int | None, str, str]:
    """Turn an exception into (exit code for `sys.exit`, prefix of each line, lines to print or "");
    the traceback of a bug is written to a temporary file."""
    if isinstance(error, SystemExit | typer.Abort):  # typer and rich wrap some of what they catch
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, BrokenPipeError | EOFError):
            code = error.code if isinstance(error, SystemExit) else errors.EXIT_SIGINT
            return code, "", ""
        error = inner
    if isinstance(error, KeyboardInterrupt):
        terminated = isinstance(error, errors.Terminated)
        return errors.EXIT_SIGTERM if terminated else errors.EXIT_SIGINT, "", ""
    if isinstance(error, BrokenPipeError):
        return EXIT_SIGPIPE, "", ""
    if isinstance(error, errors.UserError):
        line = _told(error)
        return line.exit_code, "error: ", str(line)
    if hasattr(error, "format_message"):  # a usage error of typer
        return errors.EXIT_USAGE, "error: ", _usage(error)
    if isinstance(error, RuntimeError) and any(name in str(error) for name in _BETWEEN_PROCESSES):
        return errors.EXIT_RESOURCES, "error: ", OTHER_PROCESS
    for each in _chain(error):
        cause = each if isinstance(each, errors.UserError) else _refused(each)
        if cause:
            return cause.exit_code, "error: ", str(cause)
    if isinstance(error, OSError) and error.errno and error.filename:
        cause = refusal(error)
        return cause.exit_code, "error: ", str(cause)
    return errors.EXIT_BUG, "", _bug(error)


def _told(error: errors.UserError) -> errors.UserError:
    """An error for a person, or what the machine lacked where that is what lies behind it.

    A file that cannot be read for want of memory is not damaged, whatever was concluded from it.
    """
    if isinstance(error, errors.ResourceError):
        return error
    for each in _chain(error):
        if isinstance(each, errors.UserError | BlockingIOError):  # the latter: a lock that is held
            continue
        refused = _refused(each)
        if isinstance(refused, errors.ResourceError):
            place, colon, _ = str(error).partition(": ")
            words = str(refused)
            file = getattr(each, "filename", None)
            if file is not None:
                words = words.removeprefix(f"{os.fsdecode(file)}: ")
            return errors.ResourceError(f"{place}: {words}" if colon else words)
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it was raised from or while handling, also where hidden."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _refused(error: BaseException) -> errors.UserError | None:
    """A refusal of the machine or the system as an error for a person; None for all else."""
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return refusal(error)
    if errors.out_of_memory(error):
        return errors.ResourceError(f"out of memory; {LESS_MEMORY}")
    if not isinstance(error, Exception) or isinstance(error, ValueError | TypeError | LookupError):
        return None  # of code and data, which may quote any words
    text = str(error)
    if "No space left on device" in text:
        return refusal(OSError(errno.ENOSPC, ""))
    if system := _SYSTEM.search(text):
        number = int(system[1])
        return refusal(OSError(number, os.strerror(number))) if number in _REFUSED else None
    if _THREAD.search(text):
        return errors.ResourceError(NO_THREAD)
    if _WRITING.search(text):
        return errors.ResourceError(NOT_WRITTEN)
    return None


# Command of another tool, or one whose work another does -> how that is called.
_COMMANDS = {
    **dict.fromkeys(("train", "fit", "tune", "fine-tune"), "ldt finetune"),
    **dict.fromkeys(("eval", "test", "score", "validate"), "ldt evaluate"),
    **dict.fromkeys(("infer", "inference", "classify", "generate"), "ldt predict"),
    **dict.fromkeys(("new", "create"), "ldt init"),
    **dict.fromkeys(("env", "info"), "ldt doctor"),
    "compare": "ldt report A B",
    "runs": "ldt report",
    "thresholds": "ldt evaluate RUN --choose-thresholds",
    "perplexity": "ldt evaluate MODEL --gold TEXT",
    "merge": "ldt predict --merge OUTPUT",
}


def _usage(error):
    """``no such option: --max-leng ...; see 'ldt convert --help'``."""
    from ldt.recipe.recipe import COMMANDS
    from ldt.recipe.sections import unknown_option

    text = error.format_message().replace("Value error, ", "")
    text = " ".join(text.split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ldt"
    name = re.sub(r"No such \w+:? '?([^' ]+).*", r"\1", text)
    if text.startswith("No such command") and (now := _COMMANDS.get(name)):
        return f"no such command '{name}', write {now}; see '{' '.join(now.split()[:2])} --help'"
    keys, option = getattr(context and context.command.callback, "keys", ()), _option(name)
    if text.startswith("No such option") and (key := next(filter(keys.__contains__, option), "")):
        text = f"{text.partition(' (')[0]}, write {key}=VALUE"
    elif text.startswith("No such option") and command.split()[-1] in (*COMMANDS.values(), "check"):
        text += unknown_option(name)
    return f"{text[:1].lower()}{text[1:]}; see '{command} --help'"


def _option(name):
    """Keys that may do the job of an option."""
    key = name.partition("=")[0].lstrip("-").replace("-", "_")
    return key, f"data.{key}"


def _bug(error):
    """``bug: TypeError: ...; traceback in /tmp/ldt-....txt``, or the traceback itself."""
    trace = "".join(traceback.format_exception(error))
    if os.environ.get("LDT_TRACEBACK") == "1":
        return trace
    summary = without_controls(str(error)).strip().split("\n")[0][:200]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="ldt-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(f"ldt {__version__}, Python {sys.version}\n{sys.argv}\n\n{trace}")
    except OSError:
        return trace
    return f"bug: {type(error).__name__}: {summary}; traceback in {file.name}"
