"""Files that a command writes at its end: refused before its work, and whole or not there."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ldt.errors import UserError, refusal
from ldt.io.files import check_target, remove_abandoned, temporary, write_whole

BLOCK = 4096  # bytes that a disk with any room takes


def check(target: Path, option: str, sources: Iterable[str | Path | None] = ()) -> None:
    """Refuse a file that cannot be written, before the work whose result it gets.

    Args:
        option: that names it, for messages.
        sources: files that are read, none of which it may be.

    Raises:
        UserError: a folder, or in one that is missing or cannot be written; a link to itself; a
            file that is read.
        ResourceError: the disk is full.
    """
    path = resolved(target)
    if _is_stream(path):
        return
    check_target(path)
    if any(_same(path, source) for source in sources if source):
        raise UserError(f"{option} {target}: a file that is read; name another")
    try:
        require_place(path)
    except OSError as error:
        raise refusal(error, target) from None


def write(target: Path, text: str) -> None:
    """Write the result; a pipe or device gets it as it is, a link goes on pointing to its file.

    Raises:
        UserError: the place cannot be written.
        ResourceError: the disk did not take it; the file is as it was.
    """
    path = resolved(target)
    try:
        if _is_stream(path):
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            write_whole(path, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise refusal(error, target) from None


def require_place(target: Path) -> None:
    """Make a file of a block beside ``target``, and remove it.

    Raises:
        OSError: why there is no place for it.
    """
    probe = temporary(target)
    try:
        remove_abandoned(target)
        handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, bytes(BLOCK))
        finally:
            os.close(handle)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def resolved(target: Path) -> Path:
    """The path, or what it links to.

    Raises:
        UserError: it is a link that leads back to itself.
    """
    if not target.is_symlink():
        return target
    path = Path(os.path.realpath(target))
    if path.is_symlink():
        raise UserError(f"{target}: a link that leads back to itself; name another file")
    return path


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _same(target: Path, source: str | Path) -> bool:
    try:
        return target.samefile(source)
    except (OSError, ValueError):  # not there yet
        return target.absolute() == Path(source).absolute()
