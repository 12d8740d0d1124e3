"""Read annotations exported from Label Studio and doccano as training examples.

Label Studio: the JSON export of tasks with annotations. Offsets are Unicode characters
(``charsToCodePoints`` in its selection-tools.js), CR LF counting two. Its first versions counted
UTF-16 units, which is detected by comparing the text stored with each span.

doccano: one line per document with its labels. Offsets are UTF-16 units, unless the project counts
grapheme clusters.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ldt.data.sentences import Units
from ldt.errors import DataError, listed, plural, quote
from ldt.io import records, strict_json
from ldt.io.records import Example
from ldt.io.strict_json import take

log = logging.getLogger("ldt")

_BLANK = re.compile(r"\s|\\n")  # the editor of Label Studio writes a line end as these characters
# Of doccano's labels in a line: of exports since 1.5, before it, of relations, and of the first
# versions.
DOCCANO = ("label", "labels", "cats", "entities", "annotations")


@dataclass(frozen=True)
class Annotated:
    """Annotated document.

    Args:
        example: its fields, including ``text``.
        spans: (start, end, label), in characters.
        classes: chosen classes by the name of the choice field.
        links: pairs of numbers of spans, which a relation joins.
    """

    example: Example
    spans: list[tuple[int, int, str]]
    classes: dict[str, list[str]]
    links: Sequence[tuple[int, int]] = ()


def _labelled(documents: Sequence[Annotated]) -> Iterator[Example]:
    """Yield each document with its labels. If no document has a span but some have classes,
    ``entities`` is left out; if any has links, all have ``clusters``."""
    controls = list(dict.fromkeys(name for each in documents for name in each.classes))
    fields = {name: name for name in controls}
    if len(controls) == 1:
        fields["label"] = controls[0]
    lists = {name for each in documents for name in controls if len(each.classes.get(name, ())) > 1}
    placed = not controls or any(each.spans for each in documents)
    linked = any(each.links for each in documents)
    for each in documents:
        more: dict[str, Any] = {"clusters": _clusters(each)} if linked else {}
        for field, control in fields.items():
            names = each.classes.get(control, [])
            more[field] = names if control in lists else names[0] if names else None
        if placed:
            more |= _spans(each)
        yield replace(each.example, fields=each.example.fields | more)


def _clusters(document: Annotated) -> list[list[list[int]]]:
    """Clusters of spans that links join, as [start, end] in characters."""
    clusters = [[number] for number in range(len(document.spans))]
    of = [*clusters]
    for one, other in document.links:
        if of[one] is not of[other]:
            joined, emptied = of[one], of[other]
            joined += emptied
            for number in emptied:
                of[number] = joined
    groups = {id(group): group for group in of}.values()
    return [sorted([*document.spans[number][:2]] for number in group) for group in groups]


def _spans(document: Annotated) -> dict[str, Any]:
    fields = document.example.fields
    text = fields["text"]
    entities = [
        {"start": start, "end": end, "label": label, "text": text[start:end]}
        for start, end, label in sorted(document.spans)
    ]
    if "question" not in fields:
        return {"entities": entities}
    answers = [{"text": each["text"], "answer_start": each["start"]} for each in entities]
    return {"entities": entities, "context": text, "answers": answers}


def read_label_studio(source: str, data) -> Iterator[Example]:
    """Yield an example for each annotated task: its data, ``text``, and its labels; of ``data``,
    the recipe's section, the encoding counts.

    Spans become ``entities`` {start, end, label, text}; next to a ``question`` also ``answers`` in
    ``context``. Chosen classes become a field named after the choice, and ``label`` if there is
    only one choice; relations become ``clusters``. Of several annotations of a task the one marked
    as ground truth counts, else the newest; cancelled ones do not. Tasks without annotation are
    skipped and counted in the log.

    Raises:
        DataError: the file is no JSON export, or no task has an annotation.
    """
    file = strict_json.read(source, data.encoding)
    first = file.value[0] if isinstance(file.value, list) and file.value else None
    if not isinstance(first, dict) or not {"annotations", "data"} <= set(first):
        raise DataError(
            f"{file.name}: {quote(file.value)}, expected a list of tasks with data and "
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
            annotated.append(_task(task, documents, where, data))
    if not annotated:
        raise DataError(
            f"{file.name}: {plural(len(file.value), 'task')} without an annotation; label some, "
            "and export them as JSON"
        )
    for count, noun, what in (
        (len(file.value) - len(annotated), "task", "without an annotation, left out"),
        (crowded, "task", "with several annotations: the ground truth counts, else the newest"),
        (of_spans, "choice", "of single spans (perRegion), left out: no classes of the document"),
    ):
        if count:
            log.warning("%s: %s %s", file.name, plural(count, noun), what)
    yield from _labelled(annotated)


def _rank(annotation: dict[str, Any]) -> tuple[bool, str]:
    date = annotation.get("updated_at") or annotation.get("created_at")
    return annotation.get("ground_truth") is True, str(date or "")


def _parted(results: list[Any], where: str) -> tuple[list[Any], list[Any]]:
    """Split an annotation's results into those of the task and choices made for a single span,
    which carry the span's offsets or only its id."""
    others: list[Any] = []
    of_spans: list[Any] = []
    regions = {each.get("id") for each in results if take(each, "type", str, where) != "choices"}
    for each in results:
        value = each.get("value")
        placed = isinstance(value, dict) and "start" in value
        of_span = each["type"] == "choices" and (placed or each.get("id", "") in regions)
        (of_spans if of_span else others).append(each)
    return others, of_spans


def _task(task: dict[str, Any], results: list[Any], where: str, data) -> Annotated:
    fields = dict(take(task, "data", dict, where))
    text = _text(fields, data, where)
    units = Units(text, "utf-16")
    spans: list[tuple[int, int, str]] = []
    classes: dict[str, list[str]] = {}
    numbers: dict[Any, int] = {}  # of spans, by id
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
            numbers[result.get("id")] = len(spans)
            spans += [(start, end, name) for name in names]
    fields["text"] = text
    if data.id:
        records.field(Example(fields, "", where), data.id)  # raises where it is missing
    ids = [fields.get(data.id or "id"), task.get("id"), where]  # one's own before Label Studio's
    id = next(each for each in ids if isinstance(each, str | int) and each != "")
    ends = (
        [each.get("from_id"), each.get("to_id")] for each in results if each["type"] == "relation"
    )
    links = [(numbers[a], numbers[b]) for a, b in ends if a in numbers and b in numbers]
    return Annotated(Example(fields, id, where), spans, classes, links)


def _text(fields: dict[str, Any], data, where: str) -> str:
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


def _place(value: dict[str, Any], text: str, units: Units, where: str) -> tuple[int, int]:
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


def read_doccano(examples: Iterable[Example], data, exported: bool = True) -> Iterator[Example]:
    """Yield the lines with their labels; other fields are kept.

    Under any key of `DOCCANO`, spans are [start, end, label] or objects, which become ``entities``
    {start, end, label, text}, and texts are classes, which become ``label``.

    Args:
        examples: lines of the file.
        data: data section of the recipe.
        exported: True if every line must have one of `DOCCANO`, as in exports; documents to predict
            for need none.

    Raises:
        DataError: a line has no labels, or labels of another form.
    """
    yield from _labelled([_line(example, data, exported) for example in examples])


def has_spans(columns: Mapping[str, Iterable[Any]]) -> bool:
    """True if a value under doccano's keys has spans; ``columns`` are the values of each field by
    name."""
    return any(
        (isinstance(item, dict) and "start_offset" in item)
        or (isinstance(item, list) and [type(each) for each in item] == [int, int, str])
        for key in DOCCANO
        for value in columns.get(key, ())
        for item in (value if isinstance(value, list) else ())
    )


def _line(example: Example, data, exported: bool) -> Annotated:
    if exported and not set(DOCCANO) & set(example.fields):
        raise DataError(
            f"{example.where}: no labels: no field {', '.join(DOCCANO[:-1])} or {DOCCANO[-1]}; "
            f"it has {listed(example.fields)}"
        )
    fields = {name: value for name, value in example.fields.items() if name not in DOCCANO}
    text = records.text(example, data.text or "text")
    units = Units(text, "utf-16")
    spans: list[tuple[int, int, str]] = []
    classes: list[str] = []
    for key in DOCCANO:
        value = example.fields.get(key)
        for item in [value] if isinstance(value, str) else value or ():
            match item:
                case str():
                    classes.append(item)
                case [int(start), int(end), str(name)]:
                    spans.append(_units(start, end, name, units, example.where))
                case {"start_offset": int(start), "end_offset": int(end), "label": str(name)}:
                    spans.append(_units(start, end, name, units, example.where))
                case {"label": str(name)}:
                    classes.append(name)
                case {"label": int(number)}:
                    raise DataError(
                        f"{example.where}: field {key!r} has the number of a label, {number}; "
                        "its name stands elsewhere: doccano exports names as JSONL (text labels)"
                    )
                case _:
                    raise DataError(
                        f"{example.where}: field {key!r}: {quote(item)}, expected a class, or "
                        "[start, end, label] of a span"
                    )
    named = {"label": classes} if classes else {}
    return Annotated(replace(example, fields=fields | {"text": text}), spans, named)


def _units(start: int, end: int, label: str, units: Units, where: str) -> tuple[int, int, str]:
    a, b = units.character(start), units.character(end)
    if a is None or b is None or a >= b:
        what = "it parts a character" if 0 <= start < end <= units.size else "no words there"
        raise DataError(
            f"{where}: {label} from {start:,} to {end:,}: {what}; the text has {units.size:,} "
            "units of UTF-16, as doccano counts where a project does not count grapheme clusters"
        )
    return a, b, label
