"""How fast this machine computes at this moment, by the number of threads."""

import multiprocessing
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

from ldt import system

ROUNDS = 3  # of each number in turn, as other programs come and go


def speeds(numbers, seconds):
    """Tokens a second through half a layer, forward and backward, by each number of threads.

    A forked process measures it, so that nothing changes in this one.

    Args:
        seconds: of each number.

    Returns:
        number -> tokens a second; none where no process can be forked or there is a GPU.
    """
    if not system.can_fork():
        return {}
    import torch

    if torch.cuda.is_available():
        return {}
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            return pool.submit(_speeds, numbers, seconds).result()
    except (OSError, BrokenExecutor):
        return {}


def _speeds(numbers, seconds):
    import torch
    from torch.nn import functional as F

    x, up, down = torch.randn(512, 384), torch.randn(1536, 384), torch.randn(384, 1536)
    up.requires_grad_()
    down.requires_grad_()

    def compute():
        y = F.linear(F.gelu(F.linear(x, up)), down)
        F.layer_norm(x + y, (384,)).sum().backward()

    tokens, took = dict.fromkeys(numbers, 0), dict.fromkeys(numbers, 0.0)
    for _ in range(ROUNDS):
        for number in numbers:
            torch.set_num_threads(number)
            compute()  # starts the threads
            start = time.perf_counter()
            while (passed := time.perf_counter() - start) < seconds / ROUNDS:
                compute()
                tokens[number] += len(x)
            took[number] += passed
    return {number: tokens[number] / took[number] for number in numbers}
