"""CoNLL: a word a line with its tag, an empty line between sentences.

The figures are precision, recall and F1 of the entities that BIO tags say; predictions are {number
of the document: tags}.

Source: Tjong Kim Sang and Buchholz 2000 (CoNLL-2000) and Tjong Kim Sang and De Meulder 2003
(CoNLL-2003, arXiv:cs/0306050), the rules of their script conlleval.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ldt.benchmarks.base import AnswersById, Benchmark, Shape
from ldt.benchmarks.recognition import BORDER, COMMENT
from ldt.data.options import DataSection
from ldt.errors import DataError, quote
from ldt.io.records import Example
from ldt.io.streams import BOM, DAMAGE, Opened, not_utf8, open_source, tell
from ldt.metrics.entities import NAMES, entities, result_of, score
from ldt.metrics.result import Item, Result, compare

_BETWEEN = re.compile(r"\d+[-.]\d+")  # numbers of CoNLL-U: of words that are one, of an unsaid one
_TAG = re.compile(r"O|[A-Z]-.+")
_LOOKED_AT = 20  # documents in which columns are looked at

Rows = list[list[str]]  # the cells of each word of a sentence


def read(source: str, data: DataSection | None) -> Iterator[Example]:
    """Yield an example for each document: ``tokens`` and ``tags``, each a list of sentences, which
    are lists of texts; the columns that are read are logged.

    A file that begins with -DOCSTART- has a document between each two of those lines; in any other
    each sentence is a document. Columns are parted by tabs, or by spaces where a line has no tab.
    The first is the word, or the second where the first numbers the words of each sentence; the
    last is the tag; with one column there are no ``tags``. Lines before a sentence that begin with
    # and have other columns than its words are comments. The id is the number of the document, from
    1.

    Args:
        source: path, or "-" for standard input.
        data: its ``encoding``, and ``fields`` with other columns as {tokens: "2", tags: "3"}, under
            whose numbers the examples have them; None for the defaults.
    """
    fields: dict[str, str] = data.fields if data else {}
    names = [fields.get(name, name) for name in ("tokens", "tags")]
    with open_source(source) as file:
        documents = _documents(file.name, lines(file, data.encoding if data else "utf-8"))
        head = [*itertools.islice(documents, _LOOKED_AT)]
        word, tag, counted = _columns(file.name, head, fields)
        columns = [word] if tag is None else [word, tag]
        for number, (where, sentences) in enumerate(itertools.chain(head, documents), 1):
            if counted:
                for sentence in sentences:
                    if not _counts(sentence):
                        raise DataError(
                            f"{where}: column 1 counts the words of the sentences before, but not "
                            f"here ({' '.join(cells[0] for cells in sentence)[:40]}); "
                            "data.fields.tokens=1 takes it for the words"
                        )
                sentences = [
                    [cells for cells in sentence if not _BETWEEN.fullmatch(cells[0])]
                    for sentence in sentences
                ]
            parts = [[[cells[n] for cells in rows] for rows in sentences] for n in columns]
            yield Example(dict(zip(names, parts, strict=False)), number, where)


def lines(file: Opened, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line in this encoding, without its end: a line feed, or
    carriage return and line feed, and nothing else. DataError for damage and bytes of another
    encoding."""
    number = offset = 0
    raw = b""
    try:
        for raw in file.stream:
            number, line = number + 1, raw.removeprefix(BOM)
            yield number, line.decode(encoding).rstrip("\r\n")
            offset += len(raw)
    except UnicodeDecodeError as error:
        start = offset + len(raw) - len(error.object)
        what = not_utf8(error.object, error, start, encoding)
        raise DataError(f"{file.name}:{number}: {what}") from None
    except DAMAGE as error:
        raise DataError(f"{file.name}:{number + 1}: {file.damaged(error)}") from error


def _blocks(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    block: list[tuple[int, str]] = []
    for number, text in lines:
        cells = _cells(text)
        border = cells[:1] == [BORDER]
        if block and (border or not cells):
            yield block
            block = []
        if border:
            yield [(number, text)]
        elif cells:
            block.append((number, text))
    if block:
        yield block


def _documents(name: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, list[Rows]]]:
    """Yield the place of each document, and its sentences."""
    begins, columns, marked = "", 0, None
    sentences: list[Rows] = []
    for block in _blocks(lines):
        where, border = f"{name}:{block[0][0]}", _cells(block[0][1])[:1] == [BORDER]
        marked = border if marked is None else marked
        if border:
            if not marked:
                raise DataError(
                    f"{where}: {BORDER}, but the file does not begin with one; with one in front "
                    "of its first document it has documents, without any each sentence is one"
                )
            if begins:
                yield begins, sentences
            begins, sentences = where, []
            continue
        words = [text for _, text in block if not text.startswith(COMMENT)]
        lead = next((n for n, line in enumerate(block) if line[1] in words[:1]), len(block))
        rows: Rows = []
        for place, (number, text) in enumerate(block):
            cells = _cells(text)
            if place < lead and _is_comment(text, words[0] if words else "", columns):
                continue
            columns = columns or len(cells)
            if len(cells) != columns:
                hint = "; comments stand before a sentence" if text[:1] == COMMENT else ""
                what = f"columns: {len(cells)}, in the lines before {columns}{hint}"
                raise DataError(f"{name}:{number}: {what}")
            where = where if rows else f"{name}:{number}"
            rows.append(cells)
        if marked and rows:
            sentences.append(rows)
        elif rows:
            yield where, [rows]
    if begins:
        yield begins, sentences


def _is_comment(line: str, word: str, columns: int) -> bool:
    """True for a line with # that has other columns than the words."""
    columns = columns or len(_cells(word))
    parted = bool(word) and columns > 1 and ("\t" in line) != ("\t" in word)
    return parted or len(_cells(line)) != columns


def _columns(
    name: str, documents: Sequence[tuple[str, list[Rows]]], fields: dict[str, str]
) -> tuple[int, int | None, bool]:
    """Indices of the columns of words and of tags; and True where the first column counts the
    words."""
    sentences = [sentence for _, each in documents for sentence in each]
    width = max((len(sentence[0]) for sentence in sentences), default=1)
    places: dict[str, int] = {}
    for field, column in fields.items():
        if not (column.isdecimal() and 1 <= int(column) <= width):
            what = f"expected the number of a column, 1 to {width}, got {column!r}"
            raise DataError(f"{name}: data.fields.{field}: {what}")
        places[field] = int(column) - 1
    tagged = width == 2 and all(_TAG.fullmatch(cells[1]) for rows in sentences for cells in rows)
    counted = places.get("tokens") != 0 and width > 1 and not tagged  # tagged: words are numbers
    counted = counted and all(map(_counts, sentences)) and max(map(len, sentences)) > 1
    word = places.get("tokens", int(counted))
    tag = places.get("tags", width - 1 if width - 1 > word else None)
    if documents and width > 1:
        numbers = ", column 1 counts them" if counted else ""
        tags = "no tags" if tag is None else f"tags in column {tag + 1}"
        read = f"words in column {word + 1}{numbers}, {tags} of {width}"
        tell(name, f"{name}: {read}; data.fields.tokens=N and data.fields.tags=N name others")
    return word, tag, counted


def _counts(sentence: Rows) -> bool:
    """True if the first cells of a sentence count from 1, or from 0."""
    numbers = [cells[0] for cells in sentence if not _BETWEEN.fullmatch(cells[0])]
    starts = (range(start, start + len(numbers)) for start in (1, 0))
    return any(numbers == list(map(str, start)) for start in starts) and bool(numbers)


def _cells(line: str) -> list[str]:
    """The columns of a line, none of an empty one; other white space is part of a word."""
    line = line.strip(" \t")
    cells = (cell.strip(" ") for cell in line.split("\t" if "\t" in line else " "))
    return [cell for cell in cells if cell]


def published(answers: Iterable[dict]) -> dict[str, list]:
    """Convert answers of ldt predict to {id: tags}, which `ldt evaluate --format conll` reads; of
    raw text, which has no ``tags``, to {id: entities}."""
    return {str(answer["id"]): answer.get("tags", answer["entities"]) for answer in answers}


_PREDICTIONS = Shape({str: [[str]]})


@dataclass
class ConllScorer(Benchmark):
    """CoNLL: metrics are of all documents together; one without a prediction has no entity."""

    title = "conll"
    no_place = "a document has many entities"
    needs = ("tags",)
    advice = (
        "answers for given words have some; --format token_classification scores those for text"
    )

    noun = "document"
    read = staticmethod(read)
    published = staticmethod(published)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a document: ``right`` has ``tags``, a list by sentence, and
        ``entities``, a set of (sentence, start, end, label); DataError without a column of tags."""
        if len(example.fields) < 2:
            what = "one column only; a gold file has tags in the last"
            raise DataError(f"{example.where}: {what}")
        _, tags = example.fields.values()
        right = {"tags": tags, "entities": _entities(tags, example.where)}
        return Item(str(example.id), example.id, {}, sum(map(len, tags)), right=right)

    def parse(self, value: Any, name: str) -> AnswersById:
        """Check that predictions are {id: [[tag, ...] of each sentence]}, and return them as they
        are."""
        return _PREDICTIONS(value, name)

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Precision, recall and F1, 0 to 100, of the entities of all documents together; a document
        without a prediction has tags O. DataError if the number of sentences or tags differs
        from gold."""
        scored = []
        for item in items:
            tags, where = item.right["tags"], f"{name}: {quote(item.id)}"
            answer = answers.get(item.id, [["O"] * len(sentence) for sentence in tags])
            sizes = [[len(sentence) for sentence in side] for side in (answer, tags)]
            if sizes[0] != sizes[1]:
                raise DataError(
                    f"{where}: {len(answer):,} sentences with {sum(sizes[0]):,} tags; the gold "
                    f"file has {len(tags):,} with {sum(sizes[1]):,} words, or others are longer"
                )
            counts = score(item.right, {"entities": _entities(answer, where)})
            scored.append(replace(item, scores=counts))
        result = result_of(self.title, scored)
        result.missing, result.extra = compare([item.id for item in items], answers)
        result.no_place = self.no_place
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: the tag O for every word, which {}, no prediction, stands for."""
        return {"always O": {}}

    def compared(self, name: str) -> bool:
        """True for precision, recall and f1 of all types, not for those of one type."""
        return name in NAMES


def _entities(sentences: list[list[str]], where: str) -> set[tuple[Any, ...]]:
    try:
        return {
            (number, *entity) for number, tags in enumerate(sentences) for entity in entities(tags)
        }
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
