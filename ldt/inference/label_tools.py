"""Answers as pre-annotations for Label Studio and doccano.

Label Studio: the documented form for importing pre-annotated data, with the tags Choices, Labels
and Text; offsets are characters (`ldt.data.label_tools`). doccano: one line per document, offsets
in UTF-16 units.
"""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from ldt.benchmarks import formats
from ldt.data import answer_files, clusters
from ldt.data.options import DataSection
from ldt.data.sentences import Units, trimmed
from ldt.errors import DataError, UserError, listed, plural, quote
from ldt.io import files, records
from ldt.io.records import Example

CLASSES, SPANS, TEXT = "label", "spans", "text"  # names of the tags of Label Studio's interface
# Labels of spans without a type.
ANSWER, EVIDENCE, PASSAGE, MENTION = "answer", "evidence", "passage", "mention"
KEYS = ("entities", "evidence", "passages", "answer")  # of an answer, which hold places
QUESTIONS = ("question", "hypothesis", "query")  # fields that a person has to see beside the text
TEXTS = ("text", "context")
_KEYS = ("entities", "evidence", "passages", "clusters", "start", "scores")  # one of which is used


class Span(NamedTuple):
    """Labelled span, in characters."""

    start: int
    end: int
    label: str
    score: float | None = None  # a probability


def spans_in(
    answer: Example, text: str, document: str, keys: Collection[str] = KEYS
) -> Iterator[Span]:
    """Yield the spans of an answer, each checked against its quoted text and trimmed by `checked`.

    DataError if a span is invalid, lies outside the text, or has other words.

    Args:
        answer: answer of ``ldt predict``.
        text: text of the document.
        document: source of the text, for messages.
        keys: keys of `KEYS` to look at, or ``clusters``; those that the answer lacks are left out.
    """
    fields = answer.fields
    if isinstance(fields.get("clusters"), list):
        fields = fields | {"clusters": [each for cluster in fields["clusters"] for each in cluster]}
    for key, usual, probable in (
        ("entities", "", True),
        ("evidence", EVIDENCE, True),
        ("passages", PASSAGE, False),
        ("clusters", MENTION, True),
    ):
        for item in (fields.get(key) if key in keys else None) or ():
            if isinstance(item, dict):
                span = _span(item, item.get("label") or usual, probable, answer.where)
                yield checked(span, item.get("text"), text, answer.where, document)
    if "answer" in keys and fields.get("answer") and isinstance(fields.get("start"), int):
        span = _span(fields, ANSWER, False, answer.where)
        yield checked(span, fields["answer"], text, answer.where, document)


def _span(item: dict[str, Any], label: str, probable: bool, where: str) -> Span:
    match item:
        case {"start": int(start), "end": int(end)} if isinstance(label, str) and label:
            score = item.get("score") if probable else None
            return Span(start, end, label, float(score) if isinstance(score, int | float) else None)
    raise DataError(f"{where}: {str(item)[:60]}, expected an object with start, end and label")


def checked(span: Span, words: Any, text: str, where: str, document: str) -> Span:
    """The span without characters at its edges that belong to no word; DataError if it is not
    right.

    Args:
        span: span to check; it must lie in the text.
        words: quoted text, which the text must have there; None if there is none.
        text: text of the document.
        where: place of the answer, for messages.
        document: source of the text, for messages.
    """
    start, end, label, _ = span
    here = f"{where}: {label} from {start:,} to {end:,}"
    if not 0 <= start < end <= len(text):
        raise DataError(
            f"{here}: no words there; the text has {plural(len(text), 'character')} ({document})"
        )
    if words is not None and text[start:end] != words:
        raise DataError(
            f"{here} is {str(words)[:40]!r}, where the text has {text[start:end][:40]!r} "
            f"({document}); was it another document, or changed since?"
        )
    start, end = trimmed(text, start, end)
    return span._replace(start=start, end=end)


@dataclass(frozen=True)
class LabelledText:
    """Document with its answer.

    Args:
        id: id of the document.
        text: text of the document.
        questions: texts shown beside it, by name.
        classes: predicted classes; None if the task has none or the model abstained.
        scores: probability of each class.
        spans: predicted spans, sorted by position.
        links: mentions, each with the one before it in its cluster.
    """

    id: str | int
    text: str
    questions: dict[str, str]
    classes: list[str] | None
    scores: dict[str, float]
    spans: list[Span]
    links: list[tuple[Span, Span]]

    def sureness(self) -> float | None:
        """Lowest probability of the predicted classes and spans; None if none has one."""
        scores = [span.score for span in self.spans if span.score is not None]
        scores += [self.scores[name] for name in self.classes or () if name in self.scores]
        return min(scores, default=None)


@dataclass(frozen=True)
class Interface:
    """Choices that the label tool offers.

    Args:
        classes: classes of documents; empty if answers have none.
        several: True if a document can have several classes.
        labels: labels of spans; empty if answers have none.
        questions: names of texts shown beside the document.
    """

    classes: list[str]
    several: bool
    labels: list[str]
    questions: list[str]


def _read(
    answers: str, documents: str | None, data: DataSection, labels: list[str] | None = None
) -> tuple[list[LabelledText], Interface]:
    """Read answers in file order, each with its document, and the choices of the label tool."""
    examples = list(answer_files.answers(answers))
    if not examples:
        raise DataError(f"{answers}: no answers in it")
    texts = {str(answer.id): answer for answer in examples}
    if documents is not None:
        read = formats.read(documents, data, document=data.text or TEXTS[0])
        texts = {str(each.id): each for each in read if str(each.id) in texts}
    for answer in examples:
        if str(answer.id) not in texts:
            raise DataError(
                f"{answer.where}: no document {quote(answer.id)} in {documents}; --documents names "
                "what ldt predict read, data.id the field of its ids"
            )
    labelled = [_labelled(answer, texts[str(answer.id)], data) for answer in examples]
    used = dict.fromkeys(span.label for each in labelled for span in each.spans)
    if labels is not None and (unknown := [label for label in used if label not in labels]):
        raise UserError(f"--labels: an answer has {unknown[0]!r}, it has {listed(labels)}")
    lists = any(isinstance(answer.fields.get("label"), list) for answer in examples)
    return labelled, Interface(
        classes=list(dict.fromkeys(name for each in labelled for name in each.scores)),
        several=lists,
        labels=sorted(used) if labels is None else labels,
        questions=list(dict.fromkeys(name for each in labelled for name in each.questions)),
    )


def _labelled(answer: Example, document: Example, data: DataSection) -> LabelledText:
    fields = answer.fields
    names = [data.text] if data.text is not None else [n for n in TEXTS if n in document.fields]
    worded = not names and bool({"sentences", "tokens"} & document.fields.keys())
    if not names and not worded and document is answer:
        raise DataError(
            f"{answer.where}: no field 'text'; --documents FILE names what ldt predict read, and "
            "its --keep text copies the text into the answers"
        )
    text = (
        records.text(document, (names or [TEXTS[0]])[0])
        if not worded
        else clusters.read(document).text
    )
    if not set(_KEYS) & set(fields) or "tags" in fields:
        raise DataError(
            f"{answer.where}: no classes and no places in a text among {listed(fields)}; answers "
            "of classification, of token_classification of raw text, squad, triviaqa, coreference "
            "and evidence_classification have some"
        )
    label = fields.get("label") if "scores" in fields else None
    classes = [label] if isinstance(label, str) else label
    if not (classes is None or (isinstance(classes, list) and all(map(_is_text, classes)))):
        what = "a number has no classes to choose"
        raise DataError(f"{answer.where}: 'label' is {quote(label)}; {what}")
    both = document.fields | fields
    keys = (*KEYS, "clusters")
    each = [replace(answer, fields={"clusters": [x]}) for x in fields.get("clusters", ())]
    mentions = (sorted(spans_in(one, text, document.where, keys)) for one in each)
    return LabelledText(
        id=answer.id,
        text=text,
        questions={name: both[name] for name in QUESTIONS if isinstance(both.get(name), str)},
        classes=classes,
        scores=fields["scores"] if "label" in fields and "scores" in fields else {},
        spans=sorted(dict.fromkeys(spans_in(answer, text, document.where, keys))),
        links=[(other, one) for each in mentions for one, other in pairwise(each)],
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _doccano(labelled: list[LabelledText], interface: Interface) -> list[str]:
    """Lines for a doccano project: text classification, sequence labelling, or both in one."""
    lines = [json.dumps(_doccano_line(each, interface), ensure_ascii=False) for each in labelled]
    return ["".join(f"{line}\n" for line in lines)]


def _doccano_line(document: LabelledText, interface: Interface) -> dict[str, Any]:
    units = Units(document.text, "utf-16")
    spans = [[units.unit(span.start), units.unit(span.end), span.label] for span in document.spans]
    line: dict[str, Any] = {"id": document.id, "text": document.text} | document.questions
    if interface.classes and interface.labels:
        return line | {"cats": document.classes or [], "entities": spans}
    return line | {"label": (document.classes or []) if interface.classes else spans}


def _label_studio(labelled: list[LabelledText], interface: Interface) -> list[str]:
    tasks = [_studio_task(each, interface) for each in labelled]
    return [json.dumps(tasks, ensure_ascii=False, indent=1) + "\n", _interface(interface)]


def _interface(interface: Interface) -> str:
    lines = ["<View>", "  <Style>.htx-text, .htx-richtext { white-space: pre-wrap }</Style>"]
    lines += [f"  <Header value={quoteattr(f'${name}')}/>" for name in interface.questions]
    choice = f' choice="{"multiple" if interface.several else "single"}"'
    for tag, item, name, more, values in (
        ("Choices", "Choice", CLASSES, choice, interface.classes),
        ("Labels", "Label", SPANS, "", interface.labels),
    ):
        if values:
            lines.append(f'  <{tag} name="{name}" toName="{TEXT}"{more}>')
            lines += [f"    <{item} value={quoteattr(value)}/>" for value in values]
            lines.append(f"  </{tag}>")
    lines += [f'  <Text name="{TEXT}" value="$text"/>', "</View>"]
    return "\n".join(lines) + "\n"


def _studio_task(document: LabelledText, interface: Interface) -> dict[str, Any]:
    questions = {name: document.questions.get(name, "") for name in interface.questions}
    results: list[dict[str, Any]] = []
    ids = {span: f"span-{number}" for number, span in enumerate(document.spans, 1)}
    for span in document.spans:
        start, end, label, score = span
        words = document.text[start:end]
        value = {"start": start, "end": end, "text": words, "labels": [label]}
        result = {"id": ids[span], "from_name": SPANS, "to_name": TEXT, "type": "labels"}
        results.append(result | {"value": value} | ({} if score is None else {"score": score}))
    for span, before in document.links:
        link = {"from_id": ids[span], "to_id": ids[before], "direction": "right"}
        results.append({"type": "relation"} | link)
    if document.classes:
        result = {"id": "classes", "from_name": CLASSES, "to_name": TEXT, "type": "choices"}
        results.append(result | {"value": {"choices": document.classes}})
    prediction: dict[str, Any] = {"model_version": "ldt", "result": results}
    sure = document.sureness()
    return {
        "data": {"id": document.id, "text": document.text} | questions,
        "predictions": [prediction if sure is None else prediction | {"score": sure}],
    }


# Tool -> suffix of a second file that it has, and what makes the contents of its files.
TOOLS: dict[str, tuple[str | None, Callable[[list[LabelledText], Interface], list[str]]]] = {
    "label-studio": (".xml", _label_studio),
    "doccano": (None, _doccano),
}


def export(
    answers: str,
    tool: str,
    target: Path,
    *,
    documents: str | None = None,
    data: DataSection | None = None,
    labels: list[str] | None = None,
) -> list[Path]:
    """Write answers as an import file of a label tool, with the answers as suggestions.

    Args:
        answers: answers of ``ldt predict``, JSON lines or a table.
        tool: a name in `TOOLS`.
        target: file for the documents; other files of the tool go beside it.
        documents: file of the documents; None if the answers contain the text.
        data: format, text and id fields of the documents; None for the defaults.
        labels: labels of spans in the order to offer; None uses those of the answers.

    Returns:
        The files written.

    Raises:
        UserError: a file is missing or cannot be written, or a label is not among those given.
        DataError: a file is damaged, an answer has neither classes nor spans, or a document is
            missing or differs from the one answered.
    """
    paths = targets(target, tool)
    for path in paths:
        files.check_result(path, "--output", [answers, documents])
    labelled, interface = _read(answers, documents, data or DataSection.model_validate({}), labels)
    for path, content in zip(paths, TOOLS[tool][1](labelled, interface), strict=True):
        files.write_result(path, content)
    return paths


def targets(target: Path, tool: str) -> list[Path]:
    """Files that `export` writes: ``target`` and, if the tool (a name in `TOOLS`) has one, the file
    beside it; UserError if both would have the same name."""
    suffix = TOOLS[tool][0]
    beside = [] if suffix is None else [target.with_name(target.stem + suffix)]
    if target in beside:
        raise UserError(f"--output {target}: {suffix} is for {tool}'s other file; name it .json")
    return [target, *beside]
