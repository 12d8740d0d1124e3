"""Labels that people put into documents, as the fields that tasks learn from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ldt.io.records import Example


@dataclass(frozen=True)
class Annotated:
    """A document and what was labelled in it.

    Args:
        example: its fields, with its ``text``.
        spans: start, end and label, in characters.
        classes: by the name of what they were chosen in.
    """

    example: Example
    spans: list[tuple[int, int, str]]
    classes: dict[str, list[str]]


def labelled(documents: Sequence[Annotated]) -> Iterator[Example]:
    """Yield each document with its labels.

    ``entities`` are the spans {start, end, label, text}, in their order; beside a ``question`` they
    are ``answers`` in the ``context`` too. Classes are a field of the name of what they were chosen
    in, and of one such name alone ``label`` too: a class, or where any document has several, lists
    of them. Where there are classes and no span in any document, there are no entities.
    """
    controls = list(dict.fromkeys(name for each in documents for name in each.classes))
    fields = {name: name for name in controls}
    if len(controls) == 1:
        fields["label"] = controls[0]
    lists = {name for each in documents for name in controls if len(each.classes.get(name, ())) > 1}
    placed = not controls or any(each.spans for each in documents)
    for each in documents:
        more: dict[str, Any] = {}
        for field, control in fields.items():
            names = each.classes.get(control, [])
            more[field] = names if control in lists else names[0] if names else None
        if placed:
            more |= _spans(each)
        yield replace(each.example, fields=each.example.fields | more)


def _spans(document: Annotated) -> dict[str, Any]:
    fields = document.example.fields
    text, spans = fields["text"], sorted(document.spans)
    columns: dict[str, Any] = {
        "entities": [
            {"start": start, "end": end, "label": label, "text": text[start:end]}
            for start, end, label in spans
        ]
    }
    if "question" in fields:
        answers = [{"text": text[start:end], "answer_start": start} for start, end, _ in spans]
        columns |= {"context": text, "answers": answers}
    return columns
