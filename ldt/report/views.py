"""What a person reads of an example of each task: its text, what is asked, and the right answer."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ldt.data.records import Example, field
from ldt.errors import DataError
from ldt.inference.answer_spans import ANSWER, KEYS, Span, checked, spans_in
from ldt.metrics.classification import several
from ldt.report import model
from ldt.report.model import Mark
from ldt.tasks.base import Task
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
    seen = _VIEWS[task.name](task, data, example, answer, right)
    marks = list(seen.marks)
    if seen.text is not None and answer is not None:
        own = _PLACED_BY_TASK.get(task.name, set())
        for kind, keys in (
            (model.ANSWER, {*KEYS} - {"passages"} - own),
            (model.PASSAGE, {"passages"}),
        ):
            spans = spans_in(answer, seen.text, example.where, keys)
            marks += _marks(kind, spans)
    return seen._replace(marks=sorted(dict.fromkeys(marks), key=_order))


# Keys of answers whose places are not characters of the text that is shown.
_PLACED_BY_TASK = {"hotpotqa": {"answer"}, "token_classification": {"entities"}}


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
    for path in dict.fromkeys((task.path(task.document, data), *TEXTS)):
        value = _optional(example, path)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return between.join(value)
    return None


def _asks(task: Task, data, example: Example, answer: Example | None) -> dict[str, str]:
    """The texts beside a document, by name; of a list an item a line."""
    found = {}
    for name in task.asked:
        value = _optional(example, task.path(name, data)) or _optional(answer, name)
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


def _label(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    text = _text(task, data, example, "\n\n")
    return View(text, {}, label_text(right), label_text(_optional(answer, "label")))


def _entities(task: Any, data, example: Example, answer: Example | None, right: Any) -> View:
    """Entities in characters, those of given words in these, laid between spaces."""
    text, found = _text(task, data, example), _optional(answer, "entities") or []
    source = example if _optional(example, task.path("tokens", data)) is not None else None
    sides = [
        (model.GOLD, [(*entity, None) for entity in right or ()]),
        (model.ANSWER, [(e["start"], e["end"], e["label"], e.get("score")) for e in found]),
    ]
    places: list[tuple[int, int]] | None = None
    if text is None and source is not None:
        text, places = _joined(sentences(source, task.path("tokens", data))[0])
    marks, said = [], []
    for kind, entities in sides:
        spans = [Span(*entity) for entity in entities]
        if places is not None:
            spans = [_of_words(span, places, example.where) for span in spans]
        if text is None:
            said.append(", ".join(span.label for span in spans))
            continue
        spans = [checked(span, None, text, example.where, example.where) for span in spans]
        marks += _marks(kind, spans)
        said.append("; ".join(f"{span.label}: {text[span.start : span.end]}" for span in spans))
    gold, answered = (each or NO_ENTITY for each in said)
    has = right is not None, answer is not None
    return View(text, {}, gold if has[0] else None, answered if has[1] else None, marks)


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


_VIEWS: dict[str, Callable[[Any, Any, Example, Example | None, Any], View]] = {
    "classification": _label,
    "token_classification": _entities,
    "squad": _span,
}
