"""Charts as inline SVG.

They are drawn by matplotlib: it is kept and known, writes vector graphics whose text stays text,
needs no script in the page, and gives the same bytes for the same figures. What it writes is then
made fit for a page: colours become classes, which follow light and dark, names become unique, and
attributes that a strict content security policy refuses go.
"""

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from ldt.errors import UserError
from ldt.report.escaping import cut, visible
from ldt.report.model import Bars, Chart, Lines, Matrix

# What has a class of its own, and its colour where no style sheet knows the class. The series'
# colours are told apart by people who see no red or no green (Okabe and Ito).
COLOURS = {
    "ink": "#1b1f24",
    "muted": "#59636e",
    "grid": "#d8dee4",
    "heat": "#3d9bd6",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#b5548c",
    "c4": "#b07d00",
    "c5": "#5c6670",
}
SERIES = [name for name in COLOURS if re.fullmatch(r"c\d", name)]
MARKERS = "os^Dv*"
DASHES = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), (0, (3, 1))]
WIDTH = 420  # px, as are all sizes here: a chart is as wide as a phone shows at once
UNIT = 72  # px an inch: a px is what matplotlib calls a point
LABEL = 26  # characters of a name in a chart; its table has all of it
MARKED = 40  # points of a line up to which each has a marker
IN_CELLS = 12  # rows or columns of a matrix up to which its numbers stand in the cells
LARGEST = ["gold", "answer", "number"]  # columns of a large matrix as a table
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # is in matplotlib, and wider than what pages are set in
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.8,
    "legend.fontsize": 10.5,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a dollar is a dollar
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ldt",  # the same bytes each time
}
KEPT = re.compile(r"fill|stroke|opacity|clip|text-anchor|font-size")  # of the properties of a style


def check() -> None:
    """Refuse charts that could not be drawn, before anything is computed for them.

    Raises:
        UserError: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise UserError("a report needs matplotlib for its charts; pip install matplotlib adds it")


def svg(chart: Chart, name: str = "chart") -> str:
    """A chart as an ``svg`` element.

    Args:
        chart: what to draw.
        name: what the ids in it begin with; each chart of a page needs one of its own.

    Raises:
        UserError: matplotlib is missing.
    """
    check()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that its font lacks: the page's will have them
        width, height = _size(chart)
        figure = Figure(figsize=(width / UNIT, height / UNIT), layout="constrained")
        axes = figure.subplots()
        axes.set_axisbelow(True)
        if isinstance(chart, Lines):
            _lines(axes, chart)
        elif isinstance(chart, Bars):
            _bars(axes, chart)
        else:
            _matrix(axes, chart)
        drawn = StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(drawn.getvalue(), chart, name)


def table(chart: Chart, most: int = 200) -> tuple[list[str], list[list[Any]]]:
    """The numbers of a chart: the names of the columns, and rows.

    A line of more than ``most`` points has every second, third or so; a matrix of more than
    ``most`` cells has those that are not 0, the largest ones first, each in a row of its own.
    """
    rows: list[list[Any]]
    if isinstance(chart, Bars):
        rows = [[label, value, chart.counts.get(label)] for label, value in chart.bars.items()]
        return [chart.x, chart.y, "number"], rows
    if isinstance(chart, Lines):
        several = len(chart.series) > 1
        rows = [
            [name, *point][not several :]
            for name, points in chart.series.items()
            for point in points[:: -(-len(points) // most) or 1]
        ]
        return ["", chart.x, chart.y][not several :], rows
    if len(chart.rows) * len(chart.columns) <= most:
        rows = [[row, *counts] for row, counts in zip(chart.rows, chart.counts, strict=True)]
        return ["gold", *chart.columns], rows
    rows = [
        [row, column, count]
        for row, counts in zip(chart.rows, chart.counts, strict=True)
        for column, count in zip(chart.columns, counts, strict=True)
        if count
    ]
    rows.sort(key=lambda row: -row[2])
    return LARGEST, rows[:most]


def is_narrow(chart: Chart) -> bool:
    """True if a chart is as wide as most are."""
    return _size(chart)[0] <= WIDTH


def _size(chart: Chart) -> tuple[float, float]:
    """Width and height of a chart."""
    if isinstance(chart, Bars):
        return WIDTH, 70 + 26 * max(len(chart.bars), 1)
    if isinstance(chart, Matrix):
        side = 34 if _in_cells(chart) else 14
        names = 7 * max((len(cut(label, LABEL)) for label in chart.rows), default=0)
        heads = 7 * max((len(cut(label, LABEL)) for label in chart.columns), default=0)
        width = 60 + names + max(side, 200 / max(len(chart.columns), 1)) * len(chart.columns)
        return max(WIDTH, width), 60 + heads * 0.75 + max(side * len(chart.rows), 60)
    legend = 18 * -(-len(chart.series) // 2) if len(chart.series) > 1 else 0
    return WIDTH, (360 if chart.diagonal else 270) + legend


def _lines(axes, chart: Lines) -> None:
    series = {name: _finite(points) for name, points in chart.series.items()}
    if chart.diagonal:
        most = max((max(point) for points in series.values() for point in points), default=1)
        top = 1 if most <= 1 else max(most, 100)
        axes.plot([0, top], [0, top], color=COLOURS["muted"], linewidth=1, linestyle=(0, (2, 3)))
        axes.set(xlim=(-0.02 * top, 1.02 * top), ylim=(-0.02 * top, 1.02 * top), aspect="equal")
    for i, (name, points) in enumerate(series.items()):
        x, y = zip(*points, strict=True) if points else ((), ())
        axes.plot(
            x,
            y,
            color=COLOURS[SERIES[i % len(SERIES)]],
            linestyle="" if chart.points else DASHES[i % len(DASHES)],
            linewidth=2,
            marker=MARKERS[i % len(MARKERS)] if chart.points or len(points) <= MARKED else "",
            markersize=4,
            alpha=0.6 if chart.points and len(points) > MARKED else None,
            label=_label(name),
        )
    if len(series) > 1:
        axes.figure.legend(
            loc="outside upper left", ncols=2, handlelength=2.6, handles=axes.lines[-len(series) :]
        )
    _name(axes, chart.x, chart.y)
    axes.grid(axis="both")
    axes.xaxis.set_major_formatter(_number)
    axes.yaxis.set_major_formatter(_number)


def _bars(axes, chart: Bars) -> None:
    labels = list(chart.bars)
    values = [value if math.isfinite(value) else 0.0 for value in chart.bars.values()]
    axes.barh(range(len(labels)), values, height=0.66, color=COLOURS["c0"])
    axes.set_yticks(range(len(labels)), [_label(label) for label in labels])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    high = max([*values, 0.0]) or 1.0
    for i, label in enumerate(labels):
        number = f"{_number(chart.bars[label])}"
        if label in chart.counts:
            number += f" (n = {chart.counts[label]:,})"
        axes.text(max(values[i], 0) + 0.015 * high, i, number, va="center", fontsize=10)
    _name(axes, chart.y, chart.x)
    axes.grid(axis="x")
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.05 * high])
    axes.set_xlim(min([*values, 0.0]), 1.3 * high)  # to the right is room for the numbers
    axes.xaxis.set_major_formatter(_number)


def _matrix(axes, chart: Matrix) -> None:
    from matplotlib.patches import Rectangle

    for i, (row, counts) in enumerate(zip(chart.rows, chart.counts, strict=True)):
        for j, (column, count) in enumerate(zip(chart.columns, counts, strict=True)):
            if count:
                share = count / sum(counts)
                shade = round(0.08 + 0.62 * share, 3)  # as dark as lets its number be read
                axes.add_patch(Rectangle((j, i), 1, 1, facecolor=COLOURS["heat"], alpha=shade))
            if row == column:
                frame = Rectangle((j + 0.04, i + 0.04), 0.92, 0.92, facecolor="none", linewidth=1.2)
                frame.set_edgecolor(COLOURS["muted"])
                axes.add_patch(frame)
            if _in_cells(chart):
                axes.text(j + 0.5, i + 0.5, f"{count:,}", ha="center", va="center", fontsize=10)
    axes.set(xlim=(0, len(chart.columns) or 1), ylim=(len(chart.rows) or 1, 0))
    axes.set_xticks(
        [j + 0.5 for j in range(len(chart.columns))],
        [_label(column) for column in chart.columns],
        rotation=45,
        ha="left",
        rotation_mode="anchor",
    )
    axes.set_yticks([i + 0.5 for i in range(len(chart.rows))], [_label(row) for row in chart.rows])
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    _name(axes, "answer", "gold")


def _in_cells(chart: Matrix) -> bool:
    return max(len(chart.rows), len(chart.columns)) <= IN_CELLS


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _name(axes, x: str, y: str) -> None:
    axes.set_xlabel(cut(visible(x), 2 * LABEL))
    axes.set_ylabel(cut(visible(y), 2 * LABEL))


def _label(text: str) -> str:
    return cut(" ".join(visible(text).split()), LABEL)


def _number(value: float, _: object = None) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _for_page(drawn: str, chart: Chart, name: str) -> str:
    """A drawing of matplotlib as an element of a page, see the top of this file."""
    root = ElementTree.fromstring(drawn)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', drawn))
    ids = {each: f"{name}-{i}" for i, each in enumerate(sorted(used))}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        old = dict(element.attrib)
        element.attrib.clear()
        for key, value in [*old.items(), *_properties(old.pop("style", ""))]:
            _set(element, key.rpartition("}")[2], value.strip(), ids)
    _prune(root)
    width, height = root.get("viewBox", "").split()[2:]
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "class": "chart",
        "viewBox": f"0 0 {width} {height}",
        "width": width,
        "height": height,
        "role": "img",
        "aria-labelledby": f"{name}-title",
        "aria-describedby": f"{name}-says",
        "font-family": "system-ui, sans-serif",
    }
    for tag, key, text in (("desc", "says", chart.says), ("title", "title", chart.title)):
        element = ElementTree.Element(tag, {"id": f"{name}-{key}"})
        element.text = visible(text)
        root.insert(0, element)
    for element in root.iter():
        if element.tag not in ("text", "title", "desc") and not (element.text or "").strip():
            element.text = None
        element.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def _prune(parent: ElementTree.Element) -> None:
    """Take out what shows nothing."""
    for child in list(parent):
        _prune(child)
        is_empty = child.tag in ("g", "defs") and not len(child)
        is_unseen = child.tag == "path" and child.get("fill") == "none" and not child.get("stroke")
        if child.tag in ("metadata", "style") or is_empty or is_unseen:
            parent.remove(child)


def _properties(style: str) -> Iterator[tuple[str, str]]:
    for declaration in style.split(";"):
        key, colon, value = declaration.partition(":")
        if colon and KEPT.match(key.strip()):
            yield key.strip(), value


def _set(element: ElementTree.Element, key: str, value: str, ids: dict[str, str]) -> None:
    """Set an attribute of a drawn element, or a class where it is a colour."""
    names = {colour: name for name, colour in COLOURS.items()}
    if key == "id":
        if value in ids:
            element.set("id", ids[value])
    elif key == "href":
        element.set("href", f"#{ids[value[1:]]}")
    elif key == "clip-path":
        element.set(key, f"url(#{ids[value[5:-1]]})")
    elif key in ("fill", "stroke") and value in names:
        element.set(key, value)
        known = element.get("class")
        element.set("class", f"{known + ' ' if known else ''}{key}-{names[value]}")
    elif key in ("d", "x", "y", "transform"):
        short = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", value)
        element.set(key, short.replace("  ", " "))
    elif key != "style":
        element.set(key, value)
