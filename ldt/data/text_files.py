"""Plain text as documents to answer for: a file, or all text files of a folder, one document each.

Such a document has no field but its text, and so no label: it cannot be trained on.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ldt.data import evidence, records, remote, streams
from ldt.data.records import Example, OnError
from ldt.errors import DataError, UserError, listed, plural

log = logging.getLogger("ldt")

SUFFIXES = ("txt", "text")
# The beginning of JSON lines or of an array of objects, as opposed to "[EXECUTION COPY]".
JSON = re.compile(rb"\s*(\{\s*([\"'}]|$)|\[\s*([{\]]|$))")


def is_text(source: str) -> bool:
    """True for a folder, and for a file with the suffix of text unless it begins as JSON does."""
    if source == "-" or remote.is_hub_set(source):
        return False
    if os.path.isdir(source):
        return True
    there = remote.is_remote(source) or os.path.isfile(source)
    if records.suffix(source) not in SUFFIXES or not there:
        return False
    with streams.opened(source) as file:
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
    """Yield one document a file, in the order of their names; an empty file is one too.

    The id is the file's name, in a folder its path from there. Files of a folder that are no text
    are counted in the log.

    Args:
        source: file, "-" for standard input, or folder, which is searched with all below it.
        field: name of the field that gets the text.
        encoding, on_error: as of `ldt.data.records.read`.
        max_bytes: a longer file is rejected.

    Raises:
        UserError: a folder without a text file.
        DataError: a file that cannot be read.
    """
    others = ""
    if source == "-":
        files = {"stdin": source}
    elif os.path.isdir(source):
        found, others = _files(source)
        files = {path.relative_to(source).as_posix(): str(path) for path in found}
    else:
        files = {os.path.basename(source): source}
    for name, path in files.items():
        try:
            document = _text(path, encoding, max_bytes)
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
    """Yield records with the text of a file in the place of its name.

    Args:
        field: that holds the name (``data.text_files``).
        folder: of the files, none of which is read from elsewhere; None is that of the record.
        encoding: of files that are not UTF-8.
        on_error, max_bytes: as of `read`.

    Raises:
        DataError: a file that is not there, or cannot be read.
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
    """The text of the file that a field names."""
    where, name = example.where, records.text(example, field).strip()
    if folder is None:
        raise DataError(f"{where}: no folder to look for {name!r} in; data.evidence names it")
    path = evidence.inside(evidence.real(Path(folder)), name, where)
    if not path.is_file():
        what = "no such file" if name else "blank, expected the name of a text file"
        raise DataError(f"{where}: field {field!r} is {name!r}: {what} in {folder}")
    try:
        try:
            return _text(str(path), None, max_bytes)
        except DataError:
            return _text(str(path), encoding, max_bytes)
    except (DataError, UserError) as error:
        raise DataError(f"{where}: field {field!r}: {error}") from error


def _files(folder: str) -> tuple[list[Path], str]:
    """The text files of a folder and of those in it, and the number of others by suffix."""
    found, others = [], Counter[str]()
    for path in sorted(Path(folder).rglob("*")):
        if path.name.startswith(".") or not path.is_file():
            continue
        if records.suffix(path.name) in SUFFIXES:
            found.append(path)
        else:
            others[path.suffix or "without a suffix"] += 1
    seen = listed((f"{n:,} {suffix}" for suffix, n in others.most_common()), most=5, show=str)
    if not found:
        there = f"; it has {seen}" if others else ""
        hint = "; pdftotext makes text of a PDF" if ".pdf" in others else ""
        raise UserError(f"{folder}: no .txt file in this folder{there}{hint}")
    return found, seen if others else ""


def _text(path: str, encoding: str | None, max_bytes: int) -> str:
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
