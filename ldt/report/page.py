"""A report as one HTML file that needs nothing else: no request, no font or script from outside."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from ldt.errors import plural
from ldt.metrics.numbers import columns, is_defined, is_share, metric_text
from ldt.metrics.result import LEVEL
from ldt.report import charts
from ldt.report.escaping import cut, visible
from ldt.report.model import Chart, Document, Figure, Lines, Matrix, Report
from ldt.report.texts import PackedTexts, packed

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
    environment.filters["short"] = lambda text: cut(text, SHORT)
    template = environment.from_string(_asset("page.html"))
    shared = {
        "report": report,
        "script": script,
        "style": style,
        "policy": _policy(script, style),
        "figures": [_figure(figure, report.scale) for figure in report.figures],
        "level": f"{LEVEL:.0%}",
        "charts": [_chart(chart, i) for i, chart in enumerate(report.charts)],
        "tables": [_table(table.title, table.rows) for table in report.tables],
        "lists": _lists(report.documents),
    }
    rows = _rows(report.documents)
    rest = len(template.render(**shared, about_texts="", data="").encode("utf-8"))
    left = LIMIT - rest - len(_script_json(rows).encode("utf-8"))
    content = packed(report.documents, max(left, LEAST))
    for row, text in zip(rows["documents"], content.texts, strict=True):
        row["packed"] = text
    data = _script_json(rows)
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
    is_count = isinstance(figure.value, int)
    low, high = figure.interval or (None, None)
    known = {"value": figure.value, "baseline": figure.baseline, "low": low, "high": high}
    numbers = {
        key: value if is_count else float(value)
        for key, value in known.items()
        if value is not None
    }
    drawn = scale == "0 to 100" and not is_count and is_share(figure.name)
    drawn = drawn and all(0 <= value <= 100 for value in numbers.values())
    return {
        "name": figure.name,
        **{key: metric_text(figure.name, value) for key, value in numbers.items()},
        "baseline_answer": figure.baseline_answer,
        "drawn": {key: f"{value:.2f}" for key, value in numbers.items()} if drawn else None,
    }


def _chart(chart: Chart, i: int) -> dict[str, Any]:
    name = f"chart-{i + 1}"
    heads, rows = charts.table(chart)
    drawing = charts.svg(chart, name) if rows else None
    wide = isinstance(chart, Matrix) and drawing is not None and not charts.is_narrow(chart)
    part = isinstance(chart, Lines) and len(rows) < sum(map(len, chart.series.values()))
    part = part or (isinstance(chart, Matrix) and heads == charts.LARGEST)
    return {
        "name": name,
        "chart": chart,
        "svg": drawing,
        "wide": wide,
        "part": part,
        "table": _cells(heads, rows),
    }


@dataclass(frozen=True)
class _Cell:
    """A cell of a table: its text, and whether it is a number."""

    text: str
    number: bool = False


def _cells(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    """A table whose columns have numbers of the same digits."""
    digits = [_digits([row[i] for row in rows]) for i in range(len(heads))]
    cells = [[_cell(value, digits[i]) for i, value in enumerate(row)] for row in rows]
    numbers = [any(row[i].number for row in cells) for i in range(len(heads))]
    titles = [_Cell(str(name), number) for name, number in zip(heads, numbers, strict=True)]
    return {"columns": titles, "rows": cells, "long": len(cells) > LONG_TABLE}


def _table(title: str, rows: Sequence[dict[str, object]]) -> dict[str, Any]:
    names = columns(rows)
    return {"title": title} | _cells(names, [[row.get(name) for name in names] for row in rows])


def _digits(column: Sequence[object]) -> int:
    """Digits after the point: none of whole numbers, four of those up to 1, else two."""
    numbers = [v for v in column if isinstance(v, int | float) and is_defined(v)]
    if not any(isinstance(value, float) for value in numbers):
        return 0
    return 4 if max(map(abs, numbers)) <= 1 else 2


def _cell(value: object, digits: int) -> _Cell:
    if not is_defined(value):
        return _Cell("–")
    if isinstance(value, bool):
        return _Cell("yes" if value else "no")
    if isinstance(value, int | float):
        return _Cell(f"{value:,.{digits}f}", True)
    return _Cell(cut(str(value), 10 * SHORT))


@dataclass(frozen=True)
class _Listed:
    """A document in a list, by its number, with the figure for which it is there."""

    number: int
    document: Document
    figure: str


@dataclass(frozen=True)
class _List:
    """Documents to look at first; ``head`` says what their figure is."""

    title: str
    about: str
    head: str
    rows: list[_Listed]

    @property
    def answers(self) -> bool:
        """True if any of the documents has a gold label or an answer in words."""
        return any(row.document.gold or row.document.answer for row in self.rows)


def _lists(documents: Sequence[Document]) -> list[_List]:
    """The worst errors and the doubtful labels."""
    found = []
    wrong = [(i, each) for i, each in enumerate(documents, 1) if each.right is False]
    # Where right is a matter of degree, the worst are those of the lowest score.
    scored = [
        (i, each) for i, each in enumerate(documents, 1) if each.scores and each.right is None
    ]
    scored = [(i, each) for i, each in scored if not each.unanswered]
    if any(each.confidence is not None for _, each in wrong):
        about, head = "Wrong answers, those the model was most sure of first.", "Confidence"
        wrong.sort(key=lambda pair: -(pair[1].confidence or 0))
        rows = [_Listed(i, each, _percent(each.confidence)) for i, each in wrong]
    elif wrong or scored:
        name = next(iter((wrong or scored)[0][1].scores), "")
        about, head = f"Answers of the lowest {name}." if name else "Wrong answers.", name
        worst = sorted(wrong or scored, key=lambda pair: pair[1].scores.get(name, 0))
        rows = [_Listed(i, each, _hundredfold(each.scores.get(name))) for i, each in worst]
    else:
        rows = []
    if rows:
        found.append(_List("Worst errors", about, head, rows[:LISTED]))
    doubtful = [(i, each) for i, each in enumerate(documents, 1) if each.doubt is not None]
    if doubtful:
        doubtful.sort(key=lambda pair: -(pair[1].doubt or 0))
        rows = [
            _Listed(i, each, " ".join([_percent(each.doubt), each.doubted]).strip())
            for i, each in doubtful[:LISTED]
        ]
        about = (
            "Gold labels that the model denies: where it is right, the label is wrong. Order by "
            "confident learning (Northcutt et al. 2021, arXiv:1911.00068)."
        )
        found.append(_List("Doubtful labels", about, "Doubt", rows))
    return found


def _hundredfold(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.1f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _rows(documents: Sequence[Document]) -> dict[str, Any]:
    """Columns of the table of documents, and their sort keys."""
    metrics = list(dict.fromkeys(name for document in documents for name in document.scores))
    rows = [
        {
            "id": visible(cut(each.id, SHORT)),
            "where": visible(cut(each.where, 2 * SHORT)),
            "gold": _short(each.gold),
            "answer": _short(each.answer),
            "verdict": each.verdict,
            "confidence": _rounded(each.confidence),
            "words": each.words,
            "doubt": _rounded(each.doubt),
            "scores": [_rounded(each.scores.get(name)) for name in metrics],
            "notes": [visible(cut(note, 2 * SHORT)) for note in each.notes],
            "packed": "",
        }
        for each in documents
    ]
    return {"metrics": [visible(name) for name in metrics], "documents": rows}


def _short(text: str | None) -> str | None:
    return None if text is None else visible(cut(text, SHORT))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _about_texts(documents: Sequence[Document], content: PackedTexts) -> str:
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
