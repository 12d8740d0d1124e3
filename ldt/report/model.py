"""Content of a report: figures, charts, tables and documents."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ldt.report.charts import Chart

GOLD, ANSWER, PASSAGE = "gold", "answer", "passage"  # whose characters a mark is
SILENT, MISSING = "left to a person", "without an answer"


@dataclass(frozen=True, order=True)
class Mark:
    """Marked span of a text.

    Args:
        start, end: characters (code points), end exclusive.
        kind: `GOLD`, `ANSWER` (also evidence and entities) or `PASSAGE`, which explains an answer.
        label: name of the span, such as "answer", "evidence", or an entity type.
        score: probability; None if there is none.
    """

    start: int
    end: int
    kind: str
    label: str
    score: float | None = None


@dataclass(frozen=True)
class Document:
    """Document or question with its answer.

    Args:
        id: id of the document.
        where: its place in its file.
        text: text of the document; None if the report has none.
        asks: further texts by name: question, hypothesis, candidates.
        gold: gold answer as text; None if there is none.
        answer: answer as text; None if there is none.
        right: True or False; None if unknown, a matter of degree, or unanswered.
        scores: scores from 0 to 1 by metric.
        confidence: probability of the answer.
        words: number of words of the text; None if unknown.
        marks: marks sorted by position.
        doubt: how likely the gold label is wrong, from 0 to 1; None if not suspected.
        notes: remarks, such as that it was not read to its end.
        doubted: in multi-label classification the suspected label, and whether it is set; else
            empty.
        unanswered: `SILENT` or `MISSING`; empty if there is an answer.
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
        """``right``, ``wrong`` or ``no answer``; None if unknown or a matter of degree."""
        if self.unanswered or (self.right is False and self.answer is None):
            return "no answer"
        return None if self.right is None else "right" if self.right else "wrong"


@dataclass(frozen=True)
class Figure:
    """Metric with its interval and its baseline."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    baseline: float | None = None
    baseline_answer: str = ""


@dataclass(frozen=True)
class Rows:
    """Table of further figures, such as one row per class."""

    title: str
    rows: Sequence[dict[str, object]]


@dataclass(frozen=True)
class Report:
    """Content of a page.

    Args:
        title: title, such as the name of the run.
        sentence: headline.
        facts: facts about the run: task, model, length, data, date, versions.
        figures: metrics, the main one first.
        scale: unit of the figures, as in `ldt.metrics.result.Result`.
        charts, tables: charts and tables in the order of the page.
        documents: documents in file order.
        warnings: remarks about the answers.
        meanings: explanation of each figure and column.
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
