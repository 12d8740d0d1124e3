"""WikiHop and MedHop as QAngaroo 1.1 has them (Welbl et al. 2018): a list of questions."""

from collections.abc import Iterator

from ldt.data.json_file import JsonFile, shown, take, texts
from ldt.data.records import Example
from ldt.errors import DataError


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
    for number, question in enumerate(file.value, 1):
        id = take(question, "id", str, f"{file.name}: question {number:,}")
        where = f"{file.name}: {id}"
        fields = {"query": take(question, "query", str, where)}
        for key in ("candidates", "supports"):
            fields[key] = texts(take(question, key, list, where), where)
        if "answer" in question:
            fields["answer"] = take(question, "answer", str, where)
        yield Example(fields, id, where)
