"""Files and folders that appear whole or not at all, the lock of a folder, free disk space."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from pathlib import Path

from safetensors import SafetensorError

from ldt.errors import ResourceError, UserError

try:
    import fcntl
except ImportError:  # not on Windows, where the process number has to do
    fcntl = None

log = logging.getLogger("ldt")
_TORCH_WRITE = ("PytorchStreamWriter", "inline_container", "unexpected pos")
_LEFTOVER = re.compile(r".+\.tmp-\d+")


def temporary(target: Path) -> Path:
    """The name beside ``target`` under which this process fills it."""
    return target.with_name(f"{target.name}.tmp-{os.getpid()}")


def digest(path: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is there in full or as it was before."""
    beside = temporary(path)
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Have the disk hold a file, or a folder's list of names, before going on."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no handle for it
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
        ):  # file systems that cannot flush folders
            raise
    finally:
        os.close(handle)


def is_write_error(error: Exception) -> bool:
    """Whether an exception of saving is about the disk; torch has no type of its own for it."""
    if isinstance(error, OSError | SafetensorError):
        return True
    return any(text in str(error) for text in _TORCH_WRITE)


def remove_leftovers(run: Path) -> None:
    """Remove what a killed process left half written in its run folder. Call it under the lock."""
    for path in run.iterdir():
        if _LEFTOVER.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def require_space(folder: Path, needed: int, what: str) -> None:
    """Stop before the start when the disk cannot hold what the run will write.

    Args:
        folder: on the disk in question; need not exist yet.
        needed: bytes.
        what: what needs them, for the message.

    Raises:
        ResourceError: fewer bytes are free.
    """
    free = shutil.disk_usage(existing(folder)).free
    if free < needed:
        raise ResourceError(
            f"{folder}: {free / 1e6:,.1f} MB free, {needed / 1e6:,.1f} MB needed for {what}; "
            "free some, set training.save_total_limit=1, or choose another training.output_dir"
        )


def existing(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


class Busy(UserError):
    """Another process holds the lock."""


class Lock:
    """The right of one process to write in a run folder, held as a context.

    ``.lock`` names the host, process and start time. The kernel's file lock on it says whether that
    process still lives; where there is none (Windows, some network disks), its number does.

    Args:
        folder: made if missing.

    Raises:
        Busy: another process holds it.
        UserError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path):
        self.path = folder / ".lock"
        self._file = None

    def __enter__(self) -> Lock:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            while True:
                file = self.path.open("a+", encoding="utf-8")
                owner = self._owner(file)
                free = self._claim(file, owner)
                # A process that ended just now has taken the name away with it: begin again.
                if free and self._same(file):
                    break
                file.close()
                if not free:
                    raise Busy(self._busy(owner))
        except (FileExistsError, NotADirectoryError):
            raise UserError(f"{folder}: is a file or lies in one, not a folder") from None
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
        if owner:
            log.warning(
                "%s: process %s ended without unlocking it; taken over", folder, owner.get("pid")
            )
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "started": started}, file)
        file.flush()
        self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)
        self._file.close()

    @staticmethod
    def _owner(file) -> dict:
        file.seek(0)
        try:
            owner = json.loads(file.read())
        except ValueError:  # empty, or cut short by a full disk
            return {}
        return owner if isinstance(owner, dict) else {}

    @staticmethod
    def _claim(file, owner: dict) -> bool:
        """Whether the lock is ours now."""
        here = owner.get("host", socket.gethostname()) == socket.gethostname()
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return here  # another host's lock may not be seen from here
            except BlockingIOError:
                return False
            except OSError:
                pass  # the file system has no locks
        import psutil

        return not owner or (here and not psutil.pid_exists(int(owner.get("pid", -1))))

    def _same(self, file) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def _busy(self, owner: dict) -> str:
        who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
        message = f"{self.path.parent}: {who} trains here since {owner.get('started', '?')}; "
        if owner.get("host", socket.gethostname()) != socket.gethostname():
            return message + f"if it is gone, delete {self.path}"
        return message + "wait for it, or choose another training.output_dir"


def check_target(target: Path) -> None:
    """Refuse a file that cannot be made.

    Raises:
        UserError: it is a folder, or its folder is missing.
    """
    if target.is_dir():
        raise UserError(f"{target}: a folder; name a file for the answers")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such folder; make it or name another for the answers")
