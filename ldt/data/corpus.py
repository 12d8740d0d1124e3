"""Plain text files and tables as documents for pretraining."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ldt.data.near_duplicates import mixed
from ldt.errors import DataError, UserError
from ldt.io import records, streams, text_files
from ldt.io.files import key_of, stamp
from ldt.io.sources import matches

if TYPE_CHECKING:
    from ldt.data.options import CorpusSection

TABLES = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")  # suffixes
TEXTS = ("txt", "text", "md")  # what is read of a folder, besides tables
_KEPT = 5  # messages of what was left out


class CorpusSource(NamedTuple):
    """A file or a dataset of the hub; ``format`` is ``text`` or a table format, None to
    detect it."""

    name: str
    format: str | None

    @property
    def size(self) -> int:
        """Size of the file in bytes, as stored; 0 for a dataset of the hub."""
        return 0 if self.name.startswith("hf:") else os.stat(self.name).st_size

    def key(self) -> str:
        """Key of 16 hexadecimal digits that changes with the path, size or modification time of the
        file."""
        if self.name.startswith("hf:"):
            return key_of({"name": self.name})
        return key_of({"path": os.path.abspath(self.name), **stamp(Path(self.name))})


def sources(names: str | list[str], format: str | None = None) -> list[CorpusSource]:
    """Files and hub datasets that ``data.train`` or ``data.eval`` names, in order, without
    duplicates.

    Those of a folder or a pattern are sorted by name.

    Args:
        names: files, folders, patterns, or datasets of the hub.
        format: format of all of them, one of `CorpusSection.format`; None goes by their suffixes.

    Raises:
        UserError: a file is missing, or a folder has no text.
    """
    listed = []
    for name in [names] if isinstance(names, str) else names:
        if name.startswith("hf:"):
            listed.append(CorpusSource(name, None))
            continue
        if os.path.isdir(name):
            files = [str(path) for path in sorted(Path(name).rglob("*")) if _is_text(path, format)]
            if not files:
                wanted = format or ", ".join((*TEXTS, *TABLES))
                raise UserError(f"{name}: no text in this folder; looked for files of {wanted}")
        else:
            files = matches(name)  # reading says what is wrong with it
        listed += [CorpusSource(file, format or _format(file)) for file in files]
    for source in listed:
        if not source.name.startswith("hf:") and not os.path.isfile(source.name):
            with streams.open_source(source.name):  # raises
                pass
    return list(dict.fromkeys(listed))


def _is_text(path: Path, format: str | None) -> bool:
    if path.name.startswith(".") or not path.is_file():
        return False
    end = records.suffix(path.name)
    return end in ((*TEXTS, *TABLES) if format in (None, "text") else (format,))


def _format(name: str) -> str:
    end = records.suffix(name)
    return {"ndjson": "jsonl", "json": "jsonl"}.get(end, end) if end in TABLES else "text"


@dataclass
class Reader:
    """Iterate over the non-blank documents of a source, and count what is left out.

    Attributes:
        rejected: number of unreadable documents (or lines, or the rest of a damaged file).
        empty: number of blank documents.
        where: place of the document yielded last: its file, or "file:line".
        messages: messages about the first unreadable documents.

    Args:
        source: source to read.
        data: reading options; ``on_error`` decides if the first fault is raised.
    """

    source: CorpusSource
    data: CorpusSection
    rejected: int = 0
    empty: int = 0
    where: str = ""
    messages: list[str] = field(default_factory=list)  # of the first that were rejected

    def __iter__(self) -> Iterator[str]:
        self.rejected, self.empty, self.messages = 0, 0, []
        some = False
        try:
            for text in self._plain() if self.source.format == "text" else self._table():
                some = True
                if text.strip():
                    yield text
                else:
                    self.empty += 1
        except DataError as error:
            self._reject(error)
            some = True
        if not some and not self.rejected:
            self._reject(DataError(f"{self.source.name}: empty, there is no document in it"))

    def _reject(self, error: DataError, raw: bytes = b"") -> None:
        if self.data.on_error == "stop":
            raise DataError(f"{error}; data.on_error=skip leaves such text out") from error
        self.rejected += 1
        if len(self.messages) < _KEPT:
            self.messages.append(str(error))

    def _table(self) -> Iterator[str]:
        format = None if self.source.format == "parquet" else self.source.format
        limit = self.data.max_document_bytes
        for example in records.read(
            self.source.name,
            id_field="",
            format=format,
            on_error=self._reject,
            max_line_bytes=limit,
        ):
            self.where = example.where
            try:
                yield records.text(example, self.data.text)
            except DataError as error:
                self._reject(error)

    def _plain(self) -> Iterator[str]:
        """Documents of plain text; one with an unreadable or too long part is left out."""
        name, most = self.source.name, self.data.max_document_bytes
        if self.data.document_unit == "file":
            self.where = name
            if text := text_files.text_of(name, None, most):
                yield text
            return
        block: list[streams.Line] = []
        size = 0
        for line in records.lines(name, on_error=self._reject, max_line_bytes=most):
            if self.data.document_unit == "line" or not line.raw.strip():
                yield from self._decoded([line] if line.raw.strip() else block)
                block, size = [], 0
                continue
            size += len(line.raw)
            if size <= most:
                block.append(line)
            elif block:
                what = f"a document of more than {most:,} bytes (data.max_document_bytes)"
                self._reject(DataError(f"{name}:{block[0].number}: {what}"))
                block = []
        yield from self._decoded(block)

    def _decoded(self, lines: list[streams.Line]) -> Iterator[str]:
        raw = b"".join(line.raw for line in lines)
        try:
            text = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            number = lines[0].number + raw.count(b"\n", 0, error.start)
            what = streams.not_utf8(raw, error, lines[0].offset)
            self._reject(DataError(f"{self.source.name}:{number}: {what}"))
        else:
            if lines:
                self.where = f"{self.source.name}:{lines[0].number}"
                yield text


def drawn(fingerprints: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Choose the documents that a split holds out, from their content and the seed alone:
    [documents] bool, True for these. Documents with equal content are always on the same side.

    Args:
        fingerprints: [documents] uint64, equal for equal content.
        fraction: expected share of held-out documents.
        seed: seed of the choice.
    """
    seeded = fingerprints.astype(np.uint64) ^ np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    return mixed(seeded) < np.uint64(int(fraction * 2**64))


def split(
    fingerprints: np.ndarray, fraction: float, seed: int, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the training and of the evaluation documents, those of equal content on the same
    side.

    Neither is empty; fewer than two different documents are a DataError.

    Args:
        fingerprints: [documents] uint64, equal for equal content.
        fraction: expected share of evaluation documents.
        seed: seed of the choice.
        where: name of the source, for the message.
    """
    taken = drawn(fingerprints, fraction, seed)
    different = np.unique(fingerprints)
    if len(different) < 2:
        raise DataError(
            f"{where}: {len(different)} different document, a split into training and evaluation "
            "needs 2; data.document_unit=line or blank_line parts plain text into documents, "
            "data.eval names another file"
        )
    if taken.all() or not taken.any():  # move the documents with the first of the fingerprints
        taken ^= fingerprints == different[0]
    return np.flatnonzero(~taken), np.flatnonzero(taken)
