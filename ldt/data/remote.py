"""Files of remote stores, ``s3://…``, ``gs://…``, ``hf://…`` and the like, by fsspec."""

import io
import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ldt.errors import UserError, first_line

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# Of stores in which a file is put whole or not at all; elsewhere it is moved to its name.
_WHOLE = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oci", "oss"}

_Result = TypeVar("_Result")


def is_remote(name: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a file in a store."""
    return bool(_REMOTE.match(os.fspath(name)))


def is_hub_set(name: str) -> bool:
    """Whether a name is that of a data set of the hub, ``hf:owner/name``; ``hf://`` is a file."""
    return name.startswith("hf:") and not is_remote(name)


def opened(name: str) -> io.BufferedReader:
    """A file of a store, to be read from its beginning or from anywhere.

    What goes wrong while it is read is an OSError.

    Raises:
        UserError: there is no such file, or the store cannot be reached.
    """
    system, path = _system(name)
    if _tried(name, lambda: system.isdir(path)):
        raise UserError(f"{name}: a folder, expected a file of documents; {name}/* are its files")
    return io.BufferedReader(_Reading(_tried(name, lambda: system.open(path, "rb"))), 1 << 20)


def matches(pattern: str) -> list[str]:
    """The files of a store that a pattern stands for, sorted.

    Raises:
        UserError: the store cannot be reached.
    """
    system, path = _system(pattern)
    found = _tried(pattern, lambda: system.glob(path, detail=True))
    return sorted(
        system.unstrip_protocol(file) for file, about in found.items() if about["type"] == "file"
    )


def exists(name: str) -> bool:
    """Whether a store has a file of this name.

    Raises:
        UserError: the store cannot be reached.
    """
    system, path = _system(name)
    return _tried(name, lambda: system.exists(path))


def put(file: Path, name: str) -> None:
    """Write a file into a store, whole or not at all, as far as the store can promise it.

    Raises:
        UserError: it cannot be written there.
    """
    system, path = _system(name)
    folder = posixpath.dirname(path)
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if protocols & _WHOLE:
        _tried(name, lambda: system.put_file(str(file), path))
        return
    beside = posixpath.join(folder, f".{posixpath.basename(path)}.partial")

    def write() -> None:
        system.makedirs(folder, exist_ok=True)
        system.put_file(str(file), beside)
        system.mv(beside, path)

    _tried(name, write)


class _Reading(io.RawIOBase):
    """A file of fsspec, whose errors are of a hundred classes."""

    def __init__(self, file: Any):
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as error:
            raise OSError(first_line(error)) from error
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _system(name: str) -> tuple[Any, str]:
    """The store of a name, and the path in it."""
    import fsspec

    return _tried(name, lambda: fsspec.core.url_to_fs(name))


def _tried(name: str, action: Callable[[], _Result]) -> _Result:
    """What an action gives; whatever goes wrong in it is a UserError of one line."""
    try:
        return action()
    except FileNotFoundError:
        raise UserError(f"{name}: no such file") from None
    except PermissionError as error:
        raise UserError(f"{name}: no leave to use it ({first_line(error)})") from None
    except ImportError as error:  # such as "Install s3fs to access S3"
        raise UserError(f"{name}: {first_line(error)} (pip install)") from None
    except Exception as error:
        raise UserError(f"{name}: {type(error).__name__}: {first_line(error)}") from error
