"""The threads of commands that compute, settled before they import torch."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ldt.bench import limits
from ldt.data.children import use_threads
from ldt.errors import plural

log = logging.getLogger("ldt")

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def settled(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """The command, which settles its threads first."""

    @wraps(command)
    def run(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        settle()
        return command(*args, **options)

    return run


def settle() -> None:
    """Let torch and numpy take the threads of `ldt.bench.limits.threads`, and say a quota.

    Raises:
        UserError: LDT_THREADS is no whole number from 1 on.
    """
    number, why = limits.threads()
    if number is None:
        return
    use_threads(number)
    if why != "LDT_THREADS":
        log.info(f"{plural(number, 'thread')}: {why}; LDT_THREADS takes another number")
