"""Label Studio: tasks with their annotations, as its export named JSON has them.

Places are characters: its editor counts code points (``charsToCodePoints`` in its
selection-tools.js), CR LF as two. Its first versions counted units of UTF-16, which the text beside
each span tells.
"""

import logging
import re
from collections.abc import Iterator
from typing import Any

from ldt.data.formats.annotated import Annotated, labelled
from ldt.errors import DataError, listed, plural, shown
from ldt.io import records
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take
from ldt.io.text_files import Utf16

log = logging.getLogger("ldt")

_BLANK = re.compile(r"\s|\\n")  # its editor writes a line end as these two characters


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout."""
    task = value[0] if isinstance(value, list) and value else None
    return isinstance(task, dict) and {"annotations", "data"} <= set(task)


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each annotated task: its data, and what was labelled
    (`ldt.data.formats.annotated.labelled`), classes by the names of their controls.

    Of several annotations of a task the one that is marked as ground truth counts, else the newest;
    cancelled ones do not. Tasks without any are left out, and counted in the log.

    Raises:
        DataError: another layout, no annotation at all, or a span that is not where it is said to
            be.
    """
    if not fits(file.value):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected a list of tasks with data and "
            "annotations; Label Studio's export named JSON is that, JSON-MIN is not"
        )
    annotated: list[Annotated] = []
    crowded = of_spans = 0
    for number, task in enumerate(file.value, 1):
        name = task.get("id", number) if isinstance(task, dict) else number
        where = f"{file.name}: task {name}"
        annotations = [
            each
            for each in take(task, "annotations", list, where)
            if take(each, "result", list, where) is not None and not each.get("was_cancelled")
        ]
        crowded += len(annotations) > 1
        if annotations:
            chosen = max(reversed(annotations), key=_rank)
            documents, spans = _parted(chosen["result"], where)
            of_spans += len(spans)
            annotated.append(_annotated(task, documents, where, data))
    if not annotated:
        raise DataError(
            f"{file.name}: {plural(len(file.value), 'task')} without an annotation; label some, "
            "and export them as JSON"
        )
    if len(annotated) < len(file.value):
        left_out = plural(len(file.value) - len(annotated), "task")
        log.warning("%s: %s without an annotation, left out", file.name, left_out)
    if crowded:
        counts = "the ground truth counts, else the newest"
        log.info("%s: %s with several annotations: %s", file.name, plural(crowded, "task"), counts)
    if of_spans:
        what = "they are about the span, and no classes of the document"
        choices = plural(of_spans, "choice")
        log.warning("%s: %s of single spans (perRegion), left out: %s", file.name, choices, what)
    yield from labelled(annotated)


def _rank(annotation: dict[str, Any]) -> tuple[bool, str]:
    """Sort key by which one annotation of a task precedes another: ground truth, then its date."""
    date = annotation.get("updated_at") or annotation.get("created_at")
    return annotation.get("ground_truth") is True, str(date or "")


def _parted(results: list[Any], where: str) -> tuple[list[Any], list[Any]]:
    """The results of an annotation, and apart from them choices that were made for a span.

    Such a choice has the place of its span, or the id of it alone.
    """
    others: list[Any] = []
    of_spans: list[Any] = []
    regions = {each.get("id") for each in results if take(each, "type", str, where) != "choices"}
    for each in results:
        value = each.get("value")
        placed = isinstance(value, dict) and "start" in value
        of_span = each["type"] == "choices" and (placed or each.get("id", "") in regions)
        (of_spans if of_span else others).append(each)
    return others, of_spans


def _annotated(task: dict[str, Any], results: list[Any], where: str, data) -> Annotated:
    """The data of a task with its spans, and the classes that were chosen for it."""
    fields = dict(take(task, "data", dict, where))
    text = _text(fields, data, where)
    units = Utf16(text)
    spans: list[tuple[int, int, str]] = []
    classes: dict[str, list[str]] = {}
    for result in results:
        kind = take(result, "type", str, where)
        if kind == "hypertextlabels":
            raise DataError(f"{where}: places in HTML; spans of a Text tag are read")
        if kind not in ("labels", "choices"):
            continue
        value = take(result, "value", dict, where)
        names = take(value, kind, list, where)
        if kind == "choices":
            classes.setdefault(take(result, "from_name", str, where), []).extend(names)
        else:
            start, end = _place(value, text, units, where)
            spans += [(start, end, name) for name in names]
    fields["text"] = text
    if data.id:
        records.field(Example(fields, "", where), data.id)  # raises where it is missing
    ids = [fields.get(data.id or "id"), task.get("id"), where]  # one's own before Label Studio's
    id = next(each for each in ids if isinstance(each, str | int) and each != "")
    return Annotated(Example(fields, id, where), spans, classes)


def _text(fields: dict[str, Any], data, where: str) -> str:
    """The text of a task: of the field that is named, of ``text``, or the only one it has."""
    if data.text is not None:
        return records.text(Example(fields, "", where), data.text)
    if "text" in fields:
        return take(fields, "text", str, where)
    id_field = data.id or "id"
    names = [name for name, value in fields.items() if isinstance(value, str) and name != id_field]
    if len(names) != 1:
        raise DataError(
            f"{where}: no field 'text'; data.text names the one with the text, of {listed(fields)}"
        )
    return fields[names[0]]


def _place(value: dict[str, Any], text: str, units: Utf16, where: str) -> tuple[int, int]:
    """The characters of a span, which is what its ``text`` says.

    Raises:
        DataError: it is not, or reaches beyond the text.
    """
    start, end = take(value, "start", int, where), take(value, "end", int, where)
    quoted = value.get("text")
    places = [(start, end)]
    if quoted is not None:
        places.append((units.character(start), units.character(end)))
    for a, b in places:
        if a is None or b is None or not 0 <= a < b <= len(text):
            continue
        if quoted is None or _BLANK.sub("", text[a:b]) == _BLANK.sub("", str(quoted)):
            return a, b
    here = f"{where}: a span from {start:,} to {end:,}"
    if not 0 <= start < end <= len(text):
        raise DataError(f"{here}: no words there; the text has {len(text):,} characters")
    raise DataError(
        f"{here} is {text[start:end][:40]!r}, not {str(quoted)[:40]!r}; was the text changed after "
        "it was labelled?"
    )
