"""HotpotQA, distractor and full wiki: a JSON list of questions with their paragraphs."""

from collections.abc import Iterator

from ldt.data.json_file import JsonFile, shown, take
from ldt.data.records import Example
from ldt.errors import DataError

_MAYBE = {"answer": str, "supporting_facts": list, "type": str, "level": str}


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
    for number, question in enumerate(file.value, 1):
        id = take(question, "_id", str, f"{file.name}: question {number:,}")
        where = f"{file.name}: {id}"
        fields = {"question": str, "context": list}
        fields |= {name: kind for name, kind in _MAYBE.items() if name in question}
        yield Example(
            {name: take(question, name, kind, where) for name, kind in fields.items()}, id, where
        )
