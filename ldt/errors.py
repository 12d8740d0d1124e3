"""Errors that the user can fix, their exit codes, and helpers for messages.

A message is one line: where; what was found; what would do.
"""

import errno
import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_RECIPE = 3
EXIT_DATA = 4
EXIT_MODEL = 5
EXIT_RESOURCES = 6
EXIT_REJECTS = 7
EXIT_DIVERGED = 8
EXIT_PRECISION = 9
EXIT_SIGINT = 130
EXIT_SIGTERM = 143


class UserError(Exception):
    """Invalid command, option or path. Printed without a traceback, exit code 2."""

    exit_code = EXIT_USAGE


class RecipeError(UserError):
    """Invalid keys or values in a recipe; the message has one line per problem."""

    exit_code = EXIT_RECIPE


class DataError(UserError):
    """Input data that cannot be read or used.

    Attributes:
        record: number of the record in the whole input, from 1; None if unknown.
    """

    exit_code = EXIT_DATA
    record: int | None = None


class ModelError(UserError):
    """Model folder, checkpoint or tokenizer that cannot be used."""

    exit_code = EXIT_MODEL


class ShapeError(ModelError, RuntimeError):
    """Weights whose shape differs from the model's; transformers raises a RuntimeError for it."""


class ResourceError(UserError):
    """Too little memory or disk space."""

    exit_code = EXIT_RESOURCES


class TrainingDiverged(UserError):
    """Loss or gradient that is not finite."""

    exit_code = EXIT_DIVERGED


class PrecisionError(UserError):
    """Lower precision would change more answers than allowed."""

    exit_code = EXIT_PRECISION


class Stopped(KeyboardInterrupt):
    """SIGINT was received. Python ends itself by SIGINT after a plain KeyboardInterrupt passes
    through ``exec``, which libraries use; a subclass avoids this."""


class Terminated(Stopped):
    """SIGTERM was received; it ends the work as Ctrl-C does."""


class Interrupted(SystemExit):
    """A signal stopped a training that was saved; exit code 130 (SIGINT) or 143 (SIGTERM)."""


# What the operating system refuses: the error that says so, and its words where they are not those
# of the system alone.
_REFUSALS = {
    getattr(errno, name): (kind, words)
    for names, kind, words in (
        ("ENOSPC EDQUOT", ResourceError, "the disk is full; free space on it"),
        ("EFBIG", ResourceError, "{}; the disk or ulimit -f allows no larger file"),
        ("ENOMEM", ResourceError, "out of memory; free some, or let ulimit -v allow more"),
        ("EMFILE ENFILE", ResourceError, "{}; a higher ulimit -n allows more"),
        ("EAGAIN", ResourceError, "{}; a higher ulimit -u allows more processes"),
        ("EIO ESTALE", ResourceError, "{}; the disk fails, check it or use another"),
        ("EROFS", UserError, "{}; name a place that can be written"),
        ("EACCES EPERM ENOENT ENOTDIR EISDIR EEXIST", UserError, "{}"),
        ("ELOOP ENAMETOOLONG", UserError, "{}; name another"),
    )
    for name in names.split()
}


def refusal(error: OSError, where: object = None) -> UserError:
    """Convert an OSError to a UserError, or the subclass that fits its reason, with a message of
    one line. It begins with ``where``, or else with the file that ``error`` names."""
    place = error.filename if where is None else where
    if isinstance(place, bytes):
        place = os.fsdecode(place)
    kind, words = _REFUSALS.get(error.errno or 0, (UserError, "{}"))
    what = words.format(error.strerror or first_line(error))
    return kind(what if place is None else f"{place}: {what}")


_MEMORY = re.compile(  # in the words of torch, oneDNN, CUDA, C++, the loader of libraries, Rust
    r"out of memory|(can't|cannot|could not|failed to|unable to) allocate|DefaultCPUAllocator|"
    r"bad_?alloc|could not create a (primitive|memory)|_STATUS_ALLOC_FAILED|_STATUS_NO_MEMORY|"
    r"failed to map segment|memory allocation|insufficient memory|not enough memory",
    re.IGNORECASE,
)


def out_of_memory(error: BaseException) -> bool:
    """True if an exception is about exhausted memory, of the machine or of a GPU, by its type or
    words."""
    if isinstance(error, MemoryError):
        return True
    # Errors of code and data may quote any words; so may those of ours, which say it by their type.
    if isinstance(error, UserError | ValueError | TypeError | LookupError | OSError):
        return isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, Exception) and bool(_MEMORY.search(str(error)))


_repr = Repr()
_repr.maxstring = _repr.maxother = 60


def plural(number: int, noun: str) -> str:
    """Count with a noun of the right number: ``1 answer``, ``1,200 answers``, ``2 queries``."""
    if noun.endswith("ry") and number != 1:
        noun = f"{noun[:-1]}ie"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def kind(value: Any) -> str:
    """Type of a JSON value in words: ``null``, ``true``, ``a number``, ``text``, ``a list`` ..."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return next(
        (name for type_, name in names.items() if isinstance(value, type_)),
        f"a {type(value).__name__}",
    )


def quote(value: Any) -> str:
    """JSON value for a message: ``null``, ``17``, a text of at most 60 characters in quotes, or of
    a list or object its kind and size, as in ``a list of 3``."""
    if isinstance(value, list | dict):
        size = plural(len(value), "key") if isinstance(value, dict) else f"{len(value):,}"
        return f"{kind(value)} of {size}" if value else f"{kind(value)}, empty"
    return kind(value) if value is None or isinstance(value, bool) else _repr.repr(value)


def listed(names: Iterable[Any], most: int = 12, show: Callable[[Any], str] = repr) -> str:
    """Names in one line, the first ``most`` of them: ``'a', 'b' and 3 more``; ``none`` if empty."""
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(show, names[:most])) + more or "none"


def counted(counts: Counter[str], most: int = 20) -> str:
    """The most frequent ``most`` keys with their counts, as in ``cap 12, no cap 3 and 2 more``."""
    named = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(most))
    return named + (f" and {len(counts) - most:,} more" if len(counts) > most else "")


def first_line(error: BaseException) -> str:
    """First line of an exception's message; its type if there is none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(name: str, names: Iterable[str], show: Callable[[str], str] = str) -> str:
    """``, did you mean 'path'?`` with the closest name, shown by ``show``; "" if none is close.

    Close is also a name that contains the given one (``epochs``: ``num_train_epochs``) or has it as
    initials (``lr``: ``learning_rate``).
    """
    names = list(names)
    whole = name.lower().replace("-", "_")
    initials = ["".join(word[:1] for word in other.split("_")) for other in names]
    near = (
        [other for other, short in zip(names, initials, strict=True) if whole == short]
        or get_close_matches(whole, names, n=1, cutoff=0.75)
        or [other for other in names if len(whole) > 3 and whole in other]
        or get_close_matches(whole, names, n=1)
    )
    return f", did you mean {show(near[0])!r}?" if near else ""


# Escape sequences of terminals (colours, titles, links), then what is left of control characters
# (tab and newline are not) and the marks that turn the direction of writing round.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)|\x1b.?", re.S)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    r"""JSON text with control characters, tab and newline excepted, and marks that turn the
    direction of writing as ``\uXXXX``, safe to print on a terminal."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def without_controls(text: str) -> str:
    """Text without control characters, tab and newline excepted, and escape sequences of
    terminals."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def documented(docstring: str) -> dict[str, str]:
    """Meaning of each argument by name, from the ``Args:`` entries of a docstring."""
    known: dict[str, str] = {}
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(docstring), re.S | re.M)
    for entry in re.split(r"\n(?=    \S)", "\n" + section[1] if section else ""):
        names, colon, meaning = entry.partition(":")
        if colon and re.fullmatch(r"[\w, ]+", names.strip()):
            known |= dict.fromkeys(re.split(r",\s*", names.strip()), " ".join(meaning.split()))
    return known
