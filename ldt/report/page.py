"""A report as one HTML file that needs nothing else: no request, no font or script from outside."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ldt.errors import plural
from ldt.metrics.numbers import metric_text
from ldt.metrics.result import LEVEL
from ldt.report import charts
from ldt.report.escaping import cut, visible
from ldt.report.model import Chart, Document, Figure, Lines, Matrix, Report
from ldt.report.texts import Packed, packed

LIMIT = 4_800_000  # bytes of a page: texts fill what the rest leaves
LEAST = 100_000  # bytes for texts, whatever the rest takes
LISTED = 10  # of the worst errors and of the doubtful labels
SHORT = 160  # characters of an answer in a table
LONG_TABLE = 15  # rows from which on a table scrolls in itself


def render(report: Report) -> str:
    """The page of a report: the same text for the same report.

    Whole texts of its documents are in it as long as they fit; else what is around their marks.

    Raises:
        UserError: matplotlib is missing, which draws the charts.
    """
    script, style = _asset("page.js"), _asset("page.css")
    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    template = environment.from_string(_asset("page.html"))
    shared = {
        "report": report,
        "script": Markup(script),
        "style": Markup(style),
        "policy": _policy(script, style),
        "figures": [_figure(figure, report.scale) for figure in report.figures],
        "level": f"{LEVEL:.0%}",
        "charts": [_chart(chart, i) for i, chart in enumerate(report.charts)],
        "tables": [_table(table.title, table.rows) for table in report.tables],
        "lists": _lists(report.documents),
        "doubtful": sum(document.doubt is not None for document in report.documents),
    }
    rows = _rows(report.documents)
    rest = len(template.render(**shared, about_texts="", data="").encode("utf-8"))
    left = LIMIT - rest - len(_script_json(rows).encode("utf-8"))
    content = packed(report.documents, max(left, LEAST))
    for row, text in zip(rows["documents"], content.texts, strict=True):
        row["packed"] = text
    data = Markup(_script_json(rows))
    about = _about_texts(report.documents, content)
    return template.render(**shared, about_texts=about, data=data)


def _asset(name: str) -> str:
    return files("ldt.report").joinpath(name).read_text("utf-8")


def _policy(script: str, style: str) -> str:
    """A content security policy under which this script and this style are all that works."""
    allowed = [b64encode(sha256(text.encode()).digest()).decode() for text in (script, style)]
    return (
        f"default-src 'none'; script-src 'sha256-{allowed[0]}'; style-src 'sha256-{allowed[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _script_json(value: Any) -> str:
    """JSON that can stand in a script element: no tag, no comment begins in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _figure(figure: Figure, scale: str) -> dict[str, Any]:
    """A row of the figures, and what its little chart shows, from 0 to 100."""
    known = {"value": figure.value, "baseline": figure.baseline}
    ends = dict(zip(("low", "high"), figure.interval, strict=True)) if figure.interval else {}
    numbers = {key: value for key, value in (known | ends).items() if value is not None}
    drawn = scale == "0 to 100" and type(figure.value) is not int
    drawn = drawn and all(0 <= value <= 100 for value in numbers.values())
    return {
        "name": figure.name,
        **{key: metric_text(figure.name, value) for key, value in numbers.items()},
        "baseline_answer": figure.baseline_answer,
        "drawn": {key: f"{value:.2f}" for key, value in numbers.items()} if drawn else None,
    }


def _chart(chart: Chart, i: int) -> dict[str, Any]:
    name = f"chart-{i + 1}"
    columns, rows = charts.table(chart)
    drawing = charts.svg(chart, name) if rows else None
    wide = isinstance(chart, Matrix) and drawing is not None and not charts.is_narrow(chart)
    part = isinstance(chart, Lines) and len(rows) < sum(map(len, chart.series.values()))
    part = part or (isinstance(chart, Matrix) and columns == charts.LARGEST)
    return {
        "name": name,
        "chart": chart,
        "svg": drawing and Markup(drawing),
        "wide": wide,
        "part": part,
        "table": _cells(columns, rows),
    }


@dataclass(frozen=True)
class _Cell:
    """A cell of a table: its text, and whether it is a number."""

    text: str
    number: bool = False


def _cells(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    cells = [[_cell(value) for value in row] for row in rows]
    numbers = [any(row[i].number for row in cells) for i in range(len(columns))]
    heads = [_Cell(str(name), number) for name, number in zip(columns, numbers, strict=True)]
    return {"columns": heads, "rows": cells, "long": len(cells) > LONG_TABLE}


def _table(title: str, rows: Sequence[dict[str, object]]) -> dict[str, Any]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {"title": title} | _cells(columns, [[row.get(key) for key in columns] for row in rows])


def _cell(value: object) -> _Cell:
    if value is None:
        return _Cell("–")
    if isinstance(value, bool):
        return _Cell("yes" if value else "no")
    if isinstance(value, int):
        return _Cell(f"{value:,}", True)
    if isinstance(value, float):
        return _Cell(f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}", True)
    return _Cell(cut(str(value), 10 * SHORT))


def _lists(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Documents to look at first: the worst errors and the doubtful labels."""
    numbered = list(enumerate(documents, 1))
    wrong = [(n, each) for n, each in numbered if each.right is False]
    wrong.sort(key=lambda pair: (-(pair[1].confidence or 0.0), _score(pair[1])))
    about = "Wrong answers, the ones the model was most sure of first."
    if not wrong:  # right is a matter of degree
        wrong = [(n, each) for n, each in numbered if each.right is None and each.scores]
        wrong.sort(key=lambda pair: _score(pair[1]))
        about = "The answers with the lowest scores first."
    doubtful = [(n, each) for n, each in numbered if each.doubt is not None]
    doubtful.sort(key=lambda pair: -(pair[1].doubt or 0.0))
    doubts = "Gold labels that the model denies; where it is right, the label is wrong."
    found = []
    for title, about_it, value, pairs in (
        ("Worst errors", about, _sure, wrong),
        ("Doubtful labels", doubts, _doubt, doubtful),
    ):
        if pairs:
            rows = [
                {
                    "n": n,
                    "id": cut(each.id, SHORT // 2),
                    "gold": cut(each.gold or "–", SHORT),
                    "answer": cut(each.answer or "–", SHORT),
                    "value": value(each),
                }
                for n, each in pairs[:LISTED]
            ]
            head = (
                "Doubt" if value is _doubt else "Confidence" if pairs[0][1].right is False else ""
            )
            found.append({"title": title, "about": about_it, "head": head or "Score", "rows": rows})
    return found


def _score(document: Document) -> float:
    return next(iter(document.scores.values()), 0.0)


def _sure(document: Document) -> str:
    if document.right is None:
        return f"{100 * _score(document):.1f}"
    return "–" if document.confidence is None else f"{document.confidence:.0%}"


def _doubt(document: Document) -> str:
    return f"{document.doubt:.0%}"


def _rows(documents: Sequence[Document]) -> dict[str, Any]:
    """What the table of documents shows, and what it sorts by."""
    metrics = list(dict.fromkeys(name for document in documents for name in document.scores))
    rows = [
        {
            "id": visible(cut(each.id, SHORT)),
            "where": visible(cut(each.where, 2 * SHORT)),
            "gold": _short(each.gold),
            "answer": _short(each.answer),
            "right": each.right,
            "confidence": _rounded(each.confidence),
            "words": each.words,
            "doubt": _rounded(each.doubt),
            "scores": [_rounded(each.scores.get(name)) for name in metrics],
            "notes": [visible(cut(note, 2 * SHORT)) for note in each.notes],
        }
        for each in documents
    ]
    return {"metrics": [visible(name) for name in metrics], "documents": rows}


def _short(text: str | None) -> str | None:
    return None if text is None else visible(cut(text, SHORT))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _about_texts(documents: Sequence[Document], content: Packed) -> str:
    """A sentence on what is not in the page."""
    there = sum(document.text is not None for document in documents)
    whole = content.whole - (len(documents) - there)
    if whole >= there:
        return ""
    what = "their beginnings and what is around the marks" if content.extent.shown else "nothing"
    return (
        f"To keep this page small, {whole:,} of {plural(there, 'text')} are in it whole; of the "
        f"others it has {what}. Search finds what is in the page."
    )
