"""Files and standard input as decompressed byte streams, without seeking."""

import bz2
import contextlib
import gzip
import io
import logging
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, cast

from ldt.errors import DataError, UserError, did_you_mean
from ldt.io.sources import is_remote, open_remote

log = logging.getLogger("ldt")


def _zstd(stream: io.BufferedIOBase) -> io.BufferedIOBase:
    import pyarrow

    decompressed = pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, "r"), "zstd")
    return io.BufferedReader(decompressed, 1 << 16)


def tell(source: str, what: str) -> None:
    """Log the message ``what`` about how a file is read, once for each state of the file
    ``source``."""
    changed = os.stat(source).st_mtime_ns if os.path.isfile(source) else 0
    _tell(what, os.path.abspath(source), changed)


@lru_cache(1024)
def _tell(what: str, file: str, changed: int) -> None:
    log.info("%s", what)


_COMPRESSIONS: tuple[tuple[bytes, str, Callable[..., io.BufferedIOBase]], ...] = (
    (b"\x1f\x8b", "gzip", gzip.open),
    (b"BZh", "bz2", bz2.open),
    (b"\xfd7zXZ\x00", "xz", lzma.open),
    (b"\x28\xb5\x2f\xfd", "zstd", _zstd),
)
_TABLES = ((b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"\xff\xff\xff\xff", "arrow stream"))
BOM = b"\xef\xbb\xbf"  # of UTF-8
_OFFICE = (
    "an archive or a file of Office; unzip it, or save it as CSV UTF-8 or text: soffice --headless "
    "--convert-to csv (of a text: txt:Text) FILE"
)
_FOREIGN = {  # by the first bytes
    b"%PDF-": "a PDF; pdftotext FILE makes text, ocrmypdf first where it is a scan",
    b"{\\rtf": "an RTF document; soffice --headless --convert-to txt:Text FILE makes text",
    b"PK\x03\x04": _OFFICE,
    b"\xd0\xcf\x11\xe0\xa1\xb1": _OFFICE,  # of before 2007
}

# What reading a stream raises where its data end too early or are not what they should be.
DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)


class Opened(NamedTuple):
    """Open source.

    Args:
        name: name for messages.
        stream: decompressed bytes.
        compression: "gzip", "bz2", "xz", "zstd" or None; "parquet", "arrow" (file) and "arrow
            stream" are recognised but not decoded.
    """

    name: str
    stream: io.BufferedIOBase
    compression: str | None

    @property
    def is_table(self) -> bool:
        """True for Parquet and Arrow, which have no lines."""
        return self.compression in {what for _, what in _TABLES}

    def damaged(self, error: Exception) -> str:
        """Message for an exception of `DAMAGE`, raised while the stream was read."""
        if self.compression:
            return f"the {self.compression} data are damaged or cut off ({error})"
        return f"cannot be read on ({error})"


class Line(NamedTuple):
    """Line of a file with its number, its offset in bytes and its raw bytes."""

    number: int  # from 1
    offset: int  # of its first byte in the decompressed file
    raw: bytes  # with its line end


@contextlib.contextmanager
def open_source(source: str) -> Iterator[Opened]:
    """Open a path, or standard input for "-"; compression is detected by content.

    The file is closed after the block, standard input is not.

    Raises:
        UserError: the file is missing or a folder, or standard input is a terminal.
        DataError: the format is not supported (zip, spreadsheets, Word, PDF).
    """
    if source in _HELD and _HELD[source].stream.seekable():
        _HELD[source].stream.seek(0)
        yield _HELD[source]
        return
    if begun := _BEGUN.pop(_key(source), None):
        file, stack = begun
        with stack:
            yield file
        return
    if source == "-" and sys.stdin.isatty():
        raise UserError(
            "standard input is a terminal; pipe documents into it (cat docs.jsonl | ldt …) "
            "or name a file"
        )
    name = "stdin" if source == "-" else source
    raw = _stdin() if source == "-" else _open(source)
    try:
        head = raw.read(6)
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise DataError(f"{name}: {what}")
        stream, compression = raw, None
        if raw.seekable():
            raw.seek(-len(head), os.SEEK_CUR)
        else:
            stream = io.BufferedReader(_Rejoined(head, raw), 1 << 16)
        for magic, what in _TABLES:
            if head.startswith(magic):
                compression = what
        for magic, what, decompress in _COMPRESSIONS:
            if head.startswith(magic):
                stream, compression = decompress(stream), what
        yield Opened(name, stream, compression)
    finally:
        if source != "-":
            raw.close()


def beginning(source: str, most: int, enough: Callable[[bytes], bool]) -> bytes:
    """First bytes of a source, decompressed; empty for Parquet and Arrow.

    A pipe stays open, and the next reader gets these bytes again.

    Args:
        source: a path, or "-" for standard input.
        most: number of bytes after which reading stops.
        enough: returns True if the bytes read so far suffice, so as not to wait for a slow pipe.

    Raises:
        UserError, DataError: the source cannot be opened, as in `open_source`.
    """
    head = b""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_source(source))
        if not file.is_table:
            with contextlib.suppress(*DAMAGE):  # who reads on says where
                while len(head) < most and not enough(head):
                    if not (block := file.stream.read1(min(most, 1 << 13))):
                        break
                    head += block
        if not (os.path.isfile(source) or is_remote(source)):
            again = io.BufferedReader(_Rejoined(head, file.stream), 1 << 16)
            _BEGUN[_key(source)] = file._replace(stream=again), stack.pop_all()
    return head


@contextlib.contextmanager
def held(source: str) -> Iterator[Opened]:
    """Keep a file open: within the block `open_source` returns its stream from the beginning, if it
    can be rewound."""
    with open_source(source) as file:
        _HELD[source] = file
        try:
            yield file
        finally:
            del _HELD[source]


_HELD: dict[str, Opened] = {}
# Pipes of which `beginning` has read, open.
_BEGUN: dict[object, tuple[Opened, contextlib.ExitStack]] = {}


def _key(source: str) -> object:
    return sys.stdin if source == "-" else source


def not_utf8(
    raw: bytes, error: UnicodeDecodeError, offset: int = 0, encoding: str | None = None
) -> str:
    """Message for bytes that are not valid in UTF-8 or another encoding, with a remedy.

    Args:
        raw: bytes that were decoded.
        error: error of the decoder.
        offset: offset of ``raw`` in the file, in bytes.
        encoding: value of `data.encoding`; None if the caller has no such option.
    """
    place = offset + error.start
    byte = f"0x{raw[error.start]:02x} at byte offset {place:,} of the file"
    if encoding is None:
        return f"not UTF-8: byte {byte}; iconv -f CP1252 -t UTF-8 FILE converts what Excel writes"
    if encoding != "utf-8":
        return f"not {encoding}: byte {byte}; data.encoding names another"
    return f"not UTF-8: byte {byte}; data.encoding=cp1252 reads what Excel writes"


class _Rejoined(io.RawIOBase):
    """Stream of the bytes ``head`` that were read ahead, then the rest."""

    def __init__(self, head: bytes, rest: io.BufferedIOBase):
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if self._head:
            chunk, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        else:
            chunk = self._rest.read1(len(buffer))  # what a slow pipe holds, not waiting for more
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _stdin() -> io.BufferedIOBase:
    """Standard input with its own buffer. A thread may still be reading from it at exit, where
    Python would abort for sys.stdin."""
    try:
        return io.BufferedReader(io.FileIO(sys.stdin.buffer.fileno(), closefd=False), 1 << 16)
    except io.UnsupportedOperation:  # not a file, as in tests
        return cast(io.BufferedIOBase, sys.stdin.buffer)


def _open(path: str) -> io.BufferedIOBase:
    if is_remote(path):
        return open_remote(path)
    try:
        return io.BufferedReader(io.FileIO(path), 1 << 16)
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        names = os.listdir(folder) if os.path.isdir(folder) else []
        hint = did_you_mean(os.path.basename(path), names)
        raise UserError(f"{path}: no such file{hint}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder, expected a file of documents") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{path!r}: {getattr(error, 'strerror', None) or error}") from None
