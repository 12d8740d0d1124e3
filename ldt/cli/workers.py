"""The places of the processes that answer for ``--workers``."""

import ctypes
import os
import re
import sys

from ldt import system
from ldt.errors import UserError, plural
from ldt.inference.executor import Seat

CORES = 4  # of a worker on the CPU, where their number is chosen here


def seats(workers: str, device: str) -> list[Seat]:
    """The place of each process; none where the process of the command answers itself.

    "auto" is a process for each GPU. On a CPU it is one for every `CORES` cores: up to a fifth of a
    forward pass of a short document runs in one thread, so more cores for each gain little, while
    fewer would take more memory, as each process has activations of its own.

    Args:
        workers: their number, or "auto".
        device: a torch device, or "auto".

    Raises:
        UserError: it is no such number, or there are not as many GPUs.
    """
    if workers != "auto" and not re.fullmatch("0*[1-9][0-9]{0,3}", workers):
        raise UserError(f"--workers {workers}: expected a whole number from 1 on, or auto")
    count = None if workers == "auto" else int(workers)
    if count == 1:
        return []
    gpus = _gpus() if device in ("auto", "cuda") else 0
    if not gpus and device in ("auto", "cpu"):
        count = count or max(1, system.thread_count() // CORES)
        threads, processors = system.shares(count)
        found = [Seat("cpu", threads, part) for part in processors]
    elif count and device not in ("auto", "cuda"):
        raise UserError(
            f"--workers {count}: several processes take all GPUs (--device cuda) or the CPU, not "
            f"{device}"
        )
    elif count and count > gpus:
        raise UserError(f"--workers {count}: more than {plural(gpus, 'GPU')}, one for each process")
    else:
        count = count or gpus
        threads, _ = system.shares(max(1, count))  # a GPU may be nearer to other processors
        found = [Seat(f"cuda:{number}", threads) for number in range(count)]
    return found if len(found) > 1 else []


def _gpus() -> int:
    """The GPUs that torch finds; no memory of theirs is taken.

    Without a driver there is none: then torch is not imported, so that processes can fork.
    """
    if sys.platform == "linux" and not _has_driver():
        return 0
    import torch

    return torch.cuda.device_count()


def _has_driver() -> bool:
    """True if there is the library of NVIDIA's driver, or the device of AMD's."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return os.path.exists("/dev/kfd")
    return True
