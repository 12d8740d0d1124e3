"""Plain text files as documents, or as fields named by a record.

A text file on its own has no label, so it serves for prediction only.
"""

import errno
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ldt.errors import DataError, UserError, listed, plural
from ldt.io import records, sources, streams
from ldt.io.records import Example, OnError

log = logging.getLogger("ldt")

SUFFIXES = ("txt", "text")
# The beginning of JSON lines or of an array of objects, as opposed to "[EXECUTION COPY]".
JSON = re.compile(rb"\s*(\{\s*([\"'}]|$)|\[\s*([{\]]|$))")
# Opening a pipe would wait for its writer.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def is_text(source: str) -> bool:
    """True for a folder, and for an existing file ``.txt`` or ``.text`` that does not begin like
    JSON."""
    if source == "-" or sources.is_hub_set(source):
        return False
    if os.path.isdir(source):
        return True
    there = sources.is_remote(source) or os.path.isfile(source)
    if records.suffix(source) not in SUFFIXES or not there:
        return False
    with streams.open_source(source) as file:
        try:
            start = file.stream.readline(1 << 16)
        except streams.DAMAGE:
            return True  # reading says what is wrong
    return not JSON.match(start.removeprefix(streams.BOM))


def read(
    source: str,
    field: str,
    *,
    encoding: str | None = None,
    on_error: OnError | None = None,
    max_bytes: int,
) -> Iterator[Example]:
    """Yield one document per file, sorted by name; empty files included.

    The id is the file's name, or its path within the folder. Other files of a folder are counted in
    the log.

    Args:
        source: file, "-" for standard input, or folder, searched recursively.
        field: name of the field for the text.
        encoding: encoding of the files; None is UTF-8.
        on_error: called with the DataError and b"" for a file that cannot be read, which is left
            out; None raises the error.
        max_bytes: longer files are rejected.

    Raises:
        UserError: the folder has no text file.
        DataError: a file cannot be read.
    """
    others = ""
    if source == "-":
        files = {"stdin": source}
    elif os.path.isdir(source):
        paths, others = _files(source)
        files = {path.relative_to(source).as_posix(): str(path) for path in paths}
    else:
        files = {os.path.basename(source): source}
    for name, path in files.items():
        try:
            document = text_of(path, encoding, max_bytes)
        except DataError as error:
            if on_error is None:
                raise
            on_error(error, b"")
        else:
            folder = None if path == "-" else os.path.dirname(os.path.abspath(path))
            yield Example({field: document}, name, "stdin" if path == "-" else path, folder)
    if others:
        log.warning("%s: %s read, not read: %s", source, plural(len(files), "text file"), others)


def filled(
    examples: Iterable[Example],
    field: str,
    folder: str | None,
    *,
    encoding: str | None = None,
    on_error: OnError | None = None,
    max_bytes: int,
) -> Iterator[Example]:
    """Yield the records with the file names in a field replaced by the texts of these files.

    Args:
        examples: records.
        field: field with the name (``data.text_files``).
        folder: folder of the files; names outside it are refused. None uses the record's folder.
        encoding: encoding of files that are not UTF-8; None allows no other.
        on_error: called with the DataError and b"" for a record whose file cannot be read, which is
            left out; None raises the error.
        max_bytes: longer files are rejected.
    """
    for example in examples:
        try:
            document = _named(example, field, folder or example.folder, encoding, max_bytes)
        except DataError as error:
            if on_error is None:
                raise
            on_error(error, b"")
        else:
            yield replace(example, fields=example.fields | {field: document})


def _named(
    example: Example, field: str, folder: str | None, encoding: str | None, max_bytes: int
) -> str:
    where, name = example.where, records.text(example, field).strip()
    if folder is None:
        raise DataError(f"{where}: no folder to look for {name!r} in; data.evidence names it")
    path = inside(real(Path(folder)), name, where)
    if not path.is_file():
        raise DataError(f"{where}: field {field!r} is {name!r}: no such file in {folder}")
    try:
        with suppress(DataError):
            return text_of(str(path), None, max_bytes)
        return text_of(str(path), encoding, max_bytes)
    except (DataError, UserError) as error:
        raise DataError(f"{where}: field {field!r}: {error}") from error


def _files(folder: str) -> tuple[list[Path], str]:
    paths, others = [], Counter[str]()
    for path in sorted(Path(folder).rglob("*")):
        if path.name.startswith(".") or not path.is_file():
            continue
        if records.suffix(path.name) in SUFFIXES:
            paths.append(path)
        else:
            others[path.suffix or "without a suffix"] += 1
    seen = listed((f"{n:,} {suffix}" for suffix, n in others.most_common()), most=5, show=str)
    if not paths:
        raise UserError(f"{folder}: no .txt file in this folder; others there: {seen}")
    return paths, seen if others else ""


def text_of(path: str, encoding: str | None, max_bytes: int) -> str:
    """Text of a file, or of standard input for "-", in UTF-8 or the given encoding; DataError if it
    has another, or more than ``max_bytes`` bytes."""
    parts, size = [], 0
    for line in records.lines(path, max_line_bytes=max_bytes, whole=True):
        parts.append(line.raw)
        size += len(line.raw)
        if size > max_bytes:
            raise DataError(f"{path}: a text of more than {max_bytes:,} bytes")
    raw = b"".join(parts)
    try:
        return raw.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{number}: {streams.not_utf8(raw, error, 0, encoding)}") from None


def real(folder: Path) -> Path:
    """The path with links resolved; one that leads back to itself is unchanged."""
    return Path(os.path.realpath(folder))


def inside(folder: Path, name: str, where: str) -> Path:
    """Path of a file within a folder, whether or not it exists; DataError, beginning with
    ``where``, if it leads outside. ``folder`` has no links left."""
    try:
        path = real(folder / name)
    except ValueError:  # a NUL in it
        raise DataError(f"{where}: {name!r}: no name of a file") from None
    if not path.is_relative_to(folder):
        raise DataError(f"{where}: {name!r}: a page outside of {folder} is not read")
    return path


def read_file(path: Path) -> str:
    """Text of a file with its line ends, without a byte order mark; invalid UTF-8, as web pages
    have it, becomes U+FFFD. OSError if it cannot be read, or is a pipe, a device or a folder."""
    handle = os.open(path, _FLAGS)
    with open(handle, encoding="utf-8-sig", errors="replace", newline="") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "no regular file, expected a file of text", str(path))
        return file.read()
