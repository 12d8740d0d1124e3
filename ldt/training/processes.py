"""Processes of a distributed training."""

from __future__ import annotations

import gc
import os


def rank() -> int:
    """Number of this process in a distributed training, from 0 (``RANK``)."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    """Number of processes; 1 without distribution."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """True in the process of rank 0, which writes and logs."""
    return rank() == 0


def leave_group() -> None:
    """Leave the process group, if there is one, at the end of a training.

    Its threads are joined here. At interpreter exit they sometimes abort the process, after the run
    was saved, because they release tensors and need the GIL.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        gc.collect()  # a Trainer that is over is part of a cycle, and holds the group
        distributed.destroy_process_group()
