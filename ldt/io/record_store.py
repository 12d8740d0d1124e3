"""Records written to a file once, in order, and read at random.

Training documents and their features can exceed memory; a record store takes about 24 bytes of
memory per record. An anonymous file disappears with the last process that has it open. A named one
can be reopened by later processes, and keeps what a killed process had written.
"""

import errno
import io
import os
import pickle
import tempfile
import weakref
import zlib
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from multiprocessing import reduction
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

import numpy as np

from ldt.errors import DataError, ResourceError, refusal

LONG = 1_000  # characters of a text that is written once where the next item has it too
SYNCED = 1 << 26  # bytes of a file with a name after which they are on the disk for sure
_UTF8 = "utf-8", "surrogatepass"
PLACE = 3  # numbers of a place
# What values are made of that is neither built in nor a container: no code of a file's is run.
_VALUES = {
    *(("numpy", name) for name in ("_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype")),
    *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
    ("decimal", "Decimal"),
    ("pandas", "_unpickle_timestamp"),
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath")),
    ("uuid", "UUID"),
    ("zoneinfo", "ZoneInfo._unpickle"),
}

ItemT = TypeVar("ItemT")
Place = tuple[int, int, int]  # in the file: start, end, and the crc32 of what stands there


class RecordStore(Sequence[ItemT], Generic[ItemT]):
    """Sequence of records in a file, which forked and spawned processes share. Reading returns a
    new, equal copy each time. ``columns``: how many integers of each record are kept in memory
    beside its position (`numbers`)."""

    noun = "items"  # in messages
    columns = 0

    def __init__(self, items: Iterable[ItemT] = (), at: Path | None = None):
        """Write the records; ``at`` is the path without suffix of a named file, whose intact
        records come first. None uses an anonymous file."""
        known: dict[str, Place] = {}
        writer = Writer(at, PLACE + self.columns)
        try:
            with writer:
                for item in items:
                    fields, more = self.pack(item)
                    texts = {k: v for k, v in fields.items() if type(v) is str and len(v) >= LONG}
                    known = {
                        text: known.get(text) or writer.write(text.encode(*_UTF8))
                        for text in texts.values()
                    }
                    apart = {key: known[text] for key, text in texts.items()}
                    shared = fields | dict.fromkeys(apart)  # keys keep their order
                    try:
                        row = pickle.dumps((shared, apart, more), 5)
                    except RecursionError:
                        where = getattr(item, "where", self.noun)
                        raise DataError(f"{where}: nested too deep") from None
                    writer.enter(writer.write(row), self.numbers(item))
                self._file, self._index = writer.written()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            place, instead = tempfile.gettempdir(), "TMPDIR can name another folder"
            if at is not None:
                place, instead = str(at.parent), "data.cache names another, what is done is kept"
            raise ResourceError(
                f"{place}: full after {writer.size:,} bytes of {self.noun}; {instead}"
            ) from None
        self._texts: dict[Place, str] = {}  # those of the item that was read last

    @classmethod
    def reopen(cls, at: Path) -> Self:
        """Open the complete store in the files ``at`` + ".rows" and ".index"; OSError if there is
        none, ValueError if it is damaged."""
        store = cls.__new__(cls)
        store._index = read_index(at, PLACE + cls.columns)
        store._file = _File(at)
        if os.fstat(store._file.handle).st_size < _end(store._index):
            raise ValueError(f"{row_file(at)}: cut off")
        store._texts = {}
        return store

    @abstractmethod
    def pack(self, item: ItemT) -> tuple[dict[str, Any], Any]:
        """Split a record into a dict of its fields and other data, which are pickled. Texts of
        1,000 characters and more in the dict are written once if the next record has them too."""

    @abstractmethod
    def unpack(self, fields: dict[str, Any], more: Any) -> ItemT:
        """Make a record of the two values that `pack` returned."""

    def numbers(self, item: ItemT) -> tuple[int, ...]:
        """Integers of a record that are kept in memory, as many as ``columns``: none here."""
        return ()

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> ItemT:  # type: ignore[override]  # no slices
        fields, apart, more = self._file.values(*self._index[index, :PLACE].tolist())
        before = self._texts
        self._texts = {
            place: before.get(place) or self._file.read(*place).decode(*_UTF8)
            for place in apart.values()
        }
        return self.unpack(fields | {k: self._texts[place] for k, place in apart.items()}, more)

    def only(self, rows: Sequence[int] | np.ndarray) -> Self:
        """New store of the records with these indices, in this order, sharing the file."""
        part = copy(self)
        part._index = self._index[rows]
        return part

    def numbers_of(self, part: Self) -> np.ndarray:
        """Indices in this store of the records of a part that `only` made, [records] int64."""
        return np.searchsorted(self._index[:, 1], part._index[:, 1])


def values(content: bytes) -> Any:
    """Unpickle numbers, texts, dates, arrays and containers of these; UnpicklingError for anything
    else."""
    return _Values(io.BytesIO(content)).load()


def remove_after(at: Path, columns: int, count: int) -> None:
    """Truncate the index of a named store, if there is one, to its first ``count`` records;
    ``columns`` are those of its `RecordStore`, ``at`` its path without suffix."""
    with suppress(FileNotFoundError):
        os.truncate(list_file(at), count * (PLACE + columns) * 8)


class Writer:
    """Growing file of records and its index, as a context manager.

    The index of a named file never lists records that are not on disk; writing continues behind the
    ``there`` records that the files have.

    Args:
        at: path of the files without suffix; None for an anonymous file.
        width: integers of a row of the index: start, end, CRC-32, and those of the caller.
    """

    def __init__(self, at: Path | None, width: int):
        self.at, self.width, self.size = at, width, 0
        self.index = array("q")  # of rows that the file of the list does not have
        self.there = self._synced = 0
        self._open = ExitStack()

    def __enter__(self) -> "Writer":
        if self.at is None:
            self._file: IO[bytes] = self._open.enter_context(tempfile.TemporaryFile(prefix="ldt-"))
            return self
        self.at.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open.enter_context(row_file(self.at).open("ab"))
        self._list = self._open.enter_context(list_file(self.at).open("ab"))
        there = read_index(self.at, self.width)
        size = os.fstat(self._file.fileno()).st_size
        whole = int(np.searchsorted(there[:, 1], size, "right"))  # ends come in order
        self.there, self.size = whole, _end(there[:whole])
        self._synced = self.size
        self._list.truncate(whole * self.width * 8)
        self._file.truncate(self.size)
        return self

    def write(self, content: bytes) -> Place:
        """Append bytes to the file; return start, end and CRC-32, the place that `enter` takes."""
        start, self.size = self.size, self.size + self._file.write(content)
        return start, self.size, zlib.crc32(content)

    def enter(self, place: Place, numbers: tuple[int, ...]) -> None:
        """Add a row to the index: the place of a record, and further integers."""
        self.index.extend((*place, *numbers))
        if self.at is not None and self.size - self._synced >= SYNCED:
            self.sync()

    def sync(self) -> None:
        """Flush the records, then the index, of a named file to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.index.tofile(self._list)
        self._list.flush()
        os.fsync(self._list.fileno())
        self.index, self._synced = array("q"), self.size

    def written(self) -> tuple["_File", np.ndarray]:
        """Flush everything; return the file, opened for reading, and the index [rows,
        width] int64."""
        if self.at is not None:
            self.sync()
            return _File(self.at), read_index(self.at, self.width)
        self._file.flush()
        index = np.array(self.index, np.int64).reshape(-1, self.width)
        return _File(os.dup(self._file.fileno())), index

    def __exit__(self, kind, error, trace) -> None:
        with suppress(OSError):  # what is done is kept, if the disk takes it
            if self.at is not None:
                self.sync()
        with suppress(OSError):
            self._open.close()


class _File:
    """File open for reading, closed when no reference is left."""

    def __init__(self, of: int | Path):
        self.at = None if isinstance(of, int) else of
        self.handle = of if isinstance(of, int) else os.open(row_file(of), os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)

    def read(self, start: int, end: int, crc: int) -> bytes:
        try:
            data = os.pread(self.handle, end - start, start)
        except OSError as error:
            raise refusal(error, str(self.at or tempfile.gettempdir())) from None
        if zlib.crc32(data) != crc:
            raise self._changed()
        return data

    def values(self, start: int, end: int, crc: int) -> Any:
        data = self.read(start, end, crc)
        if self.at is None:
            return pickle.loads(data)
        try:
            return values(data)
        except Exception as error:  # of whatever somebody else has put there
            raise self._changed() from error

    def _changed(self) -> ResourceError:
        if self.at is None:
            return ResourceError(
                f"{tempfile.gettempdir()}: a temporary file was cut off or changed; check the "
                "disk, or name another folder by TMPDIR"
            )
        return ResourceError(
            f"{row_file(self.at)}: changed after it was written; remove the folder "
            f"{self.at.parent}, and it is made again"
        )

    def __reduce__(self):
        if self.at is not None:
            return _File, (self.at,)
        return _inherited, (reduction.DupFd(self.handle),)


class _Values(pickle.Unpickler):
    def find_class(self, module, name):
        if (module.partition(".")[0], name) in _VALUES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no value")


def _inherited(handle: Any) -> _File:
    return _File(handle.detach())


def row_file(at: Path) -> Path:
    """Path of a store's records: ``at`` + ".rows"."""
    return at.with_name(at.name + ".rows")


def list_file(at: Path) -> Path:
    """Path of a store's index: ``at`` + ".index"."""
    return at.with_name(at.name + ".index")


def read_index(at: Path, width: int) -> np.ndarray:
    """Memory-mapped index of a store, [rows, width] int64: start, end and CRC-32 of each record in
    bytes of the file, then its further integers."""
    path = list_file(at)
    rows = path.stat().st_size // (width * 8)
    if not rows:
        return np.empty((0, width), np.int64)
    return np.memmap(path, np.int64, "r", shape=(rows, width))


def _end(index: np.ndarray) -> int:
    return int(index[-1, 1]) if len(index) else 0
