"""Render a report as one self-contained HTML file without external requests, fonts or scripts."""

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ldt.errors import plural
from ldt.metrics.numbers import columns, is_defined, metric_text
from ldt.metrics.result import LEVEL
from ldt.report import charts, html
from ldt.report.html import cut
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Mark, Report, Rows

WORST, DRAWN = 40, 40  # documents whose texts are in a page: the worst, and some at random
LISTED = 10  # of the worst errors and of the doubtful labels
SHORT = 160  # characters of an answer in a table
LONG = 20_000  # characters of an answer, a question and the like beside a text
WHOLE = 200_000  # characters of a text that is there as a whole
BEFORE, AFTER = 1_000, 3_000  # characters around the begin of a mark in a longer text
MARKS = 5_000  # of a text


def render(report: Report, all_texts: bool = False) -> str:
    """HTML page of a report, as text; equal reports give equal pages.

    Args:
        report: content of the page.
        all_texts: True includes the texts of all documents, False those of the worst errors and
            doubtful labels and of 40 at random.

    Raises:
        UserError: matplotlib, which draws the charts, is missing.
    """
    documents = report.documents
    worst, doubtful = _worst(documents), _doubtful(documents)
    shown = set(range(len(documents)))
    if not all_texts:
        first = [*worst.ranked[:WORST], *doubtful.ranked[:LISTED]]
        others = sorted(shown - {number for number, _ in first})
        drawn = random.Random(0).sample(others, min(DRAWN, len(others)))
        shown = {*drawn, *(number for number, _ in first)}
    page, _ = html.render(
        "report",
        title=report.title,
        report=report,
        figures=_figures(report),
        charts=list(map(_chart, report.charts)),
        tables=list(map(_rows, report.tables)),
        lists=[_listed(each, documents) for each in (worst, doubtful) if each.ranked],
        about_texts=_about_texts(documents, shown),
        data=html.script_json(_data(documents, shown)),
    )
    return page


class Cell(NamedTuple):
    """Table cell: its text, True if it is a number, and the target of its link."""

    text: str
    number: bool = False
    link: str = ""


def _table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]], kind: str = ""
) -> dict[str, Any]:
    """Table for the template, with equal decimals within a column."""
    digits = [_digits([row[i] for row in rows]) for i in range(len(heads))]
    cells = [list(map(_cell, row, digits)) for row in rows]
    numbers = [any(row[i].number for row in cells) for i in range(len(heads))]
    return {
        "caption": caption,
        "columns": list(map(Cell, heads, numbers)),
        "rows": cells,
        "kind": kind,
    }


def _figures(report: Report) -> dict[str, Any]:
    caption = "Scores from 0 to 100" if report.scale == "0 to 100" else f"Scores, {report.scale}"
    rows: list[list[object]] = []
    for figure in report.figures:
        value, *ends, baseline = (
            "" if number is None else metric_text(figure.name, number)
            for number in (figure.value, *(figure.interval or ()), figure.baseline)
        )
        baseline = f"{baseline} {figure.baseline_answer}".strip()
        rows.append([figure.name, Cell(value, True), " to ".join(ends), baseline])
    heads = ["Metric", "Value", f"{LEVEL:.0%} interval", "Baseline, without reading"]
    if any(figure.interval for figure in report.figures):
        caption += f"; the interval holds the figure of {LEVEL:.0%} of samples drawn anew from "
        caption += "these documents"
    used = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    cells = [[row[i] or None for i in used] for row in rows]
    return _table(caption, [heads[i] for i in used], cells, "figures")


def _chart(chart: charts.Chart) -> dict[str, Any]:
    heads, rows = chart.numbers()
    return {
        "chart": chart,
        "image": charts.image(chart) if rows else None,
        "wide": chart.size()[0] > charts.WIDTH,
        "table": _table(chart.title, heads, rows),
    }


def _rows(table: Rows) -> dict[str, Any]:
    names = columns(table.rows)
    return _table(table.title, names, [[row.get(name) for name in names] for row in table.rows])


def _digits(column: Sequence[object]) -> int:
    """Decimals of a column: none for integers, four for values up to 1, else two."""
    numbers = [v for v in column if isinstance(v, int | float) and is_defined(v)]
    if not any(isinstance(value, float) for value in numbers):
        return 0
    return 4 if max(map(abs, numbers)) <= 1 else 2


def _cell(value: object, digits: int) -> Cell:
    if isinstance(value, Cell):
        return value
    if not is_defined(value):
        return Cell("–")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int | float):
        return Cell(f"{value:,.{digits}f}", True)
    return Cell(cut(str(value), 10 * SHORT))


class RankedDocuments(NamedTuple):
    """Documents to look at first: their numbers, each with a figure as text."""

    title: str
    head: str
    ranked: list[tuple[int, str]]


def _worst(documents: Sequence[Document]) -> RankedDocuments:
    """Wrong answers, most confident first; if correctness is a matter of degree, the
    lowest scores."""
    wrong = [(i, each) for i, each in enumerate(documents) if each.right is False]
    if any(each.confidence is not None for _, each in wrong):
        wrong.sort(key=lambda pair: -(pair[1].confidence or 0))
        title = "Worst errors: wrong answers, those the model was most sure of first"
        return RankedDocuments(
            title, "Confidence", [(i, _percent(each.confidence)) for i, each in wrong]
        )
    scored = wrong or [
        (i, each)
        for i, each in enumerate(documents)
        if each.scores and each.right is None and not each.unanswered
    ]
    name = next(iter(scored[0][1].scores), "") if scored else ""
    scored.sort(key=lambda pair: pair[1].scores.get(name, 0))
    title = f"Worst errors: answers of the lowest {name}" if name else "Worst errors: wrong answers"
    return RankedDocuments(
        title, name, [(i, _percent(each.scores.get(name))) for i, each in scored]
    )


def _doubtful(documents: Sequence[Document]) -> RankedDocuments:
    doubted = [(each.doubt, -i, each.doubted) for i, each in enumerate(documents) if each.doubt]
    doubted.sort(reverse=True)
    title = (
        "Doubtful labels: gold labels that the model denies; where it is right, the label is "
        "wrong. Order by confident learning (Northcutt et al. 2021, arXiv:1911.00068)"
    )
    rows = [(-i, f"{_percent(doubt)} {label}".strip()) for doubt, i, label in doubted]
    return RankedDocuments(title, "Doubt", rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _listed(ranking: RankedDocuments, documents: Sequence[Document]) -> dict[str, Any]:
    rows: list[list[object]] = []
    for number, figure in ranking.ranked[:LISTED]:
        document = documents[number]
        texts = [cut(text or "–", SHORT) for text in (document.gold, document.answer)]
        name = Cell(cut(document.id or "(no id)", SHORT), link=f"#document-{number + 1}")
        rows.append([name, *texts, Cell(figure, True)])
    return _table(ranking.title, ["Document", "Gold", "Answer", ranking.head], rows, "list")


def _about_texts(documents: Sequence[Document], shown: set[int]) -> str:
    there = [i for i, each in enumerate(documents) if each.text is not None]
    inside = sum(i in shown for i in there)
    if inside == len(there):
        return ""
    return (
        f"The texts of {inside:,} of {plural(len(there), 'document')} are in this page: those of "
        f"the worst errors and doubtful labels, and {DRAWN} at random; ldt report --all puts in "
        "all. Search finds what is in the page."
    )


def _data(documents: Sequence[Document], shown: set[int]) -> dict[str, Any]:
    metrics = list(dict.fromkeys(name for document in documents for name in document.scores))
    rows = []
    for number, each in enumerate(documents):
        most = LONG if number in shown else SHORT
        row: dict[str, Any] = {
            "id": cut(each.id, SHORT),
            "where": cut(each.where, 2 * SHORT),
            "gold": each.gold and cut(each.gold, most),
            "answer": each.answer and cut(each.answer, most),
            "verdict": each.verdict,
            "confidence": _rounded(each.confidence),
            "words": each.words,
            "doubt": _rounded(each.doubt),
            "scores": [_rounded(each.scores.get(name)) for name in metrics],
            "notes": [cut(note, 2 * SHORT) for note in each.notes],
        }
        if number in shown:
            row["asks"] = [[name, cut(text, LONG)] for name, text in each.asks.items()]
        if number in shown and each.text is not None:
            marks = _merged(each.marks, len(each.text))[:MARKS]
            parts = _excerpts(each.text, marks)
            row |= {"marks": marks, "parts": parts, "characters": len(each.text)}
        rows.append(row)
    return {"metrics": metrics, "documents": rows}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _merged(marks: Iterable[Mark], length: int) -> list[dict[str, Any]]:
    """Marks sorted by position, each with its kinds; equal ones are merged, those outside the text
    dropped."""
    merged_marks: dict[tuple[int, int, str], dict[str, Any]] = {}
    for mark in sorted(marks, key=lambda mark: (mark.start, -mark.end)):
        start, end = max(mark.start, 0), min(mark.end, length)
        if start >= end:
            continue
        label = "" if mark.label == mark.kind else cut(mark.label, SHORT)  # the kind says it
        place = {"start": start, "end": end, "label": label}
        one = merged_marks.setdefault((start, end, label), place | {"kinds": [], "score": None})
        one["kinds"] = [k for k in (GOLD, ANSWER, PASSAGE) if k in (mark.kind, *one["kinds"])]
        one["score"] = mark.score if one["score"] is None else one["score"]
    return list(merged_marks.values())


def _excerpts(text: str, marks: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Parts of a text, [offset, characters]: the whole text, or for a very long one its beginning
    and the surroundings of marks."""
    if len(text) <= WHOLE:
        return [[0, text]]
    parts: list[list[int]] = []
    for place in [0, *(mark["start"] for mark in marks[: WHOLE // (BEFORE + AFTER)])]:
        start, end = max(place - BEFORE, 0), min(place + AFTER, len(text))
        if parts and start <= parts[-1][1]:
            parts[-1][1] = end
        else:
            parts.append([start, end])
    return [[start, text[start:end]] for start, end in parts]
