"""Documents encoded by several processes, in order."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from ldt.data.features import Feature
from ldt.errors import ResourceError
from ldt.io.record_store import Examples
from ldt.io.records import Example
from ldt.system import end_with_parent

AT_ONCE = 64  # documents that a process gets at a time
Encode = Callable[[Example], list[Feature]]

_given: tuple[Sequence[Example], Encode]  # of a process of the pool


def encoded(
    examples: Iterable[Example], first: int, encode: Encode, workers: int
) -> Iterator[list[Feature]]:
    """The inputs of each document from number ``first`` on, in order.

    Args:
        encode: makes them; can be pickled where there are several ``workers``, and ``examples`` are
            `Examples` there.

    Raises:
        DataError: as ``encode`` does.
        ResourceError: a process died.
    """
    if not isinstance(examples, Examples):
        return map(encode, islice(examples, first, None))
    left = examples.only(range(first, len(examples)))
    several = workers > 1 and len(left) > AT_ONCE
    return _by_processes(left, encode, workers) if several else map(encode, left)


def _by_processes(
    examples: Sequence[Example], encode: Encode, workers: int
) -> Iterator[list[Feature]]:
    waiting: deque[Future[list[list[Feature]]]] = deque()
    # Started anew, not forked: threads of a library that are not there in a copy may hold locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _begin, (examples, encode))
    try:
        for start in range(0, len(examples), AT_ONCE):
            waiting.append(pool.submit(_encode, start, min(start + AT_ONCE, len(examples))))
            if len(waiting) > 4 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise ResourceError(
            "a process that encodes documents died, often for want of memory; fewer data.workers "
            "take less"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(examples: Sequence[Example], encode: Encode) -> None:
    """Make a process ready; it ends with the one that started it."""
    global _given
    end_with_parent(signal.SIGINT)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _given = examples, encode


def _encode(start: int, end: int) -> list[list[Feature]]:
    examples, encode = _given
    return [encode(examples[number]) for number in range(start, end)]
