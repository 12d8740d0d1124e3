"""Checkpoints that are atomic and verified by a manifest.

A checkpoint is filled as ``checkpoint-N.tmp-<pid>`` beside its target. Its manifest, with the size
and the sha256 of every file, is written last; then all is synced to the disk and renamed. So a
folder named ``checkpoint-N`` that equals its manifest is what the run saved, and nothing else is.
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
    """Turn a filled temporary folder into the checkpoint ``target``.

    An older folder of that name, such as a damaged one that the run has passed again, is replaced.

    Raises:
        OSError: the disk did not take it; ``target`` is as it was.
    """
    files.write_manifest(folder, step=step)
    files.move_into_place(folder, target)


def require_space(run: Run) -> None:
    """Raise OSError if the disk cannot hold another checkpoint such as the newest one."""
    for newest in list(run.checkpoints().values())[-1:]:
        needed = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        free = shutil.disk_usage(run.folder).free
        if free < needed:
            what = f"{free / 1e6:,.1f} MB free, {needed / 1e6:,.1f} MB needed"
            raise OSError(errno.ENOSPC, what, str(run))


def problem(folder: Path, needed: Sequence[str] = NEEDED) -> str | None:
    """The first fault of a checkpoint, the file and what is wrong with it; None without one.

    Args:
        folder: the checkpoint.
        needed: beginnings of names, as `NEEDED` has them. With ``training.save_only_model`` a
            checkpoint has the model alone: it can be loaded and not be gone on from.
    """
    if fault := files.damage(folder, hashes=False):  # which takes no time
        return fault
    names = [path.name.removeprefix("adapter_") for path in folder.rglob("*")]
    for start in needed:
        if not any(name.startswith(start) for name in names):
            return f"no {start} was saved in it"
    return files.damage(folder)


def newest_valid(run: Run) -> Path | None:
    """The checkpoint to go on from; each newer one that is damaged is named in a warning.

    Returns:
        The folder, or None when the run has not saved any.

    Raises:
        ModelError: there are checkpoints, all damaged. Starting anew is the user's decision.
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
    """The file of one process of several; of a process that was not there when it was saved, the
    file of the first one."""
    if path.exists():
        return path
    start = path.stem.rstrip("0123456789").rstrip("_")
    return next(iter(sorted(path.parent.glob(f"{start}*{path.suffix}"))), path)


def prune(run: Run, keep: int | None, best: Path | None) -> None:
    """Delete old checkpoints but the newest ``keep`` and the best one. None or 0 keeps all.

    None is deleted before the newest one is seen to be complete on the disk.
    """
    folders = list(run.checkpoints().values())
    if not keep or len(folders) <= keep or files.damage(folders[-1], hashes=False):
        return
    for path in folders[:-keep]:
        if best is None or path.name != best.name:
            _remove(path)


def remove_all(run: Run) -> None:
    """Delete the checkpoints of a run that is finished; one that cannot be is named."""
    for path in run.checkpoints().values():
        try:
            _remove(path)
        except OSError as error:
            log.warning("%s: not removed: %s", path, error.strerror)


def _remove(path: Path) -> None:
    """Delete a checkpoint; half-deleted, it does not look like one."""
    gone = files.temporary(path)
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
