"""Label Studio: tasks with predictions, and the interface that shows them.

Source: "Import pre-annotated data into Label Studio" and the tags Choices, Labels and Text of its
documentation. Places are characters, as its editor counts them (`ldt.data.formats.label_studio`).
"""

import json
from typing import Any
from xml.sax.saxutils import quoteattr

from ldt.inference.label_tools.labelled import Interface, Labelled

BESIDE = ".xml"  # suffix of the interface
CLASSES, SPANS, TEXT = "label", "spans", "text"  # names of the interface's tags


def files(labelled: list[Labelled], interface: Interface) -> list[str]:
    """The tasks, and the labelling interface of a project."""
    tasks = [_task(each, interface) for each in labelled]
    return [json.dumps(tasks, ensure_ascii=False, indent=1) + "\n", xml(interface)]


def xml(interface: Interface) -> str:
    """The labelling interface: choices for classes, labels for spans, and the text as it is."""
    lines = ["<View>", "  <Style>.htx-text, .htx-richtext { white-space: pre-wrap }</Style>"]
    lines += [f"  <Header value={quoteattr(f'${name}')}/>" for name in interface.questions]
    if interface.classes:
        choice = "multiple" if interface.several else "single"
        lines.append(f'  <Choices name="{CLASSES}" toName="{TEXT}" choice="{choice}">')
        lines += [f"    <Choice value={quoteattr(name)}/>" for name in interface.classes]
        lines.append("  </Choices>")
    if interface.labels:
        lines.append(f'  <Labels name="{SPANS}" toName="{TEXT}">')
        lines += [f"    <Label value={quoteattr(name)}/>" for name in interface.labels]
        lines.append("  </Labels>")
    lines += [f'  <Text name="{TEXT}" value="$text"/>', "</View>"]
    return "\n".join(lines) + "\n"


def _task(document: Labelled, interface: Interface) -> dict[str, Any]:
    questions = {name: document.questions.get(name, "") for name in interface.questions}
    data = {"id": document.id, "text": document.text} | questions
    results: list[dict[str, Any]] = []
    for number, (start, end, label, score) in enumerate(document.spans, 1):
        words = document.text[start:end]
        value = {"start": start, "end": end, "text": words, "labels": [label]}
        results.append(_result(f"span-{number}", SPANS, "labels", value, score))
    if document.classes:
        value = {"choices": document.classes}
        results.append(_result("classes", CLASSES, "choices", value, None))
    prediction: dict[str, Any] = {"model_version": "ldt", "result": results}
    sure = document.sureness()
    if sure is not None:
        prediction["score"] = sure
    return {"data": data, "predictions": [prediction]}


def _result(
    id: str, control: str, type: str, value: dict[str, Any], score: float | None
) -> dict[str, Any]:
    result = {"id": id, "from_name": control, "to_name": TEXT, "type": type, "value": value}
    return result if score is None else result | {"score": score}
