"""Groups of documents answered by several processes, in order and each group by one process.

This process keeps the documents. A worker is a process with the model and a part of the
processors, and a thread here that speaks with it over a pipe. Weights are mapped from their files,
which processes share; what they make of them in bf16 or int8 is in memory without a name, which is
gone with them (on Linux; elsewhere each has its own). So nothing stays behind. No torch here.
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
Tell = Callable[[int, int], object]  # is called with windows and tokens that have been run
Answers = Callable[..., Any]  # of a group, what comes with it and a `Tell`, such as `Answering`


class Answered(NamedTuple):
    """The answers for a group, and those for its first documents in fp32 where they are asked."""

    answers: list[dict[str, Any]]
    exact: list[dict[str, Any]]


def untold(windows: int, tokens: int) -> None:
    """No-op callback of windows and tokens."""


class Maker(Protocol):
    """Maker of the model of a worker, sent to it as a pickle."""

    def prepare(self) -> None:
        """Import what the model needs, for processes that go on from this one; compute nothing."""

    def settings(self) -> Settings:
        """Settings that this machine would compute with; all workers get those of one of them."""

    def load(self, settings: Settings) -> Answers:
        """Load the model, and return the function that answers groups."""


class Seat(NamedTuple):
    """The place of a worker.

    Args:
        device: torch device of its model.
        threads: number of threads that it computes with.
        processors: numbers of the processors that it may run on; none for all.
    """

    device: str
    threads: int
    processors: frozenset[int] = frozenset()


class LostError(ResourceError):
    """Two processes have died with the same group, or none can take the place of a dead one."""


class Workers:
    """Processes that answer groups, and a context that ends them.

    A group whose worker dies is answered by a fresh one, once. A worker that neither replies nor
    computes for `PATIENCE` is killed; time in which this process is stopped does not count.

    Args:
        makers: makers of the models, one a worker.
        seats: places of the workers.

    Attributes:
        memory: descriptor of an empty file in memory that all processes have under this number, for
            `ldt.model.precision.lowered_in`; None where the system has none.
        tell: callback of windows and tokens that have been run, called by the threads that speak
            with the processes; with less than none where they have to be run again.
        lock: held while processes start and end, and replies are told.
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
        """End the processes, and the threads that speak with them."""
        self.settled.cancel()
        with self.lock:
            self.ended = True
            for worker in self._workers:
                worker.kill()
            for worker in self._workers:
                worker.kill(wait=True)
                self._waiting.put(None)

    def require_open(self) -> None:
        """Raise LostError once the context is left."""
        if self.ended:
            raise LostError("the worker processes are ended")

    def start(self) -> None:
        """Start the processes, all of them before the threads that speak with them.

        Those on the CPU go on from this process where they can, and share what it has imported:
        torch and transformers are 0.3 GB and some seconds, also of a fork server.
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
        """Settings of the first process that has begun.

        Raises:
            UserError: a device cannot be used.
            ResourceError: two processes have died in the same place.
        """
        futures: list[Future[Any]] = [self.proposed, *(worker.loaded for worker in self._workers)]
        return wait(futures, return_when=FIRST_COMPLETED).done.pop().result()

    def load(self, settings: Settings) -> None:
        """Load the models, and wait for all of them.

        Raises:
            UserError: a model cannot be used.
            ResourceError: two processes have died in the same place.
        """
        self.settled.set_result(settings)
        for worker in self._workers:
            worker.loaded.result()

    def ask(self, documents: Sequence[Document], *more: Any) -> Any:
        """Have the next free worker answer a group; several threads may ask.

        Args:
            more: arguments of the worker's `Answers` beside it.

        Raises:
            LostError: two processes have died with it, or the model cannot be loaded again.
            Exception: the worker's.
        """
        return self._give(documents, *more).result()

    def _give(self, documents: Sequence[Document], *more: Any) -> "Future[Any]":
        answers: Future[Any] = Future()
        self._waiting.put(_Pending(documents, more, answers))
        return answers

    def busy(self) -> bool:
        """True while there are groups without an answer."""
        return bool(self._groups)

    def put(self, documents: Sequence[Document], compared: int) -> Iterator[Answered]:
        """Give a group, once there are fewer than two for each worker; what is answered by now.

        Args:
            compared: number of its first documents that are answered in fp32 as well.
        """
        yield from self.rest(2 * len(self._workers) - 1)
        self._groups.append(self._give(documents, compared))
        yield from self.ready()

    def ready(self) -> Iterator[Answered]:
        """Answers that are there by now, as far as all before them are."""
        while self._groups and self._groups[0].done():
            yield from self.rest(len(self._groups) - 1)

    def rest(self, left: int = 0) -> Iterator[Answered]:
        """Wait for the groups that were given, the oldest first, until so many are ``left``."""
        while len(self._groups) > left:
            answered = self._groups[0].result()
            self._groups.popleft()
            yield answered

    def hear(self, reply: "Reply", talks: bool) -> None:
        """Tell what a worker has run and logged; of its log warnings alone, unless it ``talks``."""
        with self.lock:
            for level, line in reply.logged:
                if (talks or level >= logging.WARNING) and line not in self._logged:
                    self._logged.add(line)
                    log.log(level, "%s", line)
            self.tell(reply.windows, reply.tokens)


class _Pending(NamedTuple):
    """A group that was given, what a worker's `Answers` takes beside it, and its answers."""

    documents: Sequence[Document]
    more: tuple[Any, ...]
    answers: "Future[Any]"


class Reply(NamedTuple):
    """A worker's reply to a message, or a sign of life where it is not the last.

    Args:
        value: result of the message, or the exception that it ended in.
        windows, tokens: numbers of those that were run since the reply before.
        logged: levels and lines of the log since then.
    """

    value: Any
    windows: int = 0
    tokens: int = 0
    logged: Sequence[tuple[int, str]] = ()
    last: bool = True


class _DiedError(Exception):
    """A process has ended, in the way that the text says."""


class _Worker:
    """A process with a model, started anew where it has died, and the thread that asks it.

    Attributes:
        loaded: future of its model.
        talks: True if all lines of its log are told, rather than warnings alone.
    """

    def __init__(self, workers: Workers, maker: Maker, seat: Seat):
        self.workers, self.maker, self.seat = workers, maker, seat
        self.loaded: Future[None] = Future()
        self.talks = self._has_model = False
        self._hung = ""  # how long, of a process that had to be killed
        self._process: Any = None
        self._connection: Connection

    def start(self, method: str) -> None:
        """Start a process, by a method of `multiprocessing`."""
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
        """Load the model, and answer groups until there are no more."""
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
        """Have a process with the model; LostError where two die before they have one."""
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
        """The answers for a group, of a fresh process where one dies with it."""
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
        """Do some work, once more by a fresh process where one dies; LostError where two do.

        Args:
            when: text for the error.
            place, task: texts for the warning of the first one.
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
        """Send a message, and return the value of its last reply, or raise it; or `_DiedError`."""
        workers, windows, tokens = self.workers, 0, 0
        message = pickle.dumps((kind, *content))
        reply = Reply(None, last=False)
        try:
            self._connection.send_bytes(message)
            while not reply.last:
                self._await_reply()
                reply = pickle.loads(self._connection.recv_bytes())
                windows, tokens = windows + reply.windows, tokens + reply.tokens
                workers.hear(reply, self.talks)
        except (OSError, EOFError):
            workers.hear(Reply(None, -windows, -tokens), self.talks)
            raise _DiedError(self._end()) from None
        if isinstance(reply.value, BaseException):
            raise reply.value
        return reply.value

    def _await_reply(self) -> None:
        """Wait for a reply, or the end of the process, which is killed where it hangs."""
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
        """Seconds that the process has computed."""
        with suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return times.user + times.system
        return 0.0

    def kill(self, wait: bool = False) -> None:
        """End the process, where there is one."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
            if wait:
                self._process.join()

    def _end(self) -> str:
        """End the process, and say how it ended."""
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
    """A descriptor that a process gets which is started with it, under the same number."""

    def __reduce__(self) -> Any:
        return int, (DupFd(int(self)).detach(),)


@contextmanager
def _isolated() -> Iterator[None]:
    """Keep processes that are spawned from importing the user's script and the current folder.

    They would run a script again that has no ``if __name__ == "__main__"``.
    """
    main, safe = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH", "")
    sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = main, safe


class _Messages:
    """Messages of a worker: a method for each kind, in the order in which they come."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.windows = self.tokens = 0
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

    def tell(self, windows: int, tokens: int) -> None:
        """Count windows and tokens, with a sign of life once a `BEAT`."""
        self.windows += windows
        self.tokens += tokens
        if time.monotonic() - self.sent >= BEAT:
            self.reply(None, last=False)

    def reply_to(self, message: bytes) -> None:
        """Reply to a message with its value or its exception."""
        try:
            kind, *content = pickle.loads(message)
            value = getattr(self, kind)(*content)
        except Exception as error:
            value = _portable(error)
        self.reply(value)

    def reply(self, value: Any, last: bool = True) -> None:
        """Send a value, and what was counted and logged since the reply before."""
        records = [self.logged.get() for _ in range(self.logged.qsize())]
        logged = [(record.levelno, record.getMessage()) for record in records]
        reply = Reply(value, self.windows, self.tokens, logged, last)
        try:
            data = pickle.dumps(reply)
        except Exception as error:  # of an answer that cannot be sent
            data = pickle.dumps(reply._replace(value=_portable(error)))
        self.windows = self.tokens = 0
        self.connection.send_bytes(data)
        self.sent = time.monotonic()


def _work(connection: Connection, seat: Seat, memory: int | None) -> NoReturn:
    """Answer messages until the other process ends: the main function of a worker.

    Whatever happens to that one, this process ends, also in the middle of a computation; on Linux
    the system ends it, also where it is stopped or a library lets no other thread run. SIGINT and
    SIGTERM are left to the other process, which gets them as well where they are sent to all
    processes of a terminal or of a container. What libraries print goes to standard error.

    Args:
        memory: a descriptor, which is passed with this.
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
    """The error, or one of its words where it cannot be sent, with its traceback as a note."""
    note = f"in a worker process:\n{traceback.format_exc()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
