"""Charts of a report: kinds, drawing, and their numbers.

matplotlib draws them as SVG, embedded in the page as images. Each chart has a title, a size in px,
and a table of its numbers (column names and rows) for screen readers.
"""

import math
import warnings
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from ldt.errors import UserError
from ldt.metrics.numbers import is_defined
from ldt.metrics.result import Group, Result, by_length, by_place
from ldt.recipe.run import number
from ldt.report.html import cut, visible

# Colours of series that people who see no red or no green can tell apart (Okabe and Ito).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b5548c", "#b07d00", "#5c6670"]
DASHES = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), (0, (3, 1))]
MARKERS = "os^Dv*"
GREY = "#59636e"
WIDTH, INCH = 420, 96  # px
LABEL = 26  # characters of a name in a chart; its table has all of it
MARKED = 40  # points of a line up to which each has a marker
IN_CELLS = 12  # rows or columns of a matrix up to which its numbers stand in the cells
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#d8dee4",
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar is a dollar
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ldt",  # the same bytes each time
}

CLASSES = 20  # of a confusion; those beyond are counted together
BARS = 30
CURVES = 8  # lines of a chart
POINTS = 400  # of a line; a longer log is shown as means of as many parts
ROWS = 200  # numbers of a line in its table
OTHER, NONE = "other", "none"

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Lines:
    """Line chart, or scatter plot with ``points``; each series is a list of (x, y).

    ``diagonal`` adds the line y = x, as in a reliability diagram.
    """

    title: str
    x: str
    y: str
    series: dict[str, Points]
    points: bool = False
    diagonal: bool = False

    def size(self) -> tuple[float, float]:
        """(width, height) of the picture, in CSS pixels."""
        legend = 18 * -(-len(self.series) // 2) if len(self.series) > 1 else 0
        return WIDTH, (360 if self.diagonal else 270) + legend

    def draw(self, axes: Any) -> None:
        """Draw the lines, without points that are not finite, on matplotlib's axes."""
        series = {
            name: [point for point in points if all(map(math.isfinite, point))]
            for name, points in self.series.items()
        }
        if self.diagonal:
            most = max((max(point) for points in series.values() for point in points), default=1)
            edges = (0, 1 if most <= 1 else max(most, 100))
            axes.plot(edges, edges, color=GREY, linewidth=1, linestyle=(0, (2, 3)))
            axes.set_aspect("equal")
        for i, (name, points) in enumerate(series.items()):
            is_marked = self.points or len(points) <= MARKED
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=COLOURS[i % len(COLOURS)],
                linestyle="" if self.points else DASHES[i % len(DASHES)],
                linewidth=2,
                marker=MARKERS[i % len(MARKERS)] if is_marked else "",
                markersize=4,
                label=_label(name),
            )
        if len(series) > 1:
            handles = axes.lines[-len(series) :]
            axes.figure.legend(loc="outside upper left", ncols=2, handlelength=2.6, handles=handles)
        axes.set(xlabel=_label(self.x), ylabel=_label(self.y))
        axes.grid()
        axes.xaxis.set_major_formatter(_number)
        axes.yaxis.set_major_formatter(_number)

    def numbers(self) -> tuple[list[str], list[list[Any]]]:
        """Table behind the chart: (headings, rows), a row for each point; of a series of more than
        200, for every n-th, some 200 at most."""
        first = 0 if len(self.series) > 1 else 1
        rows = [
            [name, *point][first:]
            for name, points in self.series.items()
            for point in points[:: -(-len(points) // ROWS) or 1]
        ]
        return ["", self.x, self.y][first:], rows


@dataclass(frozen=True)
class Bars:
    """Bar chart, one bar per label, with the number of items behind each bar."""

    title: str
    x: str
    y: str
    bars: dict[str, float]
    counts: dict[str, int]

    def size(self) -> tuple[float, float]:
        """(width, height) of the picture, in CSS pixels."""
        return WIDTH, 70 + 26 * max(len(self.bars), 1)

    def draw(self, axes: Any) -> None:
        """Draw the bars on matplotlib's axes."""
        values = [value if math.isfinite(value) else 0.0 for value in self.bars.values()]
        bars = axes.barh(range(len(values)), values, height=0.66, color=COLOURS[0])
        counts = [
            f" (n = {self.counts[name]:,})" if name in self.counts else "" for name in self.bars
        ]
        numbers = map(_number, self.bars.values())
        axes.bar_label(bars, list(map(str.__add__, numbers, counts)), padding=3, fontsize=8)
        axes.set_yticks(range(len(values)), list(map(_label, self.bars)))
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.margins(x=0.35)  # room for the numbers
        axes.set_xlim(left=min([*values, 0.0]))
        axes.set(xlabel=_label(self.y), ylabel=_label(self.x))
        axes.grid(axis="x")
        axes.xaxis.set_major_formatter(_number)

    def numbers(self) -> tuple[list[str], list[list[Any]]]:
        """Table behind the chart: (headings, rows), a row of name, value and number of items (None
        if unknown) for each bar."""
        rows = [[name, value, self.counts.get(name)] for name, value in self.bars.items()]
        return [self.x, self.y, "number"], rows


@dataclass(frozen=True)
class Matrix:
    """Matrix of counts, such as a confusion matrix: rows are gold, columns predicted."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]

    def size(self) -> tuple[float, float]:
        """(width, height) of the picture, in CSS pixels."""
        side = 34 if self._in_cells else 14
        names, heads = (
            7 * max((len(_label(name)) for name in side), default=0)
            for side in (self.rows, self.columns)
        )
        return max(WIDTH, 60 + names + side * len(self.columns)), 60 + heads + side * len(self.rows)

    @property
    def _in_cells(self) -> bool:
        return max(len(self.rows), len(self.columns)) <= IN_CELLS

    def draw(self, axes: Any) -> None:
        """Draw the matrix on matplotlib's axes."""
        if self.rows and self.columns:
            shares = [[count / (sum(row) or 1) for count in row] for row in self.counts]
            # As dark as lets a number be read.
            axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
        for i, row in enumerate(self.counts if self._in_cells else ()):
            for j, count in enumerate(row):
                axes.text(j, i, f"{count:,}", ha="center", va="center", fontsize=8)
        heads = list(map(_label, self.columns))
        axes.set_xticks(range(len(heads)), heads, rotation=45, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(self.rows)), list(map(_label, self.rows)))
        axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
        axes.set(xlabel="answer", ylabel="gold")

    def numbers(self) -> tuple[list[str], list[list[Any]]]:
        """Table behind the chart: (headings, rows), a row for each row of the matrix."""
        rows = [[name, *counts] for name, counts in zip(self.rows, self.counts, strict=True)]
        return ["gold", *self.columns], rows


Chart = Lines | Bars | Matrix


def require_matplotlib() -> None:
    """Raise UserError if matplotlib, which draws the charts, is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError("a report needs matplotlib for its charts; pip install matplotlib adds it")


def image(chart: Chart) -> str:
    """SVG image of a chart as a data URL; equal charts give equal images.

    Raises:
        UserError: matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that its font lacks: the reader's will have them
        width, height = chart.size()
        figure = Figure(figsize=(width / INCH, height / INCH), layout="constrained")
        chart.draw(figure.subplots())
        file = BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}"


def _label(text: str) -> str:
    return cut(" ".join(visible(text).split()), LABEL)


def _number(value: float, _: object = None) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def of_training(log: Sequence[Mapping[str, Any]], metric: str | None) -> list[Chart]:
    """Charts of loss, evaluation metric and learning rate by step; none of what was not logged.

    Args:
        log: lines of metrics.jsonl.
        metric: main metric of the run, without ``eval_``; None without an evaluation.
    """
    losses = {"training": _logged(log, "loss"), "evaluation": _logged(log, "eval_loss")}
    losses = {name: points for name, points in losses.items() if points}
    charts: list[Chart] = [Lines("Loss", "step", "loss", losses)] if losses else []
    points = _logged(log, f"eval_{metric}") if metric != "loss" else []
    if len(points) > 1:
        series = {f"eval_{metric}": points}
        charts.append(Lines(f"Evaluation: {metric}", "step", str(metric), series))
    if len(rates := _logged(log, "learning_rate")) > 1:
        charts.append(Lines("Learning rate", "step", "learning rate", {"learning rate": rates}))
    return charts


def _logged(log: Sequence[Mapping[str, Any]], key: str) -> Points:
    """Finite values of a key by step, averaged within `POINTS` intervals if there are more."""
    values = [(float(row["step"]), number(row.get(key))) for row in log]
    points = [(step, value) for step, value in values if value is not None]
    if len(points) <= POINTS:
        return points
    edges = [i * len(points) // POINTS for i in range(POINTS + 1)]
    parts = [points[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def of_result(result: Result, metric: str) -> list[Chart]:
    """Charts of errors, ranking, calibration, and scores by length and position, as far as the
    result has numbers for them.

    Args:
        result: scored answers.
        metric: metric of the bars by length and position.
    """
    charts = [*_confusion(result), *_classes(result)]
    curves = result.curves.get("precision_at_recall") or {}
    if curves:
        support = {row["class"]: row["support"] for row in result.tables.get("classes", ())}
        names = sorted(curves, key=lambda name: -support.get(name, 0))[:CURVES]
        series = {name: [(100 * recall, value) for recall, value in curves[name]] for name in names}
        title = "Precision by recall"
        if len(curves) > len(names):
            title += f", the {len(names)} most frequent of {len(curves):,} classes"
        charts.append(Lines(title, "recall (%)", "precision (%)", series))
    charts += reliability(result.curves.get("reliability") or ())
    lengths = by_length(result.items, result.derive, result.figures) if result.items else []
    charts += _groups("Score by length of the document", "words", lengths, metric)
    places = by_place(result.items) if result.figures is None else []
    title = "Score by where in the document the answer stands"
    return charts + _groups(title, "part of the document", places, metric)


def _confusion(result: Result) -> list[Chart]:
    rows = [row for row in result.tables.get("confusion", ()) if "gold" in row]
    if not rows:
        return []
    (noun,) = rows[0].keys() - {"gold", "answer"}
    frequent: Counter[str] = Counter()
    for row in rows:
        frequent[row["gold"]] += row[noun]
        frequent[row["answer"]] += 0
    empty = frequent.pop(NONE, None) is not None
    names = [name for name, _ in frequent.most_common()]
    if len(names) > CLASSES:
        names = [*names[: CLASSES - 1], OTHER]
    names += [NONE] * empty
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        gold, answer = (row[side] if row[side] in names else OTHER for side in ("gold", "answer"))
        counts[gold, answer] += row[noun]
    sides = [
        [name for name in names if name != NONE or any(row[side] == NONE for row in rows)]
        for side in ("gold", "answer")
    ]
    table = [[counts[gold, answer] for answer in sides[1]] for gold in sides[0]]
    title = "Confusion: right class by row, answer by column"
    return [Matrix(title, sides[0], sides[1], table)]


def _classes(result: Result) -> list[Chart]:
    """F1 of each class in multi-label classification."""
    confusion = result.tables.get("confusion") or [{}]
    rows = [row for row in result.tables.get("classes", ()) if is_defined(row["f1"])]
    rows = sorted(rows, key=lambda row: -row["support"])[:BARS]
    if "class" not in confusion[0] or not rows:
        return []
    bars = {row["class"]: row["f1"] for row in rows}
    counts = {row["class"]: row["support"] for row in rows}
    return [Bars("F1 of each class", "class", "F1", bars, counts)]


def reliability(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Reliability diagram with the diagonal, as a list of one chart; empty without rows. A row has
    the mean ``probability`` of some answers, and the share of them that is ``right``, from 0 to
    1."""
    if not rows:
        return []
    points = [(100 * row["probability"], 100 * row["right"]) for row in rows]
    title = "Reliability: how often answers of a probability are right"
    axes = ("probability (%)", "right (%)")
    return [Lines(title, *axes, {"answers": points}, points=True, diagonal=True)]


def _groups(title: str, x: str, groups: Sequence[Group], metric: str) -> list[Chart]:
    groups = [group for group in groups if metric in group.metrics]
    if len(groups) < 2:
        return []
    bars = {group.label: group.metrics[metric] for group in groups}
    counts = {group.label: group.questions for group in groups}
    return [Bars(title, x, metric, bars, counts)]
