"""Scheduler: batches chunks of many callers' documents. No HTTP here.

Some threads tokenize, and one thread per copy of the model runs batches as soon as it is free.
Scheduling is fair queueing by tokens: a document of n tokens is due once the models have run n
tokens after its arrival, and earlier due documents go first, so short documents overtake a long one
but cannot delay it for ever. A batch takes due chunks as long as they fit. Each further batch of a
long document becomes due one batch later, so a short document waits for one batch of it, not for
all. No batch waits to be filled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from ldt.data.features import Feature
from ldt.errors import ResourceError, UserError
from ldt.inference.executor import Document, LostError
from ldt.inference.predictor import Answer, Outputs, answer_of
from ldt.io.records import Example

if TYPE_CHECKING:
    from ldt.inference.stream import DocumentPredictor

log = logging.getLogger("ldt")

TOKENIZING = 2  # threads: the tokenizers' library computes without Python's lock
PASSED_OVER = 64  # documents that a batch may pass over because their next chunk does not fit in it


class FullError(UserError):
    """Too many documents are waiting."""


class ClosedError(UserError):
    """No more documents are accepted."""


@dataclass
class TimedAnswer:
    """Answer with its token count and times.

    Attributes:
        answer: the answer.
        tokens: tokens of all chunks.
        seconds: seconds of tokenization, of waiting for the model (queue), and from its first batch
            to the answer (inference).
    """

    answer: Answer
    tokens: int
    seconds: dict[str, float]


@dataclass(eq=False)
class _Job:
    """Document being answered.

    Attributes:
        begun: number of chunks already put in a batch.
        left: number of chunks without outputs.
        due: token clock of the model at which it is due.
    """

    model: DocumentPredictor
    example: Example
    alone: bool
    future: Future[TimedAnswer] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    features: list[Feature] = field(default_factory=list)
    outputs: list[Outputs | None] = field(default_factory=list)
    tokens: int = 0
    begun: int = 0
    left: int = 0
    due: int = 0
    tokenized: float = 0.0
    started: float = 0.0

    def length(self, chunk: int) -> int:
        return len(self.features[chunk]["input_ids"])


_Chunk = tuple[_Job, int]  # and its number


class Replica(Protocol):
    """Protocol of a copy of the model, used by one thread.

    Attributes:
        aside: True if another thread may decode answers meanwhile, without the model.
    """

    aside: bool

    def outputs(self, documents: list[Document]) -> list[Outputs]:
        """Run documents, (example, [feature]) each, as one batch; returns arrays by name
        for each."""

    def answer(
        self,
        model: DocumentPredictor,
        outputs: list[Outputs],
        example: Example,
        features: list[Feature],
    ) -> Answer:
        """Decode the answer to a document by ``model``, from the outputs of its inputs."""


class LocalReplica:
    """`Replica` in this process, whose ``model`` runs all inputs."""

    aside = True
    answer = staticmethod(answer_of)

    def __init__(self, model: DocumentPredictor):
        self.model = model

    def outputs(self, documents: list[Document]) -> list[Outputs]:
        """Run documents, (example, [feature]) each, as one batch; returns arrays by name
        for each."""
        return self.model.outputs([feature for _, features in documents for feature in features])


class Scheduler:
    """Answers documents of many callers.

    Args:
        replicas: copies of the model.
        batch_tokens: largest number of tokens of a batch, with padding; a longer chunk runs alone.
        places: largest number of unanswered documents.
        on_batch: called with the chunks and tokens of each batch.

    Attributes:
        clock: number of tokens run so far.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        batch_tokens: int,
        places: int,
        on_batch: Callable[[int, int], object] = lambda chunks, tokens: None,
    ):
        self.on_batch = on_batch
        self.fitting = batch_tokens  # of them, what the memory holds
        self.places = self._free = places
        self.clock = 0
        self._waiting: list[tuple[int, int, _Job]] = []  # a heap: due, number, document
        self._number = 0
        self._closed = False
        self._changed = threading.Condition()
        self._tokenizing = ThreadPoolExecutor(TOKENIZING, "tokenizing")
        self._decoding = ThreadPoolExecutor(1, "decoding")  # else answers would wait for inputs
        self._models = [
            threading.Thread(target=self._run, args=(replica,), name="model", daemon=True)
            for replica in replicas
        ]
        for thread in self._models:
            thread.start()

    def submit(
        self, model: DocumentPredictor, examples: Sequence[Example], *, alone: bool = False
    ) -> list[Future[TimedAnswer]]:
        """Accept documents, all or none; returns the future answer of each, whose cancelling frees
        its place.

        Args:
            model: encodes and decodes these documents; inputs are run by the replicas.
            examples: the documents.
            alone: True if decoding uses the model too, which then runs nothing else.

        Raises:
            FullError: there are not enough free places.
            ClosedError: no more documents are accepted.
        """
        jobs = [_Job(model, example, alone) for example in examples]
        with self._changed:
            if self._closed:
                raise ClosedError("the server is about to stop")
            if len(jobs) > self._free:
                raise FullError(f"{self.places - self._free:,} of {self.places:,} places are taken")
            self._free -= len(jobs)
        for job in jobs:
            job.future.add_done_callback(self._leave)
        for job in jobs:
            self._tokenizing.submit(self._tokenize, job)
        return [job.future for job in jobs]

    @property
    def unanswered(self) -> int:
        """Number of accepted documents without an answer."""
        return self.places - self._free

    @property
    def alive(self) -> bool:
        """True if documents are accepted and the models' threads are running."""
        return not self._closed and all(thread.is_alive() for thread in self._models)

    def close(self) -> None:
        """Accept no more documents; accepted ones are still answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drain(self, seconds: float | None = None) -> bool:
        """Accept no more documents and wait for the answers, at most ``seconds`` (None: for ever).

        Returns:
            True if all were answered in time; the threads are ended then.
        """
        self.close()
        with self._changed:
            empty = self._changed.wait_for(lambda: self._free == self.places, seconds)
        if empty:
            for pool in (self._tokenizing, self._decoding):
                pool.shutdown()
            for thread in self._models:
                thread.join(seconds)
        return empty

    def _leave(self, future: Future[TimedAnswer]) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def _tokenize(self, job: _Job) -> None:
        if job.future.done():
            return
        try:
            job.features = job.model.encode(job.example)
        except BaseException as error:
            _fail(job, error)
            return
        job.outputs = [None] * len(job.features)
        job.left = len(job.features)
        job.tokens = sum(map(job.length, range(job.left)))
        job.tokenized = time.monotonic()
        with self._changed:
            job.due = self.clock + job.tokens
            self._push(job)
            self._changed.notify_all()

    def _push(self, job: _Job) -> None:
        self._number += 1
        heappush(self._waiting, (job.due, self._number, job))

    def _run(self, replica: Replica) -> None:
        """Thread of a model: run batches until the scheduler is closed and empty."""
        while (batch := self._next()) is not None:
            now = time.monotonic()
            for job, _ in batch:
                job.started = job.started or now
            tokens = sum(job.length(chunk) for job, chunk in batch)
            self._run_batch(replica, batch)
            with self._changed:
                self.clock += tokens
            self.on_batch(len(batch), tokens)

    def _next(self) -> list[_Chunk] | None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._over())
                if not self._waiting:
                    return None
                if batch := self._batch():
                    return batch

    def _over(self) -> bool:
        return self._closed and self._free == self.places

    def _batch(self) -> list[_Chunk]:
        """Chunks of the most due documents, as many as fit in a batch."""
        batch: list[_Chunk] = []
        again: list[_Job] = []
        longest = 0
        while self._waiting and len(again) < PASSED_OVER:
            if batch and longest * (len(batch) + 1) > self.fitting:
                break
            job = heappop(self._waiting)[2]
            if job.future.done():  # cancelled, or a chunk of it failed
                continue
            begun = job.begun
            while job.begun < len(job.features):
                widest = max(longest, job.length(job.begun))
                if batch and widest * (len(batch) + 1) > self.fitting:
                    if job.begun > begun:
                        job.due = self.clock + 2 * self.fitting  # this batch, and another
                    again.append(job)
                    break
                batch.append((job, job.begun))
                job.begun, longest = job.begun + 1, widest
        for job in again:
            self._push(job)
        return batch

    def _run_batch(self, replica: Replica, batch: list[_Chunk]) -> None:
        """Run a batch, and its halves if it fails, so that only the faulty inputs fail."""
        try:
            outputs = replica.outputs(
                [(job.example, [job.features[chunk]]) for job, chunk in batch]
            )
        except BaseException as error:
            if len(batch) == 1 or isinstance(error, LostError):  # which takes too long to try again
                for job, _ in batch:
                    _fail(job, error)
                return
            half = len(batch) // 2
            if isinstance(error, ResourceError):
                longest = max(job.length(chunk) for job, chunk in batch)
                self.fitting = max(1, min(self.fitting, longest * len(batch)) // 2)
                log.warning(f"out of memory; going on with batches of {self.fitting:,} tokens")
            self._run_batch(replica, batch[:half])
            self._run_batch(replica, batch[half:])
            return
        for (job, chunk), output in zip(batch, outputs, strict=True):
            with self._changed:
                job.outputs[chunk] = output
                job.left -= 1
                left = job.left
            if left:
                continue
            if job.alone or not replica.aside:
                _answer(replica, job)
            else:
                self._decoding.submit(_answer, replica, job)


def _answer(replica: Replica, job: _Job) -> None:
    if job.future.done():
        return
    outputs: Any = job.outputs
    try:
        answer = replica.answer(job.model, outputs, job.example, job.features)
    except BaseException as error:
        _fail(job, error)
        return
    answer = {"id": job.example.id, **answer}
    answer.setdefault("chunks", len(job.features))
    seconds = {
        "tokenization": job.tokenized - job.arrived,
        "queue": job.started - job.tokenized,
        "inference": time.monotonic() - job.started,
    }
    _give(job, lambda: job.future.set_result(TimedAnswer(answer, job.tokens, seconds)))


def _fail(job: _Job, error: BaseException) -> None:
    _give(job, lambda: job.future.set_exception(error))


def _give(job: _Job, give: Callable[[], None]) -> None:
    if not job.future.done() and job.future.set_running_or_notify_cancel():
        give()
