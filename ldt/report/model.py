"""Parts of a report before anything is drawn: figures, charts, tables and documents."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ldt.report.charts import Chart

GOLD, ANSWER, PASSAGE = "gold", "answer", "passage"  # whose characters a mark is
SILENT, MISSING = "left to a person", "without an answer"


@dataclass(frozen=True, order=True)
class Mark:
    """Characters of a text, and what they are.

    Args:
        start, end: characters of the text (code points), the end not included.
        kind: `GOLD`, `ANSWER` (evidence and entities too) or `PASSAGE`, which explains an answer.
        label: name of what is there, such as "answer", "evidence", or the type of an entity.
        score: probability; None where there is none.
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
        id: id of the document.
        where: its place in its file.
        text: text of the document; None where the report was given none.
        asks: further texts that belong to it, by name: question, hypothesis, candidates.
        gold: right answer as a person reads it; None where there is none.
        answer: answer of the model as a person reads it; None where there is none.
        right: True or False; None where that is not known, is a matter of degree, or there is no
            answer.
        scores: scores of this document by the names of the metrics, from 0 to 1.
        confidence: probability of the answer.
        words: number of words of the text; None where that is not known.
        marks: marks in the order of their places.
        doubt: probability by which the model denies the gold label, from 0 to 1; None for no doubt.
        notes: oddities, such as that it was not read to its end.
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
    """A metric: its value, its interval, and the value of an answer without reading."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    baseline: float | None = None
    baseline_answer: str = ""


@dataclass(frozen=True)
class Rows:
    """A table of further figures, such as those of each class."""

    title: str
    rows: Sequence[dict[str, object]]


@dataclass(frozen=True)
class Report:
    """A page.

    Args:
        title: title, such as the name of the run.
        sentence: the sentence for a reader who reads no further.
        facts: facts about the run: task, model, length, data, date, versions.
        figures: the metrics, the most important one first.
        scale: unit of the figures, as `ldt.metrics.result.Result` has it.
        charts, tables: charts and tables in the order of the page.
        documents: documents in the order of their file.
        warnings: oddities of the answers as a whole.
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
