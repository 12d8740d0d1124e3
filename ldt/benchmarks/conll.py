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
from typing import Any, NamedTuple

from ldt.benchmarks import base
from ldt.benchmarks.base import Benchmark
from ldt.benchmarks.recognition import BORDER, COMMENT
from ldt.errors import DataError, plural, shown
from ldt.io.records import Example
from ldt.io.sources import only
from ldt.io.streams import BOM, DAMAGE, Opened, not_utf8, opened, tell
from ldt.metrics.entities import NAMES, entities, result_of, score
from ldt.metrics.result import Item, compare

_BETWEEN = re.compile(r"\d+[-.]\d+")  # numbers of CoNLL-U: of words that are one, of an unsaid one
_TAG = re.compile(r"O|[A-Z]-.+")
_LOOKED_AT = 20  # documents in which columns are looked at

Rows = list[list[str]]  # the cells of each word, none between sentences


class _Columns(NamedTuple):
    """The columns that are read, from 0; ``counted`` where the first one numbers the words."""

    word: int
    tag: int | None
    counted: bool


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each document: tokens and tags, each a list of sentences.

    A file that begins with -DOCSTART- has a document between each two of those lines; in any
    other each sentence is a document. Columns are parted by tabs, or by spaces where a line has
    no tab. The first is the word, or the second where the first numbers the words of each sentence;
    the last is the tag, where there is another column. Lines before a sentence that begin with #
    and have other columns than its words are comments. The id is the number of the document,
    from 1.

    Args:
        source: a path, or "-" for standard input; compressed or not.
        data: its ``encoding``, and ``fields`` with other columns as {tokens: "2", tags: "3"}, under
            whose numbers the examples have them; None for the defaults.

    Raises:
        UserError: there is no such file.
        DataError: it cannot be decompressed, is of another encoding, or a line has more or fewer
            columns than those before it.
    """
    fields: dict[str, str] = data.fields if data else {}
    names = [fields.get(name, name) for name in ("tokens", "tags")]
    with opened(source) as file:
        lines = _Lines(file, data.encoding if data else "utf-8")
        documents = _documents(file.name, lines)
        head = []
        for document in documents:
            head.append(document)
            # A sentence of numbers may count too, all of a file do not.
            if any(document[1]) and not (_counted(head) and len(head) < _LOOKED_AT):
                break
        columns = _columns(file.name, head, fields)
        for number, (where, rows) in enumerate(itertools.chain(head, documents), 1):
            sentences = _sentences(rows, columns, where)
            parts = [[[cells[columns.word] for cells in sentence] for sentence in sentences]]
            if columns.tag is not None:
                parts.append([[cells[columns.tag] for cells in sentence] for sentence in sentences])
            yield Example(dict(zip(names, parts, strict=False)), number, where)
        if lines.comments:
            comments = plural(lines.comments, "comment")
            tell(file.name, f"{file.name}: {comments} before sentences, no words")


class _Lines:
    """Lines with their numbers; nothing but a line feed, or the two together, ends one.

    ``comments`` counts those that `_documents` leaves out.
    """

    def __init__(self, file: Opened, encoding: str):
        self.file, self.encoding, self.comments = file, encoding, 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        number = offset = 0
        raw = b""
        try:
            for raw in self.file.stream:
                number, line = number + 1, raw.removeprefix(BOM)
                yield number, line.decode(self.encoding).rstrip("\r\n")
                offset += len(raw)
        except UnicodeDecodeError as error:
            start = offset + len(raw) - len(error.object)
            what = not_utf8(error.object, error, start, self.encoding)
            raise DataError(f"{self.file.name}:{number}: {what}") from None
        except DAMAGE as error:
            raise DataError(f"{self.file.name}:{number + 1}: {self.file.damaged(error)}") from error


def _documents(name: str, lines: _Lines) -> Iterator[tuple[str, Rows]]:
    """Yield the place of each document, and its rows."""
    rows: Rows = []
    begins, columns, marked = "", 0, None
    before: list[tuple[int, str]] = []  # lines with # since the last sentence
    for number, line in lines:
        if line.startswith(COMMENT) and not (rows and rows[-1]):
            before.append((number, line))
            continue
        words = [each for each in before if not _is_comment(each[1], line, columns)]
        lines.comments += len(before) - len(words)
        before = []
        for at, text in (*words, (number, line)):
            where, cells = f"{name}:{at}", _cells(text)
            border = cells[:1] == [BORDER]
            if marked is None and cells:
                marked = border
            if border and not marked:
                raise DataError(
                    f"{where}: {BORDER}, but the file does not begin with one; with one in front "
                    "of its first document it has documents, without any each sentence is one"
                )
            if begins and (border or not (cells or marked)):
                yield begins, rows
                rows, begins = [], ""
            if cells:
                begins = begins or where
            if not border:
                columns = columns or len(cells)
                if cells and len(cells) != columns:
                    hint = "; comments stand before a sentence" if text[:1] == COMMENT else ""
                    what = f"columns: {len(cells)}, in the lines before {columns}{hint}"
                    raise DataError(f"{where}: {what}")
                rows.append(cells)
    words = [each for each in before if not _is_comment(each[1], "", columns)]
    lines.comments += len(before) - len(words)
    if words:  # a last sentence of such words alone
        begins = begins or f"{name}:{words[0][0]}"
        rows += [_cells(text) for _, text in words]
    if begins:
        yield begins, rows


def _is_comment(line: str, word: str, columns: int) -> bool:
    """True for a line with # that has other columns than words.

    Args:
        word: line behind it, of a word unless it is empty or a border.
        columns: of words before; 0 where there are none yet.
    """
    if not word.strip() or word.startswith(BORDER):
        return len(_cells(line)) != columns
    columns = columns or len(_cells(word))
    return len(_cells(line)) != columns or (columns > 1 and ("\t" in line) != ("\t" in word))


def _columns(name: str, documents: Sequence[tuple[str, Rows]], fields: dict[str, str]) -> _Columns:
    """The columns of words and tags, which are told.

    Args:
        documents: the first ones.
        fields: columns that are named in place of the usual.

    Raises:
        DataError: a name that is no number of a column.
    """
    width = max((len(cells) for _, rows in documents for cells in rows), default=1)
    places: dict[str, int] = {}
    for field, column in fields.items():
        if not (column.isdecimal() and 1 <= int(column) <= width):
            what = f"expected the number of a column, 1 to {width}, got {column!r}"
            raise DataError(f"{name}: data.fields.{field}: {what}")
        places[field] = int(column) - 1
    counted = places.get("tokens") != 0 and _counted(documents) > 1
    word = places.get("tokens", int(counted))
    last = width - 1 if width - 1 > word else None
    columns = _Columns(word, places.get("tags", last), counted)
    if documents and width > 1:
        numbers = ", column 1 counts them" if counted else ""
        tags = "no tags" if columns.tag is None else f"tags in column {columns.tag + 1}"
        read = f"words in column {word + 1}{numbers}, {tags} of {width}"
        tell(name, f"{name}: {read}; data.fields.tokens=N and data.fields.tags=N name others")
    return columns


def _counted(documents: Iterable[tuple[str, Rows]]) -> int:
    """Words of the longest sentence, where the first of two or more columns numbers the words of
    each sentence; else 0."""
    sentences = [sentence for _, rows in documents for sentence in _split(rows)]
    for sentence in sentences:
        width = len(sentence[0])
        tagged = width == 2 and all(_TAG.fullmatch(cells[1]) for cells in sentence)
        if width < 2 or tagged or not _counts(sentence):  # tagged: the words are numbers
            return 0
    return max(map(len, sentences), default=0)


def _counts(sentence: Rows) -> bool:
    """True if the first cells of a sentence count from 1, or from 0."""
    numbers = [cells[0] for cells in sentence if not _BETWEEN.fullmatch(cells[0])]
    starts = (range(start, start + len(numbers)) for start in (1, 0))
    return any(numbers == list(map(str, start)) for start in starts) and bool(numbers)


def _split(rows: Rows) -> list[Rows]:
    """The sentences of a document."""
    return [list(group) for words, group in itertools.groupby(rows, bool) if words]


def _sentences(rows: Rows, columns: _Columns, where: str) -> list[Rows]:
    """The sentences of a document, of those that are counted the words alone.

    Raises:
        DataError: a sentence that is not counted as those before.
    """
    sentences = _split(rows)
    if not columns.counted:
        return sentences
    for sentence in sentences:
        if not _counts(sentence):
            raise DataError(
                f"{where}: column 1 counts the words of the sentences before, but not here "
                f"({' '.join(cells[0] for cells in sentence)[:40]}); data.fields.tokens=1 takes it "
                "for the words"
            )
    return [
        [cells for cells in sentence if not _BETWEEN.fullmatch(cells[0])] for sentence in sentences
    ]


def _cells(line: str) -> list[str]:
    """The columns of a line, none of an empty one; other white space is part of a word."""
    line = line.strip(" \t")
    cells = (cell.strip(" ") for cell in line.split("\t" if "\t" in line else " "))
    return [cell for cell in cells if cell]


def published(answers: Iterable[dict]) -> dict[str, list]:
    """{id: tags}, which `ldt evaluate --format conll` reads; of raw text {id: entities}."""
    return {str(answer["id"]): answer.get("tags", answer["entities"]) for answer in answers}


@dataclass
class ConllScorer(Benchmark):
    """CoNLL: metrics are of all documents together; one without a prediction has no entity."""

    title = "conll"
    no_place = "a document has many entities"
    needs = ("tags",)
    advice = (
        "answers for given words have some; --format token_classification scores those for text"
    )

    def gold(self, files):
        documents = list(read(only(files, "the documents of conll"), self.data))
        items = []
        for document in documents:
            if len(document.fields) < 2:
                what = "one column only; a gold file has tags in the last"
                raise DataError(f"{document.where}: {what}")
            _, tags = document.fields.values()
            right = {"tags": tags, "entities": _entities(tags, document.where)}
            id = str(document.id)
            items.append(Item(id, id, {}, sum(map(len, tags)), right=right))
        return base.checked(items, base.name_of(files), "documents")

    def published(self, lines):
        return published(lines)

    def parse(self, value, name):
        if not isinstance(value, dict):
            raise DataError(
                f"{name}: {shown(value)}; expected an object, "
                "{number of the document: list of sentences, each a list of tags}"
            )
        return value

    def aggregate(self, items, answers, name):
        scored = []
        for item in items:
            tags, where = item.right["tags"], f"{name}: {shown(item.id)}"
            answer = answers.get(item.id, [["O"] * len(sentence) for sentence in tags])
            _check(answer, tags, where)
            counts = score(item.right, {"entities": _entities(answer, where)})
            scored.append(replace(item, scores=counts))
        result = result_of(self.title, scored)
        result.missing, result.extra = compare([item.id for item in items], answers)
        result.no_place = self.no_place
        return result

    def constants(self, items):
        """O for every word."""
        return {"always O": {}}

    def compared(self, name):
        return name in NAMES


def _entities(sentences: list[list[str]], where: str) -> set[tuple[Any, ...]]:
    """(sentence, start, end, label) of each entity."""
    try:
        return {
            (number, *entity) for number, tags in enumerate(sentences) for entity in entities(tags)
        }
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def _check(answer: Any, tags: list[list[str]], where: str) -> None:
    """Refuse an answer that does not have a tag for each word.

    Raises:
        DataError: it is no list of sentences, or these are of other lengths.
    """
    if not isinstance(answer, list):
        raise DataError(f"{where}: {shown(answer)}, expected a list of sentences")
    sizes = [len(sentence) for sentence in tags]
    for sentence in answer:
        if not (isinstance(sentence, list) and all(isinstance(tag, str) for tag in sentence)):
            raise DataError(f"{where}: {shown(sentence)}, expected a sentence as a list of tags")
    if list(map(len, answer)) != sizes:
        raise DataError(
            f"{where}: {len(answer):,} sentences with {sum(map(len, answer)):,} tags; the gold "
            f"file has {len(sizes):,} with {sum(sizes):,} words, or others are longer"
        )
