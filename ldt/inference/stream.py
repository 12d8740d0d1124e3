"""Documents in, answers out: in order, in batches by length, in constant memory. No torch here.

Documents are collected until `LOOKAHEAD_BATCHES` batches of tokens or `LOOKAHEAD_DOCUMENTS` of
them wait, or until a pipe pauses. Their windows are sorted by length and run in batches; the
answers leave as one group, in the order of the input. Which documents form a group depends on the
documents alone (pauses aside), and a run is resumed at the start of a group, so it forms the same
batches and writes the same bytes.
"""

import hashlib
import json
import logging
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ldt.data.records import Example, OnError
from ldt.errors import DataError, ModelError, ResourceError, UserError, plural
from ldt.inference.agreement import Agreement
from ldt.inference.ahead import Records
from ldt.inference.answer_file import AnswerFile, AnswerStream, rounded
from ldt.inference.shards import Shard

log = logging.getLogger("ldt")

LOOKAHEAD_BATCHES = 4
LOOKAHEAD_DOCUMENTS = 256

Feature = dict[str, Any]
Refuse = Callable[[DataError, Example], None]
Beside = Callable[[Example], dict[str, Any]]
_NOTHING = object()


class Predictor(Protocol):
    """A model that answers for documents.

    Attributes:
        max_length: longest input, in tokens.
    """

    max_length: int

    def encode(self, example: Example) -> list[Feature]:
        """Inputs made of a document; DataError when it cannot be used."""

    def outputs(self, features: list[Feature]) -> list[dict[str, np.ndarray]]:
        """Arrays by name for each input, of any documents, run as one batch."""

    def decode(
        self, outputs: list[dict[str, np.ndarray]], example: Example, features: list[Feature]
    ) -> dict[str, Any]:
        """The answer for a document, flags included, from the arrays of its inputs."""


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
    told: float = field(default_factory=time.monotonic)

    def due(self, seconds: float) -> bool:
        """True where so many seconds have gone by since it was true, or since the run began."""
        now = time.monotonic()
        if now - self.told < seconds:
            return False
        self.told = now
        return True

    def rate(self) -> str:
        """Text for people: documents, windows, tokens, tokens a second."""
        seconds = time.monotonic() - self.started
        return (
            f"{plural(self.documents, 'document')}, {plural(self.windows, 'window')}, "
            f"{plural(self.tokens, 'token')} in {seconds:.1f} s "
            f"({self.tokens / max(seconds, 1e-9):,.0f} tokens/s)"
        )

    def add(self, answer: dict[str, Any], features: list[Feature]) -> None:
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


def answer_all(
    records: Iterable[Example | None],
    model: Predictor,
    sink: AnswerFile | AnswerStream,
    *,
    batch_tokens: int,
    refuse: Refuse | None = None,
    beside: Beside | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
    agreement: Agreement | None = None,
) -> Counts:
    """Write the answer of every record to ``sink``.

    Args:
        records: examples, and None where the input pauses.
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        refuse: is called with a record that cannot be used, and why; None raises.
        beside: makes what an answer has of its record; a DataError where the record lacks it.
        progress: is called after every batch.
        agreement: with another predictor, whose answers for the first documents are to be the same.

    Raises:
        DataError: a record cannot be used. The answers before it are written.
        PrecisionError: too many answers are not those of the other predictor; none is written.
        UserError: the answers that ``sink`` has already are not those of these records.
        ModelError: the model's numbers are not finite.
    """
    group = _Group(model, sink, batch_tokens, progress, agreement)
    seen = SeenIds()
    done = sink.done()
    expected = next(done, _NOTHING)
    try:
        for example in records:
            if example is None:
                group.flush()
                if agreement:
                    agreement.pause()
                continue
            try:
                if not seen.add(example.id):
                    raise DataError(f"{example.where}: id {example.id!r} came before")
                if example.id == expected:
                    group.counts.resumed += 1
                    expected = next(done, _NOTHING)
                    continue
                features = model.encode(example)
                copied = beside(example) if beside else {}
            except DataError as error:
                if refuse is None:
                    raise
                refuse(error, example)
                continue
            if expected is not _NOTHING:
                raise UserError(_other_input(sink, expected, f"{example.id!r} ({example.where})"))
            group.add(example, features, copied)
    except DataError:
        group.end()
        raise
    group.end()
    if expected is not _NOTHING:
        raise UserError(_other_input(sink, expected, "its end"))
    return group.counts


def _other_input(sink, expected, got):
    return (
        f"{sink.partial}: after {expected!r} was answered the input has {got} in its place; "
        "resume with the same input, or remove the file to start again"
    )


class Documents:
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

        def broken(error, raw):
            if not self._counted(raw):
                return
            if self.shard:
                error.record = self.count
            if on_error is None:
                raise error
            on_error(error, raw)

        return self._hashed(self.records(on_error=broken if on_error or self.shard else None))

    def _hashed(self, examples: Iterator[Example]) -> Generator[Example, None, None]:
        for example in examples:
            value = [example.id, example.fields]
            if self._counted(json.dumps(value, default=str).encode()):
                if self.shard:
                    example.record = self.count
                yield example

    def _counted(self, raw: bytes) -> bool:
        """Count a record; whether it is to be given."""
        self.count += 1
        self._total.update(raw)
        return self.shard is None or self.shard.has(self.count)

    def sha256(self) -> str:
        """The hash of what was read last, once it was read to its end."""
        return self._total.hexdigest()


_Document = tuple[Example, list[Feature], dict[str, Any]]  # with what its answer has of it


class _Group:
    """Documents that wait for their answers."""

    def __init__(
        self,
        model: Predictor,
        sink: AnswerFile | AnswerStream,
        batch_tokens: int,
        progress: Callable[[Counts], None],
        agreement: Agreement | None,
    ) -> None:
        self.model = model
        self.sink = sink
        self.batch_tokens = batch_tokens
        self.fitting = batch_tokens  # of them, what the memory holds
        self.progress = progress
        self.agreement = agreement
        self.counts = Counts()
        self.documents: list[_Document] = []
        self.tokens = 0

    def add(self, example: Example, features: list[Feature], copied: dict[str, Any]) -> None:
        self.documents.append((example, features, copied))
        self.tokens += sum(len(feature["input_ids"]) for feature in features)
        full = self.tokens >= LOOKAHEAD_BATCHES * self.batch_tokens
        if full or len(self.documents) >= LOOKAHEAD_DOCUMENTS:
            self.flush()

    def end(self) -> None:
        """Answer the documents that wait; write these answers and those held back."""
        self.flush()
        if self.agreement:
            self._write([], end=True)

    def flush(self) -> None:
        """Answer the documents that wait, and write the answers as one group."""
        if not self.documents:
            return
        exact: list[dict[str, Any]] = []
        if self.agreement and (first := self.agreement.first(self.documents)):
            exact = self._answers(self.agreement.exact, first, Counts())
        answers = self._answers(self.model, self.documents, self.counts)
        if self.agreement:
            self.agreement.compare(exact, answers)
        group = []
        for answer, (example, features, copied) in zip(answers, self.documents, strict=True):
            group.append({"id": example.id, **answer})
            group[-1].setdefault("windows", len(features))
            if both := group[-1].keys() & copied.keys():
                raise ValueError(f"keys of an answer that its task does not name: {both}")
            group[-1] |= copied
        self._write(group)
        for answer, (_, features, _) in zip(group, self.documents, strict=True):
            self.counts.add(answer, features)
        self.documents, self.tokens = [], 0

    def _write(self, group: list[dict[str, Any]], end: bool = False) -> None:
        for each in self.agreement.release(group, end) if self.agreement else [group]:
            self.sink.write(each)

    def _answers(
        self, model: Predictor, documents: Sequence[_Document], counts: Counts
    ) -> list[dict[str, Any]]:
        """The answers of a model, which are counted as far as they go."""
        features = [feature for _, features, _ in documents for feature in features]
        rows = iter(self._outputs(model, features, counts))
        answers = []
        for example, features, _ in documents:
            outputs = [next(rows) for _ in features]
            if not all(np.isfinite(values).all() for row in outputs for values in row.values()):
                raise ModelError(
                    f"{example.where}: the model answers with numbers that are not finite; its "
                    "weights are damaged or its training diverged"
                )
            answers.append(rounded(model.decode(outputs, example, features)))
        return answers

    def _outputs(
        self, model: Predictor, features: list[Feature], counts: Counts
    ) -> list[dict[str, np.ndarray]]:
        """Arrays of each input, in the order of the inputs, which are run the longest first."""
        lengths = [len(feature["input_ids"]) for feature in features]
        rows: list[Any] = [None] * len(features)
        for batch in batches(lengths, self.batch_tokens):
            for part, outputs in self._fitting(model, batch, features, lengths):
                for index, row in zip(part, outputs, strict=True):
                    rows[index] = row
                counts.windows += len(part)
                counts.tokens += sum(lengths[i] for i in part)
                self.progress(self.counts)
        return rows

    def _fitting(
        self, model: Predictor, batch: list[int], features: list[Feature], lengths: list[int]
    ):
        """Yield the inputs of a batch and their arrays, in parts that the memory holds.

        A batch that is too large is parted, and all after it: the memory will not grow. Groups stay
        as they are, so that a run is resumed at the same ones.
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
                    f"{self.fitting:,}, as --batch-tokens {self.fitting} has it"
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


class SeenIds:
    """Ids that have come: 16 bytes for a run of rising whole numbers, 8 for any other id.

    Line numbers, which stand in for missing ids, are such a run, so a stream without ids needs
    no memory for them. ``7`` and ``"7"`` are the same id, as they are in a prediction file. Ids
    other than whole numbers are told apart by 64 bits of their hash.
    """

    RECENT = 1 << 14

    def __init__(self) -> None:
        self.starts = array("q")  # runs of whole numbers, first and last, rising
        self.ends = array("q")
        self.recent: set[int] = set()
        self.sorted: list[np.ndarray] = []  # uint64, each more than the next

    def add(self, key: str | int) -> bool:
        """Add an id; False if it has come before."""
        number = _whole(key)
        if number is not None:
            last = self.ends[-1] if self.ends else None
            if last is None or number > last + 1:
                self.starts.append(number)
                self.ends.append(number)
                return True
            if number == last + 1:
                self.ends[-1] = number
                return True
            run = bisect_right(self.starts, number) - 1
            if run >= 0 and number <= self.ends[run]:
                return False
        value = hash(str(key)) & (1 << 64) - 1
        if value in self.recent or any(_holds(values, value) for values in self.sorted):
            return False
        self.recent.add(value)
        if len(self.recent) >= self.RECENT:
            self._settle()
        return True

    def _settle(self) -> None:
        values = np.fromiter(self.recent, np.uint64, len(self.recent))
        while self.sorted and len(self.sorted[-1]) <= len(values):
            values = np.concatenate([values, self.sorted.pop()])
        values.sort()
        self.sorted.append(values)
        self.recent = set()


def _whole(key: str | int) -> int | None:
    """An id as a number, if it is a whole one that 64 bits hold."""
    if isinstance(key, str):
        if not (len(key) < 19 and key.isdecimal() and key.isascii()):
            return None
        if str(int(key)) != key:
            return None  # "007" is not 7
        return int(key)
    return key if -(1 << 62) < key < 1 << 62 else None


def _holds(values: np.ndarray, value: int) -> bool:
    wanted = np.uint64(value)
    place = values.searchsorted(wanted)
    return bool(place < len(values) and values[place] == wanted)
