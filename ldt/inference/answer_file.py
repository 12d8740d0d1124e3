"""Answers as JSON lines in a file that appears atomically, and a file of rejected records.

While a run lasts its answers are in ``FILE.partial``, and the settings that decide them in
``FILE.run.partial``; at the end the first is renamed to FILE, or written anew where FILE is no file
of lines, and the second becomes ``.FILE.run.json`` beside it, with the sha256 of the answers and
of the documents, by which ``--resume`` knows that nothing is left. Answers are added a group
at a time, each group in one write, so a killed run leaves whole groups.
"""

import base64
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from ldt.errors import DataError, UserError, escaped, plural, refusal
from ldt.io.files import (
    check_target,
    digest,
    flush,
    remove,
    remove_abandoned,
    require_place,
    resolved,
    temporary,
    write_whole,
)
from ldt.io.records import Example
from ldt.io.strict_json import json_line

BLOCK = 1 << 16


class AnswerFile:
    """JSON lines that become the file ``target`` when they are all there.

    Args:
        target: the file.
        made_by: settings that decide the answers, such as the model and the fields read; a run is
            resumed only with the same.
        resume: continue an unfinished run, if there is one.
        overwrite: replace an existing file, at the end and not before; without ``resume`` answers
            of an unfinished run are dropped.
        layout: writes the file, given that of the lines and the new one; None leaves it lines.

    Attributes:
        partial: file of the answers of the unfinished run.
        count: number of answers in it.
        finished: with ``resume``, what made the file that is there already, by ``made_by``; None
            where answers are to be written.

    Raises:
        UserError: the folder is missing or not writable, the file exists and is not to be
            replaced, an unfinished run is there and ``resume`` is False, either was made by
            something else, another process writes there.
    """

    def __init__(
        self,
        target: Path,
        *,
        made_by: dict[str, str],
        resume: bool = False,
        overwrite: bool = False,
        layout: Callable[[Path, Path], None] | None = None,
    ):
        self.layout = layout
        self.finished: Settings | None = None
        self.target = resolved(target)
        check_target(self.target)
        self.partial = self.target.with_name(f"{self.target.name}.partial")
        self.run = self.target.with_name(f"{self.target.name}.run.partial")
        self._lock = FileLock(self.target.with_name(f"{self.target.name}.lock.partial"))
        self.size = 0
        # Before the file is opened: one whose owner is just finishing is about to be renamed.
        self._acquire()
        try:
            self.file = _opened(self.partial)
        except BaseException:
            self._unlock()
            raise
        try:
            # A killed run may have left the beginning of a line, which is cut off.
            self.size = 0 if overwrite and not resume else _whole_lines(self.file)
            self.count = _count_lines(self.partial, self.size)
            self._resumed = self.size  # bytes
            self._made_by = made_by | ({"overwrite": True} if overwrite else {})
            if self.count:
                self._made_by = self._check_run(made_by, resume)
                self._made_by |= {"overwrite": True} if overwrite else {}
            elif resume and self.target.exists() and not overwrite:
                self.finished = settings_of(self.target, made_by)
                return
            self._require_free()
            if not self.count:
                self._note()
            self._cut()
        except BaseException:
            self.close()
            raise

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"{self.partial}: another process is writing there") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise _strange(Path(self._lock.lock_file)) from None
            if error.errno not in _NO_LOCKS:
                raise refusal(error, self.partial) from None

    def _unlock(self) -> None:
        if self._lock.is_locked:
            with suppress(OSError):  # Windows does not remove what is open
                os.unlink(self._lock.lock_file)
            self._lock.release()

    def _note(self) -> None:
        """Write down what decides the answers."""
        remove_abandoned(self.run)
        try:
            write_whole(self.run, json_line(self._made_by).decode())
        except IsADirectoryError:
            raise _strange(self.run) from None
        except OSError as error:
            raise refusal(error, self.run) from None

    def _require_free(self) -> None:
        """Refuse to replace a file that the run was not told to."""
        if self.target.exists() and not self._made_by.get("overwrite"):
            raise UserError(f"{self.target} exists already; --overwrite replaces it")

    def _check_run(self, made_by: dict[str, str], resume: bool) -> dict[str, Any]:
        if not resume:
            raise UserError(
                f"{self.partial}: {plural(self.count, 'answer')} of an unfinished run; --resume "
                "goes on from there, --overwrite starts again"
            )
        try:
            with _opened(self.run, new=False) as file:
                before = json.loads(file.read())
        except (OSError, ValueError):  # lost, or cut short: as good as made by something else
            before = {}
        if other := different(before, made_by):
            raise UserError(
                f"{self.partial}: made with another {other}; use the same to resume; --overwrite "
                "without --resume starts again"
            )
        return before

    def remember(self, name: str, value: Callable[[], Any]) -> Any:
        """A setting as the run that began this file had it; that run notes ``value()``.

        Unlike ``made_by`` it need not be the same to resume.
        """
        if name not in self._made_by:
            self._made_by = self._made_by | {name: value()}
            self._note()
        return self._made_by[name]

    def done(self) -> Iterator[Any]:
        """The ids of the answers that were there, in their order."""
        left = self._resumed
        with open(self.partial, "rb") as file:
            for number, line in enumerate(file, 1):
                left -= len(line)
                if left < 0:
                    return
                try:
                    yield json.loads(line)["id"]
                except (ValueError, KeyError, TypeError):
                    raise UserError(
                        f"{self.partial}:{number}: not an answer; --overwrite without --resume "
                        "starts again"
                    ) from None

    def write(self, answers: list[dict[str, Any]]) -> None:
        """Add a group of answers.

        Raises:
            ResourceError: no room; the file is as it was before the call.
        """
        data = b"".join(map(json_line, answers))
        try:
            _write_all(self.file, data)
        except OSError as error:
            self._cut()
            raise refusal(error, self.partial) from None
        except BaseException:  # a signal in the middle
            self._cut()
            raise
        self.size += len(data)
        self.count += len(answers)

    def _cut(self) -> None:
        """Drop the bytes behind the last whole group."""
        with suppress(OSError):
            self.file.truncate(self.size)
            self.file.seek(self.size)

    def finish(self, **facts: Any) -> None:
        """Give the file its name, once its content is on the disk.

        Args:
            facts: what else is to be known of the finished run (`noted`).

        Raises:
            UserError: there is a file of that name now, which the run was not to replace.
            ResourceError: the disk did not take it.
        """
        self._require_free()
        whole = temporary(self.target) if self.layout else self.partial
        try:
            if self.layout:
                remove(whole)  # of a killed process that had this one's number
                self.layout(self.partial, whole)
            flush(whole)
            note(self.target, whole, self._made_by | facts)
            os.replace(whole, self.target)
            self.partial.unlink(missing_ok=True)
            self.size = self.count = 0  # nothing is left to go on from
            with suppress(PermissionError):  # a folder that can be written but not read
                flush(self.target.parent)
        except OSError as error:
            raise refusal(error, self.partial) from None
        finally:
            if self.layout:
                remove(whole)
        self.close()

    def close(self) -> None:
        """Leave the run unfinished; without an answer in it nothing stays behind."""
        if self.file.closed:
            return
        self.file.close()
        try:
            if not self.size:
                for path in (self.partial, self.run):
                    with suppress(OSError):  # what cannot be removed hinders nobody
                        path.unlink(missing_ok=True)
        finally:
            self._unlock()


class AnswerStream:
    """JSON lines to a pipe, a terminal or a device: each group is flushed, nothing is renamed."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.count = 0
        self._steered = file.isatty()  # by control characters of labels and ids

    def remember(self, name: str, value: Callable[[], Any]) -> Any:
        """``value()``: no run before had the setting."""
        return value()

    def write(self, answers: list[dict[str, Any]]) -> None:
        """Add a group of answers.

        Raises:
            BrokenPipeError: nobody reads any more.
            ResourceError: no room.
        """
        try:
            data = b"".join(map(json_line, answers))
            if self._steered:
                data = escaped(data.decode()).encode()
            self.file.write(data)
            self.file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise refusal(error, "output") from None
        self.count += len(answers)

    def finish(self, **facts: Any) -> None:
        """Nothing to do: every group is out."""

    def close(self) -> None:
        """Nothing to do: the file is its owner's."""


class Rejects:
    """Rejected records, as JSON lines with ``where``, ``error`` and the record's line.

    Those of a shard begin with ``record``, its number in the whole input.

    The line is ``line`` where it is UTF-8, else ``line_base64``; a record that was read well but
    cannot be used is written anew. The file is made by the first of them.
    """

    def __init__(self, path: Path):
        self.path = path
        self.count = 0
        self.file: BinaryIO | None = None
        self._size = 0

    def forget(self) -> None:
        """Remove the rejects of an earlier run.

        Raises:
            UserError: there is a folder of that name, or no file can be made there.
        """
        check_target(self.path)
        try:
            self.path.unlink(missing_ok=True)
            require_place(self.path)
        except OSError as error:
            raise refusal(error, self.path) from None

    def _cut(self) -> None:
        """Drop what is left of a line that did not go into the file."""
        if self.file is not None:
            with suppress(OSError):
                self.file.truncate(self._size)

    def write(self, error: DataError, line: bytes, where: str | None = None) -> None:
        """Add a line that could not be read, and why.

        Raises:
            ResourceError: no room, or the file cannot be made.
        """
        message = str(error)
        record: dict[str, Any] = {} if error.record is None else {"record": error.record}
        record |= {"where": where or _place(message), "error": message}
        try:
            record["line"] = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            record["line_base64"] = base64.b64encode(line).decode()
        try:
            if self.file is None:
                handle = os.open(self.path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
                self.file = os.fdopen(handle, "r+b", buffering=0)
            data = json_line(record)
            _write_all(self.file, data)
            self._size += len(data)
        except OSError as problem:
            self._cut()
            raise refusal(problem, self.path) from None
        self.count += 1

    def refuse(self, error: DataError, example: Example) -> None:
        """Add a record that was read but cannot be used, and why; raises as `write` does."""
        error.record = example.record
        line = json.dumps(example.fields, ensure_ascii=False, default=str)
        self.write(error, line.encode(errors="replace"), example.where)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.file is not None:
            self.file.close()


# Errors of file systems without locks, on which two runs may write one file.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Of a file that a run goes on with: not through a link, and without waiting for a pipe's reader.
_FLAGS = os.O_RDWR
for _name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT"):
    _FLAGS |= getattr(os, _name, 0)  # not every system has each


def _opened(path: Path, new: bool = True) -> BinaryIO:
    """A file of this run, made if ``new`` and missing, or one that an earlier run left.

    Raises:
        UserError: there is something that no run leaves: a link, a file with two names, another
            user's file, a folder, a pipe; or it cannot be made.
        ResourceError: the disk has no room for it.
    """
    try:
        try:
            handle = os.open(path, _FLAGS | (os.O_CREAT | os.O_EXCL if new else 0), 0o666)
        except FileExistsError:
            if os.path.islink(path):  # where the system has no O_NOFOLLOW
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
            handle = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise _strange(path) from None
        raise refusal(error, path) from None
    about = os.fstat(handle)
    owner = os.geteuid() if hasattr(os, "geteuid") else about.st_uid
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or about.st_uid != owner:
        os.close(handle)
        raise _strange(path)
    return os.fdopen(handle, "r+b", buffering=0)


def _strange(path: Path) -> UserError:
    return UserError(
        f"{path}: not a file that ldt has left (a link, another user's, no regular file); remove "
        "it, or name another file for the answers"
    )


def _place(message: str) -> str:
    """``docs.jsonl:17`` of ``docs.jsonl:17: what``; empty where a message has no place."""
    place = re.match(r"(.+?:\d+)\b", message)
    return place[1] if place else ""


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _whole_lines(file: BinaryIO) -> int:
    """Number of bytes up to and with the last newline; the file is read from its end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _count_lines(path: Path, size: int) -> int:
    lines = 0
    with open(path, "rb") as file:
        while size > 0 and (block := file.read(min(BLOCK, size))):
            lines += block.count(b"\n")
            size -= len(block)
    return lines


Settings = dict[str, Any]


def note(target: Path, answers: Path, settings: Settings) -> None:
    """Write down what made the answers that are about to become ``target``."""
    text = json.dumps(settings | {"answers": digest(answers)}, indent=1)
    remove_abandoned(_beside(target))
    write_whole(_beside(target), f"{text}\n")


def settings_of(target: Path, made_by: dict[str, str]) -> Settings:
    """Settings of the run that made a finished file.

    Raises:
        UserError: it was not made by these settings, or is not as it was made.
    """
    settings = noted(target)
    if settings is None:
        raise UserError(
            f"{target}: exists already, and nothing beside it says what made it; --overwrite "
            "replaces it"
        )
    if other := different(settings, made_by):
        raise UserError(f"{target}: finished, with another {other}; --overwrite replaces it")
    if settings["answers"] != digest(target):
        raise UserError(f"{target}: was changed after it was finished; --overwrite replaces it")
    return settings


def noted(target: Path) -> Settings | None:
    """Settings that `note` wrote down of a file; None where there is no such note."""
    try:
        if not _beside(target).is_file():  # a pipe in its place would be waited for
            return None
        settings = json.loads(_beside(target).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) and "answers" in settings else None


def different(settings: Settings, made_by: dict[str, str]) -> str:
    """Names of what two runs were not alike in, for a message; "" for none."""
    names = [name for name in made_by if settings.get(name) != made_by[name]]
    return " and another ".join(names)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.run.json")
