"""Answers as JSON lines: a file is whole or not there, and what was refused lies beside it.

While a run lasts its answers are in ``FILE.partial``, and what made them in
``FILE.run.partial``; at the end the first is renamed to FILE and the second removed. Answers are
added a group at a time, each group in one write, so a killed run leaves whole groups.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ldt.data.records import Example
from ldt.errors import DataError, ResourceError, UserError

try:
    import fcntl
except ImportError:  # Windows, where two runs on one file go unnoticed
    fcntl = None
from ldt.errors import plural
from ldt.files import check_target

BLOCK = 1 << 16
DIGITS = 6
# Valid inside a JSON string, but str.splitlines ends a line there.
LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def json_line(record: dict[str, Any]) -> bytes:
    """``record`` as one line of JSON, always valid UTF-8: a lone surrogate becomes U+FFFD.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        text = text.translate(LINE_ENDS)
    return text.encode() + b"\n"


def rounded(value: Any) -> Any:
    """``value`` with every float in it rounded to 6 decimals."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, DIGITS) if isinstance(value, float) else value


class AnswerFile:
    """JSON lines that become the file ``target`` when they are all there.

    ``made_by`` says what decides the answers, such as the model and the fields read; a run is
    resumed only with the same. ``count`` is the number of answers there, ``done()`` the ids of
    those that were there before.

    Args:
        target: the file; an existing one is replaced at the end, not before.
        resume: go on with the answers of an unfinished run, if there are any.
        whole: makes one JSON value of all answers, which the file is then to hold instead.

    Raises:
        UserError: the folder is missing or not writable, an unfinished run is there and
            ``resume`` is False or it was made by something else, another process writes there.
    """

    def __init__(
        self,
        target: Path,
        *,
        made_by: dict[str, str],
        resume: bool = False,
        whole: Callable[[Iterator[dict[str, Any]]], Any] | None = None,
    ):
        self.whole = whole
        self.target = Path(os.path.realpath(target)) if target.is_symlink() else target
        check_target(self.target)
        self.partial = self.target.with_name(f"{self.target.name}.partial")
        self.run = self.target.with_name(f"{self.target.name}.run.partial")
        try:
            handle = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"{self.partial}: {error.strerror}") from None
        self.file = os.fdopen(handle, "r+b", buffering=0)
        try:
            self._lock()
            self.size = _whole_lines(self.file)
            self.count = _count_lines(self.partial, self.size)
            self._found = self.size
            self._made_by = made_by
            if self.count:
                self._made_by = self._check_run(made_by, resume)
            else:
                self.run.write_bytes(json_line(made_by))
            self._cut()
        except BaseException:
            self.file.close()
            raise

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.partial}: another process is writing there") from None
        except OSError:  # a file system without locks
            pass

    def _check_run(self, made_by: dict[str, str], resume: bool) -> dict[str, Any]:
        if not resume:
            raise UserError(
                f"{self.partial}: {plural(self.count, 'answer')} of an unfinished run; --resume "
                "goes on from there, removing the file starts again"
            )
        try:
            before = json.loads(self.run.read_bytes())
        except (OSError, ValueError):
            before = {}
        other = [key for key in made_by if before.get(key) != made_by[key]]
        if other:
            raise UserError(
                f"{self.partial}: made with another {' and another '.join(other)}; use the same "
                "to resume, or remove the file to start again"
            )
        return before

    def remember(self, name: str, value: Callable[[], Any]) -> Any:
        """What the run that began this file noted by that name; at the beginning note ``value()``.

        For what need not be the same to resume, but gives the same answers where it is.
        """
        if name not in self._made_by:
            self._made_by = self._made_by | {name: value()}
            self.run.write_bytes(json_line(self._made_by))
        return self._made_by[name]

    def done(self) -> Iterator[Any]:
        """The ids of the answers that were there, in their order."""
        left = self._found
        with open(self.partial, "rb") as file:
            for number, line in enumerate(file, 1):
                left -= len(line)
                if left < 0:
                    return
                try:
                    yield json.loads(line)["id"]
                except (ValueError, KeyError, TypeError):
                    raise UserError(
                        f"{self.partial}:{number}: not an answer; remove the file to start again"
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
            raise ResourceError(f"{self.partial}: {error.strerror}") from None
        except BaseException:  # a signal in the middle
            self._cut()
            raise
        self.size += len(data)
        self.count += len(answers)

    def _cut(self) -> None:
        """Drop what lies behind the last whole group."""
        with suppress(OSError):
            self.file.truncate(self.size)
            self.file.seek(self.size)

    def finish(self) -> None:
        """Give the file its name, on the disk and not only on its way there."""
        try:
            if self.whole:
                self._write_whole()
            else:
                os.fsync(self.file.fileno())
                os.replace(self.partial, self.target)
                _sync_folder(self.target.parent)
        except OSError as error:
            raise ResourceError(f"{self.partial}: {error.strerror}") from None
        self.file.close()
        self.run.unlink(missing_ok=True)

    def _write_whole(self) -> None:
        with open(self.partial, "rb") as lines:
            value = json_line(self.whole(map(json.loads, lines)))
        temporary = self.target.with_name(f"{self.target.name}.whole.partial")
        with open(temporary, "wb") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.target)
        _sync_folder(self.target.parent)
        self.partial.unlink()

    def close(self) -> None:
        """Leave the run unfinished; without an answer in it nothing stays behind."""
        if self.file.closed:
            return
        if not self.size:
            self.partial.unlink(missing_ok=True)
            self.run.unlink(missing_ok=True)
        self.file.close()


class AnswerStream:
    """JSON lines to a pipe, a terminal or a device: each group is flushed, nothing is renamed."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.count = 0

    def done(self) -> Iterator[Any]:
        """No ids: a stream is not resumed."""
        return iter(())

    def write(self, answers: list[dict[str, Any]]) -> None:
        """Add a group of answers.

        Raises:
            BrokenPipeError: nobody reads any more.
            ResourceError: no room.
        """
        try:
            self.file.write(b"".join(map(json_line, answers)))
            self.file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ResourceError(f"output: {error.strerror}") from None
        self.count += len(answers)

    def finish(self) -> None:
        """Nothing to do: every group is out."""

    def close(self) -> None:
        """Nothing to do: the file is its owner's."""


class Rejects:
    """Records that were refused, as JSON lines with ``where``, ``error`` and the record's line.

    The line is ``line`` where it is UTF-8, else ``line_base64``; a record that was read well but
    cannot be used is written anew. The file is made by the first of them.
    """

    def __init__(self, path: Path):
        self.path = path
        self.count = 0
        self.file: BinaryIO | None = None

    def forget(self) -> None:
        """Remove what an earlier run refused."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def write(self, error: DataError, line: bytes, where: str | None = None) -> None:
        """Add a line that could not be read, and why.

        Raises:
            ResourceError: no room, or the file cannot be made.
        """
        message = str(error)
        record: dict[str, Any] = {"where": where or _place(message), "error": message}
        try:
            record["line"] = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            record["line_base64"] = base64.b64encode(line).decode()
        try:
            if self.file is None:
                self.file = open(self.path, "wb", buffering=0)  # noqa: SIM115
            _write_all(self.file, json_line(record))
        except OSError as problem:
            raise ResourceError(f"{self.path}: {problem.strerror}") from None
        self.count += 1

    def refuse(self, error: DataError, example: Example) -> None:
        """Add a record that was read but cannot be used, and why; raises as `write` does."""
        line = json.dumps(example.fields, ensure_ascii=False, default=str)
        self.write(error, line.encode(errors="replace"), example.where)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.file is not None:
            self.file.close()


def _place(message: str) -> str:
    """``docs.jsonl:17`` of ``docs.jsonl:17: what``; empty where a message has no place."""
    found = re.match(r"(.+?:\d+)\b", message)
    return found[1] if found else ""


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _whole_lines(file: BinaryIO) -> int:
    """Bytes up to and with the last newline; reads back from the end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _count_lines(path: Path, size: int) -> int:
    lines = 0
    with open(path, "rb") as file:
        while size > 0 and (block := file.read(min(BLOCK, size))):
            lines += block.count(b"\n")
            size -= len(block)
    return lines


def _sync_folder(folder: Path) -> None:
    """Put a rename on the disk, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
