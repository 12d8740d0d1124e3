"""Atomic files and folders, folder locks, manifests, free disk space, and result files."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from ldt.errors import ResourceError, UserError, refusal

log = logging.getLogger("ldt")
_TORCH_WRITE = ("PytorchStreamWriter", "inline_container", "unexpected pos")
MANIFEST = "manifest.json"
_POLL = 0.2  # seconds between two tries for a lock
_LEEWAY = 60  # seconds by which the clocks of processes and files may differ
_REPLACED = ".replaced"  # ends the name of a folder while another one takes its place
_BLOCK = 4096  # bytes that a disk with any room takes
_LEFTOVER = re.compile(r".+\.tmp-\d+")


def temporary(target: Path) -> Path:
    """Path beside ``target``, ``<name>.tmp-<process id>``, under which this process writes it."""
    return target.with_name(f"{target.name}.tmp-{os.getpid()}")


def digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp(path: Path) -> dict[str, int]:
    """Size and modification time of a file, for detecting changes: ``bytes`` and ``mtime_ns``."""
    stat = path.stat()
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def key_of(parts: dict[str, Any]) -> str:
    """Cache key of 16 hexadecimal digits: hash of the JSON values that the cached content depends
    on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically (text in UTF-8): after an error or a crash the old file is still
    there."""
    remove_abandoned(path)
    unfinished = temporary(path)
    try:
        # "x": a link that somebody planted under this name is not followed.
        with unfinished.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        remove(unfinished)
        raise


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Create a folder atomically: yields a temporary folder beside ``target``, whose parents are
    made, to fill; one block at a time for a target in a process.

    After the block the folder is flushed and renamed, replacing an older folder. If the block or
    the disk fails, ``target`` is unchanged and the temporary folder is removed.

    Raises:
        OSError: the disk is full or failed.
    """
    remove_abandoned(target)
    folder = temporary(target)
    folder.mkdir(parents=True)
    try:
        yield folder
        move_into_place(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content, ignoring what cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        for _ in range(2):  # a disk of the network may hold on to names at first
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
    else:
        with suppress(OSError):
            path.unlink()


def move_into_place(folder: Path, target: Path) -> None:
    """Flush a filled folder and rename it to ``target``, replacing an older folder.

    Raises:
        OSError: the disk is full or failed; ``target`` is unchanged.
    """
    flush_folder(folder)
    if target.exists():
        old = temporary(target.with_name(target.name + _REPLACED))
        target.rename(old)
        try:
            folder.rename(target)
        except OSError:
            old.rename(target)
            raise
        remove(old)
    else:
        folder.rename(target)
    flush(target.parent)


def write_manifest(folder: Path, **facts: Any) -> None:
    """Write size and SHA-256 of every file of a folder into its ``manifest.json``.

    Args:
        folder: folder to describe.
        facts: further entries of the manifest.

    Raises:
        OSError: the disk is full or failed.
    """
    entries = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    write_whole(folder / MANIFEST, json.dumps(facts | {"files": entries}, indent=1) + "\n")


def damage(folder: Path, *, hashes: bool = True) -> str | None:
    """Message about the first file that differs from the folder's manifest; None if none does.

    Files that the manifest does not list are ignored.

    Args:
        folder: folder with a ``manifest.json``.
        hashes: False compares only sizes, which is fast.
    """
    try:
        entries = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        listed = [(name, int(entry["bytes"]), entry["sha256"]) for name, entry in entries.items()]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    for name, size, sha256 in listed:
        path = folder / name
        if not path.is_file():  # a pipe in its place would be waited for
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes, not {size:,}"
        try:
            if hashes and digest(path) != sha256:
                return f"{name} has changed since it was saved (sha256)"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def flush_folder(folder: Path) -> None:
    """Flush all files of a folder to disk, and give them the permissions that the umask allows.
    Libraries that write through a temporary file, such as safetensors, leave it readable by its
    owner only. The folder has the umask's permissions; files get them without execution."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.parent.stat().st_mode & 0o666)
        flush(path)
    flush(folder)  # names last: they promise that the contents are there


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync)."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no handle for it
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some disks cannot fsync folders
            raise
    finally:
        os.close(handle)


def unwritten(error: Exception) -> str | None:
    """Message for a failed save; None if the exception is not about the disk."""
    if any(text in str(error) for text in _TORCH_WRITE):
        return "the disk did not take all of a file"
    return str(error) or repr(error) if isinstance(error, OSError | SafetensorError) else None


def remove_leftovers(folder: Path) -> None:
    """Remove the files and folders ``*.tmp-NUMBER`` of killed processes in a folder; needs its
    lock."""
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name):
            remove(path)


def remove_abandoned(target: Path) -> None:
    """Remove the temporary files beside ``target`` whose processes no longer run.

    An older folder that had been moved away is restored if nothing took its place.

    Args:
        target: a path, whose name may contain ``*``.
    """
    for moved in (_REPLACED, ""):
        for path in target.parent.glob(f"{_pattern(target.name)}{moved}.tmp-*"):
            if not _abandoned(path):
                continue
            if moved and not target.exists():
                path.rename(target)
            else:
                remove(path)


def _pattern(name: str) -> str:
    return "*".join(map(glob.escape, name.split("*")))


def _abandoned(path: Path) -> bool:
    """True if the process that a temporary file names is gone, or its number was reused."""
    maker = path.name.rpartition("-")[2]
    if not maker.isdecimal() or int(maker) == os.getpid():
        return maker.isdecimal()
    try:
        return not _lives(int(maker), path.lstat().st_mtime)
    except OSError:  # somebody else removed it
        return False


def _lives(number: int, since: float) -> bool:
    import psutil

    try:
        process = psutil.Process(number)
        ended = process.status() == psutil.STATUS_ZOMBIE
        return not ended and process.create_time() <= since + _LEEWAY
    except (psutil.Error, ValueError, OverflowError) as error:
        return isinstance(error, psutil.AccessDenied)


def require_space(
    folder: Path, needed: int, what: str, would_do: str = "free some, or name another folder"
) -> None:
    """Raise a ResourceError if a disk lacks space for what a command will write.

    Args:
        folder: folder on the disk; need not exist yet.
        needed: bytes.
        what: purpose of the bytes, for the message.
        would_do: remedy, for the message.
    """
    free = shutil.disk_usage(existing(folder)).free
    if free < needed:
        raise ResourceError(
            f"{folder}: {free / 1e6:,.1f} MB free, {needed / 1e6:,.1f} MB needed for {what}; "
            f"{would_do}"
        )


def existing(path: Path) -> Path:
    """The path or its nearest existing parent."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


class Lock:
    """Exclusive right of one process to write in a folder, as a context manager.

    A kernel lock on ``.lock`` ends with its process; on file systems without locks `filelock`
    checks if the owner is alive. ``.lock.json`` names the host, the process and its start, for
    messages.

    Args:
        folder: folder to lock; created if missing.
        wait: True waits for the lock instead of raising.

    Raises:
        UserError: another process holds the lock, or the folder cannot be created or written.
    """

    def __init__(self, folder: Path, *, wait: bool = False):
        self.folder, self.wait = folder, wait
        self._lock = FileLock(folder / ".lock", thread_local=False)
        self._owner = folder / ".lock.json"
        self._ours: tuple[int, int] | None = None

    def __enter__(self) -> Lock:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._acquire()
            self._ours = _identity(self.folder)
            self._sign()
        except (FileExistsError, NotADirectoryError):
            raise UserError(f"{self.folder}: is a file or lies in one, not a folder") from None
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be written: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        # Before the release, or the files of the next owner would be removed. Where the folder
        # went away meanwhile, another process may have one of that name: its files stay.
        with suppress(OSError):
            if self.same_folder():
                for path in (self._owner, Path(self._lock.lock_file)):
                    with suppress(OSError):  # Windows does not remove what is open
                        path.unlink(missing_ok=True)
        with suppress(OSError):
            self._lock.release()

    def same_folder(self) -> bool:
        """True if the path still leads to the locked folder; OSError if there is no folder."""
        return self._ours == _identity(self.folder)

    def _acquire(self) -> None:
        while True:
            owner = self._read()
            # The kernel lock of another host may not be seen from here: its name counts.
            if owner.get("host", socket.gethostname()) == socket.gethostname():
                with suppress(Timeout):
                    self._lock.acquire(timeout=0)
                    break
            if not self.wait:
                raise UserError(self._busy(owner))
            time.sleep(_POLL)
        if owner and self._owner.exists():
            who = f"process {owner.get('pid')}"
            log.warning("%s: %s ended without unlocking it; taken over", self.folder, who)

    def _sign(self) -> None:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
        try:
            write_whole(self._owner, json.dumps(owner))
        except BaseException:
            self.__exit__()
            raise

    def _read(self) -> dict[str, Any]:
        try:
            owner = json.loads(self._owner.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # missing, empty, or cut short by a full disk
            return {}
        return owner if isinstance(owner, dict) else {}

    def _busy(self, owner: dict[str, Any]) -> str:
        pid, host, started = (owner.get(key, "?") for key in ("pid", "host", "started"))
        would_do = "wait for it, or choose another training.output_dir"
        if host not in ("?", socket.gethostname()):
            would_do = f"if it is gone, delete {self._owner}"
        who = f"process {pid} on {host} trains here since {started}"
        return f"{self.folder}: {who}; {would_do}"


def holder(folder: Path) -> dict[str, Any] | None:
    """Owner of a folder's `Lock`: ``host``, ``pid`` and ``started`` (local time); None if it is
    free. The lock is not tried, so another process can take it meanwhile. A process on another
    host counts as alive."""
    lock = Lock(folder)
    owner = lock._read()
    if not owner or owner.get("host") != socket.gethostname():
        return owner or None
    try:
        # A process that began after the lock was written has only the number of the one that did.
        return owner if _lives(int(owner["pid"]), lock._owner.stat().st_mtime) else None
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _identity(folder: Path) -> tuple[int, int]:
    """Device and inode of a folder, which distinguish it from a later one of the same name."""
    stat = folder.stat()
    return stat.st_dev, stat.st_ino


def check_target(target: Path) -> None:
    """Raise a UserError if ``target`` is a folder, or lies in a folder that does not exist."""
    if target.is_dir():
        raise UserError(f"{target}: a folder; name a file for the answers")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such folder; make it or name another for the answers")


def check_result(target: Path, option: str, sources: Iterable[str | Path | None] = ()) -> None:
    """Raise a UserError if a result cannot be written, trying it with one block beside the file.

    Args:
        target: path of the result; pipes, devices and "-" are not tried.
        option: name of the option, for messages.
        sources: input files, which the result must not overwrite.
    """
    path = resolved(target)
    if is_stream(path):
        return
    check_target(path)
    if any(_same(path, source) for source in sources if source):
        raise UserError(f"{option} {target}: a file that is read; name another")
    try:
        require_place(path)
    except OSError as error:
        raise refusal(error, target) from None


def write_result(target: Path, text: str) -> None:
    """Write a text to a file atomically, to the file behind a link, or directly into a pipe or
    device; a UserError if that fails, except for BrokenPipeError."""
    path = resolved(target)
    try:
        if is_stream(path):
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            write_whole(path, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise refusal(error, target) from None


def require_place(target: Path) -> None:
    """Write one block of 4 KiB beside ``target`` as a test, and remove it; OSError if that
    fails."""
    probe = temporary(target)
    try:
        remove_abandoned(target)
        handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, bytes(_BLOCK))
        finally:
            os.close(handle)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def resolved(target: Path) -> Path:
    """The path, or the target of its link; UserError if the link leads back to itself."""
    if not target.is_symlink():
        return target
    path = Path(os.path.realpath(target))
    if path.is_symlink():
        raise UserError(f"{target}: a link that leads back to itself; name another file")
    return path


def is_stream(output: str | Path | None) -> bool:
    """True if output goes to standard output (None or "-"), a pipe or a device."""
    if output is None or output == "-":
        return True
    return os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output)


def _same(target: Path, source: str | Path) -> bool:
    try:
        return target.samefile(source)
    except (OSError, ValueError):  # not there yet
        return target.absolute() == Path(source).absolute()


def check_new_folder(target: Path, source: Path, overwrite: bool) -> None:
    """Raise a UserError if an output folder is in use or cannot be created.

    Leftovers of killed processes beside it are removed first.

    Args:
        target: folder to create.
        source: model folder it is made from.
        overwrite: True permits replacing an existing model, never anything else.
    """
    place, here = Path(os.path.abspath(target)), Path(os.path.realpath(source))
    remove_abandoned(place)
    if Path(os.path.realpath(place)) in (here, *here.parents):
        raise UserError(f"{target} is or holds the source; name another target")
    if os.path.lexists(place) and not overwrite:
        raise UserError(f"{target} exists already; --overwrite replaces it")
    if os.path.lexists(place) and not (place / "config.json").is_file():
        raise UserError(f"{target} is not a model, which --overwrite would replace")
    parent = existing(place.parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{target}: {parent} is not a folder that can be written to")


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Context manager that turns an OSError while a file is written into the UserError or subclass
    that fits its reason, and an error of safetensors into a ResourceError, both naming
    ``target``."""
    try:
        yield
    except SafetensorError as error:
        raise ResourceError(f"{target}: cannot be written: {error}") from error
    except OSError as error:
        raise refusal(error, f"{target}: cannot be written") from error
