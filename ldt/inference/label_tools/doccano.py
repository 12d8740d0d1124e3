"""doccano: a line a document. Places are units of UTF-16, as its editor counts them."""

import json
from typing import Any

from ldt.inference.label_tools.labelled import Interface, Labelled
from ldt.io.text_files import Utf16

BESIDE = None


def files(labelled: list[Labelled], interface: Interface) -> list[str]:
    """Lines for a project of text classification or sequence labelling, or
    where there are classes and spans, of intent detection and slot filling."""
    lines = [json.dumps(_line(each, interface), ensure_ascii=False) for each in labelled]
    return ["".join(f"{line}\n" for line in lines)]


def _line(document: Labelled, interface: Interface) -> dict[str, Any]:
    units = Utf16(document.text)
    spans = [[units.unit(span.start), units.unit(span.end), span.label] for span in document.spans]
    line: dict[str, Any] = {"id": document.id, "text": document.text} | document.questions
    if interface.classes and interface.labels:
        return line | {"cats": document.classes or [], "entities": spans}
    return line | {"label": (document.classes or []) if interface.classes else spans}
