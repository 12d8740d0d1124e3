"""Files of answers that appear atomically, and files of rejected records.

During a run the answers are in ``FILE.partial`` and the settings in ``FILE.run.partial``. At the
end the first is renamed to FILE (or converted, if FILE is not JSON lines), and the second becomes
``.FILE.run.json`` with hashes of the answers and the documents, by which ``--resume`` recognises a
finished run. Each group of answers is written in one call, so a killed run leaves whole groups.

A table has one column per key, in order of first appearance. ``scores`` by class become columns
such as ``scores.yes``, with ``score`` for the predicted label; multi-label answers get a column of
1 and 0 per label, ``label.yes``. Since the columns are known only at the end, a table is made from
the finished lines, which are streamed twice.
"""

import base64
import csv
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from ldt.data import answer_files
from ldt.errors import DataError, UserError, escaped, listed, plural, refusal
from ldt.inference import vectors
from ldt.inference.options import flag
from ldt.io.files import (
    check_target,
    digest,
    flush,
    is_stream,
    remove,
    remove_abandoned,
    require_place,
    resolved,
    temporary,
    write_whole,
)
from ldt.io.records import Example
from ldt.io.strict_json import json_line
from ldt.tasks.base import AnyTask, PublishedLayout, Writer, default_layout

Layout = Callable[[Path, Path], None]  # writes the answers of a file of lines to a new file
Settings = dict[str, Any]
Answer = dict[str, Any]

BLOCK = 1 << 16
ROW_GROUP = 8 << 20  # bytes of lines that become one row group of Parquet or batch of Arrow
_COLUMNS = (".parquet", ".arrow", ".feather")  # endings of tables with types
_NOT_LINES = (".csv", ".tsv", ".json", *_COLUMNS)
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}  # of lines, as pyarrow calls it
_NOT_WRITTEN = (".xlsx", ".xls", ".ods", ".bz2", ".xz", ".zip")
_NOTHING = object()  # in the place of an id
# Errors of file systems without locks, on which two runs may write one file.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Of a file that a run goes on with: not through a link, and without waiting for a pipe's reader.
_FLAGS = os.O_RDWR
for _name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT"):
    _FLAGS |= getattr(os, _name, 0)  # not every system has each


class AnswerFile:
    """JSON lines that become the file ``target`` once complete.

    Args:
        target: path of the file.
        made_by: settings that determine the answers; a run resumes only with equal ones.
        resume: True continues an unfinished run if there is one.
        overwrite: True replaces an existing file, at the end of the run; without ``resume`` an
            unfinished run is dropped.
        layout: function (file of lines, new file) that makes the final file; None keeps lines.

    Attributes:
        partial: file of the unfinished run's answers.
        count: number of answers in it.
        finished: with ``resume``, the settings of the finished file that already exists; None if
            answers are to be written.

    Raises:
        UserError: the folder is missing or not writable, the file exists and may not be replaced,
            there is an unfinished run and ``resume`` is False, either was made with other settings,
            or another process is writing.
    """

    def __init__(
        self,
        target: Path,
        *,
        made_by: dict[str, str],
        resume: bool = False,
        overwrite: bool = False,
        layout: Layout | None = None,
    ):
        self.layout = layout
        self.finished: Settings | None = None
        self.target = resolved(target)
        check_target(self.target)
        self.partial = self.target.with_name(f"{self.target.name}.partial")
        self.run = self.target.with_name(f"{self.target.name}.run.partial")
        self._ids = self._ids_until(0)
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
            self.size, self.count = (0, 0) if overwrite and not resume else _whole_lines(self.file)
            self._ids = self._ids_until(self.size)
            self._next = next(self._ids, _NOTHING)  # id of the next record that has its answer
            self._made_by: Settings = made_by | ({"overwrite": True} if overwrite else {})
            if self.count:
                self._made_by = self._settings_before(made_by, resume) | self._made_by
            elif resume and self.target.exists() and not overwrite:
                self.finished = _settings_of(self.target, made_by)
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
        remove_abandoned(self.run)
        try:
            write_whole(self.run, json_line(self._made_by).decode())
        except IsADirectoryError:
            raise _strange(self.run) from None
        except OSError as error:
            raise refusal(error, self.run) from None

    def _require_free(self) -> None:
        if self.target.exists() and not self._made_by.get("overwrite"):
            raise UserError(f"{self.target} exists already; --overwrite replaces it")

    def _settings_before(self, made_by: dict[str, str], resume: bool) -> Settings:
        """Settings of the unfinished run, checked to equal those of this one."""
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
        if other := _different(before, made_by):
            raise UserError(
                f"{self.partial}: made with another {other}; use the same to resume; --overwrite "
                "without --resume starts again"
            )
        return before

    def remember(self, name: str, value: Callable[[], Any]) -> Any:
        """Return a setting of the run; the first call calls ``value()`` and saves it for resumed
        runs.

        Unlike ``made_by`` the setting may have another value when resuming.
        """
        if name not in self._made_by:
            self._made_by = self._made_by | {name: value()}
            self._note()
        return self._made_by[name]

    def _ids_until(self, size: int) -> Generator[Any, None, None]:
        """Ids of the answers in the first ``size`` bytes, in order."""
        with open(self.partial, "rb") as file:
            for number, line in enumerate(file, 1):
                size -= len(line)
                if size < 0:
                    return
                try:
                    yield json.loads(line)["id"]
                except (ValueError, KeyError, TypeError):
                    raise UserError(
                        f"{self.partial}:{number}: not an answer; --overwrite without --resume "
                        "starts again"
                    ) from None

    def skip(self, id: str | int) -> bool:
        """Go past the next stored answer if it is for the record with this id; True if it is."""
        if id != self._next:
            return False
        self._next = next(self._ids, _NOTHING)
        return True

    def require_no_more(self, place: str) -> None:
        """Raise UserError if stored answers are left, which are then for other records than the
        input's.

        Args:
            place: place of the record read instead, for the message.
        """
        if self._next is not _NOTHING:
            raise UserError(
                f"{self.partial}: the next answer is for {self._next!r}, the input has {place} in "
                "its place; resume with the same input; --overwrite without --resume starts again"
            )

    def write(self, answers: list[Answer]) -> None:
        """Append a group of answers to ``partial``; ResourceError, and no change, if the disk is
        full."""
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
        with suppress(OSError):
            self.file.truncate(self.size)
            self.file.seek(self.size)

    def finish(self, **facts: Any) -> None:
        """Convert the answers by ``layout``, save the run's settings, rename the file to
        ``target``, close.

        Args:
            facts: further facts to save with the settings (`saved_settings`).

        Raises:
            UserError: a file of that name has appeared and may not be replaced.
            ResourceError: the disk is full or failed.
        """
        self._require_free()
        whole = temporary(self.target) if self.layout else self.partial
        try:
            if self.layout:
                remove(whole)  # of a killed process that had this one's number
                self.layout(self.partial, whole)
            flush(whole)
            _save_settings(self.target, whole, self._made_by | facts)
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
        """Close and unlock the file, kept for ``resume``; one without answers is removed."""
        if self.file.closed:
            return
        self.file.close()
        self._ids.close()
        try:
            if not self.size:
                for path in (self.partial, self.run):
                    with suppress(OSError):  # what cannot be removed hinders nobody
                        path.unlink(missing_ok=True)
        finally:
            self._unlock()


class AnswerStream:
    """JSON lines to a pipe, a terminal or a device, flushed after each group."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.count = 0
        self._steered = file.isatty()  # by control characters of labels and ids

    def remember(self, name: str, value: Callable[[], Any]) -> Any:
        """Return ``value()`` and save nothing, since a stream cannot be resumed."""
        return value()

    def write(self, answers: list[Answer]) -> None:
        """Write a group of answers as JSON lines, with control characters escaped on a terminal.

        Raises:
            BrokenPipeError: the reader has gone.
            ResourceError: the disk is full.
        """
        data = b"".join(map(json_line, answers))
        if self._steered:
            data = escaped(data.decode()).encode()
        try:
            self.file.write(data)
            self.file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise refusal(error, "output") from None
        self.count += len(answers)

    def finish(self, **facts: Any) -> None:
        """Do nothing and ignore ``facts``: every group has been written."""


class Rejects:
    """File of rejected records: JSON lines with ``where``, ``error`` and the record.

    In a shard they begin with ``record``, the number in the whole input. The record is in ``line``
    if it is UTF-8, else in ``line_base64``; one that was parsed but cannot be used is serialised
    again. The file is created by the first reject.
    """

    def __init__(self, path: Path):
        self.path = path
        self.count = self._size = 0
        self.file: BinaryIO | None = None

    def forget(self) -> None:
        """Delete the file of an earlier run; UserError if a new one cannot be created there."""
        check_target(self.path)
        try:
            self.path.unlink(missing_ok=True)
            require_place(self.path)
        except OSError as error:
            raise refusal(error, self.path) from None

    def write(self, error: DataError, line: bytes, where: str | None = None) -> None:
        """Add a line that could not be read; ResourceError if the disk is full.

        Args:
            error: reason; its ``record``, if set, is written too.
            line: bytes of the line.
            where: place such as "docs.jsonl:17"; None takes it from the text of the error.
        """
        message = str(error)
        place = re.match(r"(.+?:\d+)\b", message)  # "docs.jsonl:17" of "docs.jsonl:17: what"
        record: dict[str, Any] = {} if error.record is None else {"record": error.record}
        record |= {"where": where or (place[1] if place else ""), "error": message}
        try:
            record["line"] = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            record["line_base64"] = base64.b64encode(line).decode()
        data = json_line(record)
        try:
            if self.file is None:
                handle = os.open(self.path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
                self.file = os.fdopen(handle, "r+b", buffering=0)
            _write_all(self.file, data)
        except OSError as problem:
            if self.file is not None:
                with suppress(OSError):
                    self.file.truncate(self._size)  # what is left of this line
            raise refusal(problem, self.path) from None
        self._size += len(data)
        self.count += 1

    def refuse(self, error: DataError, example: Example) -> None:
        """Add a record that was read but cannot be used, and set ``error.record`` to its number."""
        error.record = example.record
        line = json.dumps(example.fields, ensure_ascii=False, default=str)
        self.write(error, line.encode(errors="replace"), example.where)

    def close(self) -> None:
        """Close the file if it is open."""
        if self.file is not None:
            self.file.close()


def _opened(path: Path, new: bool = True) -> BinaryIO:
    """Open a file of this run, created if ``new`` and missing."""
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
    status = os.fstat(handle)
    owner = os.geteuid() if hasattr(os, "geteuid") else status.st_uid
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid != owner:
        os.close(handle)
        raise _strange(path)
    return os.fdopen(handle, "r+b", buffering=0)


def _strange(path: Path) -> UserError:
    return UserError(
        f"{path}: not a file that ldt has left (a link, another user's, no regular file); remove "
        "it, or name another file for the answers"
    )


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _whole_lines(file: BinaryIO) -> tuple[int, int]:
    """Return (bytes up to the last newline, number of lines)."""
    size = lines = place = 0
    while block := file.read(BLOCK):
        if newlines := block.count(b"\n"):
            size, lines = place + block.rindex(b"\n") + 1, lines + newlines
        place += len(block)
    return size, lines


def _save_settings(target: Path, answers: Path, settings: Settings) -> None:
    text = json.dumps(settings | {"answers": digest(answers)}, indent=1)
    remove_abandoned(_beside(target))
    write_whole(_beside(target), f"{text}\n")


def _settings_of(target: Path, made_by: dict[str, str]) -> Settings:
    """Settings of the run that made a finished file; UserError if it is another now."""
    settings = saved_settings(target)
    if settings is None:
        what = "exists already, and nothing beside it says what made it"
    elif other := _different(settings, made_by):
        what = f"finished, with another {other}"
    elif settings["answers"] != digest(target):
        what = "was changed after it was finished"
    else:
        return settings
    raise UserError(f"{target}: {what}; --overwrite replaces it")


def saved_settings(target: Path) -> Settings | None:
    """Settings that `AnswerFile.finish` saved, and ``answers``, the file's hash; None
    without any."""
    try:
        if not _beside(target).is_file():  # a pipe in its place would be waited for
            return None
        settings = json.loads(_beside(target).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) and "answers" in settings else None


def _different(settings: Settings, made_by: dict[str, str]) -> str:
    """Names of the settings that differ, for a message."""
    names = [name for name in made_by if settings.get(name) != made_by[name]]
    return " and another ".join(names)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.run.json")


def published_layout(
    name: str | None, output: str | None, task: AnyTask, formats: Iterable[str | None]
) -> str | None:
    """Name of the published layout to write answers in; None for lines or a table.

    Args:
        name: requested layout, which is returned if it can be written; None decides by the suffix:
            .json is `ldt.tasks.base.default_layout`.
        output: output file; None or "-" for standard output.
        task: task of the model.
        formats: format of the documents, then of the training data; None for lines.

    Raises:
        UserError: the task lacks the layout, the output is not a file, or the documents lack fields
            that the layout needs.
    """
    if name is None:
        if is_stream(output) or Path(str(output)).suffix.lower() != ".json":
            return None
        name = default_layout(task, formats)
        if name is None:
            raise UserError(
                f"answers of {task.name} are JSON lines; name the output .jsonl, not .json"
            )
        return name
    if name not in task.answers.layouts:
        known = listed(task.answers.layouts)
        raise UserError(f"--output-format {name}: none of {task.name}; published ones: {known}")
    if is_stream(output):
        raise UserError(f"--output-format {name}: made of all answers at once; name --output FILE")
    read = next(iter(formats), None)
    if task.answers.layouts[name].same_format and name != read:
        raise UserError(
            f"--output-format {name}: its offsets are those of its own documents, which are read "
            f"as {read or 'lines'}; {flag('data.format', name)} reads them"
        )
    return name


def layout_of(output: Path, published: PublishedLayout | None, kind: str = "") -> Layout | None:
    """Function (file of JSON lines, new file) that writes the format of a file's name; None for
    lines.

    UserError if files with this suffix cannot be written.

    Args:
        output: path of the file.
        published: published layout, used whatever the name; None decides by the suffix.
        kind: kind of the answers (`ldt.tasks.base.TaskAnswers`); "vectors" has formats of its own.
    """
    if kind == vectors.KIND:
        return vectors.layout_of(output)
    ending = output.suffix.lower()
    compressed = ending in _COMPRESSED
    if compressed and (published or output.stem.lower().endswith(_NOT_LINES)):
        raise UserError(f"{output}: lines alone are compressed; name it .jsonl{ending}")
    if ending in _NOT_WRITTEN:
        known = ".jsonl, .jsonl.gz, .jsonl.zst, .csv, .tsv, .parquet, .arrow or .json"
        raise UserError(f"{output}: {ending} is not written; name it {known}")
    tables: dict[str, Layout] = {
        **{ending: partial(_write_compressed, name) for ending, name in _COMPRESSED.items()},
        ".csv": partial(_write_csv, ","),
        ".tsv": partial(_write_csv, "\t"),
        ".parquet": partial(_write_columns, "pyarrow.parquet:ParquetWriter"),
        **dict.fromkeys((".arrow", ".feather"), partial(_write_columns, "pyarrow.ipc:new_file")),
    }
    if published is None:
        return tables.get(ending)
    if ending in _COLUMNS or (ending in tables and not isinstance(published.write(iter(())), str)):
        raise UserError(f"{output}: --output-format makes no such table; name it .json")
    return partial(write_published, published.write)


def write_published(published: Writer, answers: Path, target: Path) -> None:
    """Write a file of answers (JSON lines) to another one in a published layout."""
    with open(answers, "rb") as lines:
        answer_files.write(published(map(json.loads, lines)), target)


def _write_compressed(compression: str, answers: Path, target: Path) -> None:
    import pyarrow

    with open(answers, "rb") as lines, open(target, "xb") as file:
        out = pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, "w"), compression)
        shutil.copyfileobj(lines, out, 1 << 20)
        out.close()  # which closes the file as well


def _write_csv(delimiter: str, answers: Path, target: Path) -> None:
    """Write UTF-8 CSV with a header; lists, objects and booleans are JSON in their cells.

    Texts are written unchanged, even if a spreadsheet would read one as a formula.
    """
    columns = list(dict.fromkeys(chain.from_iterable(chain(*_groups(answers))))) or ["id"]
    with open(target, "x", encoding="utf-8", newline="") as file:
        # With this line end both of its characters are quoted; RFC 4180 has it too.
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\r\n")
        writer.writerow(columns)
        for row in chain.from_iterable(_groups(answers)):
            writer.writerow([_text(row.get(name)) for name in columns])


def _write_columns(writer: str, answers: Path, target: Path) -> None:
    """Write a table with typed columns, some rows at a time.

    A column whose values have no common type is text: JSON, or the text itself. ``writer`` names a
    class or function, called with the new file and the schema.
    """
    import pyarrow

    types: dict[str, Any] = {}
    for rows in _groups(answers):
        for name in dict.fromkeys(chain.from_iterable(rows)):
            types[name] = _common(types.get(name, pyarrow.null()), [row.get(name) for row in rows])
    types = {name: _filled(kind) for name, kind in types.items()} or {"id": pyarrow.string()}
    schema = pyarrow.schema(types.items())
    cells: dict[Any, Any] = {pyarrow.string(): _text, pyarrow.float64(): float}
    with open(target, "xb") as file, resolve_name(writer)(file, schema) as rows_out:
        for rows in _groups(answers):
            for name in (name for name, kind in types.items() if kind in cells):
                cell = cells[types[name]]
                for row in rows:
                    row[name] = None if row.get(name) is None else cell(row[name])
            rows_out.write_table(pyarrow.Table.from_pylist(rows, schema))


def _common(before: Any, values: list[Any]) -> Any:
    """Common Arrow type of values and of the type so far; text if there is none."""
    import pyarrow

    try:
        both = [pyarrow.schema([("x", kind)]) for kind in (before, pyarrow.array(values).type)]
        return pyarrow.unify_schemas(both, promote_options="permissive").field("x").type
    except (pyarrow.ArrowException, OverflowError):  # of several kinds, or a huge number
        return pyarrow.string()


def _filled(kind: Any) -> Any:
    """The type, with text where no value had a type."""
    import pyarrow
    from pyarrow.types import is_list, is_null, is_struct

    if is_null(kind) or "struct<>" in str(kind):
        return pyarrow.string()
    if is_list(kind):
        return pyarrow.list_(_filled(kind.value_type))
    if is_struct(kind):
        return pyarrow.struct([(field.name, _filled(field.type)) for field in kind])
    return kind


def _row(answer: Answer) -> Answer:
    row: Answer = {}
    for name, value in answer.items():
        if name != "scores" or not isinstance(value, dict):
            row[name] = value
            continue
        label = answer.get("label")
        if isinstance(label, str):
            row["score"] = value.get(label)
        elif isinstance(label, list):
            row |= {f"label.{name}": int(name in label) for name in value}
        row |= {f"{name}.{each}": score for each, score in value.items()}
    return row


def _groups(answers: Path) -> Iterator[list[Answer]]:
    """Rows in groups of `ROW_GROUP` bytes of lines, or one longer line."""
    group: list[Answer] = []
    size = 0
    with open(answers, "rb") as lines:
        for line in lines:
            if group and size + len(line) > ROW_GROUP:
                yield group
                group, size = [], 0
            group.append(_row(json.loads(line)))
            size += len(line)
    if group:
        yield group


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
