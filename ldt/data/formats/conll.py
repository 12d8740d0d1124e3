"""CoNLL: a word a line with its tag in the last column, an empty line between sentences."""

import itertools
from collections.abc import Iterator

from ldt.data.records import Example
from ldt.data.streams import DAMAGE, Opened, opened
from ldt.errors import DataError

BORDER = "-DOCSTART-"  # in place of a word, in front of each document


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each document: tokens and tags, each a list of sentences.

    A file that begins with -DOCSTART- has a document between each two of those lines; in any
    other each sentence is a document. Columns are parted by tabs, or by spaces where a line has
    no tab; the first is the word, the last the tag, where there are two or more. The id is the
    number of the document, from 1.

    Args:
        source: a path, or "-" for standard input; compressed or not.
        data: not looked at.

    Raises:
        UserError: there is no such file.
        DataError: it cannot be decompressed, is not UTF-8, or a line has more or fewer columns than
            those before it.
    """
    with opened(source) as file:
        for number, (where, rows) in enumerate(_documents(file), 1):
            sentences = [list(group) for words, group in itertools.groupby(rows, bool) if words]
            fields = {"tokens": [[cells[0] for cells in sentence] for sentence in sentences]}
            if all(len(cells) > 1 for sentence in sentences for cells in sentence):
                fields["tags"] = [[cells[-1] for cells in sentence] for sentence in sentences]
            yield Example(fields, number, where)


def gold(source: str) -> list[Example]:
    """The documents of a file that has tags.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, has no documents, or no tags.
    """
    documents = list(read(source, None))
    if not documents:
        raise DataError(f"{'stdin' if source == '-' else source}: no documents in it")
    for document in documents:
        if "tags" not in document.fields:
            raise DataError(f"{document.where}: one column only; a gold file has tags in the last")
    return documents


def _documents(file: Opened) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the place of each document, and the columns of its lines, none for an empty line."""
    rows: list[list[str]] = []
    begins, columns, marked = "", 0, None
    for number, line in _lines(file):
        where, cells = f"{file.name}:{number}", _cells(line)
        border = cells[:1] == [BORDER]
        if marked is None and cells:
            marked = border
        if border and not marked:
            raise DataError(
                f"{where}: {BORDER}, but the file does not begin with one; with one in front of "
                "its first document it has documents, without any each sentence is one"
            )
        if begins and (border or not (cells or marked)):
            yield begins, rows
            rows, begins = [], ""
        if cells:
            begins = begins or where
        if not border:
            columns = columns or len(cells)
            if cells and len(cells) != columns:
                raise DataError(f"{where}: columns: {len(cells)}, in the lines before {columns}")
            rows.append(cells)
    if begins:
        yield begins, rows


def _lines(file: Opened) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; nothing but a line feed, or the two together, ends one."""
    number = 0
    try:
        for raw in file.stream:
            number += 1
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        what = f"not UTF-8: byte 0x{error.object[error.start]:02x}"
        raise DataError(f"{file.name}:{number}: {what}; iconv -t UTF-8 converts a file") from None
    except DAMAGE as error:
        raise DataError(f"{file.name}:{number + 1}: {file.damaged(error)}") from error


def _cells(line: str) -> list[str]:
    """The columns of a line, none of an empty one; other white space is part of a word."""
    line = line.strip(" \t")
    cells = (cell.strip(" ") for cell in line.split("\t" if "\t" in line else " "))
    return [cell for cell in cells if cell]
