"""Worker processes that answer groups of documents, returned in order.

This process keeps the documents. Each worker is a process with the model and some of the
processors, and a thread here that talks to it over a pipe. Weights are memory-mapped and shared;
copies in bf16 or int8 are in anonymous shared memory (Linux; elsewhere each worker has its own), so
nothing is left behind. This module does not import torch.
"""

import atexit
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import DupFd
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, Protocol, cast

import psutil

from ldt.data.features import Feature
from ldt.errors import ResourceError, plural
from ldt.io.records import Example
from ldt.system import can_fork, end_with_parent, signals_blocked, use_threads

log = logging.getLogger("ldt")

PATIENCE = 600.0  # seconds in which a worker neither replies nor computes, and is taken for dead
BEAT = 1.0  # seconds between two replies of one that works on
THREADS = "number of threads a worker"  # a setting, which decides the last digits of answers
_TICK = 1.0  # seconds between two looks at a worker

Settings = dict[str, Any]
Document = tuple[Example, list[Feature]]  # with its inputs
Tell = Callable[[int, int], object]  # is called with chunks and tokens that have been run
Answers = Callable[..., Any]  # of a group, what comes with it and a `Tell`, such as `Answering`


class Answered(NamedTuple):
    """Answers to a group, and the answers in fp32 to its first documents if they are compared."""

    answers: list[dict[str, Any]]
    exact: list[dict[str, Any]]


def untold(chunks: int, tokens: int) -> None:
    """No-op in place of a callback: takes numbers of chunks and tokens and does nothing."""


class Maker(Protocol):
    """Protocol of a pickled object that loads a model in a worker."""

    def prepare(self) -> None:
        """Import the libraries of the model, for forked processes; compute nothing."""

    def settings(self) -> Settings:
        """Settings for this machine, such as {"precision": "bf16"}; all workers get the first's."""

    def load(self, settings: Settings) -> Answers:
        """Load the model with these settings; return the function that answers groups."""


class Seat(NamedTuple):
    """Resources of a worker.

    Args:
        device: torch device of its model.
        threads: number of compute threads.
        processors: processors it may run on; empty for all.
    """

    device: str
    threads: int
    processors: frozenset[int] = frozenset()


class LostError(ResourceError):
    """Two processes died with the same group, or a dead one cannot be replaced."""


class Workers:
    """Pool of worker processes, as a context manager that ends them.

    If a worker dies, its group is given to a new one, once. A worker that neither replies nor
    computes for `PATIENCE` seconds is killed; time during which this process is stopped does not
    count.

    Args:
        makers: makers of the models, one per worker.
        seats: resources of the workers.

    Attributes:
        memory: descriptor of a shared anonymous file, the same number in all processes, for
            `ldt.model.precision.lowered_in`; None if the system has none.
        tell: callback of chunks and tokens computed, called by the threads; negative numbers mean
            that they are computed again.
        lock: held while processes start and end and replies are counted.
    """

    def __init__(self, makers: Sequence[Maker], seats: Sequence[Seat]):
        self.memory: int | None = None
        if sys.platform == "linux":
            self.memory = os.memfd_create("ldt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.tell: Tell = untold
        self.lock = threading.Lock()
        self.ended = False
        self.proposed: Future[Settings] = Future()
        self.settled: Future[Settings] = Future()
        self._waiting: SimpleQueue[_Pending | None] = SimpleQueue()
        self._groups: deque[Future[Any]] = deque()  # put and not taken back, in order
        self._workers = [_Worker(self, *place) for place in zip(makers, seats, strict=True)]
        self._logged: set[str] = set()

    def __enter__(self) -> "Workers":
        atexit.register(self._end)  # else a program that never leaves would wait for the processes
        return self

    def __exit__(self, *_: object) -> None:
        atexit.unregister(self._end)
        self._end()
        if self.memory is not None:
            os.close(self.memory)

    def _end(self) -> None:
        self.settled.cancel()
        with self.lock:
            self.ended = True
            for worker in self._workers:
                worker.kill()
            for worker in self._workers:
                worker.kill(wait=True)
                self._waiting.put(None)

    def require_open(self) -> None:
        """Raise LostError if the processes were ended, by leaving the block."""
        if self.ended:
            raise LostError("the worker processes are ended")

    def start(self) -> None:
        """Start all processes, then the threads that talk to them.

        Where possible, CPU workers are forked from this process and share its imports: torch and
        transformers take 0.3 GB and seconds to import.
        """
        method = "spawn"
        if can_fork() and all(worker.seat.device == "cpu" for worker in self._workers):
            self._workers[0].maker.prepare()
            method = "fork"
        for worker in self._workers:
            worker.start(method)
        self._workers[0].talks = True
        for worker in self._workers:
            threading.Thread(target=worker.run, args=(self._waiting,), daemon=True).start()

    def settings(self) -> Settings:
        """Wait for the first process that is ready, and return the settings that it chose.

        Raises:
            UserError: a device cannot be used.
            ResourceError: two processes died in the same seat.
        """
        futures: list[Future[Any]] = [self.proposed, *(worker.loaded for worker in self._workers)]
        return wait(futures, return_when=FIRST_COMPLETED).done.pop().result()

    def load(self, settings: Settings) -> None:
        """Have all processes load their models with these settings, and wait for them.

        Raises:
            UserError: a model cannot be used.
            ResourceError: two processes died in the same seat.
        """
        self.settled.set_result(settings)
        for worker in self._workers:
            worker.loaded.result()

    def ask(self, documents: Sequence[Document], *more: Any) -> Any:
        """Have the next free worker answer a group, and return what its `Answers` function returns.

        Several threads may ask.

        Args:
            documents: documents of the group, (example, its features) each.
            more: further arguments of the function.

        Raises:
            LostError: two processes died with it, or the model cannot be loaded again.
            Exception: as raised in the worker.
        """
        return self._give(documents, *more).result()

    def _give(self, documents: Sequence[Document], *more: Any) -> "Future[Any]":
        answers: Future[Any] = Future()
        self._waiting.put(_Pending(documents, more, answers))
        return answers

    def busy(self) -> bool:
        """True while groups of `put` have not been yielded."""
        return bool(self._groups)

    def put(self, documents: Sequence[Document], compared: int) -> Iterator[Answered]:
        """Submit a group once fewer than two per worker are waiting; yields the answers of finished
        groups.

        A generator: nothing is submitted until it is iterated.

        Args:
            documents: documents of the group, (example, its features) each.
            compared: number of its first documents to answer in fp32 as well.
        """
        yield from self.collect(2 * len(self._workers) - 1)
        self._groups.append(self._give(documents, compared))
        yield from self.ready()

    def ready(self) -> Iterator[Answered]:
        """Yield the answers of finished groups, oldest first, up to one not finished; without
        waiting."""
        while self._groups and self._groups[0].done():
            yield from self.collect(len(self._groups) - 1)

    def collect(self, left: int = 0) -> Iterator[Answered]:
        """Wait for groups of `put` and yield their answers, oldest first, until ``left``
        are left."""
        while len(self._groups) > left:
            answered = self._groups[0].result()
            self._groups.popleft()
            yield answered

    def handle_reply(self, reply: "Reply", talks: bool) -> None:
        """Log a worker's lines, each once, and pass its counts to ``tell``.

        Args:
            reply: reply of the worker.
            talks: True logs all lines, False warnings only.
        """
        with self.lock:
            for level, line in reply.logged:
                if (talks or level >= logging.WARNING) and line not in self._logged:
                    self._logged.add(line)
                    log.log(level, "%s", line)
            self.tell(reply.chunks, reply.tokens)


class _Pending(NamedTuple):
    documents: Sequence[Document]
    more: tuple[Any, ...]
    answers: "Future[Any]"


class Reply(NamedTuple):
    """Worker's reply to a message, or a heartbeat if it is not the last.

    Args:
        value: result, or exception.
        chunks, tokens: chunks and tokens computed since the previous reply.
        logged: log levels and lines since the previous reply.
        last: False for a heartbeat.
    """

    value: Any
    chunks: int = 0
    tokens: int = 0
    logged: Sequence[tuple[int, str]] = ()
    last: bool = True


class _DiedError(Exception):
    """Death of a process; the text says how."""


class _Worker:
    """Process with a model, restarted if it dies, and the thread that talks to it.

    Attributes:
        loaded: future of its model.
        talks: True logs all of its lines, False only warnings.
    """

    def __init__(self, workers: Workers, maker: Maker, seat: Seat):
        self.workers, self.maker, self.seat = workers, maker, seat
        self.loaded: Future[None] = Future()
        self.talks = self._has_model = False
        self._hung = ""  # how long, of a process that had to be killed
        self._process: Any = None
        self._connection: Connection

    def start(self, method: str) -> None:
        workers, context = self.workers, cast(Any, multiprocessing.get_context(method))
        if method == "spawn" and os.name == "posix":
            resource_tracker.ensure_running()  # which would unblock signals below
        self._connection, theirs = Pipe()
        passed = theirs, self.seat, workers.memory and _Passed(workers.memory)
        with theirs, workers.lock, signals_blocked(), warnings.catch_warnings(), _isolated():
            warnings.simplefilter("ignore")  # from 3.12 on: numpy has threads, and heeds a fork
            workers.require_open()
            self._process = context.Process(target=_work, args=passed, daemon=True)
            self._process.start()

    def run(self, groups: "SimpleQueue[_Pending | None]") -> None:
        """Load the model and answer groups until the queue ends."""
        try:
            self._load()
            self.loaded.set_result(None)
        except Exception as error:
            self.loaded.set_exception(error)
            return
        for group in iter(groups.get, None):
            try:
                group.answers.set_result(self._answers(group))
            except Exception as error:
                group.answers.set_exception(error)

    def _load(self) -> None:
        self._twice(self._with_model, "before they had the model")

    def _with_model(self) -> None:
        if self._has_model and self._connection.poll():  # nothing was asked, so that is its end
            raise _DiedError(self._end())
        if self._has_model:
            return
        if self._process is None or self._process.pid is None:  # which could not be started
            self.start("spawn")
        proposed = self._ask("begin", self.maker)
        with suppress(InvalidStateError):  # another one came first
            self.workers.proposed.set_result(proposed)
        self._ask("load", self.workers.settled.result())
        self._has_model = True

    def _answers(self, group: _Pending) -> Any:
        """Answers to a group, from a new process if one dies."""
        first = group.documents[0][0]
        named = f"{plural(len(group.documents), 'document')} from id {first.id!r} on"

        def answers() -> Any:
            try:
                self._load()
            except Exception as error:
                raise LostError(str(error)) from error
            return self._ask("answer", group.documents, *group.more)

        return self._twice(answers, f"with the {named}", f"{first.where}: ", f" and its {named}")

    def _twice(self, work: Callable[[], Any], when: str, place: str = "", task: str = "") -> Any:
        """Do some work, once more in a new process if one dies; LostError if two do.

        ``when`` is for the error, ``place`` and ``task`` for the warning after the first death.
        """
        for again in (False, True):
            try:
                return work()
            except _DiedError as end:
                if again:
                    raise LostError(
                        f"{place}two worker processes, one after the other, have died {when}; the "
                        f"last one {end}; where the memory is too small, a smaller --batch-tokens "
                        "or fewer --workers take less"
                    ) from None
                log.warning(f"{place}a worker process {end}; another one takes its place{task}")

    def _ask(self, kind: str, *content: Any) -> Any:
        """Send a message; return or raise the value of the last reply, `_DiedError` without one."""
        workers, chunks, tokens = self.workers, 0, 0
        message = pickle.dumps((kind, *content))
        reply = Reply(None, last=False)
        try:
            self._connection.send_bytes(message)
            while not reply.last:
                self._await_reply()
                reply = pickle.loads(self._connection.recv_bytes())
                chunks, tokens = chunks + reply.chunks, tokens + reply.tokens
                workers.handle_reply(reply, self.talks)
        except (OSError, EOFError):
            workers.handle_reply(Reply(None, -chunks, -tokens), self.talks)
            raise _DiedError(self._end()) from None
        if isinstance(reply.value, BaseException):
            raise reply.value
        return reply.value

    def _await_reply(self) -> None:
        """Wait for a reply or the end of the process, which is killed if it hangs."""
        quiet, spent = 0.0, self._spent()
        while not self._connection.poll(_TICK):
            quiet += _TICK  # rather than by a clock, which goes on while this process is stopped
            if (now := self._spent()) > spent + 0.1:
                quiet, spent = 0.0, now
            if quiet >= PATIENCE:
                self._hung = f"did not get on for {quiet:,.0f} s and was ended"
                self.kill()
                return

    def _spent(self) -> float:
        with suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return times.user + times.system
        return 0.0

    def kill(self, wait: bool = False) -> None:
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
            if wait:
                self._process.join()

    def _end(self) -> str:
        """End the process and describe how it ended."""
        with self.workers.lock:
            self.workers.require_open()
            self.kill(wait=True)
            code, self._process = self._process.exitcode, None
            self._has_model = self.talks = False
        self._connection.close()
        hung, self._hung = self._hung, ""
        with suppress(ValueError):
            return hung or f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"


class _Passed(int):
    """File descriptor inherited by a new process under the same number."""

    def __reduce__(self) -> Any:
        return int, (DupFd(int(self)).detach(),)


@contextmanager
def _isolated() -> Iterator[None]:
    """Keep spawned processes from importing the current folder, and the user's script, which they
    would run again if it has no ``if __name__ == "__main__"``."""
    main, safe = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH", "")
    sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = main, safe


class _Messages:
    """Messages to a worker: one method per kind, handled in order."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.chunks = self.tokens = 0
        self.sent = time.monotonic()
        self.logged: SimpleQueue[logging.LogRecord] = SimpleQueue()
        log.addHandler(QueueHandler(self.logged))
        log.setLevel(logging.INFO)

    def begin(self, maker: Maker) -> Settings:
        self.maker = maker
        return maker.settings()

    def load(self, settings: Settings) -> None:
        self.answers = self.maker.load(settings)

    def answer(self, documents: Sequence[Document], *more: Any) -> Any:
        return self.answers(documents, *more, self.tell)

    def tell(self, chunks: int, tokens: int) -> None:
        """Count chunks and tokens, and send a heartbeat every `BEAT` seconds."""
        self.chunks += chunks
        self.tokens += tokens
        if time.monotonic() - self.sent >= BEAT:
            self.reply(None, last=False)

    def reply_to(self, message: bytes) -> None:
        try:
            kind, *content = pickle.loads(message)
            value = getattr(self, kind)(*content)
        except Exception as error:
            value = _portable(error)
        self.reply(value)

    def reply(self, value: Any, last: bool = True) -> None:
        """Send a value with everything counted and logged since the previous reply."""
        records = [self.logged.get() for _ in range(self.logged.qsize())]
        logged = [(record.levelno, record.getMessage()) for record in records]
        reply = Reply(value, self.chunks, self.tokens, logged, last)
        try:
            data = pickle.dumps(reply)
        except Exception as error:  # of an answer that cannot be sent
            data = pickle.dumps(reply._replace(value=_portable(error)))
        self.chunks = self.tokens = 0
        self.connection.send_bytes(data)
        self.sent = time.monotonic()


def _work(connection: Connection, seat: Seat, memory: int | None) -> NoReturn:
    """Main function of a worker: answer messages until the parent ends.

    The worker ends with its parent, even in the middle of a computation; on Linux the kernel does
    it, even if the worker is stopped or a library holds the GIL. SIGINT and SIGTERM are left to the
    parent, which receives them too from a terminal or a container. Output of libraries goes to
    standard error. ``memory`` is the descriptor of the shared file, inherited from the parent.
    """
    end_with_parent(signal.SIGINT, signal.SIGTERM)
    parent: Any = multiprocessing.parent_process()
    if os.getppid() != parent.pid:  # it has ended before that
        os._exit(0)
    threading.Thread(target=lambda: (parent.join(), os._exit(0)), daemon=True).start()
    gc.freeze()  # what a forked process has of the other one
    gc.set_threshold(50_000)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for logger in (logging.getLogger(), log):
        logger.handlers.clear()
    if seat.processors:
        with suppress(OSError, AttributeError):  # what the system does not allow or have
            os.sched_setaffinity(0, seat.processors)
    use_threads(seat.threads)
    messages = _Messages(connection)
    with suppress(OSError, EOFError):
        while True:
            messages.reply_to(connection.recv_bytes())
    os._exit(0)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, or such a copy if it cannot be pickled."""
    note = f"in a worker process:\n{traceback.format_exc()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
