"""Checkpoints that are whole or absent, and the lock of a run folder.

A checkpoint is filled as ``checkpoint-N.tmp-<pid>`` beside its target. Its manifest, with the size
and the sha256 of every file, is written last; then all is flushed to the disk and renamed. So a
folder named ``checkpoint-N`` that equals its manifest is what the run saved, and nothing else is.
"""

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

from ldt.errors import ModelError, ResourceError, UserError

try:
    import fcntl
except ImportError:  # not on Windows, where the process number has to do
    fcntl = None

log = logging.getLogger("ldt")

MANIFEST = "manifest.json"
# What a run cannot go on without: one file at least whose name starts so.
NEEDED = ("model", "optimizer", "scheduler", "rng_state", "run_state", "trainer_state.json")
_TORCH_WRITE = ("PytorchStreamWriter", "inline_container", "unexpected pos")
_NAME = re.compile(r"checkpoint-(\d+)")
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


def seal(folder: Path, target: Path, step: int) -> None:
    """Turn a filled temporary folder into the checkpoint ``target``.

    An older folder of that name, such as a damaged one that the run has passed again, is replaced.

    Raises:
        OSError: the disk did not take it; ``target`` is as it was.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            flush(path)
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": digest(path)}
    write_whole(folder / MANIFEST, json.dumps({"step": step, "files": files}, indent=1) + "\n")
    for inner in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        flush(inner)
    if target.exists():
        old = temporary(target.with_name(f"{target.name}.old"))
        target.rename(old)
        folder.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(target)
    flush(target.parent)


def problem(folder: Path, *, hashes: bool = True) -> str | None:
    """What is wrong with a checkpoint: the file and what was found, or None.

    Args:
        folder: the checkpoint.
        hashes: False compares sizes only, which takes no time.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        entries = [(name, entry["bytes"], entry["sha256"]) for name, entry in files.items()]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    for name, size, _ in entries:
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes, not {size:,}"
    for start in NEEDED:
        if not any(name.rpartition("/")[2].startswith(start) for name in files):
            return f"no {start} was saved in it"
    for name, _, sha256 in entries if hashes else ():
        try:
            found = digest(folder / name)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if found != sha256:
            return f"{name} has changed since it was saved (sha256)"
    return None


def is_write_error(error: Exception) -> bool:
    """Whether an exception of saving is about the disk; torch has no type of its own for it."""
    if isinstance(error, OSError | SafetensorError):
        return True
    return any(text in str(error) for text in _TORCH_WRITE)


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoint folders of a run, valid or not, by step, oldest first."""
    found = {}
    for path in run.glob("checkpoint-*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def newest_valid(run: Path) -> Path | None:
    """The checkpoint to go on from; each newer one that is damaged is named in a warning.

    Returns:
        The folder, or None when the run has not saved any.

    Raises:
        ModelError: there are checkpoints, all damaged. Starting anew is the user's decision.
    """
    found = checkpoints(run)
    wrong = []
    for step, path in reversed(found.items()):
        what = problem(path)
        if what is None:
            return path
        wrong.append(f"{path.name}: {what}")
        log.warning("%s: step %d is damaged: %s; trying the one before", path, step, what)
    if wrong:
        raise ModelError(
            f"{run}: no checkpoint can be used ({'; '.join(wrong)}); "
            "put one back from a copy, or start anew with --overwrite"
        )
    return None


def part_of(path: Path) -> Path:
    """A file of one process of several; of a process that was not there when it was saved, that of
    the first one."""
    if path.exists():
        return path
    start = path.stem.rstrip("0123456789").rstrip("_")
    return next(iter(sorted(path.parent.glob(f"{start}*{path.suffix}"))), path)


def prune(run: Path, keep: int | None, best: Path | None) -> None:
    """Delete old checkpoints but the newest ``keep`` and the best one. None or 0 keeps all.

    Nothing goes before the newest one is seen to be complete on the disk.
    """
    found = list(checkpoints(run).values())
    if not keep or len(found) <= keep or problem(found[-1], hashes=False):
        return
    for path in found[:-keep]:
        if best is None or path.name != best.name:
            gone = temporary(path)
            path.rename(gone)  # a half-deleted folder must not look like a checkpoint
            shutil.rmtree(gone, ignore_errors=True)


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
