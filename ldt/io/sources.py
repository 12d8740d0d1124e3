"""Names of data: files, patterns, hub datasets, and files in remote stores (fsspec)."""

import functools
import glob
import hashlib
import io
import json
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ldt.errors import UserError, first_line
from ldt.io import files

Names = str | Sequence[str]
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# Of stores in which a file is put whole or not at all; elsewhere it is moved to its name.
_WHOLE = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oci", "oss"}

_Result = TypeVar("_Result")


def is_remote(name: str | os.PathLike[str]) -> bool:
    """True for the name of a file in a remote store, such as ``s3://bucket/file``."""
    return bool(_REMOTE.match(os.fspath(name)))


def is_hub_set(name: str) -> bool:
    """True for a dataset of the hub, ``hf:owner/name``; ``hf://`` names a file."""
    return name.startswith("hf:") and not is_remote(name)


def open_remote(name: str) -> io.BufferedReader:
    """Open a file of a remote store for reading, seekable; UserError if it is missing, a folder or
    not permitted. Errors while reading are OSErrors."""
    system, path = _system(name)
    if _tried(name, lambda: system.isdir(path)):
        raise UserError(f"{name}: a folder, expected a file of documents; {name}/* are its files")
    return io.BufferedReader(_Reading(_tried(name, lambda: system.open(path, "rb"))), 1 << 20)


def _stored(pattern: str) -> list[str]:
    system, path = _system(pattern)
    entries = _tried(pattern, lambda: system.glob(path, detail=True))
    return sorted(
        system.unstrip_protocol(file) for file, facts in entries.items() if facts["type"] == "file"
    )


def exists_remote(name: str) -> bool:
    """True if the remote file exists; UserError if the store cannot be asked."""
    system, path = _system(name)
    return _tried(name, lambda: system.exists(path))


def put_remote(file: Path, name: str) -> None:
    """Upload a local file under a remote name, atomically as far as the store permits; UserError if
    it cannot be written."""
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


def hub_fault() -> str | None:
    """Reason why the hub cannot be reached, with a remedy; None if it can, or is not to be asked
    (HF_HUB_OFFLINE). One request is sent; without a network the libraries would retry each file
    six times over 23 seconds."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of the library of HTTP that huggingface_hub uses at the time
        return (
            f"the hub cannot be reached ({constants.ENDPOINT}: {first_line(error)}); name a copy "
            "on this machine, or set HTTPS_PROXY where a proxy leads out; HF_HUB_OFFLINE=1 reads "
            "what the cache has without asking"
        )
    return None


def matches(name: str) -> list[str]:
    """Files that a name stands for: those of a pattern, sorted; those of a folder written by
    ``save_to_disk`` of `datasets`; else the name itself, whether it exists or not. UserError if
    nothing matches the pattern, or the folder holds several datasets."""
    if (noted := Path(name, "state.json")).is_file():
        files = [str(Path(name, file)) for file in _noted(noted, "_data_files")]
        return files or [name]
    if (noted := Path(name, "dataset_dict.json")).is_file():
        splits = _noted(noted, "splits")
        one = Path(name, splits[0] if splits else "train")
        raise UserError(f"{name}: sets of datasets, {', '.join(splits)}; {one} is one of them")
    if name == "-" or is_hub_set(name) or os.path.exists(name) or not glob.has_magic(name):
        return [name]
    if is_remote(name):
        paths = _stored(name)
    else:
        paths = sorted(file for file in glob.glob(name, recursive=True) if os.path.isfile(file))
    if not paths:
        raise UserError(f"{name}: no file has such a name")
    return paths


def _noted(file: Path, key: str) -> list[str]:
    try:
        listed = json.loads(file.read_text("utf-8")).get(key, ())
        return [item["filename"] if isinstance(item, dict) else str(item) for item in listed]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return []


def each(names: Names) -> list[str]:
    """Files of one or several names (`matches`), in order, without duplicates."""
    listed = [names] if isinstance(names, str) else names
    return list(dict.fromkeys(file for name in listed for file in matches(name)))


def only(names: Names, what: str) -> str:
    """Single file that the names refer to; UserError if there is none or more than one.

    Args:
        names: one or several names, or patterns.
        what: description of the file, such as "predictions of squad", for messages.
    """
    paths = each(names)
    if not paths:
        raise UserError(f"{what}: no such file")
    if len(paths) > 1:
        raise UserError(f"{what} are one file, got {len(paths):,}: {brief(paths)}")
    return paths[0]


def brief(names: Names) -> str:
    """``a.jsonl``, or for several files ``a.jsonl and 4 more``, for messages."""
    if isinstance(names, str):
        return names
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def digest(names: Names) -> str | None:
    """SHA-256 of a file in hexadecimal, or of the hashes of several files in order. None if one of
    them is not a local file."""
    paths = [Path(name) for name in each(names)]
    if not all(path.is_file() for path in paths):
        return None
    sums = [_digest(path.absolute(), *files.stamp(path).values()) for path in paths]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


@functools.lru_cache(256)
def _digest(path: Path, size: int, changed: int) -> str:
    return files.digest(path)


class _Reading(io.RawIOBase):
    """File of fsspec whose many error classes become OSError."""

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
    import fsspec

    return _tried(name, lambda: fsspec.core.url_to_fs(name))


def _tried(name: str, action: Callable[[], _Result]) -> _Result:
    """Result of an action; any error becomes a UserError of one line."""
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
