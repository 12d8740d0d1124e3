"""ContractNLI (Koreeda and Manning 2021, arXiv:2110.01799): contracts and hypotheses on them."""

import json
from collections.abc import Iterator
from typing import Any

from ldt.data.formats.entries import once
from ldt.errors import DataError, shown
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, take_id

LABELS = ("NotMentioned", "Entailment", "Contradiction")  # in the order of the published classes


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("documents"), list)
        and isinstance(value.get("labels"), dict)
    )


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each document and hypothesis, its id "<document>/<hypothesis>".

    Fields: text; spans, [start, end) of each in characters of the text; hypothesis; key (its name)
    and document (its id as the file has it), which predictions say; and, where the file has
    annotations, label (one of `LABELS`) and evidence, numbers of spans from 0.

    Raises:
        DataError: another layout, a span outside of the text, evidence that is no span; a
            hypothesis that lacks in the annotations or in the labels; a document twice.
    """
    if not fits(file.value):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object with documents and labels"
        )
    once((id for _, id, _ in _documents(file)), file.name)
    labels = file.value["labels"]
    for document, id, where in _documents(file):
        text = take(document, "text", str, where)
        fields = {"text": text, "spans": _spans(document, len(text), where)}
        annotations = annotated(document, where) if "annotation_sets" in document else None
        for key in annotations or ():
            if key not in labels:
                raise DataError(f"{where}: the hypothesis {shown(key)} is none of the labels")
        for key, entry in labels.items():
            here = f"{where}/{key}"
            hypothesis = take(entry, "hypothesis", str, here)
            more = {"hypothesis": hypothesis, "key": key, "document": document["id"]}
            if annotations is not None:
                more |= _annotation(annotations, key, len(fields["spans"]), here)
            yield Example(fields | more, f"{id}/{key}", here)


def gold(file: JsonFile) -> Iterator[Example]:
    """Yield what `read` does.

    Raises:
        DataError: no annotations, as in the files of a test set.
    """
    for document, _, where in _documents(file):
        annotated(document, where)
    yield from read(file, None)


def annotated(document: dict[str, Any], where: str) -> dict[str, Any]:
    """The annotations of a document by hypothesis, of gold files and of predictions.

    Raises:
        DataError: it does not have one set of them.
    """
    sets = take(document, "annotation_sets", list, where)
    if len(sets) != 1:
        raise DataError(f"{where}: {len(sets)} annotation_sets, expected one")
    return take(sets[0], "annotations", dict, where)


def _documents(file: JsonFile) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each document with its id and its place in words."""
    for number, document in enumerate(file.value["documents"], 1):
        id = take_id(document, "id", f"{file.name}: document {number:,}")
        yield document, id, f"{file.name}: {id}"


def _spans(document: dict[str, Any], length: int, where: str) -> list[list[int]]:
    spans = take(document, "spans", list, where)
    for number, span in enumerate(spans):
        match span:
            case [int(start), int(end)] if 0 <= start <= end <= length:
                pass
            case _:
                raise DataError(
                    f"{where}: span {number:,} is {json.dumps(span):.60}, expected [start, end] "
                    f"within the {length:,} characters of the text"
                )
    return spans


def _annotation(annotations: dict[str, Any], key: str, spans: int, where: str) -> dict[str, Any]:
    """Label and evidence of a hypothesis."""
    if key not in annotations:
        raise DataError(f"{where}: the hypothesis lacks in the annotations")
    entry = annotations[key]
    label = take(entry, "choice", str, where)
    if label not in LABELS:
        raise DataError(f"{where}: choice {label!r}, expected one of {', '.join(LABELS)}")
    evidence = take(entry, "spans", list, where)
    for number in evidence:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < spans:
            raise DataError(
                f"{where}: span {shown(number)} as evidence; the document has {spans:,}, from 0"
            )
    return {"label": label, "evidence": evidence}
