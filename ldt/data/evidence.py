"""Documents that lie in text files of their own, as the evidence of TriviaQA."""

import errno
import os
import stat
from pathlib import Path

from ldt.errors import DataError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Opening a pipe would wait for its writer.
_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):
    _FLAGS |= getattr(os, _name, 0)  # not every system has each


def real(folder: Path) -> Path:
    """The path with its links followed; one that leads back to itself stays as it is."""
    return Path(os.path.realpath(folder))


def inside(folder: Path, name: str, where: str) -> Path:
    """Return the path of the file ``name`` in ``folder``, whether or not it is there.

    Args:
        folder: resolved.
        where: opens the message.

    Raises:
        DataError: it lies outside, by "..", as an absolute path or through a link.
    """
    try:
        path = real(folder / name)
    except ValueError:  # a NUL in it
        raise DataError(f"{where}: {name!r}: no name of a file") from None
    if not path.is_relative_to(folder):
        raise DataError(f"{where}: {name!r}: a page outside of {folder} is not read")
    return path


def read(path: Path) -> str:
    """Return the text as it stands, line ends too, without a byte order mark.

    Bytes that are not UTF-8, which pages of the web have, become U+FFFD.

    Raises:
        OSError: it cannot be read, or is no file: a pipe, a device, a folder.
    """
    _require_file(os.stat(path), path)
    handle = os.open(path, _FLAGS)
    with open(handle, encoding="utf-8-sig", errors="replace", newline="") as file:
        _require_file(os.fstat(handle), path)  # it may be another one by now
        return file.read()


def _require_file(about: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(about.st_mode):
        what = _KINDS.get(stat.S_IFMT(about.st_mode), "no regular file")
        raise OSError(errno.EINVAL, f"{what}, expected a file of text", str(path))
