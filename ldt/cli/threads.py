"""Threads of commands that compute, limited before torch is imported."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ldt import system
from ldt.errors import plural

log = logging.getLogger("ldt")

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def thread_limited(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorator of a command that limits the threads before it runs."""

    @wraps(command)
    def run(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        limit_threads()
        return command(*args, **options)

    return run


def limit_threads() -> None:
    """Limit the threads of torch and numpy to those of `ldt.system.threads`, and report a quota.

    If other programs compute, a warning suggests fewer threads. They are not taken: the last digits
    of an answer, and with them a training, would depend on who else computes.

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
    if why not in system.VARIABLES and load > processors and (taken := system.thread_count()) > 1:
        busy = f"a load of {load:.3g} on {plural(processors, 'processor')}"
        log.warning(f"{busy}: LDT_THREADS=1 may be faster than {taken} threads")
