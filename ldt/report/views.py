"""Readable form of an example of each task: its text, the question, the gold answer, and marks."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ldt.benchmarks import passage_qa
from ldt.errors import DataError, plural
from ldt.inference.label_tools import ANSWER as ANSWERED
from ldt.inference.label_tools import EVIDENCE, KEYS, Span, checked, spans_in
from ldt.io import records
from ldt.io.records import Example
from ldt.metrics.classification import as_list
from ldt.report.model import ANSWER, GOLD, PASSAGE, Mark
from ldt.tasks.base import path_of
from ldt.tasks.coreference import spans_of
from ldt.tasks.questions import context_of
from ldt.tasks.results import entities_of
from ldt.tasks.text import mentions, read_sentences

TEXTS = ("text", "context")  # fields of a text where the task's own is not there
NO_ANSWER, NO_CLASS, NO_ENTITY = "no answer", "no class", "no entity"
Places = Iterable[Sequence[int]]


@dataclass
class View:
    """Example with its gold answer and prediction as text and as marks.

    Args:
        task, data: task, and the data section that names its fields.
        example: example of a gold file or of documents, or an answer that has kept the text.
        answer: prediction; None if there is none.
        right: gold answer, as from `Task.gold`; None if unknown.

    Attributes:
        text: text of the document; None if there is none.
        asks: further texts by name.
        gold, answer_text: gold answer and prediction as text; None if there is none.
        marks: marks in the text.

    Raises:
        DataError: the gold answer cannot be read, or a span does not fit the text.
    """

    task: Any
    data: Any
    example: Example
    answer: Example | None
    right: Any
    text: str | None = None
    asks: dict[str, str] = field(default_factory=dict)
    gold: str | None = None
    answer_text: str | None = None
    marks: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind, keys = self.task.answers.kind, self.task.answers.keys
        self.text = self._text("\n\n" if kind in ("label", "summary") else "\n")
        self.asks = self._asks()
        if keys:
            key = "answer" if "answer" in keys else keys[0]
            self.answer_text = _words(records.optional(self.answer, key))
        _KINDS.get(kind, _first)(self)
        if self.text is not None and self.answer is not None:
            answered = {*KEYS} - {"passages"} - _PLACED.get(kind, set())
            for whose, these in ((ANSWER, answered), (PASSAGE, {"passages"})):
                self.add(whose, spans_in(self.answer, self.text, self.example.where, these))
        self.marks = sorted(dict.fromkeys(self.marks), key=_order)

    def value(self, name: str) -> Any:
        """Value of the example's field that the task knows as ``name``; None if missing."""
        return records.optional(self.example, path_of(self.task, name, self.data))

    def add(self, kind: str, spans: Iterable[Span]) -> None:
        """Append marks of a kind (`GOLD`, `ANSWER` or `PASSAGE`) at spans, with their labels and
        scores; nothing is checked."""
        self.marks += [Mark(each.start, each.end, kind, each.label, each.score) for each in spans]

    def mark(self, kind: str, places: Places, label: str, where: str = "") -> None:
        """Append marks of a kind at (start, end) pairs that are not empty; without a text none.

        Raises:
            DataError: a pair lies outside the text; ``where`` names its source, else the example's.
        """
        if self.text is not None:
            where = where or self.example.where
            spans = [Span(start, end, label) for start, end in places if start < end]
            self.add(kind, [checked(span, None, self.text, where, where) for span in spans])

    def _text(self, between: str) -> str | None:
        for path in dict.fromkeys(
            (path_of(self.task, self.task.reads.document, self.data), *TEXTS)
        ):
            value = records.optional(self.example, path)
            if isinstance(value, str):
                return value
            if isinstance(value, list) and all(isinstance(part, str) for part in value):
                return between.join(value)
        return None

    def _asks(self) -> dict[str, str]:
        texts = {}
        names = (
            ("question",) if self.task.answers.kind == "summary" else self.task.reads.query_fields
        )
        for name in names:
            value = self.value(name) or records.optional(self.answer, name)
            if isinstance(value, list):
                value = "\n".join(map(str, value))
            if isinstance(value, str):
                texts[name] = value
        return texts


def _order(mark: Mark) -> tuple[int, int, str, str]:
    return mark.start, mark.end, mark.kind, mark.label


# Keys of answers whose places are not characters of the text that is shown.
_PLACED = {"facts": {"answer"}, "entities": {"entities"}}


def _words(value: Any) -> str | None:
    """Class, list of classes, number or text in readable form."""
    if value is None:
        return None
    names = [f"{each:g}" if isinstance(each, float) else str(each) for each in as_list(value)]
    return (", ".join(names) or NO_ANSWER) if names else NO_CLASS


def _one_of(answers: Iterable[str]) -> str:
    """Several accepted answers in words."""
    return " | ".join(dict.fromkeys(filter(None, answers))) or NO_ANSWER


def _first(view: View) -> None:
    gold = view.right
    view.gold = _words(next(iter(gold.values()), None) if isinstance(gold, dict) else gold)


def _choice(view: View) -> None:
    if view.right is not None:
        view.gold = str(view.task.choices(view.example, view.data)[view.right["choice"]])


def _ranking(view: View) -> None:
    """Documents of a query in predicted order; gold are the positions of relevant ones."""
    with suppress(DataError):
        view.text = view.task.parts(view.example, view.data)[0]
    if view.right is not None:
        relevant = [place for place, label in enumerate(view.right) if label > 0]
        view.gold = _words(relevant)


def _vectors(view: View) -> None:
    """Documents of a query, one per line; gold is the first one, or the score of a pair."""
    with suppress(DataError):
        view.text, query = view.task.parts(view.example, view.data)
        view.asks = {"query": query} if query else {}
        if view.right is not None:
            first = view.task.group(view.example, view.data).positives[0]
            view.gold = _words(view.right.get("score", first))
    if view.answer is not None:
        key = "documents" if "documents" in view.answer.fields else "vectors"
        view.answer_text = f"vectors of {plural(len(view.answer.fields[key]), 'text')}"


def _span(view: View) -> None:
    if view.right is not None:
        view.gold = _one_of(view.right["answers"])
        places = [span for span, _ in view.task.placed_answers(view.example, view.data)]
        view.mark(GOLD, places, ANSWERED)


def _mentions(view: View) -> None:
    """Page, possibly in its own file, with every mention of the answer marked."""
    path = view.value("context_file")
    if view.text is None and path is not None:
        view.text = context_of(Path(path))
    if view.right is not None:
        view.gold = _one_of(view.right["answers"])
        view.mark(GOLD, mentions(view.text or "", view.right["answers"]), ANSWERED)


def _evidence(view: View) -> None:
    if view.right is not None:
        view.gold = view.right["label"]
        spans = view.value("spans")
        view.mark(GOLD, [spans[number] for number in view.right["evidence"]], EVIDENCE)


def _entities(view: View) -> None:
    """Entities in characters of a text, or of words joined to one."""
    example, answer, places = view.example, view.answer, None
    path = path_of(view.task, "tokens", view.data)
    if view.text is None and records.optional(example, path) is not None:
        view.text, places = _joined(read_sentences(example, path)[0])
    gold = [Span(*entity) for entity in view.right or ()]
    answered_spans: list[Span] = []
    if answer is not None and view.text is not None and places is None:
        answered_spans = list(spans_in(answer, view.text, example.where, {"entities"}))
    elif answer is not None:
        answered = entities_of(answer)
        scores = answered["scores"] or [None] * len(answered["entities"])
        pairs = zip(answered["entities"], scores, strict=True)
        answered_spans = [Span(*entity)._replace(score=score) for entity, score in pairs]
    if places is not None:
        gold, answered_spans = (
            [_of_words(span, places, example.where) for span in side]
            for side in (gold, answered_spans)
        )
    if view.text is not None:
        view.add(GOLD, gold)
        view.add(ANSWER, answered_spans)
    view.gold = None if view.right is None else _entity_words(gold, view.text)
    view.answer_text = None if answer is None else _entity_words(answered_spans, view.text)


def _entity_words(spans: Iterable[Span], text: str | None) -> str:
    """Texts of entities with their types; only types if there is no text."""
    return (
        "; ".join(
            f"{span.label}: {text[span.start : span.end]}" if text is not None else span.label
            for span in spans
        )
        or NO_ENTITY
    )


def _joined(listed: Sequence[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """Words joined to one text, a sentence per line, and the character span of each word."""
    text, places = "", []
    for number, sentence in enumerate(listed):
        for place, word in enumerate(sentence):
            text += " " if place else "\n" if number else ""
            places.append((len(text), len(text) + len(word)))
            text += word
    return text, places


def _of_words(span: Span, places: Sequence[tuple[int, int]], where: str) -> Span:
    """Convert a span of words to characters."""
    if not 0 <= span.start < span.end <= len(places):
        raise DataError(
            f"{where}: {span.label} from word {span.start:,} to {span.end:,}, of {len(places):,}"
        )
    return span._replace(start=places[span.start][0], end=places[span.end - 1][1])


def _facts(view: View) -> None:
    """Paragraphs with titles, with evidence sentences marked."""
    right, answer = view.right, view.answer
    view.gold, view.text = right and right["answer"], None
    listed = view.value(view.task.reads.document)
    if not isinstance(listed, list):
        return
    view.text, places = "", dict[tuple[Any, Any], tuple[int, int]]()
    for title, paragraph in listed:
        view.text += f"{title}\n"
        for number, sentence in enumerate(paragraph):
            places[title, number] = len(view.text), len(view.text) + len(sentence)
            view.text += sentence
        view.text += "\n\n"
    fields = answer.fields if answer is not None else {}
    if answer is not None and isinstance(fields.get("start"), int):
        start, end = places.get((fields.get("title"), fields.get("sentence")), (0, 0))
        span = Span(start + fields["start"], start + fields["end"], ANSWERED)
        if span.end > end:
            raise DataError(f"{answer.where}: no such sentence, or no such place in it")
        quoted = fields.get("answer")
        view.add(ANSWER, [checked(span, quoted, view.text, answer.where, view.example.where)])
    answered = map(tuple, fields.get("supporting_facts") or ())
    for kind, facts in ((GOLD, right["facts"] if right else ()), (ANSWER, answered)):
        # Gold may name a sentence that is not there.
        view.mark(kind, [places[fact] for fact in facts if fact in places], EVIDENCE)


def _passages(view: View) -> None:
    """Page with the passages and spans of its annotations that enough annotators gave."""
    text, candidates = view.text, view.value("candidates") or []

    def passage(number: int | None) -> Places:
        if number is None:
            return []
        if not 0 <= number < len(candidates):
            where = (view.answer or view.example).where
            raise DataError(f"{where}: passage {number:,}, of {len(candidates):,}")
        return [(candidates[number]["start"], candidates[number]["end"])]

    if text is None:
        return
    if view.right is not None:
        answers: list[str] = []
        has_passage, has_answer = passage_qa.right_of(view.right.annotations)
        for each in view.value("annotations"):
            if has_answer:
                view.mark(GOLD, each["spans"], ANSWERED)
            if has_passage:
                view.mark(GOLD, passage(each["passage"]), EVIDENCE)
            answers += [text[slice(*span)] for span in each["spans"]] or [each.get("yes_no") or ""]
        view.gold = _one_of(answers)
        if not has_answer and view.gold != NO_ANSWER:
            view.gold = f"{NO_ANSWER}: too few annotators have one ({view.gold})"
    if view.answer is not None:
        places = passage(view.answer.fields.get("passage"))
        view.mark(ANSWER, places, EVIDENCE, view.answer.where)


def _paper(view: View) -> None:
    """Paper with evidence paragraphs marked."""
    references = view.right["references"] if view.right else ()
    if view.right is not None:
        view.gold = _one_of(each.answer for each in references)
    if view.value("paragraphs") is None:
        return
    view.text, places = view.task.paper(view.example, view.data)
    numbers = {n for each in view.right["paragraphs"] for n in each} if view.right else ()
    answered = records.optional(view.answer, "paragraphs") or ()
    for kind, chosen in ((GOLD, numbers), (ANSWER, answered)):
        if any(not 0 <= n < len(places) for n in chosen):
            what = f"a paragraph of {len(places):,} that is not there"
            raise DataError(f"{view.example.where}: {what}")
        view.mark(kind, [places[n] for n in chosen], EVIDENCE)
    for quoted in [words for each in references for words in each.spans if words.strip()]:
        if (start := view.text.find(quoted)) >= 0:
            view.mark(GOLD, [(start, start + len(quoted))], ANSWERED)


def _clusters(view: View) -> None:
    """Text with the mentions of each cluster under its number and its longest first words."""
    with suppress(DataError):
        view.text = view.task.document(view.example, view.data).text
    answered = records.optional(view.answer, "clusters")
    sides = {GOLD: view.right, ANSWER: None if answered is None else spans_of(answered)}
    names: dict[str, str | None] = dict.fromkeys(sides)
    for kind, clusters in sides.items():
        if clusters is None:
            continue
        names[kind] = plural(len(clusters), "cluster")
        for number, cluster in enumerate(clusters, 1):
            name = (view.text or "")[slice(*cluster[0])][:30]
            view.mark(kind, cluster, f"#{number} {name}")
    view.gold, view.answer_text = names[GOLD], names[ANSWER]


_KINDS: dict[str, Callable[[View], None]] = {
    "clusters": _clusters,
    "entities": _entities,
    "choice": _choice,
    "ranking": _ranking,
    "vectors": _vectors,
    "span": _span,
    "mention": _mentions,
    "facts": _facts,
    "passage": _passages,
    "evidence": _evidence,
    "paper": _paper,
}
