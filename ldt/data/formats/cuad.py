"""CUAD 1 (Hendrycks et al. 2021, arXiv:2103.06268): the layout of SQuAD 2.0, of contracts.

A paragraph is a whole contract, with a question for each category of clauses and any number of
answers; the id of a question is ``<title>__<category>``.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ldt.data.formats import squad
from ldt.data.formats.entries import once
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile

_BETWEEN = "__"  # title and category


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout: SQuAD's, with such ids.

    The first contract that has a question decides, so that of a broken one the fault is told.
    """
    if not squad.fits(value):
        return False
    for article in value["data"]:
        with suppress(KeyError, IndexError, TypeError, AttributeError):
            first = article["paragraphs"][0]["qas"][0]
            return first["id"].startswith(article["title"] + _BETWEEN)
    return False


def category(id: str) -> str:
    """The category of a question: what stands behind the last ``__`` of its id."""
    return id.rpartition(_BETWEEN)[2]


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield what `ldt.data.formats.squad.read` does, and the ``category`` of each question.

    Raises:
        DataError: another layout.
    """
    for example in squad.read(file, data):
        example.fields["category"] = category(str(example.id))
        yield example


def gold(file: JsonFile) -> Iterator[Example]:
    """Yield what `ldt.data.formats.squad.gold` does.

    Raises:
        DataError: a question without a list of answers; an answer without text; an id twice.
    """
    examples = list(squad.gold(file))
    once((str(example.id) for example in examples), file.name)
    for example in examples:
        if not all(answer["text"] for answer in example.fields["answers"]):
            raise DataError(f"{example.where}: the text of an answer is empty")
        yield example
