"""Documents in, answers out: in order, in batches by length, in constant memory. No torch here.

Documents are collected until `LOOKAHEAD_BATCHES` batches of tokens or `LOOKAHEAD_DOCUMENTS` of
them wait, or until a pipe pauses. Their windows are sorted by length and run in batches; the
answers leave as one group, in the order of the input. Which documents form a group depends on the
documents alone (pauses aside), and a run is resumed at the start of a group, so it forms the same
batches and writes the same bytes.
"""

import hashlib
import json
import time
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from ldt.errors import DataError, UserError, plural
from ldt.inference.agreement import Agreement
from ldt.inference.ahead import Records
from ldt.inference.group import (
    Answer,
    Answered,
    Answering,
    Document,
    Encoder,
    Feature,
    Hands,
    Here,
    Predictor,
)
from ldt.inference.shards import Shard
from ldt.io.records import Example, OnError

LOOKAHEAD_BATCHES = 4
LOOKAHEAD_DOCUMENTS = 256

Refuse = Callable[[DataError, Example], None]
Beside = Callable[[Example], dict[str, Any]]
_NOTHING = object()


class Sink(Protocol):
    """Where answers go: `ldt.inference.answer_file.AnswerFile`, or the like."""

    def done(self) -> Iterator[Any]:
        """The ids that are answered already, in their order."""

    def write(self, answers: list[Answer], /) -> None:
        """Add a group of answers."""


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
    model: Encoder,
    sink: Sink,
    *,
    batch_tokens: int,
    hands: Hands | None = None,
    refuse: Refuse | None = None,
    beside: Beside | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
    agreement: Agreement | None = None,
) -> Counts:
    """Write the answer of every record to ``sink``.

    Args:
        records: examples, and None where the input pauses.
        model: makes inputs of documents and, without ``hands``, is a `Predictor` that answers.
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        hands: what answers the groups.
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
    answers = hands or Here(
        Answering(cast(Predictor, model), batch_tokens, agreement.exact if agreement else None)
    )
    counts = Counts()
    answers.tell = partial(_tell, counts, progress)
    group = _Collected(answers, sink, batch_tokens, agreement, counts)
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
                    counts.resumed += 1
                    expected = next(done, _NOTHING)
                    continue
                features = model.encode(example)
                copied = beside(example) if beside else {}
            except DataError as error:
                if refuse is None:
                    raise
                refuse(error, example)
                continue
            _require_no_more(sink, expected, f"{example.id!r} ({example.where})")
            group.add(example, features, copied)
    except DataError:
        group.end()
        raise
    group.end()
    _require_no_more(sink, expected, "its end")
    return counts


def _tell(counts, progress, windows, tokens):
    counts.windows += windows
    counts.tokens += tokens
    progress(counts)


def _require_no_more(sink, expected, got):
    """Raise UserError where an id was to come that is answered already."""
    if expected is not _NOTHING:
        raise UserError(
            f"{sink.partial}: after {expected!r} was answered the input has {got} in its place; "
            "resume with the same input; --overwrite without --resume starts again"
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


class _Group(NamedTuple):
    """Documents in the order of the input, with what the answer of each has of its record."""

    documents: list[Document]
    copied: list[dict[str, Any]]


class _Collected:
    """Documents that wait for their answers, the last of them for a full group."""

    def __init__(
        self,
        hands: Hands,
        sink: Sink,
        batch_tokens: int,
        agreement: Agreement | None,
        counts: Counts,
    ) -> None:
        self.hands = hands
        self.sink = sink
        self.batch_tokens = batch_tokens
        self.agreement = agreement
        self.counts = counts
        self.given: deque[_Group] = deque()
        self.group = _Group([], [])
        self.tokens = 0

    def add(self, example: Example, features: list[Feature], copied: dict[str, Any]) -> None:
        self.group.documents.append((example, features))
        self.group.copied.append(copied)
        self.tokens += sum(len(feature["input_ids"]) for feature in features)
        full = self.tokens >= LOOKAHEAD_BATCHES * self.batch_tokens
        if full or len(self.group.documents) >= LOOKAHEAD_DOCUMENTS:
            self.flush()

    def end(self) -> None:
        """Wait for all answers; write them and those held back."""
        self.flush()
        self._take(self.hands.rest())
        if self.agreement:
            self._write([], end=True)

    def flush(self) -> None:
        """Give the documents that wait as one group, and write what is answered by now."""
        group, self.group, self.tokens = self.group, _Group([], []), 0
        if not group.documents:
            self._take(self.hands.ready())
            return
        compared = len(self.agreement.first(group.documents)) if self.agreement else 0
        self.given.append(group)
        self._take(self.hands.put(group.documents, compared))

    def _take(self, answered: Iterable[Answered]) -> None:
        for answers, exact in answered:
            group = self.given.popleft()
            if self.agreement:
                self.agreement.compare(exact, answers)
            written = []
            for answer, (example, features), copied in zip(answers, *group, strict=True):
                written.append({"id": example.id, **answer})
                written[-1].setdefault("windows", len(features))
                if both := written[-1].keys() & copied.keys():
                    raise ValueError(f"keys of an answer that its task does not name: {both}")
                written[-1] |= copied
            self._write(written)
            for answer, (_, features) in zip(written, group.documents, strict=True):
                self.counts.add(answer, features)

    def _write(self, group: list[Answer], end: bool = False) -> None:
        for each in self.agreement.release(group, end) if self.agreement else [group]:
            self.sink.write(each)


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
