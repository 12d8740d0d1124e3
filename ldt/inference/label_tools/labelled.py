"""Answers with the texts they are for: what a person is to look at and to put right."""

from dataclasses import dataclass

from ldt.data import formats
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError, listed, shown
from ldt.inference.answer_spans import Span, spans_in
from ldt.io import records
from ldt.io.records import Example
from ldt.metrics import prediction_files

QUESTIONS = ("question", "hypothesis", "query")  # fields that a person has to see beside the text
TEXTS = ("text", "context")
_KEYS = ("entities", "evidence", "passages", "start", "scores")  # one of which is used


@dataclass(frozen=True)
class Labelled:
    """A document with its answer.

    Args:
        id: of the document.
        text: of the document.
        questions: texts that are shown beside it, by name.
        classes: that were answered; None where the task has none, or gave no answer.
        scores: probability of each class.
        spans: that were answered, in the order of their places.
    """

    id: str | int
    text: str
    questions: dict[str, str]
    classes: list[str] | None
    scores: dict[str, float]
    spans: list[Span]

    def sureness(self) -> float | None:
        """The lowest probability of what was answered; None where nothing has one."""
        found = [span.score for span in self.spans if span.score is not None]
        found += [self.scores[name] for name in self.classes or () if name in self.scores]
        return min(found, default=None)


@dataclass(frozen=True)
class Interface:
    """What a person can choose from.

    Args:
        classes: of documents; none where answers have none.
        several: whether a document can have several of them.
        labels: of spans; none where answers have none.
        entities: whether the spans are entities, which do not overlap.
        questions: names of texts beside the document.
    """

    classes: list[str]
    several: bool
    labels: list[str]
    entities: bool
    questions: list[str]


def read(
    answers: str, documents: str | None, data: DataSection, labels: list[str] | None = None
) -> tuple[list[Labelled], Interface]:
    """Answers in the order of their file, each with its document.

    Args:
        answers: of ``ldt predict``, lines or a table.
        documents: what they were made of; None where the answers have the text themselves.
        data: format, text and id of the documents.
        labels: of spans, in the order in which they are offered; None for those of the answers.

    Raises:
        UserError: there is no such file, or a label that is not among those given.
        DataError: a file is damaged; an answer has neither classes nor places; a document is
            missing, or is not the one that was answered for.
    """
    found = list(prediction_files.answers(answers))
    if not found:
        raise DataError(f"{answers}: no answers in it")
    texts = None if documents is None else _documents(documents, data, {str(a.id) for a in found})
    labelled = [_labelled(answer, texts, documents, data) for answer in found]
    used = dict.fromkeys(span.label for each in labelled for span in each.spans)
    if labels is not None:
        for label in used:
            if label not in labels:
                raise UserError(f"--labels: an answer has {label!r}, it has {listed(labels)}")
    lists = any(isinstance(answer.fields.get("label"), list) for answer in found)
    return labelled, Interface(
        classes=list(dict.fromkeys(name for each in labelled for name in each.scores)),
        several=lists,
        labels=sorted(used) if labels is None else labels,
        entities=all("entities" in answer.fields for answer in found),
        questions=list(dict.fromkeys(name for each in labelled for name in each.questions)),
    )


def _documents(documents: str, data: DataSection, wanted: set[str]) -> dict[str, Example]:
    """The documents that there are answers for, by their ids as text."""
    document = data.text or TEXTS[0]
    found: dict[str, Example] = {}
    for example in formats.read(documents, data, document=document):
        if str(example.id) in wanted:
            found[str(example.id)] = example
    return found


def _labelled(
    answer: Example, documents: dict[str, Example] | None, source: str | None, data: DataSection
) -> Labelled:
    example = answer
    if documents is not None:
        if str(answer.id) not in documents:
            raise DataError(
                f"{answer.where}: no document {shown(answer.id)} in {source}; --documents names "
                "what ldt predict read, data.id the field of its ids"
            )
        example = documents[str(answer.id)]
    text = _text(example, data, kept=documents is None)
    fields = answer.fields
    if not set(_KEYS) & set(fields):
        raise DataError(
            f"{answer.where}: no classes and no places in a text among {listed(fields)}; answers "
            "of classification, token_classification, squad, triviaqa and evidence_classification "
            "have some"
        )
    if "tags" in fields:
        raise DataError(
            f"{answer.where}: entities of given words, which have no place in a text; answers for "
            "raw text have one"
        )
    spans = list(spans_in(answer, text, example.where))
    both = example.fields | fields
    classes = _classes(answer)
    return Labelled(
        id=answer.id,
        text=text,
        questions={name: both[name] for name in QUESTIONS if isinstance(both.get(name), str)},
        classes=classes,
        scores=fields["scores"] if "label" in fields and "scores" in fields else {},
        spans=sorted(dict.fromkeys(spans)),
    )


def _text(example: Example, data: DataSection, kept: bool) -> str:
    """The text of a document, or the one that an answer kept of it."""
    names = [data.text] if data.text is not None else [n for n in TEXTS if n in example.fields]
    if not names and kept:
        raise DataError(
            f"{example.where}: no field 'text'; --documents FILE names what ldt predict read, and "
            "its --keep text copies the text into the answers"
        )
    return records.text(example, (names or [TEXTS[0]])[0])


def _classes(answer: Example) -> list[str] | None:
    """The classes of an answer, None where it has none.

    Raises:
        DataError: it is a number.
    """
    label = answer.fields.get("label") if "scores" in answer.fields else None
    if isinstance(label, str):
        return [label]
    if label is None or (isinstance(label, list) and all(isinstance(n, str) for n in label)):
        return label
    raise DataError(f"{answer.where}: 'label' is {shown(label)}; a number has no classes to choose")
