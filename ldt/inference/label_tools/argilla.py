"""Argilla 2: records with suggestions, and the settings of a dataset that takes them.

Both are what ``rg.Settings.from_json`` and ``dataset.records.from_json`` read. Places are units of
UTF-16, as its interface counts them; its server takes none behind the number of characters.
"""

import json
import logging
from typing import Any

from ldt.data.utf16 import Utf16
from ldt.errors import plural
from ldt.inference.label_tools.labelled import Interface, Labelled

log = logging.getLogger("ldt")

BESIDE = ".settings.json"
CLASSES, SPANS, TEXT = "label", "spans", "text"  # names of its questions, and of the field


def files(labelled: list[Labelled], interface: Interface) -> list[str]:
    """The records, and the settings of their dataset."""
    refused = 0
    values = []
    for document in labelled:
        record, left_out = _record(document, interface)
        values.append(record)
        refused += left_out
    if refused:
        what = "left out, which Argilla would refuse because of the emoji before"
        log.warning("%s %s", plural(refused, "span"), what)
    records = json.dumps(values, ensure_ascii=False, indent=1)
    return [f"{records}\n", json.dumps(settings(interface), indent=1) + "\n"]


def settings(interface: Interface) -> dict[str, Any]:
    """The dataset: its text, and a question for the classes, one for the spans, or both."""
    names = [*interface.questions, TEXT]
    asked: list[dict[str, Any]] = []
    about: dict[str, Any]
    if interface.classes:
        kind = "multi_label_selection" if interface.several else "label_selection"
        about = {"type": kind, "options": _options(interface.classes)}
        asked.append(_question(CLASSES, about, required=True))
    if interface.labels:
        options = _options(interface.labels)
        overlap = not interface.entities
        about = {
            "type": "span",
            "field": TEXT,
            "options": options,
            "allow_overlapping": overlap,
        }
        asked.append(_question(SPANS, about, required=not asked))
    fields = [{"name": name, "title": name, "settings": {"type": "text"}} for name in names]
    return {"guidelines": None, "allow_extra_metadata": True, "fields": fields, "questions": asked}


def _question(name: str, about: dict[str, Any], required: bool) -> dict[str, Any]:
    return {"name": name, "title": name, "required": required, "settings": about}


def _options(names: list[str]) -> list[dict[str, str]]:
    return [{"value": name, "text": name} for name in names]


def _record(document: Labelled, interface: Interface) -> tuple[dict[str, Any], int]:
    """A record, and the number of spans that Argilla would refuse in it."""
    units = Utf16(document.text)
    suggestions: dict[str, Any] = {}
    if document.classes:
        value: Any = document.classes if interface.several else document.classes[0]
        score: Any = [document.scores[name] for name in document.classes]
        score = score if interface.several else score[0]
        suggestions[CLASSES] = {"value": value, "score": score, "agent": "ldt"}
    placed: list[dict[str, Any]] = [
        {"start": units.unit(span.start), "end": units.unit(span.end), "label": span.label}
        for span in document.spans
    ]
    spans = [span for span in placed if span["end"] <= len(document.text)]
    if spans:
        suggestions[SPANS] = {"value": spans, "agent": "ldt"}
    fields = {name: document.questions.get(name, "") for name in interface.questions}
    record = {
        "id": str(document.id),
        "fields": {**fields, TEXT: document.text},
        "suggestions": suggestions,
    }
    return record, len(placed) - len(spans)
