"""The processes of one training: how many there are, and which of them this is."""

from __future__ import annotations

import gc
import os


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    """Number of processes that train together; 1 for a training by itself."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """True in the one that writes and logs."""
    return rank() == 0


def leave_group() -> None:
    """Leave the group of a training in several processes, at the end of this one.

    Its threads are joined here. Left to the end of the interpreter, they at times abort it, and
    with it a run that is saved: they let go of tensors, which takes Python.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        gc.collect()  # a Trainer that is over is part of a cycle, and holds the group
        distributed.destroy_process_group()
