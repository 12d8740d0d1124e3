"""Documents of many callers to answers: their chunks in batches, one a model. No HTTP here.

A few threads tokenize, one runs each copy of the model; whichever is free takes the next batch. A
document is due when the models have run as many tokens since its arrival as it has itself, and
those that are due first come first: so short ones overtake a long one, but none does for ever. A
batch takes chunks in this order, as many as fit. A document that has more is due again a batch
later: once begun, each batch of a long one waits for documents that are there already, and a short
one for a batch of it, not for all. Nothing waits for a batch to fill.
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
    """Too many documents wait."""


class ClosedError(UserError):
    """No more documents are taken."""


@dataclass
class TimedAnswer:
    """An answer, and how it came about.

    Attributes:
        tokens: tokens of all chunks.
        seconds: seconds of its tokenization, until the model had time for it (queue), and from its
            first batch to its answer (inference).
    """

    answer: Answer
    tokens: int
    seconds: dict[str, float]


@dataclass(eq=False)
class _Job:
    """A document, and how far it has come.

    Attributes:
        begun: chunks that are in a batch, or were.
        left: chunks without outputs.
        due: tokens that the model will have run when it is its turn.
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
    """A copy of the model; one thread asks it.

    Attributes:
        aside: True if another thread may ask for answers meanwhile, where the model is not needed.
    """

    aside: bool

    def outputs(self, documents: list[Document]) -> list[Outputs]:
        """Arrays by name for documents of one input each, run as one batch."""

    def answer(
        self,
        model: DocumentPredictor,
        outputs: list[Outputs],
        example: Example,
        features: list[Feature],
    ) -> Answer:
        """The answer for a document, as `answer_of` has it."""


class LocalReplica:
    """A `Replica` of this process.

    Args:
        model: whose outputs are those of all documents.
    """

    aside = True
    answer = staticmethod(answer_of)

    def __init__(self, model: DocumentPredictor):
        self.model = model

    def outputs(self, documents: list[Document]) -> list[Outputs]:
        return self.model.outputs([feature for _, features in documents for feature in features])


class Scheduler:
    """Scheduler that answers documents of many callers.

    Args:
        replicas: the copies of the model.
        batch_tokens: most tokens of a batch, padding included; a longer chunk is run alone.
        places: documents that may be here at a time, those in the model among them.
        told: is called with the chunks and tokens of each batch.

    Attributes:
        clock: tokens that were run.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        batch_tokens: int,
        places: int,
        told: Callable[[int, int], object] = lambda chunks, tokens: None,
    ):
        self.told = told
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
        """Take documents, all of them or none; a future that is cancelled frees its place.

        Args:
            model: makes their inputs and decodes their answers; its outputs are those of all.
            alone: whether decoding takes the model as well, which then runs nothing else.

        Raises:
            FullError: there is no place for so many.
            ClosedError: none are taken any more.
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
    def here(self) -> int:
        """Documents that have no answer yet."""
        return self.places - self._free

    @property
    def alive(self) -> bool:
        """True if documents are taken, and the models' threads are there."""
        return not self._closed and all(thread.is_alive() for thread in self._models)

    def close(self) -> None:
        """Take no more documents; those that are here are still answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drain(self, seconds: float | None = None) -> bool:
        """Take no more documents and wait for those that are here; whether all have answers."""
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
        """A model's thread: batch after batch, until there is nothing and nothing will come."""
        while (batch := self._next()) is not None:
            now = time.monotonic()
            for job, _ in batch:
                job.started = job.started or now
            tokens = sum(job.length(chunk) for job, chunk in batch)
            self._run_batch(replica, batch)
            with self._changed:
                self.clock += tokens
            self.told(len(batch), tokens)

    def _next(self) -> list[_Chunk] | None:
        """The chunks of the next batch, waited for; None where no more will come."""
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
        """Chunks of the documents that are due first, as many as fit; of those that are left."""
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
        """Run a batch; where that fails its halves, so that only what cannot be run fails."""
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
    """Give a document whose chunks have all been run its answer."""
    if job.future.done():
        return
    outputs: Any = job.outputs
    try:
        answer = replica.answer(job.model, outputs, job.example, job.features)
    except BaseException as error:
        _fail(job, error)
        return
    answer = {"id": job.example.id, **answer}
    answer.setdefault("windows", len(job.features))
    seconds = {
        "tokenization": job.tokenized - job.arrived,
        "queue": job.started - job.tokenized,
        "inference": time.monotonic() - job.started,
    }
    _give(job, lambda: job.future.set_result(TimedAnswer(answer, job.tokens, seconds)))


def _fail(job: _Job, error: BaseException) -> None:
    _give(job, lambda: job.future.set_exception(error))


def _give(job: _Job, give: Callable[[], None]) -> None:
    """Give the caller something, if it is still there and has nothing yet."""
    if not job.future.done() and job.future.set_running_or_notify_cancel():
        give()
