"""The threads of commands that compute, settled before they import torch."""

import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from functools import wraps
from typing import ParamSpec, TypeVar

from ldt import system
from ldt.errors import plural

MARGIN = 1.5  # times as fast: what a measurement beside other programs can tell
ROUNDS = 3  # of each number in turn, as the others come and go

log = logging.getLogger("ldt")

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def settled(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """The command, which settles its threads first."""

    @wraps(command)
    def run(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        settle(alone=options.get("workers", "1") == "1")
        return command(*args, **options)

    return run


def settle(alone: bool = True) -> None:
    """Let torch and numpy take the threads of `ldt.system.threads`, and say a quota.

    Beside other programs, fewer threads that would be faster are named. They are not taken: the
    last digits of an answer, and with them a training, would depend on who else computes.

    Args:
        alone: False where processes may be forked, which torch must not be imported before.

    Raises:
        UserError: LDT_THREADS is no whole number from 1 on.
    """
    number, why = system.threads()
    if number is not None:
        system.use_threads(number)
        if why != "LDT_THREADS":
            log.info(f"{plural(number, 'thread')}: {why}; LDT_THREADS takes another number")
    load, processors = system.load(), len(system.processors())
    # Granted threads are asked for last: that reads the control groups again.
    if why in system.VARIABLES or load <= processors or (taken := system.thread_count()) < 2:
        return
    rates = speeds(halves(taken)) if alone else {}
    busy = f"a load of {load:.3g} on {plural(processors, 'processor')}"
    if not rates:
        log.warning(f"{busy}: LDT_THREADS=1 may be faster than {taken} threads")
        return
    best = max(rates, key=lambda each: rates[each])
    if (times := rates[best] / rates[taken]) > MARGIN:
        faster = f"LDT_THREADS={best} would be {times:.1f} times as fast as {taken} threads"
        log.warning(f"{busy}: {faster}, measured now")


def halves(number: int) -> list[int]:
    """A number of threads, half of it, and so on down to one."""
    return [number >> half for half in range(number.bit_length())]


def speeds(numbers: Sequence[int], seconds: float = 0.15) -> dict[int, float]:
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


def _speeds(numbers: Sequence[int], seconds: float) -> dict[int, float]:
    import torch
    from torch.nn import functional as F

    x, up, down = torch.randn(512, 384), torch.randn(1536, 384), torch.randn(384, 1536)
    up.requires_grad_()
    down.requires_grad_()

    def compute() -> None:
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
