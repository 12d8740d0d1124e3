"""Profile of a set of documents, computed in one pass: lengths, ids, copies, classes, languages.

`ldt check` and the summary before training report its findings (`ldt.data.findings`). It takes
about 60 bytes of memory per document of any length.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ldt.data.findings import KINDS, Finding
from ldt.data.labels import are_flags, near
from ldt.data.near_duplicates import Sketches, fingerprint, normalised
from ldt.errors import DataError, listed, plural
from ldt.io.sources import Names, digest, each

PLACES = 3  # of a kind that are named
GIANT = 1_000_000  # characters of a document that is as long as books are
OUTSTANDING = 10  # times the median, what a giant is above
SAMPLE = 20_000  # documents whose lengths are measured, at most
SAMPLE_SIZE = 100_000_000  # characters of them
UNKNOWN = 0.05  # share of a document's tokens that are unknown, above which it is told
DOCUMENTS_A_CLASS = 2  # of an evaluation set, below which its figures say little
ONE_SIDED = 0.8  # share of the documents from which on a class is named as the answer to beat
_SHORT = 100  # characters of a document of a corpus that is no copy though it stands twice
_STEPS = tuple(1 << power for power in range(9, 25))  # values of data.max_length, from 512 on

_LANGUAGE_WORDS = 400  # of a text, by which its language is told
_LEAST_WORDS = 20  # of fewer it is not told

# Tab, line ends and the form feed between pages are not meant; lone surrogates are.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufff9-\ufffb\ufffe\uffff]")
# UTF-8 read as cp1252 or Latin-1 (é: Ã©, ’: â€™, §: Â§, д: Ð´), and what could not be decoded.
_TAIL = "[\x80-\xbf\u20ac\u201a-\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u017d"
_TAIL += "\u2018\u2019\u201c\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u017e\u0178]"
_MOJIBAKE = re.compile(
    f"\ufffd|[\x80-\x84\x86-\x9f]|\u00c3{_TAIL}|\u00c2[\xa0-\xbf]|\u00e2[\u20ac\x80]{_TAIL}|"
    f"\u00ef\u00bb\u00bf|(?:[\u00d0\u00d1]{_TAIL}){{2}}"
)

_SCRIPTS = {  # languages of which the letters are enough
    "Chinese or Japanese": "\u3040-\u30ff\u3400-\u9fff",
    "Korean": "\uac00-\ud7af",
    "Arabic script": "\u0600-\u06ff",
    "Cyrillic script": "\u0400-\u04ff",
    "Greek": "\u0370-\u03ff",
    "Hebrew": "\u0590-\u05ff",
    "Devanagari script": "\u0900-\u097f",
    "Thai": "\u0e00-\u0e7f",
}
_SCRIPT = {name: re.compile(f"[{letters}]") for name, letters in _SCRIPTS.items()}
_COMMON = {  # words that few other languages have
    "English": "the of and to is that for with this was be by are shall which not",
    "German": "der die und das ist nicht ein eine mit von den zu auf für sich dem werden",
    "French": "le les des et est une dans pour que qui du pas sur avec il au sont",
    "Spanish": "el los las y una por con para del es se como lo más su al fue",
    "Italian": "il di che è della per una con non sono del le gli alla nel anche si",
    "Portuguese": "os uma da não em para com dos ao mais foi são pelo que também",
    "Dutch": "het een van en dat niet voor met zijn aan op ook wordt bij deze naar te",
}
_WORDS: dict[str, list[str]] = {}
for _language, _common in _COMMON.items():
    for _word in _common.split():
        _WORDS.setdefault(_word, []).append(_language)


class Length(NamedTuple):
    """Tokens of a document, tokens read, number of inputs, unknown tokens, and the reason why its
    answer cannot be learned (``unlearnt`` of its first feature)."""

    length: int
    read: int
    inputs: int
    unknown: int = 0
    beyond: tuple[str, int] | None = None


class _Tally:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.places: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, name: str, where: Iterable[str], count: int = 1) -> None:
        self.counts[name] += count
        places = self.places[name]
        for place in where:
            if len(places) < PLACES and place not in places:
                places.append(place)

    def places_of(self, names: Iterable[str]) -> list[str]:
        return [place for name in names for place in self.places[name]]


class Profile:
    """Profile of a set of documents.

    Args:
        name: train or eval.
        measure: function from an example to its `Length`, which raises DataError if it cannot be
            encoded; None measures nothing.
        short: True counts repeated short texts as copies; False for a corpus.
    """

    def __init__(
        self, name: str, measure: Callable[[Any], Length] | None = None, *, short: bool = True
    ):
        self.name, self.measure, self.short = name, measure, short
        self.faults, self.details = _Tally(), dict[str, str]()
        self.places: list[str] = []
        self.inputs, self.documents, self.answers, self.ids = (array("Q") for _ in range(4))
        self.sizes = array("q")
        self.languages, self.classes = _Tally(), _Tally()
        self.labelled = 0  # documents with an answer, be it no class
        self.blank: list[str] = []  # places of those without one
        self.several = False  # a document may have several classes, or none
        self.lengths: dict[int, Length] = {}
        self.every = 1  # sampling stride: the length of one of this many documents is measured
        self.measured = 0  # characters of those

    def __len__(self) -> int:
        return len(self.places)

    def add_fault(self, kind: str, where: Iterable[str], detail: str = "", count: int = 1) -> None:
        """Count documents with a fault.

        Args:
            kind: name in `KINDS`.
            where: places of the documents, such as "train.jsonl:17"; the first 3 of a kind are
                kept.
            detail: more about the first place; kept for the first call of a kind.
            count: number of documents.
        """
        self.faults.add(kind, where, count)
        self.details.setdefault(kind, detail)

    def add_error(self, kind: str, error: Exception | str) -> None:
        """Count a document with a fault of `KINDS`, by an error message "place: fault"."""
        place, _, what = str(error).partition(": ")
        self.add_fault(kind, [place], what)

    def reject(self, error: DataError, raw: bytes = b"") -> None:
        """Count an unreadable record; serves as ``on_error`` of a reader."""
        self.add_error("unreadable", error)

    def findings(self) -> list[Finding]:
        """One finding per kind of fault counted so far, whose number of documents includes
        unreadable and unusable records."""
        counts, set_ = self.faults.counts, self.name
        of = len(self) + counts["unreadable"] + counts["unusable"]
        findings = []
        for kind, count in counts.items():
            where, detail = tuple(self.faults.places[kind]), self.details.get(kind, "")
            findings.append(Finding(kind, KINDS[kind].level, set_, count, of, where, detail))
        return [finding for finding in findings if finding.count]

    # -- a document

    def compare(
        self, where: str, document: str, asked: str = "", answer: str = "", id: Any = None
    ) -> None:
        """Remember a document by hashes, for `find_copies`.

        Args:
            where: place of the document, such as "train.jsonl:17".
            document: its text.
            asked: question about it; "" if there is none.
            answer: gold answer; copies with another one are contradictions.
            id: id of the record; None if repeated ids are no fault.
        """
        content = normalised(document)
        same = content if self.short or len(document) >= _SHORT else f"{self.name} {where}"
        self.places.append(where)
        self.sizes.append(len(document))
        self.documents.append(fingerprint(same))
        self.inputs.append(fingerprint(f"{same}\0{normalised(asked)}" if asked else same))
        self.answers.append(fingerprint(answer))
        if id is not None:
            self.ids.append(fingerprint(str(id)))

    def examine(self, item: Any, where: str, document: str) -> None:
        """Check the text of the document passed to `compare` last for damage, detect its language,
        and, if it belongs to the sample, measure ``item``, its example or text as ``measure``
        takes it."""
        for kind, detail in _text_faults(document):
            self.add_fault(kind, [where], detail)
        if name := _language_of(document):
            self.languages.add(name, [where])
        number = len(self) - 1
        if self.measure is None or number % self.every:
            return
        try:
            self.lengths[number] = length = self.measure(item)
            self.measured += self.sizes[-1]
            if length.beyond is not None:
                kind, tokens = length.beyond
                self.add_fault(kind, [where], f"{tokens:,} tokens")
        except DataError as error:
            self.add_fault("unusable", [where], str(error).removeprefix(f"{where}: "))
        while len(self.lengths) > (SAMPLE if self.measured <= SAMPLE_SIZE else 1):
            self.every *= 2
            self.lengths = {n: it for n, it in self.lengths.items() if n % self.every == 0}
            self.measured = sum(self.sizes[n] for n in self.lengths)

    def classify(self, where: str, names: str | list[str] | None) -> None:
        """Count the classes of a document: one name, or a list if it can have several or none. None
        counts it as unlabelled."""
        if names is None:
            self.blank.append(where)
            return
        self.labelled += 1
        self.several |= isinstance(names, list)
        for name in [names] if isinstance(names, str) else dict.fromkeys(names):
            self.classes.add(name, [where])

    # -- the whole set

    def conclude(self) -> None:
        """Add faults of the whole set: outliers in length, minority languages, unknown tokens,
        unread text."""
        sizes = np.array(self.sizes)
        median = float(np.median(sizes)) if len(sizes) else 0
        giants = np.flatnonzero((sizes > GIANT) & (sizes > OUTSTANDING * median))
        if len(giants):
            what = f"{sizes[giants[0]]:,} characters, {median:,.0f} in the median"
            self._add_documents("giant", giants, what)
        (most, _), *others = self.languages.counts.most_common() or [("", 0)]
        if others:
            named = ", ".join(f"{name} {count:,}" for name, count in others[:4])
            places = self.languages.places_of(name for name, _ in others)
            count = sum(count for _, count in others)
            self.add_fault("mixed_languages", places, f"{named}; most are {most}", count)
        lengths = self.lengths.items()
        unknown = [n for n, each in lengths if each.unknown > UNKNOWN * each.length]
        self._add_documents("unknown_tokens", unknown)
        if cut := [n for n, each in lengths if each.read < each.length]:
            unread = 1 - self._read()
            self._add_documents("cut", cut, f"{unread:.1%} of the text is not read")

    def _read(self) -> float:
        lengths = self.lengths.values()
        return sum(each.read for each in lengths) / sum(each.length for each in lengths)

    def _add_documents(self, kind: str, numbers: Any, detail: str = "") -> None:
        if len(numbers):
            places = [self.places[number] for number in numbers[:PLACES]]
            self.add_fault(kind, places, detail, len(numbers))

    def _has_text(self) -> np.ndarray:
        return np.array(self.documents) != np.uint64(fingerprint(""))

    def find_copies(self) -> None:
        """Add faults for repeated ids, and for inputs repeated with the same or another answer."""
        ids, inputs, answers = (np.array(a) for a in (self.ids, self.inputs, self.answers))
        first, first_id = _first(inputs), _first(ids)
        again = (first != np.arange(len(inputs))) & self._has_text()
        for kind, marked, before in (
            ("duplicate_id", first_id != np.arange(len(ids)), first_id),
            ("duplicate", again & (answers == answers[first]), first),
            ("contradiction", again & (answers != answers[first]), first),
        ):
            self._add_copies(kind, np.flatnonzero(marked), before, self.places)

    def _add_copies(self, kind: str, numbers: np.ndarray, before: Any, places: list[str]) -> None:
        if len(numbers):
            like = places[before[numbers[0]]]
            self._add_documents(kind, numbers, f"the first is like {like}")

    def length_table(self) -> dict[str, Any]:
        """Lengths of the measured documents, in tokens; {} if none was measured.

        Returns:
            ``documents``, their number; ``every``, the sampling stride; ``median``, ``p95`` and
                ``longest``; ``inputs``, their number; ``read``, the share of the tokens that is
                read, from 0 to 1; ``by_max_length``, rows with ``max_length``, the shares ``whole``
                (of documents) and ``beginning`` (of tokens) that would fit, and ``inputs``.
        """
        lengths = np.array([each.length for each in self.lengths.values()], np.int64)
        if not len(lengths):
            return {}
        shorter = [step for step in _STEPS if step < lengths.max()]
        rows = [
            {
                "max_length": longest,
                "whole": float((lengths <= longest).mean()),
                "beginning": float(np.minimum(lengths, longest).sum() / lengths.sum()),
                "inputs": int(np.maximum(-(-(lengths - 2) // (longest - 2)), 1).sum()),
            }
            for longest in _STEPS[: len(shorter) + 1]
        ]
        return {
            "documents": len(lengths),
            "every": self.every,
            "median": int(np.median(lengths)),
            "p95": int(np.percentile(lengths, 95)),
            "longest": int(lengths.max()),
            "inputs": sum(each.inputs for each in self.lengths.values()),
            "read": self._read(),
            "by_max_length": rows,
        }


# -- copies in two sets


def compare_copies(train: Profile, evaluation: Profile | None) -> None:
    """Add faults for exact copies within each set, and in the evaluation set for those of training
    documents. `Profile.compare` must have been called for all."""
    train.find_copies()
    if evaluation is None:
        return
    evaluation.find_copies()
    inputs, documents = np.array(train.inputs), np.array(train.documents)
    has_text = evaluation._has_text()
    leaked = np.isin(np.array(evaluation.inputs), inputs) & has_text
    shared = np.isin(np.array(evaluation.documents), documents) & ~leaked & has_text
    for kind, marked, theirs, ours in (
        ("leak", leaked, inputs, evaluation.inputs),
        ("shared_document", shared, documents, evaluation.documents),
    ):
        numbers = np.flatnonzero(marked)
        before = {n: np.flatnonzero(theirs == np.uint64(ours[n]))[0] for n in numbers[:1]}
        evaluation._add_copies(kind, numbers, before, train.places)


def find_near(train: Profile, evaluation: Profile | None, sketches: Sketches) -> None:
    """Add faults for near-duplicates of an earlier document in the same set or in the training set.
    ``sketches`` has all documents of both profiles, those of the training set first."""
    profiles = [train] if evaluation is None else [train, evaluation]
    hashes = np.concatenate([np.array(profile.documents, np.uint64) for profile in profiles])
    if not len(hashes):
        return
    border, last = len(train), profiles[-1]
    one, other, _ = sketches.pairs(_first(hashes) == np.arange(len(hashes)))
    places = [place for profile in profiles for place in profile.places]
    for profile, kind, marked in (
        (train, "near_duplicate", other < border),
        (last, "near_duplicate", one >= border),
        (last, "near_leak", (one < border) & (other >= border)),
    ):
        numbers, first = np.unique(other[marked], return_index=True)
        numbers = numbers - (0 if profile is train else border)
        before = dict(zip(numbers[:1].tolist(), one[marked][first[:1]], strict=True))
        profile._add_copies(kind, numbers, before, places)


def _first(values: np.ndarray) -> np.ndarray:
    _, first, which = np.unique(values, return_index=True, return_inverse=True)
    return first[which]


def same_files(one: Names, other: Names) -> bool:
    """True if two sources have the same content, under any name; several files are compared one by
    one."""
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
    return len({path.stat().st_size for path in paths}) == 1 and digest(one) == digest(other)


# -- classes


def find_class_faults(train: Profile, evaluation: Profile | None) -> None:
    """Add faults of the classes to the profiles: rare, unseen, nearly equal, only one, and
    so on."""
    counts, several = train.classes.counts, train.several
    for profile in (train, evaluation):
        if profile is not None and profile.blank and not several:
            yes = next(iter(counts), "") if len(counts) == 1 and are_flags(counts) else ""
            detail = f"a list such as data.label=[Cap] reads {yes!r} and blank as yes and no"
            blank = profile.blank
            profile.add_fault("unlabelled", blank[:PLACES], detail if yes else "", len(blank))
    if not counts:
        return

    def tell(kind: str, names: Iterable[str], detail: str = "") -> None:
        names = sorted(names, key=lambda name: -counts[name])
        if names:
            count = min(sum(counts[name] for name in names), train.labelled)
            places = train.classes.places_of(names)
            train.add_fault(kind, places, detail or listed(names, 5), count)

    one = len(counts) == 1 and not several
    tell("one_label", counts if one else ())
    tell("near_names", [name for group in near(counts) for name in group])
    if len(counts) > max(20, train.labelled / 2) and not several:
        tell("many_labels", counts, f"{len(counts):,} classes")
    elif not one and not train.faults.counts["ambiguous_labels"]:
        tell("rare_label", [name for name, count in counts.items() if count == 1])
    commonest, most = counts.most_common(1)[0]
    if not several and len(counts) > 1 and most >= ONE_SIDED * train.labelled:
        tell("majority", [commonest])
    if evaluation is not None and (theirs := evaluation.classes).counts:
        missing = [name for name in theirs.counts if name not in counts]
        if missing:
            count = sum(theirs.counts[name] for name in missing)
            places = theirs.places_of(missing)
            evaluation.add_fault("unseen_label", places, listed(missing, 5), count)
        find_unevaluated(train, len(evaluation), theirs.counts)


def find_unevaluated(train: Profile, documents: int, names: Iterable[str] | None = None) -> None:
    """Add faults to ``train``: classes missing from the evaluation set, and too few documents in
    it.

    Args:
        train: profile of the training set.
        documents: number of evaluation documents.
        names: classes of the evaluation set; None if not known yet.
    """
    counts = train.classes.counts
    lacking = counts.keys() - set(counts if names is None else names)
    if missing := sorted(lacking, key=lambda name: (-counts[name], name)):
        count = min(sum(counts[name] for name in missing), train.labelled)
        detail = f"{len(missing):,} of {len(counts):,} classes: {listed(missing, 5)}"
        places = train.classes.places_of(missing)
        train.add_fault("unevaluated_label", places, detail, count)
    if documents < DOCUMENTS_A_CLASS * len(counts):
        detail = f"{plural(documents, 'document')} for {len(counts):,} classes"
        train.add_fault("small_evaluation", [], detail)


# -- texts


def _text_faults(text: str) -> Iterator[tuple[str, str]]:
    """Yield faults of a text: a kind of `KINDS`, and its place in the text."""
    if not any(map(str.isalnum, text)):
        yield "empty", "no letter or digit"
    for kind, pattern in (("control_characters", _CONTROLS), ("wrong_encoding", _MOJIBAKE)):
        if (kind == "control_characters" or not text.isascii()) and (match := pattern.search(text)):
            around = text[max(match.start() - 10, 0) : match.end() + 10]
            yield kind, f"at character {match.start():,}: {ascii(around)}"


def _language_of(text: str) -> str | None:
    """Language of a text by its script or most common words; None if unclear."""
    beginning = text[: _LANGUAGE_WORDS * 8]
    if not beginning.isascii():
        letters = sum(map(str.isalpha, beginning))
        for name, pattern in _SCRIPT.items():
            if len(pattern.findall(beginning)) > max(letters / 2, _LEAST_WORDS):
                return name
    words = beginning.lower().split(maxsplit=_LANGUAGE_WORDS)[:_LANGUAGE_WORDS]
    if len(words) < _LEAST_WORDS:
        return None
    hits = [(name, word) for word in words for name in _WORDS.get(word, ())]
    counts = Counter(name for name, _ in hits)
    (best, count), (_, second) = (*counts.most_common(2), ("", 0), ("", 0))[:2]
    different = len({word for name, word in hits if name == best})
    return best if count >= max(0.08 * len(words), 2 * second) and different >= 3 else None
