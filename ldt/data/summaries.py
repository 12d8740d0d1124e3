"""Documents with summaries, under the field names of published datasets.

JSON lines or tables with text and summary, article and abstract (arXiv, PubMed), document and
summary (Multi-News), report and summary (GovReport), or chapter and summary_text (BookSum).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ldt.io import records
from ldt.io.records import Example

# Fields of a document, and that of its summary beside it.
PAIRS = {
    "text": "summary",
    "article": "abstract",
    "document": "summary",
    "report": "summary",
    "chapter": "summary_text",
}
TARGETS = tuple(dict.fromkeys(PAIRS.values()))
BORDER = "|||||"  # between the documents of Multi-News, and behind the last


def with_fields(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples with ``text`` and ``summary`` added where present; all fields are kept.

    ``text`` is one document or a list of documents; ``question``, the topic of the summary, is
    optional. The fields are those of the first pair in `PAIRS` that is complete, else of the first
    with a document; null counts as absent.
    """
    for example in examples:
        fields = {name: value for name, value in example.fields.items() if value is not None}
        documents = [name for name in PAIRS if name in fields]
        whole = [name for name in documents if PAIRS[name] in fields]
        renamed: dict[str, Any] = {}
        for name in (whole or documents)[:1]:
            renamed["text"] = _parted(fields[name]) if name == "document" else fields[name]
        targets = [PAIRS[name] for name in whole] or [name for name in TARGETS if name in fields]
        for name in targets[:1]:
            renamed["summary"] = fields[name]
        yield replace(example, fields=example.fields | renamed)


def text(example: Example) -> str | list[str]:
    """Document, or list of documents, of an example of `with_fields`; DataError without one."""
    value = example.fields.get("text")
    return (
        records.texts(example, "text") if isinstance(value, list) else records.text(example, "text")
    )


def summary(example: Example) -> str:
    """Summary of an example from `with_fields`; DataError if there is none."""
    return records.text(example, "summary")


def _parted(document: Any) -> Any:
    """List of the documents of a Multi-News cluster; other values unchanged."""
    if not isinstance(document, str) or BORDER not in document:
        return document
    return [part.strip() for part in document.split(BORDER) if part.strip()]
