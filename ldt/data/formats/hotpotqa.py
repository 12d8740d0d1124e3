"""HotpotQA, distractor and full wiki: a JSON list of questions with their paragraphs."""

from collections.abc import Iterator
from typing import Any

from ldt.data.formats.entries import entries
from ldt.errors import DataError, shown
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take

_NEEDED = {"question": str, "context": list}
_OPTIONAL = {"answer": str, "supporting_facts": list, "type": str, "level": str}
_GOLD = {"answer": str, "supporting_facts": list}


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout with answers."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and "supporting_facts" in first


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each question: question, context, and answer, supporting_facts, type
    and level where they are there, which in the files of a test set they are not.

    ``context`` is a list of [title, sentences], ``supporting_facts`` of [title, number of a
    sentence]; the task looks into them.

    Raises:
        DataError: another layout.
    """
    if not isinstance(file.value, list):
        raise DataError(f"{file.name}: {shown(file.value)}, expected a list of questions with _id")
    yield from _examples(file, _NEEDED, _OPTIONAL)


def gold(file: JsonFile) -> Iterator[Example]:
    """Yield answer and supporting_facts of each question, and its context if the file has it.

    Raises:
        DataError: a question without them, as in the files of a test set.
    """
    return _examples(file, _GOLD, {"context": list})


def _examples(file: JsonFile, needed: dict, optional: dict) -> Iterator[Example]:
    for question, id, where in entries(file, "_id"):
        fields = needed | {name: kind for name, kind in optional.items() if name in question}
        yield Example(
            {name: take(question, name, kind, where) for name, kind in fields.items()}, id, where
        )
