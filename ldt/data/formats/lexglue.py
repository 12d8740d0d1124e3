"""LexGLUE (Chalkidis et al. 2022, arXiv:2110.00976): ECtHR A and B, SCOTUS and EUR-LEX.

JSON lines as they are published (``facts`` or ``text``, labels by name), or as the library
`datasets` has them (``text``, labels by number).
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ldt.data.formats.entries import once
from ldt.errors import DataError, shown
from ldt.io import records
from ldt.io.records import Example
from ldt.io.strict_json import take, texts

_ARTICLES = ("2", "3", "5", "6", "8", "9", "10", "11", "14", "P1-1")
_CONCEPTS = tuple(
    """
    100163 100168 100169 100170 100171 100172 100173 100174 100175 100176 100177 100179
    100180 100183 100184 100185 100186 100187 100189 100190 100191 100192 100193 100194
    100195 100196 100197 100198 100199 100200 100201 100202 100204 100205 100206 100207
    100212 100214 100215 100220 100221 100222 100223 100224 100226 100227 100229 100230
    100231 100232 100233 100234 100235 100237 100238 100239 100240 100241 100242 100243
    100244 100245 100246 100247 100248 100249 100250 100252 100253 100254 100255 100256
    100257 100258 100259 100260 100261 100262 100263 100264 100265 100266 100268 100269
    100270 100271 100272 100273 100274 100275 100276 100277 100278 100279 100280 100281
    100282 100283 100284 100285
""".split()
)  # of EuroVoc


class LexGlueTask(NamedTuple):
    """A part of the benchmark.

    ``classes`` are in the official order. ``raw`` is the field of the published labels; ``several``
    says whether a document can have more than one, or none; ``none`` whether having none is scored
    as one more class; ``parted`` whether blank lines part its text into paragraphs.
    """

    name: str
    classes: tuple[str, ...]
    raw: str
    several: bool = True
    none: bool = False
    parted: bool = False

    def read(self, source: str, data) -> Iterator[Example]:
        """Yield an example for each line: text, a list of paragraphs or one text, and label, the
        name of the class or a list of names, where the line has one.

        The id is that of the line, else its number from 0.

        Args:
            source: a path, or "-" for standard input; compressed or not.
            data: its ``encoding``.

        Raises:
            UserError: there is no such file.
            DataError: a line of another layout.
        """
        read = records.read(source, format="jsonl", encoding=data.encoding)
        for number, line in enumerate(read):
            labels = self.labels(line.fields, line.where)
            document = text(line.fields, line.where)
            if self.parted and isinstance(document, str):
                document = re.split(r"\n{2,}", document)
            fields: dict[str, Any] = {"text": document}
            if labels is not None:
                names = [self.classes[place] for place in labels]
                fields["label"] = names if self.several else names[0]
            yield Example(fields, line_id(line, number), line.where)

    def labels(self, fields: dict[str, Any], where: str) -> list[int] | None:
        """The numbers of the classes of a line, None if it has no labels; names that are not among
        the classes are dropped, as the published data set drops them.

        Raises:
            DataError: no labels, numbers that are not among the classes.
        """
        key = self.key(fields)
        if key is None:
            return None
        values = fields[key] if isinstance(fields[key], list) else [fields[key]]
        if isinstance(fields[key], list) != self.several:
            expected = "a list of classes" if self.several else "one class"
            raise DataError(f"{where}: {key!r} is {shown(fields[key])}; {self.name} has {expected}")
        if all(isinstance(value, str) for value in values):
            places = [self.classes.index(value) for value in values if value in self.classes]
            if not self.several and not places:
                raise DataError(f"{where}: {key!r} is {values[0]!r}, none of the classes")
            return sorted(set(places))
        return numbers(values, len(self.classes), where)

    def key(self, fields: dict[str, Any]) -> str | None:
        """The field of a line that has the labels; None if there is none."""
        by_number = "labels" if self.several else "label"
        return next((key for key in (self.raw, by_number) if key in fields), None)


TASKS = {
    task.name: task
    for task in (
        LexGlueTask("ecthr_a", _ARTICLES, "violated_articles", none=True),
        LexGlueTask("ecthr_b", _ARTICLES, "allegedly_violated_articles", none=True),
        LexGlueTask(
            "scotus", tuple(map(str, range(1, 14))), "issueArea", several=False, parted=True
        ),
        LexGlueTask("eurlex", _CONCEPTS, "labels"),
    )
}


def line_id(line: Example, number: int) -> str | int:
    """The id that a line states, else its number from 0."""
    return line.id if line.fields.get("id") not in (None, "") else number


def text(fields: dict[str, Any], where: str) -> str | list[str]:
    """The paragraphs of a line, or its text in one.

    Raises:
        DataError: it has neither.
    """
    key = "facts" if "facts" in fields else "text"
    if isinstance(fields.get(key), list):
        return texts(fields[key], where)
    return take(fields, key, str, where)


def numbers(values: list, classes: int, where: str) -> list[int]:
    """Numbers of classes in order, each once.

    Raises:
        DataError: one that no class has.
    """
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < classes:
            raise DataError(
                f"{where}: label {shown(value)}; there are {classes} classes, from 0 to "
                f"{classes - 1}"
            )
    return sorted(set(values))


def lines(source: str, encoding: str | None = None) -> list[Example]:
    """The lines of a file of gold labels or of predictions, each with its id.

    Raises:
        UserError: there is no such file.
        DataError: a line that is no JSON object, an id twice.
    """
    files = [
        Example(line.fields, line_id(line, number), line.where)
        for number, line in enumerate(records.read(source, format="jsonl", encoding=encoding))
    ]
    once((str(line.id) for line in files), "stdin" if source == "-" else source)
    return files
