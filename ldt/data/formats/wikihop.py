"""WikiHop and MedHop as QAngaroo 1.1 has them (Welbl et al. 2018): a list of questions."""

from collections.abc import Iterator
from typing import Any

from ldt.data.formats.entries import entries
from ldt.errors import DataError, shown
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, texts


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and "candidates" in first


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each question: query, candidates, supports, and answer if it has one.

    Raises:
        DataError: another layout.
    """
    if not isinstance(file.value, list):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected a list of questions with id, query, "
            "candidates and supports"
        )
    for question, id, where in entries(file, "id"):
        fields = {"query": take(question, "query", str, where)} | _texts(question, where)
        if "answer" in question:
            fields["answer"] = take(question, "answer", str, where)
        yield Example(fields, id, where)


def gold(file: JsonFile) -> Iterator[Example]:
    """Yield answer, candidates and supports of each question.

    Raises:
        DataError: a question without them, as in the files of a test set.
    """
    for question, id, where in entries(file, "id"):
        if "answer" not in question:
            raise DataError(f"{where}: no field 'answer'; the files of a test set have none")
        fields = {"answer": take(question, "answer", str, where)}
        yield Example(fields | _texts(question, where), id, where)


def _texts(question: dict[str, Any], where: str) -> dict[str, Any]:
    return {
        key: texts(take(question, key, list, where), where) for key in ("candidates", "supports")
    }
