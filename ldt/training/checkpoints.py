"""Atomic checkpoints, verified by a manifest.

A checkpoint is written as ``checkpoint-N.tmp-<pid>``, its manifest with size and SHA-256 of every
file last; then it is flushed and renamed. So a folder ``checkpoint-N`` that matches its manifest is
exactly what the run saved.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from ldt.errors import ModelError
from ldt.io import files
from ldt.recipe.run import Run

log = logging.getLogger("ldt")

# What a run cannot go on without: one file at least whose name starts so, or so after "adapter_".
NEEDED = ("model", "optimizer", "scheduler", "rng_state", "run_state", "trainer_state.json")


def seal(folder: Path, target: Path, step: int) -> None:
    """Turn a filled temporary folder into the checkpoint ``target``, replacing an older one.

    Raises:
        OSError: the disk is full or failed; ``target`` is unchanged.
    """
    files.write_manifest(folder, step=step)
    files.move_into_place(folder, target)


def require_space(run: Run) -> None:
    """Raise OSError if the disk cannot hold another checkpoint as large as the newest one."""
    for newest in list(run.checkpoints().values())[-1:]:
        needed = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        free = shutil.disk_usage(run.folder).free
        if free < needed:
            what = f"{free / 1e6:,.1f} MB free, {needed / 1e6:,.1f} MB needed"
            raise OSError(errno.ENOSPC, what, str(run))


def problem(folder: Path, needed: Sequence[str] = NEEDED) -> str | None:
    """First fault of a checkpoint (file and reason); None if it is valid.

    Args:
        folder: the checkpoint.
        needed: prefixes of required file names, as `NEEDED`. With ``training.save_only_model`` a
            checkpoint has only the model and cannot be resumed.
    """
    if fault := files.damage(folder, hashes=False):  # which takes no time
        return fault
    names = [path.name.removeprefix("adapter_") for path in folder.rglob("*")]
    for start in needed:
        if not any(name.startswith(start) for name in names):
            return f"no {start} was saved in it"
    return files.damage(folder)


def newest_valid(run: Run) -> Path | None:
    """Newest valid checkpoint; damaged newer ones are logged as warnings.

    Returns:
        The folder, or None if the run has saved none.

    Raises:
        ModelError: all checkpoints are damaged. Starting again is the user's decision.
    """
    damaged = []
    for step, path in reversed(run.checkpoints().items()):
        fault = problem(path)
        if fault is None:
            return path
        damaged.append(f"{path.name}: {fault}")
        log.warning("%s: step %d is damaged: %s; trying the one before", path, step, fault)
    if damaged:
        raise ModelError(
            f"{run}: no checkpoint can be used ({'; '.join(damaged)}); "
            "put one back from a copy, or start anew with --overwrite"
        )
    return None


def part_of(path: Path) -> Path:
    """Return ``path``, a file of this process in a checkpoint such as ``rng_state_3.pt``; if there
    is none, because the training had fewer processes, the file of the first that has one."""
    if path.exists():
        return path
    start = path.stem.rstrip("0123456789").rstrip("_")
    return next(iter(sorted(path.parent.glob(f"{start}*{path.suffix}"))), path)


def prune(run: Run, keep: int | None, best: Path | None) -> None:
    """Delete checkpoints of a run but for the newest ``keep`` and the folder ``best``. With
    ``keep`` None or 0, or if the newest one is incomplete on disk, nothing is deleted."""
    folders = list(run.checkpoints().values())
    if not keep or len(folders) <= keep or files.damage(folders[-1], hashes=False):
        return
    for path in folders[:-keep]:
        if best is None or path.name != best.name:
            _remove(path)


def remove_all(run: Run) -> None:
    """Delete all checkpoints of a finished run; failures are logged, not raised."""
    for path in run.checkpoints().values():
        try:
            _remove(path)
        except OSError as error:
            log.warning("%s: not removed: %s", path, error.strerror)


def _remove(path: Path) -> None:
    """Delete a checkpoint, renamed first so that a half-deleted one is not mistaken for valid."""
    gone = files.temporary(path)
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
