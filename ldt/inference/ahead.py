"""The records of a pipe, read ahead by a thread."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from ldt.io.records import Example, OnError

PATIENCE = 0.05  # seconds that a pipe may pause before what waits is answered
QUEUED = 4  # records that a thread reads ahead of a pipe's reader

Records = Callable[..., Iterator[Example]]  # makes them anew; its argument is ``on_error``


def never() -> bool:
    """Nobody works on what the pipe gave before."""
    return False


def ahead(
    records: Records,
    on_error: OnError | None,
    patience: float = PATIENCE,
    busy: Callable[[], bool] = never,
) -> Iterator[Example | None]:
    """The records of a pipe, read by a thread, and None where the next is not there in time.

    One None for each pause and, while somebody is busy, one after the other.

    Args:
        on_error: is called here, in the reader's thread, in the order of the records.
        patience: seconds to wait before a None.
        busy: whether somebody works on what came before, and is to be looked after.

    Raises:
        Exception: what ``records`` raises.
    """
    waiting: queue.Queue = queue.Queue(QUEUED)
    stopped = threading.Event()

    def put(*item):
        while not stopped.is_set():
            try:
                return waiting.put(item, timeout=1)
            except queue.Full:
                pass
        raise _StoppedError

    def work():
        bad = None if on_error is None else lambda error, raw: put("bad", error, raw)
        with suppress(_StoppedError):
            try:
                for record in records(on_error=bad):
                    put("record", record)
                put("end")
            except Exception as error:
                put("error", error)

    threading.Thread(target=work, daemon=True, name="input").start()
    paused = True  # and a None has been given for it
    try:
        while True:
            try:
                kind, *item = waiting.get(timeout=patience if busy() or not paused else None)
            except queue.Empty:
                paused = True
                yield None
                continue
            if kind == "end":
                return
            if kind == "error":
                raise item[0]
            if kind == "bad":
                assert on_error is not None  # without it the records raise
                on_error(*item)
            else:
                paused = False
                yield item[0]
    finally:
        stopped.set()


class _StoppedError(BaseException):
    """Nobody wants more records."""
