"""Groups of documents answered by several processes, in order and each group by one process.

This process keeps the documents; a worker has the model, a part of the processors, and a pipe to
here, by whose end it ends. Weights are mapped from their files, which processes share; what they
make of them in bf16 or int8 is in memory without a name, which is gone with them (on Linux;
elsewhere each has its own). So nothing stays behind.
"""

import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

from ldt.errors import ResourceError, plural
from ldt.inference.group import Answered, Document, Tell, untold
from ldt.inference.processes import Process, forked, spawned
from ldt.inference.worker import Maker, Reply, Settings, receive, send
from ldt.system import can_fork

log = logging.getLogger("ldt")

PATIENCE = 600.0  # seconds without a sign of life after which a worker is taken for dead, or
LONGEST = 10  # times the longest such while so far, if that is more
THREADS = "number of threads a worker"  # a setting, which decides the last digits of answers
_TICK = 1.0  # seconds between two looks at the workers


class Seat(NamedTuple):
    """The place of a worker.

    Args:
        device: a torch device.
        threads: that it computes with.
        processors: numbers of those that it may run on; none for all.
    """

    device: str
    threads: int
    processors: frozenset[int] = frozenset()


class LostError(ResourceError):
    """Two processes have died with the same group, or none can take the place of a dead one."""


class Workers:
    """Processes that answer groups: `ldt.inference.group.Hands`, and a context that ends them.

    A group whose worker dies is given to a fresh one, once. A worker that has not got on by a batch
    or a document for `PATIENCE`, or `LONGEST` times the longest such while that came to an end, is
    killed; time in which this process is stopped does not count.

    Args:
        makers: what makes the model of each worker.
        seats: the place of each.
        endless: whether a document may take any time, so that only a worker is killed that has
            not computed either.
        memory: descriptor of such a file as below, of others that share it; None for one of these.

    Attributes:
        memory: descriptor of an empty file in memory that all processes have under this number, for
            `ldt.model.shared.lowered_in`; None where the system has none.
        tell: is called with windows and tokens that have been run; with less than none where they
            have to be run again.
    """

    def __init__(
        self,
        makers: Sequence[Maker],
        seats: Sequence[Seat],
        endless: bool = False,
        memory: int | None = None,
    ):
        self.endless = endless
        self.memory = None if memory is None else os.dup(memory)
        if memory is None and sys.platform == "linux":
            self.memory = os.memfd_create("ldt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.tell: Tell = untold
        self._places = list(zip(makers, seats, strict=True))
        self._workers: list[_Worker] = []
        self._replies: queue.SimpleQueue[tuple[_Worker, Reply | None]] = queue.SimpleQueue()
        self._groups: deque[_Group] = deque()  # given and not taken back, in order
        self._proposed: Settings | None = None
        self._settings: Settings | None = None
        self._longest = 0.0
        self._looked = time.monotonic()
        self._told: set[str] = set()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self.memory is not None:
            os.close(self.memory)

    def _end(self) -> None:
        """End the processes that there are."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()

    def start(self) -> None:
        """Start the processes, and wait for none of them."""
        start_all([self])

    def settings(self) -> Settings:
        """Those of the first process that has begun.

        Raises:
            UserError: a device cannot be used.
            ResourceError: two processes have died in the same place.
        """
        while self._proposed is None:
            self._step()
        return self._proposed

    def load(self, settings: Settings) -> None:
        """Load the models; comes back with the first that is loaded.

        Raises:
            UserError: a model cannot be used.
            ResourceError: two processes have died in the same place.
        """
        self._settings = settings
        for worker in self._workers:
            if worker.begun:
                worker.give("load", settings)
        while not any(worker.loaded for worker in self._workers):
            self._step()

    def ask(self, documents: Sequence[Document], *more: Any) -> Any:
        """The answer for a group, the only one that is here; after an error others can be asked.

        Args:
            more: what the worker's `Answers` takes beside it.

        Raises:
            LostError: two processes have died with it, or the model cannot be loaded again.
            Exception: the worker's.
        """
        if not self._workers:
            self._begin(0, spawned(self._places[0][1].threads, self.memory), talks=False)
        group = _Group(documents, *more)
        self._groups.append(group)
        self._hand_out()
        try:
            while group.answered is None:
                self._step()
        except Exception as error:  # of a process that was to have the model
            self._end()
            raise LostError(str(error)) from error
        finally:
            self._groups.clear()
        if isinstance(group.answered, BaseException):
            raise group.answered
        return group.answered

    def busy(self) -> bool:
        """True while there are groups without an answer."""
        return bool(self._groups)

    def put(self, documents: Sequence[Document], compared: int) -> Iterator[Answered]:
        """Give a group, once there are fewer than two for each worker; what is answered by now."""
        while len(self._groups) >= 2 * len(self._places):
            yield self._oldest()
        self._groups.append(_Group(documents, compared))
        self._hand_out()
        yield from self.ready()

    def ready(self) -> Iterator[Answered]:
        """What is answered by now, as far as all before it is."""
        while self._step(wait=False):
            pass
        while self._groups and self._groups[0].answered is not None:
            yield self._oldest()

    def rest(self) -> Iterator[Answered]:
        """Wait for all groups that were given."""
        while self._groups:
            yield self._oldest()

    def _oldest(self) -> Answered:
        """Wait for the group that was given first; where it has failed, raise its error."""
        group = self._groups[0]
        while group.answered is None:
            self._step()
        if isinstance(group.answered, BaseException):
            raise group.answered
        self._groups.popleft()
        self._hand_out()
        return group.answered

    def _hand_out(self) -> None:
        """Give groups to workers that have none, in order, up to one that has failed."""
        free = [each for each in self._workers if each.loaded and not each.message]
        for group in self._groups:
            if isinstance(group.answered, BaseException):
                return
            if free and not group.given:
                free.pop(0).answer(group)

    def _step(self, wait: bool = True) -> bool:
        """Take in a reply, for which to wait a moment; False where there is none."""
        try:
            worker, reply = self._replies.get(wait, _TICK)
        except queue.Empty:
            self._look()
            return False
        self._look()
        if worker not in self._workers:  # it is replaced already
            return True
        if reply is None:
            self._replace(worker)
        else:
            self._take(worker, reply)
        self._hand_out()
        return True

    def _take(self, worker: "_Worker", reply: Reply) -> None:
        for level, line in reply.said:
            if (worker.talks or level >= logging.WARNING) and line not in self._told:
                self._told.add(line)
                log.log(level, "%s", line)
        if worker.group is not None:
            self._longest = max(self._longest, worker.waited)
            worker.group.windows += reply.windows
            worker.group.tokens += reply.tokens
            self.tell(reply.windows, reply.tokens)
        worker.waited = 0.0
        if not reply.last:
            return
        kind, group = worker.done()
        if group is not None:
            group.answered = reply.value
        elif isinstance(reply.value, BaseException):
            raise reply.value
        elif kind == "begin":
            worker.begun = True
            self._proposed = self._proposed or reply.value
            if self._settings is not None:
                worker.give("load", self._settings)
        else:
            worker.loaded, worker.tries = True, 0
            if worker.first is not None:
                worker.answer(worker.first)

    def _replace(self, worker: "_Worker") -> None:
        """Start another process in the place of one that is dead; its group is tried once more.

        Raises:
            ResourceError: two have died before they had a model.
        """
        end = worker.end()
        self._workers.remove(worker)
        group = worker.first if worker.group is None else worker.group
        if worker.group is not None:
            self.tell(-worker.group.windows, -worker.group.tokens)
            worker.group.windows = worker.group.tokens = 0
            if worker.group.given > 1:
                worker.group.answered = LostError(_lost(worker.group.documents, end))
                return
        if not worker.loaded and worker.tries:
            raise ResourceError(
                "two worker processes, one after the other, have died before they had the model; "
                f"the last one {end}; where the memory is too small, fewer --workers take less"
            )
        place = f"{worker.group.documents[0][0].where}: " if worker.group else ""
        again = f" and its {_named(worker.group.documents)}" if worker.group else ""
        log.warning(f"{place}a worker process {end}; another one takes its place{again}")
        threads = self._places[worker.number][1].threads
        fresh = self._begin(worker.number, spawned(threads, self.memory), talks=False)
        fresh.first, fresh.tries = group, worker.tries + (not worker.loaded)

    def _look(self) -> None:
        """Kill workers from which nothing has come for too long."""
        now = time.monotonic()
        # No more than that, so that a while in which this process was stopped does not count.
        gone, self._looked = min(now - self._looked, 2 * _TICK), now
        limit = max(PATIENCE, LONGEST * self._longest)
        for worker in self._workers:
            worker.waited += gone
            if not worker.message or worker.waited <= limit or worker.hung:
                continue
            if self.endless and worker.has_computed():
                worker.waited = 0.0
            else:
                worker.hung = f"did not get on for {limit:,.0f} s and was ended"
                worker.process.kill()

    def _begin(self, number: int, process: Process, talks: bool = True) -> "_Worker":
        maker, seat = self._places[number]
        worker = _Worker(number, process, talks and not number)
        self._workers.append(worker)
        worker.listen(self._replies)
        worker.give("begin", seat.processors, maker)
        return worker


def start_all(several: Sequence[Workers]) -> None:
    """Start the processes of some workers, and wait for none of them.

    Those on the CPU go on from this process where they can, and share what it has imported: all of
    them before there are threads that speak with them.
    """
    places = [place for workers in several for place in workers._places]
    new = spawned
    if can_fork() and all(seat.device == "cpu" for _, seat in places):
        places[0][0].prepare()
        new = forked
    processes = [
        [new(seat.threads, workers.memory) for _, seat in workers._places] for workers in several
    ]
    for workers, its in zip(several, processes, strict=True):
        workers._looked = time.monotonic()
        for number, process in enumerate(its):
            workers._begin(number, process)


class _Group:
    """A group that was given, and its answers or its error once there are any.

    Args:
        more: what a worker takes beside it.
    """

    def __init__(self, documents: Sequence[Document], *more: Any):
        self.documents, self.more = documents, more
        self.given = 0  # times
        self.windows = self.tokens = 0  # that were told
        self.answered: Answered | BaseException | None = None


class _Worker:
    """A process, and a thread that speaks with it, so that nothing here waits for the process.

    Attributes:
        message: kind of the message that it has not replied to; "" for none.
        group: of that message.
        first: group that it is to answer before others.
        tries: processes before it that died in its place without having a model.
        waited: seconds since its message, or since its last sign of life.
        hung: what was wrong with one that had to be killed.
    """

    def __init__(self, number: int, process: Process, talks: bool):
        self.number, self.process, self.talks = number, process, talks
        self.message, self.hung = "", ""
        self.group: _Group | None = None
        self.first: _Group | None = None
        self.begun = self.loaded = False
        self.tries, self.waited, self._spent = 0, 0.0, 0.0
        self._inbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()

    def listen(self, replies: queue.SimpleQueue) -> None:
        """Put replies there, and None for the end of the process."""
        thread = threading.Thread(target=self._speak, args=(replies,), daemon=True)
        thread.name = f"worker {self.number}"
        thread.start()

    def give(self, kind: str, *content: Any) -> None:
        """Send a message."""
        self.message, self.waited = kind, 0.0
        self._inbox.put((kind, *content))

    def answer(self, group: _Group) -> None:
        """Send a group."""
        self.group, self.first = group, None
        group.given += 1
        self.give("answer", group.documents, *group.more)

    def done(self) -> tuple[str, _Group | None]:
        """The message that is replied to, and its group."""
        kind, group = self.message, self.group
        self.message, self.group = "", None
        return kind, group

    def has_computed(self) -> bool:
        """Whether the process has computed for a tenth of a second since this was asked last."""
        before = self._spent
        with suppress(psutil.Error):
            times = psutil.Process(self.process.pid).cpu_times()
            self._spent = times.user + times.system
        return self._spent > before + 0.1

    def end(self) -> str:
        """Kill the process, and say how it ended."""
        self._inbox.put(None)
        self.process.kill()  # which changes nothing where it has ended
        return self.hung or _how(self.process.wait())

    def _speak(self, replies: queue.SimpleQueue) -> None:
        assert self.process.stdin
        assert self.process.stdout
        with suppress(OSError), self.process.stdin as to, self.process.stdout as of:
            while (message := self._inbox.get()) is not None:
                try:
                    send(to, pickle.dumps(message))
                    while not (reply := pickle.loads(receive(of))).last:
                        replies.put((self, reply))
                except (OSError, EOFError):
                    replies.put((self, None))
                    break
                except Exception as error:  # of what cannot be sent
                    reply = Reply(error)
                replies.put((self, reply))


def _how(code: int) -> str:
    """How a process ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _named(documents: Sequence[Document]) -> str:
    """``12 documents from id 'doc-3' on``."""
    return f"{plural(len(documents), 'document')} from id {documents[0][0].id!r} on"


def _lost(documents: Sequence[Document], end: str) -> str:
    return (
        f"{documents[0][0].where}: two worker processes, one after the other, have died with the "
        f"{_named(documents)}; the last one {end}; where the memory is too small, a smaller "
        "--batch-tokens or fewer --workers take less"
    )
