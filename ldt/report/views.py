"""An example of each task as a person reads it: its text, the question, the right answer."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ldt.errors import DataError
from ldt.inference.evaluate import found_entities
from ldt.inference.label_tools import ANSWER, EVIDENCE, KEYS, Span, checked, spans_in
from ldt.io.records import Example, field
from ldt.metrics import passage_qa
from ldt.metrics.classification import several
from ldt.report import model
from ldt.report.model import Mark
from ldt.tasks.base import Task, path_of
from ldt.tasks.span_task import context_of
from ldt.tasks.text.mentions import mentions
from ldt.tasks.text.words import sentences

TEXTS = ("text", "context")  # fields of a text where the task's own is not there
NO_ANSWER, NO_CLASS, NO_ENTITY = "no answer", "no class", "no entity"


class View(NamedTuple):
    """An example as it is read.

    Args:
        text: None where there is none.
        asks: texts that belong to it, by name.
        gold, answer: None where there is none.
        marks: in the text.
    """

    text: str | None
    asks: dict[str, str]
    gold: str | None
    answer: str | None
    marks: Sequence[Mark] = ()


def view(task: Task, data, example: Example, answer: Example | None, right: Any) -> View:
    """An example with what its right answer and the one that it got mark in its text.

    Args:
        example: of a gold file or of documents, or the answer where that has kept the text.
        answer: None where there is none.
        right: the right answer as the task has it (`Task.gold`); None where it is not known.

    Raises:
        DataError: a right answer that cannot be read; a mark of either that does not fit the text.
    """
    seen = _VIEWS.get(task.answers.kind, _plain)(task, data, example, answer, right)
    marks = list(seen.marks)
    if seen.text is not None and answer is not None:
        own = _PLACED.get(task.answers.kind, set())
        for kind, keys in (
            (model.ANSWER, {*KEYS} - {"passages"} - own),
            (model.PASSAGE, {"passages"}),
        ):
            spans = spans_in(answer, seen.text, example.where, keys)
            marks += _marks(kind, spans)
    return seen._replace(marks=sorted(dict.fromkeys(marks), key=_order))


# Keys of answers whose places are not characters of the text that is shown.
_PLACED = {"facts": {"answer"}, "entities": {"entities"}}


def label_text(label: Any) -> str | None:
    """A class, a list of them, or a number; None of None."""
    if label is None:
        return None
    names = [f"{each:g}" if isinstance(each, float) else str(each) for each in several(label)]
    return ", ".join(names) or NO_CLASS


def _order(mark: Mark) -> tuple[int, int, str, str]:
    return mark.start, mark.end, mark.kind, mark.label


def _marks(kind: str, spans: Iterable[Span]) -> list[Mark]:
    return [Mark(span.start, span.end, kind, span.label, span.score) for span in spans]


def _placed(
    kind: str, places: Iterable[Sequence[int]], label: str, text: str | None, where: str
) -> list[Mark]:
    """Marks of places that are not empty.

    Raises:
        DataError: one does not fit the text.
    """
    if text is None:
        return []
    spans = [Span(start, end, label) for start, end in places if start < end]
    return _marks(kind, [checked(span, None, text, where, where) for span in spans])


def _optional(example: Example | None, path: str) -> Any:
    try:
        return None if example is None else field(example, path)
    except DataError:
        return None


def _text(task: Task, data, example: Example, between: str = "\n") -> str | None:
    """The text of a document or of several, parted so; None where there is none."""
    for path in dict.fromkeys((path_of(task, task.reads.document, data), *TEXTS)):
        value = _optional(example, path)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return between.join(value)
    return None


def _asks(task: Task, data, example: Example, answer: Example | None) -> dict[str, str]:
    """The texts beside a document, by name; of a list an item a line."""
    found = {}
    for name in task.reads.asked:
        value = _optional(example, path_of(task, name, data)) or _optional(answer, name)
        if isinstance(value, list):
            value = "\n".join(map(str, value))
        if isinstance(value, str):
            found[name] = value
    return found


def _said(answer: Example | None, key: str = "answer") -> str | None:
    """The text that an answer says; `NO_ANSWER` where that is empty, None where there is none."""
    value = _optional(answer, key)
    return NO_ANSWER if value == "" else None if value is None else str(value)


def _one_of(answers: Iterable[str]) -> str:
    """Several right answers, of which one is wanted."""
    return " | ".join(dict.fromkeys(filter(None, answers))) or NO_ANSWER


def _plain(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    """A document, what is asked about it, the right answer and the first key of the answer."""
    gold = next(iter(right.values()), None) if isinstance(right, dict) else right
    said = _said(answer, task.answers.keys[0]) if task.answers.keys else None
    text, asks = _text(task, data, example), _asks(task, data, example, answer)
    return View(text, asks, None if gold is None else str(gold), said)


def _label(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    text = _text(task, data, example, "\n\n")
    return View(text, {}, label_text(right), label_text(_optional(answer, "label")))


def _entities(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    """Entities in characters of a text, or of given words that are laid end to end."""
    where, path = example.where, path_of(task, "tokens", data)
    text, places = _text(task, data, example), None
    if text is None and _optional(example, path) is not None:
        text, places = _joined(sentences(example, path)[0])
    gold = [Span(*entity) for entity in right or ()]
    found = list[Span]()
    if answer is not None and text is not None and places is None:
        found = list(spans_in(answer, text, where, {"entities"}))
    elif answer is not None:
        given = found_entities(answer)
        scores = given["scores"] or [None] * len(given["entities"])
        found = [Span(*e)._replace(score=s) for e, s in zip(given["entities"], scores, strict=True)]
    if places is not None:
        gold, found = ([_of_words(span, places, where) for span in side] for side in (gold, found))
    marks = _marks(model.GOLD, gold) + _marks(model.ANSWER, found)
    said, right_ones = (_listed(side, text) for side in (found, gold))
    return View(
        text,
        {},
        None if right is None else right_ones,
        None if answer is None else said,
        marks if text is not None else (),
    )


def _listed(spans: Iterable[Span], text: str | None) -> str:
    """Entities with their types; these alone where there is no text."""
    words = [
        f"{span.label}: {text[span.start : span.end]}" if text is not None else span.label
        for span in spans
    ]
    return "; ".join(words) or NO_ENTITY


def _joined(listed: Sequence[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """Words as one text, a sentence a line; and the characters of each."""
    text, places = "", []
    for number, words in enumerate(listed):
        for place, word in enumerate(words):
            text += " " if place else "\n" if number else ""
            places.append((len(text), len(text) + len(word)))
            text += word
    return text, places


def _of_words(span: Span, places: Sequence[tuple[int, int]], where: str) -> Span:
    """A span of words as one of characters."""
    if not 0 <= span.start < span.end <= len(places):
        raise DataError(
            f"{where}: {span.label} from word {span.start:,} to {span.end:,}, of {len(places):,}"
        )
    return span._replace(start=places[span.start][0], end=places[span.end - 1][1])


def _span(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    text, marks, gold = _text(task, data, example), [], None
    if right is not None:
        gold = _one_of(right["answers"])
        places = [span for span, _ in task.placed_answers(example, data)]
        marks = _placed(model.GOLD, places, ANSWER, text, example.where)
    return View(text, _asks(task, data, example, answer), gold, _said(answer), marks)


def _mentions(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    """A page, which may lie in a file of its own, where every name of the answer is marked."""
    text, marks = _text(task, data, example), []
    path = _optional(example, path_of(task, "context_file", data))
    if text is None and path is not None:
        text = context_of(Path(path))
    if right is not None and text is not None:
        marks = _placed(model.GOLD, mentions(text, right["answers"]), ANSWER, text, example.where)
    gold = None if right is None else _one_of(right["answers"])
    return View(text, _asks(task, data, example, answer), gold, _said(answer), marks)


def _candidate(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    gold = None if right is None else right["answer"]
    return View(_text(task, data, example), _asks(task, data, example, answer), gold, _said(answer))


def _choice(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    text, asks = _text(task, data, example), _asks(task, data, example, answer)
    gold = None if right is None else str(task.choices(example, data)[right["choice"]])
    return View(text, asks, gold, _said(answer))


def _facts(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    """Paragraphs with their titles, of which sentences are evidence."""
    listed = _optional(example, path_of(task, task.reads.document, data))
    asks, gold = _asks(task, data, example, answer), None if right is None else right["answer"]
    if not isinstance(listed, list):
        return View(None, asks, gold, _said(answer))
    text, places = "", dict[tuple[Any, Any], tuple[int, int]]()
    for title, paragraph in listed:
        text += f"{title}\n"
        for number, sentence in enumerate(paragraph):
            places[title, number] = len(text), len(text) + len(sentence)
            text += sentence
        text += "\n\n"
    marks = []
    sides = [(model.GOLD, right["facts"] if right else ())]
    if answer is not None:
        fields = answer.fields
        sides.append((model.ANSWER, map(tuple, fields.get("supporting_facts") or ())))
        if isinstance(fields.get("start"), int):
            start, end = places.get((fields.get("title"), fields.get("sentence")), (0, 0))
            span = Span(start + fields["start"], start + fields["end"], ANSWER)
            if span.end > end:
                raise DataError(f"{answer.where}: no such sentence, or no such place in it")
            span = checked(span, fields.get("answer"), text, answer.where, example.where)
            marks += _marks(model.ANSWER, [span])
    for kind, facts in sides:  # gold may name a sentence that is not there
        there = [places[fact] for fact in facts if fact in places]
        marks += _placed(kind, there, EVIDENCE, text, example.where)
    return View(text, asks, gold, _said(answer), marks)


def _passages(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    """A page with the passages and the spans of its annotations, those that enough of them have."""
    text, where = _text(task, data, example), example.where
    candidates = _optional(example, path_of(task, "candidates", data)) or []
    asks, gold, marks = _asks(task, data, example, answer), None, []
    if right is not None and text is not None:
        said, (has_passage, has_answer) = [], passage_qa.right_of(right.annotations)
        for each in _optional(example, path_of(task, "annotations", data)):
            if has_answer:
                marks += _placed(model.GOLD, each["spans"], ANSWER, text, where)
            if has_passage:
                marks += _candidates(model.GOLD, [each["passage"]], candidates, text, where)
            said += [text[slice(*span)] for span in each["spans"]] or [each.get("yes_no") or ""]
        gold = _one_of(said)
        if not has_answer and gold != NO_ANSWER:
            gold = f"{NO_ANSWER}: too few annotators have one ({gold})"
    if answer is not None and text is not None:
        passage = answer.fields.get("passage")
        marks += _candidates(model.ANSWER, [passage], candidates, text, answer.where)
    return View(text, asks, gold, _said(answer), marks)


def _candidates(
    kind: str, numbers: Iterable[int | None], candidates: Sequence[Any], text: str, where: str
) -> list[Mark]:
    chosen = [number for number in numbers if number is not None]
    if any(not 0 <= number < len(candidates) for number in chosen):
        raise DataError(f"{where}: passage {chosen[0]:,}, of {len(candidates):,}")
    places = [(candidates[n]["start"], candidates[n]["end"]) for n in chosen]
    return _placed(kind, places, EVIDENCE, text, where)


def _evidence(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    text, marks, gold = _text(task, data, example), [], None
    if right is not None:
        gold, spans = right["label"], _optional(example, path_of(task, "spans", data))
        places = [spans[number] for number in right["evidence"]]
        marks = _placed(model.GOLD, places, EVIDENCE, text, example.where)
    said = label_text(_optional(answer, "label"))
    return View(text, _asks(task, data, example, answer), gold, said, marks)


def _paper(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    """A paper whose paragraphs are evidence."""
    asks, gold = _asks(task, data, example, answer), None
    if right is not None:
        gold = _one_of(each.answer for each in right["references"])
    if _optional(example, path_of(task, "paragraphs", data)) is None:
        return View(_text(task, data, example), asks, gold, _said(answer))
    text, places = task.paper(example, data)
    marks, where = [], example.where
    numbers = {n for each in right["paragraphs"] for n in each} if right else ()
    said = (_optional(answer, "paragraphs") or ()) if answer is not None else ()
    for kind, chosen in ((model.GOLD, numbers), (model.ANSWER, said)):
        if any(not 0 <= n < len(places) for n in chosen):
            raise DataError(f"{where}: a paragraph of {len(places):,} that is not there")
        marks += _placed(kind, [places[n] for n in chosen], EVIDENCE, text, where)
    for reference in right["references"] if right else ():
        for words in filter(str.strip, reference.spans):
            if (start := text.find(words)) >= 0:
                marks += _placed(model.GOLD, [(start, start + len(words))], ANSWER, text, where)
    return View(text, asks, gold, _said(answer), marks)


def _summary(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    text, asks = _text(task, data, example, "\n\n"), {}
    if question := _optional(example, path_of(task, "question", data)):
        asks = {"question": str(question)}
    gold = None if right is None else right["summary"]
    return View(text, asks, gold, _said(answer, "summary"))


_VIEWS: dict[str, Callable[[Any, Any, Example, Example | None, Any], View]] = {
    "label": _label,
    "entities": _entities,
    "choice": _choice,
    "span": _span,
    "mention": _mentions,
    "candidate": _candidate,
    "facts": _facts,
    "passage": _passages,
    "evidence": _evidence,
    "paper": _paper,
    "summary": _summary,
}
