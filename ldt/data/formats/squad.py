"""SQuAD 1.1 and 2.0, and what has their layout: XQuAD, CUAD."""

from collections.abc import Iterator

from ldt.data.json_file import JsonFile, shown, take
from ldt.data.records import Example
from ldt.errors import DataError


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each question: title, context, question, answers.

    ``answers`` is a list of {text, answer_start}, empty where there is no answer in the context;
    files of a test set have none, and neither have their examples.

    Raises:
        DataError: another layout.
    """
    if not (isinstance(file.value, dict) and isinstance(file.value.get("data"), list)):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object with data, a list of articles"
        )
    for number, article in enumerate(file.value["data"], 1):
        where = f"{file.name}: article {number:,}"
        for place, paragraph in enumerate(take(article, "paragraphs", list, where), 1):
            here = f"{where}, paragraph {place:,}"
            context = take(paragraph, "context", str, here)
            for qa in take(paragraph, "qas", list, here):
                id = take(qa, "id", str, here)
                fields = {"context": context, "question": take(qa, "question", str, here)}
                if "title" in article:
                    fields["title"] = article["title"]
                if "answers" in qa:
                    fields["answers"] = take(qa, "answers", list, f"{file.name}: {id}")
                yield Example(fields, id, f"{file.name}: {id}")
