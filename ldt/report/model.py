"""Parts of a report before anything is drawn: figures, charts, tables and documents."""

from collections.abc import Sequence
from dataclasses import dataclass, field

GOLD, ANSWER, PASSAGE = "gold", "answer", "passage"  # whose characters a mark is


SILENT, MISSING = "left to a person", "without an answer"


@dataclass(frozen=True, order=True)
class Mark:
    """Characters of a text, and what they are.

    Args:
        start, end: characters of the text (code points), the end not included.
        kind: `GOLD`, `ANSWER` (evidence and entities too) or `PASSAGE`, which explains an answer.
        label: what is there, such as "answer", "evidence", or the type of an entity.
        score: a probability, None where there is none.
    """

    start: int
    end: int
    kind: str
    label: str
    score: float | None = None


@dataclass(frozen=True)
class Document:
    """A document or question with its answer.

    Args:
        id, where: of the document, and its place in its file.
        text: None where the report was given none.
        asks: further texts that belong to it, by name: question, hypothesis, candidates.
        gold, answer: as they are read by a person; None where there is none.
        right: None where that is not known, is a matter of degree, or there is no answer.
        scores: of this document by the names of the metrics, from 0 to 1.
        confidence: probability of the answer.
        words: of the text; None where that is not known.
        marks: in the order of their places.
        doubt: how sure the model is that the gold label is wrong, from 0 to 1; None for no doubt.
        notes: what is odd about it, such as that it was not read to its end.
        doubted: of several labels the doubtful one, and whether it is there; "" of one label.
        unanswered: `SILENT` or `MISSING`; "" of a document that has an answer.
    """

    id: str
    where: str
    text: str | None = None
    asks: dict[str, str] = field(default_factory=dict)
    gold: str | None = None
    answer: str | None = None
    right: bool | None = None
    scores: dict[str, float] = field(default_factory=dict)
    confidence: float | None = None
    words: int | None = None
    marks: Sequence[Mark] = ()
    doubt: float | None = None
    notes: Sequence[str] = ()
    doubted: str = ""
    unanswered: str = ""

    @property
    def verdict(self) -> str | None:
        """``right``, ``wrong`` or ``no answer``; None where that is not known, or of degree."""
        if self.unanswered or (self.right is False and self.answer is None):
            return "no answer"
        return None if self.right is None else "right" if self.right else "wrong"


@dataclass(frozen=True)
class Figure:
    """A metric: its value, its interval, and what an answer without reading has."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    baseline: float | None = None
    baseline_answer: str = ""


@dataclass(frozen=True)
class Lines:
    """A chart of lines, or of points where ``points``: each series a list of (x, y).

    ``diagonal`` draws y = x beside them, as a reliability diagram has it. ``says`` is the chart in
    a sentence, for those who do not see it.
    """

    title: str
    x: str
    y: str
    series: dict[str, list[tuple[float, float]]]
    says: str
    points: bool = False
    diagonal: bool = False


@dataclass(frozen=True)
class Bars:
    """A chart of bars, one a label, each with how many items it is of."""

    title: str
    x: str
    y: str
    bars: dict[str, float]
    counts: dict[str, int]
    says: str


@dataclass(frozen=True)
class Matrix:
    """A table of counts, such as a confusion: rows are gold, columns are answers."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]
    says: str


Chart = Lines | Bars | Matrix


@dataclass(frozen=True)
class Rows:
    """A table of further figures, such as those of each class."""

    title: str
    rows: Sequence[dict[str, object]]


@dataclass(frozen=True)
class Report:
    """A page.

    Args:
        title: such as the name of the run.
        sentence: what a reader has to know if she reads one sentence.
        facts: about the run: task, model, length, data, date, versions.
        figures: the metrics, the most important one first.
        scale: the unit of the figures, as `ldt.metrics.result.Result` has it.
        charts, tables: in the order of the page.
        documents: in the order of their file.
        warnings: what is odd about the answers as a whole.
        meanings: a line for each name of a figure or column.
    """

    title: str
    sentence: str
    facts: dict[str, str] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    scale: str = "0 to 100"
    charts: Sequence[Chart] = ()
    tables: Sequence[Rows] = ()
    documents: Sequence[Document] = ()
    warnings: Sequence[str] = ()
    meanings: dict[str, str] = field(default_factory=dict)
