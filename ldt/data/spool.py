"""Items that are written into a temporary file once, in order, and read in any order.

The documents of a training and their features may be larger than memory; a list of them in a file
takes 16 bytes of memory an item. The file has no name, so that it is gone with the last process
that has it open, whatever ends that.
"""

import errno
import os
import pickle
import tempfile
import weakref
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from copy import copy
from multiprocessing import reduction
from typing import Any, Generic, Self, TypeVar

import numpy as np

from ldt.data.records import Example
from ldt.errors import DataError, ResourceError, refusal

LONG = 1_000  # characters of a text that is written once where the next item has it too
_UTF8 = "utf-8", "surrogatepass"

ItemT = TypeVar("ItemT")
Place = tuple[int, int]  # in the file: start and end


class Spool(Sequence[ItemT], Generic[ItemT]):
    """Items in a temporary file. What is read equals what was written, and is new each time.

    Processes that are forked or spawned share the file.
    """

    noun = "items"  # in messages

    def __init__(self, items: Iterable[ItemT] = ()):
        """Write the items.

        Raises:
            DataError: an item that is nested too deep.
            ResourceError: the disk of temporary files is full.
        """
        places, known, size = array("q"), dict[str, Place](), 0
        try:
            with tempfile.TemporaryFile(prefix="ldt-") as file:

                def write(content: bytes) -> Place:
                    nonlocal size
                    start, size = size, size + file.write(content)
                    return start, size

                for item in items:
                    fields, more = self.pack(item)
                    texts = {k: v for k, v in fields.items() if type(v) is str and len(v) >= LONG}
                    known = {t: known.get(t) or write(t.encode(*_UTF8)) for t in texts.values()}
                    apart = {key: known[text] for key, text in texts.items()}
                    rest = fields | dict.fromkeys(apart)  # keys keep their order
                    try:
                        row = pickle.dumps((rest, apart, more), 5)
                    except RecursionError:
                        where = getattr(item, "where", self.noun)
                        raise DataError(f"{where}: nested too deep") from None
                    places.extend(write(row))
                file.flush()
                self._file = _File(os.dup(file.fileno()))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ResourceError(
                f"{tempfile.gettempdir()}: full after {size:,} bytes of {self.noun}; "
                "TMPDIR can name another folder"
            ) from None
        self._places = np.array(places, np.int64).reshape(-1, 2)
        self._texts: dict[Place, str] = {}  # those of the item that was read last

    @abstractmethod
    def pack(self, item: ItemT) -> tuple[dict[str, Any], Any]:
        """The fields of an item, long texts among them, and what else there is to it."""

    @abstractmethod
    def unpack(self, fields: dict[str, Any], more: Any) -> ItemT:
        """The item of what `pack` returned."""

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> ItemT:  # type: ignore[override]  # no slices
        """Read an item.

        Raises:
            ResourceError: the disk fails.
        """
        fields, apart, more = pickle.loads(self._file.read(*self._places[index].tolist()))
        before = self._texts
        self._texts = {
            place: before.get(place) or self._file.read(*place).decode(*_UTF8)
            for place in apart.values()
        }
        return self.unpack(fields | {k: self._texts[place] for k, place in apart.items()}, more)

    def only(self, rows: Sequence[int] | np.ndarray) -> Self:
        """The items of some numbers, in this order; they share the file."""
        part = copy(self)
        part._places = self._places[rows]
        return part


class Examples(Spool[Example]):
    """Documents in a temporary file."""

    noun = "documents"

    def pack(self, item):
        return item.fields, (item.id, item.where, item.folder)

    def unpack(self, fields, more):
        return Example(fields, *more)


class _File:
    """A file that is open for reading, and closed when nothing refers to it."""

    def __init__(self, handle: int):
        self.handle = handle
        weakref.finalize(self, os.close, handle)

    def read(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``, wherever other readers of the file are."""
        try:
            found = os.pread(self.handle, end - start, start)
        except OSError as error:
            raise refusal(error, tempfile.gettempdir()) from None
        if len(found) < end - start:
            raise ResourceError(
                f"{tempfile.gettempdir()}: a temporary file was cut off; check the disk, or name "
                "another folder by TMPDIR"
            )
        return found

    def __reduce__(self):
        return _inherited, (reduction.DupFd(self.handle),)


def _inherited(handle: Any) -> _File:
    """The file of a process that spawned this one."""
    return _File(handle.detach())
