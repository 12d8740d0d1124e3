"""Streaming prediction: documents in, answers out, in order and in constant memory. No torch here.

Documents are collected until `LOOKAHEAD_BATCHES` batches of tokens or `LOOKAHEAD_DOCUMENTS` wait,
or until a pipe pauses. Their chunks are sorted by length and run in batches; the answers leave as
one group, in input order. Groups depend on the documents alone (pauses aside), and a group's
answers on the group alone. A run resumes at the start of a group, so it forms the same batches and
writes the same bytes.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ldt.errors import DataError, ResourceError, UserError, plural
from ldt.inference.agreement import PrecisionCheck
from ldt.inference.executor import Answered, Document, Tell, untold
from ldt.inference.options import flag
from ldt.inference.predictor import Answer, Outputs, answer_of
from ldt.io.records import Example, OnError, SeenIds

if TYPE_CHECKING:
    from ldt.inference.answer_file import AnswerFile

log = logging.getLogger("ldt")

LOOKAHEAD_BATCHES = 4
LOOKAHEAD_DOCUMENTS = 256

Feature = dict[str, Any]
Refuse = Callable[[DataError, Example], None]
Beside = Callable[[Example], dict[str, Any]]
Records = Callable[..., Iterator[Example]]  # makes them anew; its argument is ``on_error``


class DocumentEncoder(Protocol):
    """Encoder of documents.

    Attributes:
        max_length: longest input, in tokens.
    """

    max_length: int

    def encode(self, example: Example) -> list[Feature]:
        """Inputs of a document, one per chunk; DataError if it cannot be used."""


class DocumentPredictor(DocumentEncoder, Protocol):
    """Model that answers documents."""

    def outputs(self, features: list[Feature]) -> list[Outputs]:
        """Run inputs as one batch: output arrays by name for each of them."""

    def decode(self, outputs: list[Outputs], example: Example, features: list[Feature]) -> Answer:
        """Answer to a document, such as {"label", "scores", "chunks"}, from its inputs' outputs."""


class Answering:
    """Executor that answers groups of documents in this process.

    Like `ldt.inference.executor.Workers` it returns groups in the order of submission.

    Args:
        model: predictor.
        batch_tokens: largest number of tokens of a batch, with padding; a longer chunk runs alone.
        exact: second predictor for the first documents of a run; released after the first group
            that is not compared completely.
        lock: lock held while the model runs.

    Attributes:
        tell: callback of chunks and tokens computed; negative ones are computed again.
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
        """Answer a group of documents at once; returns its answers as a list of one group.

        Args:
            documents: documents, (example, its features) each.
            compared: number of its first documents to answer by ``exact`` as well.
        """
        with self.lock:
            return [self(documents, compared, self.tell)]

    def collect(self) -> Iterable[Answered]:
        """Return nothing: `put` returned all answers."""
        return ()

    ready = collect

    def __call__(
        self, documents: Sequence[Document], compared: int = 0, tell: Tell = untold
    ) -> Answered:
        """Answer a group.

        Args:
            documents: encoded documents.
            compared: number of its first documents to answer by ``exact`` as well.
            tell: called after every batch, with zeros after one of ``exact`` and after every
                document.
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
        """Yield the inputs of a batch with their outputs, in parts that fit in memory.

        If a batch is too large, it and all later ones are halved. Group borders do not change, so
        that a resumed run forms the same groups.
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
                    f"{self.fitting:,}, as {flag('batch_tokens', self.fitting)} has it"
                )
                continue
            yield part, outputs
            batch = batch[most:]


def batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of ``lengths`` (tokens), longest first, so that similar ones are
    together.

    A batch padded to its longest has at most ``batch_tokens`` tokens, or a single member.
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

    Attributes:
        documents, chunks, tokens: documents, chunks, and tokens of the chunks with special and
            repeated ones.
        long: documents longer than one input.
        cut, unread, lengths: documents not read to the end, their unread tokens, and the tokens of
            all documents.
        wordless: summaries of at most one token.
        labels: answers of a classification, by label.
        resumed: documents answered by the earlier run.
    """

    documents: int = 0
    chunks: int = 0
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
        """Progress as text: documents, inputs, tokens, seconds, tokens per second."""
        seconds = time.monotonic() - self.started
        return (
            f"{plural(self.documents, 'document')}, {plural(self.chunks, 'input')}, "
            f"{plural(self.tokens, 'token')} in {seconds:.1f} s "
            f"({self.tokens / max(seconds, 1e-9):,.0f} tokens/s)"
        )

    def add(self, answer: Answer, features: list[Feature]) -> None:
        """Count a document by its answer and inputs; `Pipeline` counts chunks and tokens."""
        cut = bool(answer.get("truncated"))
        self.documents += 1
        self.long += cut or answer["chunks"] > 1
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
    """Documents to groups of answers, in order.

    Args:
        model: encoder of documents.
        executor: `Answering` or `ldt.inference.executor.Workers`; its ``tell`` is set.
        batch_tokens: largest number of tokens of a batch, with padding; a longer chunk runs alone.
        refuse: called with the error and a record that cannot be used; None raises.
        beside: function for what an answer takes from its record; raises DataError if the record
            lacks it.
        progress: (callback after a batch, least seconds between calls).
        agreement: comparison with another predictor on the first documents.
        lock: lock held while documents are encoded.
    """

    model: DocumentEncoder
    executor: Any
    batch_tokens: int
    refuse: Refuse | None = None
    beside: Beside | None = None
    progress: tuple[Callable[[Counts], None], float] | None = None
    agreement: PrecisionCheck | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.executor.tell = self._tell
        self._given: deque[list[_Waiting]] = deque()  # groups of the executor, in order
        self._group: list[_Waiting] = []
        self._tokens, self._told = 0, time.monotonic()

    def answer(
        self, records: Iterable[Example | None], resumed: "AnswerFile | None" = None
    ) -> Iterator[list[Answer]]:
        """Yield the answers to all records, a list per group, each with its ``id`` and ``chunks``.

        Args:
            records: examples, and None where the input pauses.
            resumed: answers to the first records, which are not yielded again; None if there are
                none.

        Raises:
            DataError: a record cannot be used; earlier answers were yielded.
            PrecisionError: too many answers differ from the other predictor's; none was yielded.
            UserError: stored answers belong to other records.
            ModelError: outputs are not finite.
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

    def _add(self, example: Example, seen: SeenIds, resumed: "AnswerFile | None") -> bool:
        """Add a record to the group unless it is answered; returns True if the group is full."""
        try:
            if not seen.add(example.id):
                raise DataError(f"{example.where}: id {example.id!r} came before")
            if resumed and resumed.skip(example.id):
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

    def _tell(self, chunks: int, tokens: int) -> None:
        self.counts.chunks += chunks
        self.counts.tokens += tokens
        now = time.monotonic()
        if self.progress and now - self._told >= self.progress[1]:
            self._told = now
            self.progress[0](self.counts)

    def _end(self) -> Iterator[list[Answer]]:
        yield from self._flush()
        yield from self._take(self.executor.collect())
        if self.agreement:
            yield from self.agreement.release([], end=True)

    def _flush(self) -> Iterator[list[Answer]]:
        group, self._group, self._tokens = self._group, [], 0
        if not group:
            yield from self._take(self.executor.ready())
            return
        documents = [document for document, _ in group]
        compared = len(self.agreement.to_compare(documents)) if self.agreement else 0
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
                whole[-1].setdefault("chunks", len(features))
                if both := whole[-1].keys() & copied.keys():
                    raise ValueError(f"keys of an answer that its task does not name: {both}")
                whole[-1] |= copied
            yield from self.agreement.release(whole) if self.agreement else [whole]
            for answer, ((_, features), _) in zip(whole, group, strict=True):
                self.counts.add(answer, features)


class Shard(NamedTuple):
    """Every ``of``-th record of an input, beginning with number ``number``.

    Args:
        number: number of the shard, from 1 to ``of``.
        of: number of shards.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse a shard such as "2/7"; UserError for another form, or a number above the count."""
        numbers = re.fullmatch("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
        if numbers is None or int(numbers[1]) > int(numbers[2]):
            raise UserError(
                f"--shard {text}: expected i/n with i from 1 to n, as 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(int(numbers[1]), int(numbers[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, record: int) -> bool:
        """True if the shard contains the record with this number in the whole input, from 1."""
        return (record - self.number) % self.of == 0

    def part(self, target: str) -> str:
        """Name of the file of the shard's answers, such as "answers.jsonl.2-of-7"."""
        return f"{target}.{self.number}-of-{self.of}"


class InputDocuments:
    """`Records` that are counted and hashed while they are read.

    Args:
        records: reader of the records.
        shard: shard whose records are yielded; count and hash cover all records.

    Attributes:
        count: number of records read, including broken ones.
    """

    def __init__(self, records: Records, shard: Shard | None = None):
        self.records, self.shard = records, shard
        self.count = 0
        self._total = hashlib.sha256()

    def __call__(self, *, on_error: OnError | None) -> Generator[Example, None, None]:
        """Yield the records; a broken one goes to ``on_error``, or is raised if that is None."""
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
        """Count a record; returns True if it is in the shard."""
        self.count += 1
        self._total.update(raw)
        return self.shard is None or self.shard.has(self.count)

    def sha256(self) -> str:
        """Hash in hex digits of the input, once it was read to its end."""
        return self._total.hexdigest()
