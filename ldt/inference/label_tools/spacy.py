"""spaCy: a line a document, [text, annotations] as ``Example.from_dict`` takes them."""

import json
from typing import Any

from ldt.inference.label_tools.labelled import Interface, Labelled

BESIDE = None
GROUP = "sc"  # key of overlapping spans that spaCy's spancat reads by default


def files(labelled: list[Labelled], interface: Interface) -> list[str]:
    """The lines."""
    lines = [
        json.dumps([each.text, _annotations(each, interface)], ensure_ascii=False)
        for each in labelled
    ]
    return ["".join(f"{line}\n" for line in lines)]


def _annotations(document: Labelled, interface: Interface) -> dict[str, Any]:
    """Entities, which do not overlap, or spans, which may; and 1 for each class that it has."""
    found: dict[str, Any] = {}
    spans = [[span.start, span.end, span.label] for span in document.spans]
    if interface.entities:
        found["entities"] = spans
    elif interface.labels:
        found["spans"] = {GROUP: spans}
    if interface.classes and document.classes is not None:
        found["cats"] = {name: float(name in document.classes) for name in interface.classes}
    return found
