"""Documents in, answers out: in order, in batches by length, in constant memory. No torch here.

Documents are collected until `LOOKAHEAD_BATCHES` batches of tokens or `LOOKAHEAD_DOCUMENTS` of
them wait, or until a pipe pauses. Their windows are sorted by length and run in batches; the
answers leave as one group, in the order of the input. Which documents form a group depends on the
documents alone (pauses aside), and a run is resumed at the start of a group, so it forms the same
batches and writes the same bytes.
"""

import time
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ldt.errors import DataError, UserError, plural
from ldt.inference.agreement import Agreement
from ldt.inference.group import Answer, Answered, Document, Encoder, Feature, Hands
from ldt.io.records import Example

LOOKAHEAD_BATCHES = 4
LOOKAHEAD_DOCUMENTS = 256

Refuse = Callable[[DataError, Example], None]
Beside = Callable[[Example], dict[str, Any]]
_NOTHING = object()


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


class _Group(NamedTuple):
    """Documents in the order of the input, with what the answer of each has of its record."""

    documents: list[Document]
    copied: list[dict[str, Any]]


class Resumed(Protocol):
    """The answers of an earlier run: `ldt.inference.answer_file.AnswerFile`, or the like."""

    partial: Path

    def done(self) -> Iterator[Any]:
        """The ids that are answered already, in their order."""


@dataclass
class Pipeline:
    """Documents to groups of answers, in their order.

    Args:
        model: makes inputs of documents.
        executor: answers groups of documents.
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        refuse: is called with a record that cannot be used, and why; None raises.
        beside: makes what an answer has of its record; a DataError where the record lacks it.
        progress: is called after every batch.
        agreement: with another predictor, whose answers for the first documents are to be the same.
        lock: is held while inputs are made.
    """

    model: Encoder
    executor: Hands
    batch_tokens: int
    refuse: Refuse | None = None
    beside: Beside | None = None
    progress: Callable[[Counts], None] = lambda counts: None
    agreement: Agreement | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.executor.tell = self._tell
        self._waiting: deque[_Group] = deque()  # given to the executor, in order
        self._group = _Group([], [])
        self._tokens = 0

    def answer(
        self, records: Iterable[Example | None], resumed: Resumed | None = None
    ) -> Iterator[list[Answer]]:
        """Yield the answers of every record, a group at a time.

        Args:
            records: examples, and None where the input pauses.
            resumed: answers that are there already, for the first of the records.

        Raises:
            DataError: a record cannot be used. The answers before it were yielded.
            PrecisionError: too many answers are not those of the other predictor; none was yielded.
            UserError: the answers that are there are not those of these records.
            ModelError: the model's numbers are not finite.
        """
        seen = SeenIds()
        done = resumed.done() if resumed else iter(())
        expected = next(done, _NOTHING)
        try:
            for example in records:
                if example is None:
                    yield from self._flush()
                    if self.agreement:
                        self.agreement.pause()
                    continue
                try:
                    if not seen.add(example.id):
                        raise DataError(f"{example.where}: id {example.id!r} came before")
                    if example.id == expected:
                        self.counts.resumed += 1
                        expected = next(done, _NOTHING)
                        continue
                    with self.lock:
                        features = self.model.encode(example)
                    copied = self.beside(example) if self.beside else {}
                except DataError as error:
                    if self.refuse is None:
                        raise
                    self.refuse(error, example)
                    continue
                _require_no_more(resumed, expected, f"{example.id!r} ({example.where})")
                if self._add(example, features, copied):
                    yield from self._flush()
        except DataError:
            yield from self._end()
            raise
        yield from self._end()
        _require_no_more(resumed, expected, "its end")

    def _tell(self, windows: int, tokens: int) -> None:
        self.counts.windows += windows
        self.counts.tokens += tokens
        self.progress(self.counts)

    def _add(self, example: Example, features: list[Feature], copied: dict[str, Any]) -> bool:
        """Put a document into the group; True where that is full."""
        self._group.documents.append((example, features))
        self._group.copied.append(copied)
        self._tokens += sum(len(feature["input_ids"]) for feature in features)
        full = self._tokens >= LOOKAHEAD_BATCHES * self.batch_tokens
        return full or len(self._group.documents) >= LOOKAHEAD_DOCUMENTS

    def _end(self) -> Iterator[list[Answer]]:
        """Wait for all answers, also those held back."""
        yield from self._flush()
        yield from self._take(self.executor.rest())
        if self.agreement:
            yield from self.agreement.release([], end=True)

    def _flush(self) -> Iterator[list[Answer]]:
        """Give the documents that wait as one group, and take what is answered by now."""
        group, self._group, self._tokens = self._group, _Group([], []), 0
        if not group.documents:
            yield from self._take(self.executor.ready())
            return
        compared = len(self.agreement.first(group.documents)) if self.agreement else 0
        self._waiting.append(group)
        yield from self._take(self.executor.put(group.documents, compared))

    def _take(self, answered: Iterable[Answered]) -> Iterator[list[Answer]]:
        for answers, exact in answered:
            group = self._waiting.popleft()
            if self.agreement:
                self.agreement.compare(exact, answers)
            whole = []
            for answer, (example, features), copied in zip(answers, *group, strict=True):
                whole.append({"id": example.id, **answer})
                whole[-1].setdefault("windows", len(features))
                if both := whole[-1].keys() & copied.keys():
                    raise ValueError(f"keys of an answer that its task does not name: {both}")
                whole[-1] |= copied
            yield from self.agreement.release(whole) if self.agreement else [whole]
            for answer, (_, features) in zip(whole, group.documents, strict=True):
                self.counts.add(answer, features)


def _require_no_more(resumed: Resumed | None, expected: Any, got: str) -> None:
    """Raise UserError where an id was to come that is answered already."""
    if resumed and expected is not _NOTHING:
        raise UserError(
            f"{resumed.partial}: after {expected!r} was answered the input has {got} in its place; "
            "resume with the same input; --overwrite without --resume starts again"
        )


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
