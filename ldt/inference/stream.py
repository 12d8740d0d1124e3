"""Documents in, answers out: in order, in batches by length, in constant memory. No torch here.

Documents are collected until `LOOKAHEAD_BATCHES` batches of tokens or `LOOKAHEAD_DOCUMENTS` of
them wait, or until a pipe pauses. Their windows are sorted by length and run in batches; the
answers leave as one group, in the order of the input. Which documents form a group depends on the
documents alone (pauses aside), and the answers of a group on the group alone; a run is resumed at
the start of a group, so it forms the same batches and writes the same bytes.
"""

import hashlib
import json
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ldt.errors import DataError, ResourceError, UserError, plural
from ldt.inference.agreement import Agreement
from ldt.inference.executor import Answered, Document, Tell, untold
from ldt.inference.options import named
from ldt.inference.predictor import Answer, Outputs, answer_of
from ldt.io.records import Example, OnError, SeenIds

log = logging.getLogger("ldt")

LOOKAHEAD_BATCHES = 4
LOOKAHEAD_DOCUMENTS = 256

Feature = dict[str, Any]
Refuse = Callable[[DataError, Example], None]
Beside = Callable[[Example], dict[str, Any]]
Records = Callable[..., Iterator[Example]]  # makes them anew; its argument is ``on_error``


class DocumentEncoder(Protocol):
    """Maker of inputs of documents.

    Attributes:
        max_length: longest input, in tokens.
    """

    max_length: int

    def encode(self, example: Example) -> list[Feature]:
        """Inputs made of a document; DataError when it cannot be used."""


class DocumentPredictor(DocumentEncoder, Protocol):
    """A model that answers for documents."""

    def outputs(self, features: list[Feature]) -> list[Outputs]:
        """Arrays by name for each input, of any documents, run as one batch."""

    def decode(self, outputs: list[Outputs], example: Example, features: list[Feature]) -> Answer:
        """The answer for a document, flags included, from the arrays of its inputs."""


class Answering:
    """Answers of groups of documents, one group after the other.

    As the executor of a `Pipeline` it answers a group as it is given; like
    `ldt.inference.executor.Workers` it gives groups back in the order in which they came.

    Args:
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        exact: another predictor, for the first documents of a run; it is let go of after
            the first group that is not compared to its end, as none behind it is compared.
        lock: is held while the model runs for a pipeline.

    Attributes:
        tell: is called with windows and tokens that have been run for a pipeline; with less than
            none where they have to be run again.
    """

    def __init__(
        self,
        model: DocumentPredictor,
        batch_tokens: int,
        exact: DocumentPredictor | None = None,
        lock: AbstractContextManager[Any] = nullcontext(),  # noqa: B008  # which keeps nothing
    ):
        self.model, self.exact, self.lock = model, exact, lock
        self.tell: Tell = untold
        self.batch_tokens = batch_tokens
        self.fitting = batch_tokens  # of them, what the memory holds

    def put(self, documents: Sequence[Document], compared: int) -> Iterable[Answered]:
        """Answer a group."""
        with self.lock:
            return [self(documents, compared, self.tell)]

    def rest(self) -> Iterable[Answered]:
        """Nothing: whoever gave a group has its answers."""
        return ()

    ready = rest

    def __call__(
        self, documents: Sequence[Document], compared: int = 0, tell: Tell = untold
    ) -> Answered:
        """The answers for a group.

        Args:
            compared: number of its first documents that are answered by ``exact`` as well.
            tell: is called after every batch, with zeros after one of ``exact``, and with zeros
                after every document.

        Raises:
            ModelError: the model's numbers are not finite.
            ResourceError: the memory does not hold a single window.
        """
        exact: list[Answer] = []
        if compared:
            assert self.exact is not None
            exact = self._answers(self.exact, documents[:compared], lambda *_: tell(0, 0))
        if compared < len(documents):
            self.exact = None
        return Answered(self._answers(self.model, documents, tell), exact)

    def _answers(
        self, model: DocumentPredictor, documents: Sequence[Document], tell: Tell
    ) -> list[Answer]:
        inputs = [feature for _, features in documents for feature in features]
        lengths = [len(feature["input_ids"]) for feature in inputs]
        rows: dict[int, Outputs] = {}
        for batch in batches(lengths, self.batch_tokens):
            for part, outputs in self._fitting(model, batch, inputs, lengths):
                rows |= zip(part, outputs, strict=True)
                tell(len(part), sum(lengths[i] for i in part))
        in_order = map(rows.__getitem__, range(len(inputs)))
        answers = []
        for example, features in documents:
            outputs = [next(in_order) for _ in features]
            answers.append(answer_of(model, outputs, example, features))
            tell(0, 0)
        return answers

    def _fitting(
        self,
        model: DocumentPredictor,
        batch: list[int],
        features: list[Feature],
        lengths: list[int],
    ) -> Iterator[tuple[list[int], list[Outputs]]]:
        """Yield the inputs of a batch and their arrays, in parts that the memory holds.

        A batch that is too large is parted, and all after it, as the memory will be no larger
        then. Groups stay as they are, so that a run is resumed at the same ones.
        """
        while batch:
            most = max(1, self.fitting // lengths[batch[0]])
            part = batch[:most]
            try:
                outputs = model.outputs([features[i] for i in part])
            except ResourceError:
                if len(part) == 1:
                    raise
                tried = lengths[part[0]] * len(part)
                self.fitting = tried // 2
                log.warning(
                    f"out of memory with a batch of {tried:,} tokens; going on with at most "
                    f"{self.fitting:,}, as {named('batch_tokens', self.fitting)} has it"
                )
                continue
            yield part, outputs
            batch = batch[most:]


def batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of ``lengths``, the longest first, in batches of alike ones.

    A batch padded to its longest has at most ``batch_tokens`` tokens, or is a single one.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@dataclass
class Counts:
    """Progress of a run.

    ``tokens`` are those of the ``windows``, special and repeated ones included; ``long`` counts
    documents that did not fit one input, ``cut`` those that were not read to the end, with
    ``unread`` of their ``lengths``, the tokens of all documents; ``wordless`` counts summaries of
    one token or none, ``labels`` the answers of a classification, ``resumed`` the documents that
    had theirs already.
    """

    documents: int = 0
    windows: int = 0
    tokens: int = 0
    long: int = 0
    cut: int = 0
    unread: int = 0
    lengths: int = 0
    wordless: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    started: float = field(default_factory=time.monotonic)

    def rate(self) -> str:
        """Text for people: documents, inputs, tokens, tokens a second."""
        seconds = time.monotonic() - self.started
        return (
            f"{plural(self.documents, 'document')}, {plural(self.windows, 'input')}, "
            f"{plural(self.tokens, 'token')} in {seconds:.1f} s "
            f"({self.tokens / max(seconds, 1e-9):,.0f} tokens/s)"
        )

    def add(self, answer: Answer, features: list[Feature]) -> None:
        """Count a document by its answer and its inputs."""
        cut = bool(answer.get("truncated"))
        self.documents += 1
        self.long += cut or answer["windows"] > 1
        self.cut += cut
        self.unread += answer.get("unread_tokens", 0)
        self.lengths += features[0].get("tokens", 0)
        self.wordless += answer.get("summary_tokens", 2) < 2
        label = answer.get("label")
        if isinstance(label, list):
            self.labels.update(label or ["no class"])
        elif isinstance(label, str):
            self.labels[label] += 1
        elif answer.get("abstained"):
            self.labels["no answer"] += 1


_Waiting = tuple[Document, dict[str, Any]]  # with what its answer has of its record


@dataclass
class Pipeline:
    """Documents to groups of answers, in their order.

    Args:
        model: makes inputs of documents.
        executor: `Answering`, or `ldt.inference.executor.Workers`: answers groups of documents.
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        refuse: is called with a record that cannot be used, and why; None raises.
        beside: makes what an answer has of its record; a DataError where the record lacks it.
        progress: (called after a batch, seconds between two calls at least).
        agreement: with another predictor, whose answers for the first documents are to be the same.
        lock: is held while inputs are made.
    """

    model: DocumentEncoder
    executor: Any
    batch_tokens: int
    refuse: Refuse | None = None
    beside: Beside | None = None
    progress: tuple[Callable[[Counts], None], float] | None = None
    agreement: Agreement | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.executor.tell = self._tell
        self._given: deque[list[_Waiting]] = deque()  # groups of the executor, in order
        self._group: list[_Waiting] = []
        self._tokens, self._told = 0, time.monotonic()

    def answer(
        self, records: Iterable[Example | None], resumed: Any = None
    ) -> Iterator[list[Answer]]:
        """Yield the answers of every record, a group at a time.

        Args:
            records: examples, and None where the input pauses.
            resumed: `ldt.inference.answer_file.AnswerFile` with the answers for the first of them;
                None for none.

        Raises:
            DataError: a record cannot be used. The answers before it were yielded.
            PrecisionError: too many answers are not those of the other predictor; none was yielded.
            UserError: the answers that are there are not those of these records.
            ModelError: the model's numbers are not finite.
        """
        seen = SeenIds()
        try:
            for example in records:
                if example is None or self._add(example, seen, resumed):
                    yield from self._flush()
        except DataError:
            yield from self._end()
            raise
        yield from self._end()
        if resumed:
            resumed.require_no_more("its end")

    def _add(self, example: Example, seen: SeenIds, resumed: Any) -> bool:
        """Add a record to the group, unless its answer is there; True if the group is full."""
        try:
            if not seen.add(example.id):
                raise DataError(f"{example.where}: id {example.id!r} came before")
            if resumed and resumed.has(example.id):
                self.counts.resumed += 1
                return False
            with self.lock:
                features = self.model.encode(example)
            copied = self.beside(example) if self.beside else {}
        except DataError as error:
            if self.refuse is None:
                raise
            self.refuse(error, example)
            return False
        if resumed:
            resumed.require_no_more(f"{example.id!r} ({example.where})")
        self._group.append(((example, features), copied))
        self._tokens += sum(len(feature["input_ids"]) for feature in features)
        full = self._tokens >= LOOKAHEAD_BATCHES * self.batch_tokens
        return full or len(self._group) >= LOOKAHEAD_DOCUMENTS

    def _tell(self, windows: int, tokens: int) -> None:
        self.counts.windows += windows
        self.counts.tokens += tokens
        now = time.monotonic()
        if self.progress and now - self._told >= self.progress[1]:
            self._told = now
            self.progress[0](self.counts)

    def _end(self) -> Iterator[list[Answer]]:
        """Wait for all answers, also those held back."""
        yield from self._flush()
        yield from self._take(self.executor.rest())
        if self.agreement:
            yield from self.agreement.release([], end=True)

    def _flush(self) -> Iterator[list[Answer]]:
        """Give the documents that wait as one group, and take what is answered by now."""
        group, self._group, self._tokens = self._group, [], 0
        if not group:
            yield from self._take(self.executor.ready())
            return
        documents = [document for document, _ in group]
        compared = len(self.agreement.first(documents)) if self.agreement else 0
        self._given.append(group)
        yield from self._take(self.executor.put(documents, compared))

    def _take(self, answered: Iterable[Answered]) -> Iterator[list[Answer]]:
        for answers, exact in answered:
            group = self._given.popleft()
            if self.agreement:
                self.agreement.compare(exact, answers)
            whole = []
            for answer, ((example, features), copied) in zip(answers, group, strict=True):
                whole.append({"id": example.id, **answer})
                whole[-1].setdefault("windows", len(features))
                if both := whole[-1].keys() & copied.keys():
                    raise ValueError(f"keys of an answer that its task does not name: {both}")
                whole[-1] |= copied
            yield from self.agreement.release(whole) if self.agreement else [whole]
            for answer, ((_, features), _) in zip(whole, group, strict=True):
                self.counts.add(answer, features)


class Shard(NamedTuple):
    """Every ``of``-th record of an input, from the one with that ``number`` on.

    Args:
        number: from 1 to ``of``.
        of: how many shards there are.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """The shard that "2/7" names.

        Raises:
            UserError: it names none.
        """
        numbers = re.fullmatch("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
        if numbers is None or int(numbers[1]) > int(numbers[2]):
            raise UserError(
                f"--shard {text}: expected i/n with i from 1 to n, as 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(int(numbers[1]), int(numbers[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, record: int) -> bool:
        """True if the record of a number, from 1, is in the shard."""
        return (record - self.number) % self.of == 0

    def part(self, target: str) -> str:
        """The file with the answers of the shard: "answers.jsonl.2-of-7"."""
        return f"{target}.{self.number}-of-{self.of}"


class InputDocuments:
    """`Records`, which are counted and of which a hash is taken while they are read.

    Args:
        shard: whose records are given alone; hash and count are of all.

    Attributes:
        count: number of records that were read, the broken ones among them.
    """

    def __init__(self, records: Records, shard: Shard | None = None):
        self.records, self.shard = records, shard
        self.count = 0
        self._total = hashlib.sha256()

    def __call__(self, *, on_error: OnError | None) -> Generator[Example, None, None]:
        """Yield the records; a broken one goes to ``on_error``, or is raised where that is None."""
        self.count, self._total = 0, hashlib.sha256()

        def broken(error: DataError, raw: bytes) -> None:
            if not self._counted(raw):
                return
            if self.shard:
                error.record = self.count
            if on_error is None:
                raise error
            on_error(error, raw)

        for example in self.records(on_error=broken if on_error or self.shard else None):
            if self._counted(json.dumps([example.id, example.fields], default=str).encode()):
                if self.shard:
                    example.record = self.count
                yield example

    def _counted(self, raw: bytes) -> bool:
        """Count a record; True if it is one of the shard."""
        self.count += 1
        self._total.update(raw)
        return self.shard is None or self.shard.has(self.count)

    def sha256(self) -> str:
        """The hash of what was read last, once it was read to its end."""
        return self._total.hexdigest()
