"""Documents that lie in text files of their own, as the evidence of TriviaQA."""

from pathlib import Path

from ldt.errors import DataError


def inside(folder: Path, name: str, where: str) -> Path:
    """Return the path of the file ``name`` in ``folder``, whether or not it is there.

    Args:
        folder: resolved.
        where: opens the message.

    Raises:
        DataError: it lies outside, by "..", as an absolute path or through a link.
    """
    try:
        path = (folder / name).resolve()
    except ValueError:  # a NUL in it
        raise DataError(f"{where}: {name!r}: no name of a file") from None
    if not path.is_relative_to(folder):
        raise DataError(f"{where}: {name!r}: a page outside of {folder} is not read")
    return path


def read(path: Path) -> str:
    """Return the text as it stands, line ends too, without a byte order mark.

    Bytes that are not UTF-8, which pages of the web have, become U+FFFD.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        return file.read()
