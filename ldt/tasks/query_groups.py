"""Queries with their documents as training files have them: names of fields, texts and scores."""

import math
from collections.abc import Mapping

from ldt.data.options import DataSection
from ldt.errors import DataError, quote
from ldt.io.records import Example, field, has, titled
from ldt.tasks.base import Task, path_of

_TEACHER = {"pos": "pos_scores", "neg": "neg_scores"}  # scores of the documents of a field
_ALSO = {  # names of fields in triplets and in pairs
    "query": ("anchor", "sentence1"),
    "pos": ("positive", "sentence2"),
    "neg": ("negative",),
    "documents": ("document", "sentence2"),
}


def field_path(task: Task, example: Example, data: DataSection, name: str) -> str | None:
    """Return the path of the field ``name`` (query, pos, neg or documents), or of another name for
    it such as "anchor", that the example has; None if it has none."""
    paths = path_of(task, name, data), *_ALSO[name]
    return next((path for path in paths if has(example, path)), None)


def judged_texts(task: Task, example: Example, data: DataSection) -> dict[str, list[str]]:
    """Return {"pos": texts that are right for the query, "neg": wrong ones, if given}; DataError if
    no document is right, or one is no text."""
    right, wrong = (field_path(task, example, data, name) for name in _TEACHER)
    lists = {"pos": texts_of(example, right or path_of(task, "pos", data))}
    return lists | ({"neg": texts_of(example, wrong)} if wrong and field(example, wrong) else {})


def teacher_scores(
    task: Task, example: Example, data: DataSection, lists: Mapping[str, list[str]]
) -> list[float] | None:
    """Return a teacher's scores of the documents ``lists`` of `judged_texts`, in their order; None
    if the example has none. DataError if they are not one number for each."""
    paths = {name: path_of(task, field, data) for name, field in _TEACHER.items()}
    if not has(example, paths["pos"]):
        return None
    counts = {paths[name]: len(texts) for name, texts in lists.items()}
    return [score for path, count in counts.items() for score in numbers_of(example, path, count)]


def numbers_of(example: Example, path: str, count: int) -> list[float]:
    """Read the numbers of a field, ``count`` of them, one per document; DataError if it has another
    form."""
    values = field(example, path)
    try:
        numbers = [float(each) for each in (values if isinstance(values, list) else [values])]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        what = f"field {path!r} is {quote(values)}, expected {count:,} numbers"
        raise DataError(f"{example.where}: {what}, one of each document")
    return numbers


def texts_of(example: Example, path: str) -> list[str]:
    """Read the texts of a field with a document or a list of them, titles in front; DataError if
    there is none, or one is no text."""
    values = field(example, path)
    every = values if isinstance(values, list) else [values]
    texts = [
        titled(each.get("title"), each.get("text")) if isinstance(each, dict) else each
        for each in every
    ]
    if not texts or not all(isinstance(each, str) for each in texts):
        raise DataError(
            f"{example.where}: field {path!r}: {quote(values)}, expected texts, or objects of "
            "title and text"
        )
    return texts
