"""SQuAD 1.1 and 2.0, and what has their layout: XQuAD, CUAD."""

from collections.abc import Iterator
from typing import Any

from ldt.data.formats.entries import once
from ldt.errors import DataError, shown
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, take_id


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout."""
    return isinstance(value, dict) and isinstance(value.get("data"), list)


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each question: title, context, question, answers.

    ``answers`` is a list of {text, answer_start}, empty where there is no answer in the context;
    files of a test set have none, and neither have their examples.

    Raises:
        DataError: another layout, or an id twice.
    """
    if not fits(file.value):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object with data, a list of articles"
        )
    once((id for *_, id, _ in _questions(file)), file.name)
    for article, _, context, qa, id, here in _questions(file):
        fields = {"context": context, "question": take(qa, "question", str, here)}
        if "title" in article:
            fields["title"] = article["title"]
        if "answers" in qa:
            fields["answers"] = take(qa, "answers", list, f"{file.name}: {id}")
        yield Example(fields, id, f"{file.name}: {id}")


def gold(file: JsonFile) -> Iterator[Example]:
    """Yield context, answers and ``paragraph``, the number of its article and its own, of each
    question.

    Raises:
        DataError: a question without a list of answers, as in the files of a test set.
    """
    for _, paragraph, context, qa, id, _ in _questions(file):
        where = f"{file.name}: {id}"
        answers = take(qa, "answers", list, where)
        for answer in answers:
            take(answer, "text", str, where)
        fields = {"context": context, "answers": answers, "paragraph": paragraph}
        yield Example(fields, id, where)


def _questions(
    file: JsonFile,
) -> Iterator[tuple[dict[str, Any], tuple[int, int], str, dict[str, Any], str, str]]:
    """Article, numbers of article and paragraph, context, question, its id, and the paragraph's
    place in words."""
    for number, article in enumerate(file.value["data"], 1):
        where = f"{file.name}: article {number:,}"
        for place, paragraph in enumerate(take(article, "paragraphs", list, where), 1):
            here = f"{where}, paragraph {place:,}"
            context = take(paragraph, "context", str, here)
            for qa in take(paragraph, "qas", list, here):
                yield article, (number, place), context, qa, take_id(qa, "id", here), here
