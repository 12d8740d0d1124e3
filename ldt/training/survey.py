"""One look at a set of documents: what a check counts while they go by, in little memory."""

from __future__ import annotations

import logging
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ldt.data import text_faults
from ldt.data.corpus import fingerprint, normalised
from ldt.data.findings import PLACES, Tally
from ldt.data.near_duplicates import Sketches
from ldt.errors import DataError
from ldt.io import files
from ldt.io.records import Example
from ldt.io.sources import Names, each
from ldt.tasks.base import Task

log = logging.getLogger("ldt")

GIANT = 1_000_000  # characters of a document that is as long as books are
OUTSTANDING = 10  # times the median, what a giant is above
SAMPLE = 20_000  # documents whose lengths are measured, at most
SAMPLE_SIZE = 100_000_000  # characters of them
_SHORT = 100  # characters of a document of a corpus that is no copy though it stands twice
_STEPS = tuple(1 << power for power in range(9, 25))  # values of data.max_length, from 512 on


class Length(NamedTuple):
    """Figures of a document: its length, the part that is read, its inputs and unknown tokens, and
    the reason why its answer cannot be given (``unlearnt`` of its first feature)."""

    length: int
    read: int
    inputs: int
    unknown: int = 0
    beyond: tuple[str, int] | None = None


@dataclass
class Classes:
    """The classes of a set.

    Args:
        counts: documents by class.
        places: the first ones of a class.
        documents: how many have an answer, be it no class.
        several: whether a document may have several classes, or none.
        blank: how many have none, and the first places.
    """

    counts: Counter[str]
    places: dict[str, list[str]]
    documents: int = 0
    several: bool = False
    blank: int = 0
    blanks: list[str] = field(default_factory=list)

    def add(self, where: str, names: str | list[str] | None) -> None:
        """Count the classes of a document, as `Task.classes` has them."""
        if names is None:
            self.blank += 1
            self.blanks = [*self.blanks, where][:PLACES]
            return
        self.documents += 1
        self.several |= isinstance(names, list)
        for name in {names} if isinstance(names, str) else set(names):
            self.counts[name] += 1
            if len(places := self.places.setdefault(name, [])) < PLACES:
                places.append(where)


class DocumentSurvey:
    """Findings in a set of documents.

    Args:
        name: train or eval.
        measure: gives the length of an example, raises DataError where it cannot be encoded; None
            measures nothing.
        short: whether short texts that stand twice are copies, as they are not in a corpus.
    """

    def __init__(
        self, name: str, measure: Callable[[Any], Length] | None = None, *, short: bool = True
    ):
        self.tally = Tally(name)
        self.measure, self.short = measure, short
        self.places: list[str] = []
        self.inputs, self.documents, self.answers, self.ids = (array("Q") for _ in range(4))
        self.sizes = array("q")
        self.classes = Classes(Counter(), {})
        self.languages: dict[str, list[str]] = {}
        self.language_counts: Counter[str] = Counter()
        self.lengths: dict[int, Length] = {}
        self.every = 1  # of so many documents the length of one is measured
        self.gauged = 0  # characters of those

    def __len__(self) -> int:
        return len(self.places)

    def compare(self, where: str, document: str, asked: str = "", answer: str = "") -> None:
        """Take note of a document for a search for copies; nothing asked, no answer: ``""``."""
        content = normalised(document)
        same = content if self.short or len(document) >= _SHORT else f"{self.tally.set} {where}"
        self.places.append(where)
        self.sizes.append(len(document))
        self.documents.append(fingerprint(same))
        self.inputs.append(fingerprint(f"{same}\0{normalised(asked)}" if asked else same))
        self.answers.append(fingerprint(answer))

    def examine(self, where: str, document: str) -> None:
        """Look for damage in a text, and tell its language."""
        for kind, detail in text_faults.faults(document):
            self.tally.add(kind, [where], detail)
        if language := text_faults.language(document):
            self.language_counts[language] += 1
            if len(places := self.languages.setdefault(language, [])) < PLACES:
                places.append(where)

    def gauge(self, item: Any, where: str) -> None:
        """Measure the length of what was compared last, if it belongs to the sample."""
        number = len(self) - 1
        if self.measure is None or number % self.every:
            return
        try:
            self.lengths[number] = length = self.measure(item)
            self.gauged += self.sizes[-1]
            if length.beyond is not None:
                kind, tokens = length.beyond
                self.tally.add(kind, [where], f"{tokens:,} tokens")
        except DataError as error:
            self.tally.add("unusable", [where], _without_place(error, where))
        while len(self.lengths) > (SAMPLE if self.gauged <= SAMPLE_SIZE else 1):
            self.every *= 2
            self.lengths = {n: it for n, it in self.lengths.items() if n % self.every == 0}
            self.gauged = sum(self.sizes[n] for n in self.lengths)

    def reject(self, error: DataError, raw: bytes = b"") -> None:
        """Take note of a record that cannot be read, as ``on_error`` of a reader."""
        place, _, what = str(error).partition(": ")
        self.tally.add("unreadable", [place], what)


def watched(
    survey: DocumentSurvey, examples: Iterable[Example], task: Task, data, sketches: Sketches
) -> Iterator[Example]:
    """Look at each labelled example, and pass on those that the task can use."""
    for example in until_damage(examples, survey):
        where, ids = example.where, survey.ids
        try:
            document, asked = task.parts(example, data)
            answer, names = task.answer_key(example, data), task.classes(example, data)
            found = list(task.faults(example, data))
        except DataError as error:
            found = _faults(task, example, data)
            for fault in found:
                survey.tally.add(fault.kind, [where], fault.what)
            if not found:
                survey.tally.add("unusable", [where], _without_place(error, where))
            continue
        ids.append(fingerprint(str(example.id)))
        survey.compare(where, document, asked, answer)
        survey.examine(where, document)
        survey.gauge(example, where)
        survey.classes.add(where, names)
        sketches.add(document)
        for kind in dict.fromkeys(fault.kind for fault in found):
            detail = next(fault.what for fault in found if fault.kind == kind)
            survey.tally.add(kind, [where], detail)
        out = names is None or any(fault.kind == "answer_not_in_candidates" for fault in found)
        if not out:
            yield example


def until_damage(items: Iterable[Any], survey: DocumentSurvey) -> Iterator[Any]:
    """Pass items on; damage that ends the reading of their file is taken note of."""
    try:
        for number, item in enumerate(items, 1):
            yield item
            if number % 200_000 == 0:
                log.info("%s: %s documents looked at", survey.tally.set, f"{number:,}")
    except DataError as error:
        survey.reject(error)


def _faults(task: Task, example: Example, data) -> list:
    """Faults that the task can name in an example that it cannot use."""
    try:
        return list(task.faults(example, data))
    except DataError:
        return []


def conclude(train: DocumentSurvey, evaluation: DocumentSurvey | None, sketches: Sketches) -> None:
    """Compare the documents of the sets, and tell what only the whole set shows."""
    surveys = [survey for survey in (train, evaluation) if survey is not None]
    for survey in surveys:
        _tell_giants(survey)
        _tell_languages(survey)
        _tell_unknown(survey)
        _tell_cut(survey)
    compare_copies(train, evaluation)
    _tell_near(surveys, sketches)


def compare_copies(train: DocumentSurvey, evaluation: DocumentSurvey | None) -> None:
    """Tell duplicates within each set and copies across both, by hash alone."""
    for survey in (train, evaluation):
        if survey is not None:
            _tell_twice(survey)
    if evaluation is None or not len(evaluation) or not len(train):
        return
    inputs, documents = np.array(train.inputs), np.array(train.documents)
    leaked = np.isin(np.array(evaluation.inputs), inputs) & _has_text(evaluation)
    shared = np.isin(np.array(evaluation.documents), documents) & ~leaked & _has_text(evaluation)
    for kind, marked, theirs, ours in (
        ("leak", leaked, inputs, evaluation.inputs),
        ("shared_document", shared, documents, evaluation.documents),
    ):
        numbers = np.flatnonzero(marked)
        if len(numbers):
            first = int(np.flatnonzero(theirs == np.uint64(ours[numbers[0]]))[0])
            _tell(evaluation, kind, numbers, train.places[first])


def same_files(one: Names, other: Names) -> bool:
    """True if two sources hold the same, whatever their names; of several files each does."""
    ours, theirs = each(one), each(other)
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    paths = Path(one), Path(other)
    if not all(path.is_file() for path in paths):
        return False
    if os.path.samefile(*paths):
        return True
    return len({path.stat().st_size for path in paths}) == 1 and (
        files.digest(paths[0]) == files.digest(paths[1])
    )


def _tell(survey: DocumentSurvey, kind: str, numbers: np.ndarray, like: str = "") -> None:
    """Count documents by number; ``like`` is the place that the first one resembles."""
    places = [survey.places[number] for number in numbers[:PLACES]]
    survey.tally.add(kind, places, f"the first is like {like}" if like else "", len(numbers))


def _has_text(survey: DocumentSurvey) -> np.ndarray:
    return np.array(survey.documents) != np.uint64(fingerprint(""))


def _tell_twice(survey: DocumentSurvey) -> None:
    """Ids and inputs that stand there before."""
    ids, inputs, answers = (np.array(a) for a in (survey.ids, survey.inputs, survey.answers))
    if len(repeated := np.flatnonzero(_first(ids) != np.arange(len(ids)))):
        _tell(survey, "duplicate_id", repeated, survey.places[_first(ids)[repeated[0]]])
    first = _first(inputs)
    again = (first != np.arange(len(inputs))) & _has_text(survey)
    for kind, marked in (
        ("duplicate", again & (answers == answers[first])),
        ("contradiction", again & (answers != answers[first])),
    ):
        numbers = np.flatnonzero(marked)
        if len(numbers):
            _tell(survey, kind, numbers, survey.places[first[numbers[0]]])


def _first(values: np.ndarray) -> np.ndarray:
    """For each value the place where it first stands."""
    _, first, which = np.unique(values, return_index=True, return_inverse=True)
    return first[which]


def _tell_near(surveys: list[DocumentSurvey], sketches: Sketches) -> None:
    """Documents that are nearly the same as one before, in their set or in the training set."""
    documents = np.concatenate([np.array(survey.documents, np.uint64) for survey in surveys])
    border = len(surveys[0])
    if not len(documents):
        return
    one, other, _ = sketches.pairs(_first(documents) == np.arange(len(documents)))
    places = [place for survey in surveys for place in survey.places]
    for survey, kind, marked in (
        (surveys[0], "near_duplicate", other < border),
        (surveys[-1], "near_duplicate", one >= border),
        (surveys[-1], "near_leak", (one < border) & (other >= border)),
    ):
        numbers, first = np.unique(other[marked], return_index=True)
        if len(numbers):
            begin = border if survey is not surveys[0] else 0
            _tell(survey, kind, numbers - begin, places[one[marked][first[0]]])


def _tell_giants(survey: DocumentSurvey) -> None:
    sizes = np.array(survey.sizes)
    if not len(sizes):
        return
    median = float(np.median(sizes))
    giants = np.flatnonzero((sizes > GIANT) & (sizes > OUTSTANDING * median))
    if len(giants):
        places = [survey.places[number] for number in giants[:PLACES]]
        detail = f"{sizes[giants[0]]:,} characters, {median:,.0f} in the median"
        survey.tally.add("giant", places, detail, len(giants))


def _tell_languages(survey: DocumentSurvey) -> None:
    """Documents in other languages than the commonest."""
    (most, _), *others = survey.language_counts.most_common() or [("", 0)]
    if others:
        places = [place for name, _ in others for place in survey.languages[name]]
        named = ", ".join(f"{name} {count:,}" for name, count in others[:4])
        count = sum(count for _, count in others)
        survey.tally.add("mixed_languages", places, f"{named}; most are {most}", count)


def _tell_unknown(survey: DocumentSurvey) -> None:
    many = [n for n, each in survey.lengths.items() if each.unknown > 0.05 * each.length]
    if many:
        places = [survey.places[number] for number in many[:PLACES]]
        survey.tally.add("unknown_tokens", places, "", len(many))


def _tell_cut(survey: DocumentSurvey) -> None:
    cut = [number for number, each in survey.lengths.items() if each.read < each.length]
    if cut:
        tokens = sum(each.length for each in survey.lengths.values())
        unread = sum(each.length - each.read for each in survey.lengths.values())
        places = [survey.places[number] for number in cut[:PLACES]]
        detail = f"{unread / tokens:.1%} of the text is not read"
        survey.tally.add("cut", places, detail, len(cut))


def length_table(survey: DocumentSurvey) -> dict[str, Any]:
    """Lengths of the documents, and what longer and shorter inputs would read of them."""
    lengths = np.array([each.length for each in survey.lengths.values()], np.int64)
    if not len(lengths):
        return {}
    rows = []
    for longest in _STEPS:
        rows.append(
            {
                "max_length": longest,
                "whole": float((lengths <= longest).mean()),
                "beginning": float(np.minimum(lengths, longest).sum() / lengths.sum()),
                "inputs": int(np.maximum(-(-(lengths - 2) // (longest - 2)), 1).sum()),
            }
        )
        if lengths.max() <= longest:
            break
    read = sum(each.read for each in survey.lengths.values())
    return {
        "documents": len(lengths),
        "every": survey.every,
        "median": int(np.median(lengths)),
        "p95": int(np.percentile(lengths, 95)),
        "longest": int(lengths.max()),
        "inputs": sum(each.inputs for each in survey.lengths.values()),
        "read": float(read / lengths.sum()),
        "by_max_length": rows,
    }


def _without_place(error: Exception, where: str) -> str:
    return str(error).removeprefix(f"{where}: ")
