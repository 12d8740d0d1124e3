"""Charts of a report: what is drawn where, and that it is fit for a page."""

import re
from base64 import b64decode
from xml.etree import ElementTree

import pytest
from report_examples import HOSTILE, charts

from ldt.errors import UserError
from ldt.report import charts as drawing
from ldt.report.charts import Bars, Lines, Matrix
from ldt.report.html import visible

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart):
    return ElementTree.fromstring(b64decode(drawing.image(chart).partition("base64,")[2]))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def paths(root, colour):
    """The points of the paths that are filled or drawn in a colour."""
    found = [each for each in root.iter(f"{SVG}path") if colour in each.get("style", "")]
    numbers = [list(map(float, re.findall(r"-?[\d.]+", each.get("d")))) for each in found]
    return [list(zip(each[::2], each[1::2], strict=True)) for each in numbers]


def lines(root, number):
    return paths(root, f"stroke: {drawing.COLOURS[number]}; stroke-width: 2")


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.title)
def test_a_chart_is_the_same_each_time_and_has_no_address(chart):
    assert drawing.image(chart) == drawing.image(chart)
    root = drawn(chart)
    assert root.tag == f"{SVG}svg"
    assert all(
        value.startswith(("#", "data:"))
        for each in root.iter()
        for name, value in each.items()
        if name.endswith(("href", "src"))
    )


def test_bars_are_as_long_as_their_values():
    chart = Bars("t", "words", "F1", {"a": 80.0, "b": 40.0, "c": 0.0}, {"a": 3, "b": 1200})
    root = drawn(chart)
    bars = paths(root, f"fill: {drawing.COLOURS[0]}")
    lengths = [max(x for x, _ in bar) - min(x for x, _ in bar) for bar in bars]
    assert lengths == pytest.approx([lengths[0], lengths[0] / 2, 0], rel=1e-3, abs=0.02)
    tops = [min(y for _, y in bar) for bar in bars]
    assert tops == sorted(tops), "the first one is at the top"
    assert {"a", "b", "c", "80 (n = 3)", "40 (n = 1,200)", "0"} <= set(texts(root))


def test_a_line_goes_through_its_points_and_up_is_more():
    points = [(0, 4.0), (10, 2.0), (40, 1.0)]
    (path,) = lines(drawn(Lines("t", "step", "loss", {"": points})), 0)
    (a, b, c) = path
    assert (b[0] - a[0]) * 3 == pytest.approx(c[0] - b[0], rel=1e-2)
    assert (b[1] - a[1]) == pytest.approx(2 * (c[1] - b[1]), rel=1e-2)
    assert a[1] < b[1] < c[1]


def test_what_is_no_number_is_not_drawn():
    nan, inf = float("nan"), float("inf")
    chart = Lines("t", "x", "y", {"": [(0, 1), (1, nan), (2, inf), (3, 4)]})
    (path,) = lines(drawn(chart), 0)
    assert len(path) == 2
    drawn(Bars("t", "x", "y", {"a": nan}, {}))


def test_labels_are_plain_text_and_cut_where_they_are_long():
    bars = {"$a_1$ & <b>": 1.0, "_c": 1.0, "d" * 60: 1.0, HOSTILE: 1.0}
    found = texts(drawn(Bars("t", "x", "y", bars, {})))
    assert "$a_1$ & <b>" in found
    assert "d" * (drawing.LABEL - 1) + "…" in found
    assert visible(HOSTILE)[: drawing.LABEL - 1] + "…" in found
    found = texts(drawn(Lines("t", "x", "y", {"_one": [(0, 1)], "two": [(0, 1)]})))
    assert {"_one", "two"} <= set(found)


@pytest.mark.parametrize(
    "chart",
    [Lines("t", "x", "y", {}), Bars("t", "x", "y", {}, {}), Matrix("t", [], [], [])],
)
def test_an_empty_chart_is_drawn_and_has_no_numbers(chart):
    drawn(chart)
    assert chart.numbers()[1] == []


def test_the_numbers_of_charts():
    lines, reliability, _, bars, matrix = charts()
    assert lines.numbers() == (
        ["", "step", "loss"],
        [["train", 0, 2.0], ["train", 50, 1.0], ["eval", 50, 1.2]],
    )
    assert reliability.numbers() == (["sure", "right"], [[0.2, 0.1], [0.9, 0.8]])
    assert bars.numbers() == (["words", "F1", "number"], [["short", 80.0, 3], ["long", 40.0, 1]])
    assert matrix.numbers()[1] == [["lease", 5, 1, 0], ["loan", 2, 7, 0], ["licence", 0, 0, 3]]
    rows = Lines("t", "x", "y", {"": [(i, i) for i in range(1001)]}).numbers()[1]
    assert len(rows) <= 200
    assert rows[:2] == [[0, 0], [6, 6]]


def test_without_matplotlib_a_line_says_what_would_do(monkeypatch):
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="^a report needs matplotlib.*pip install matplotlib"):
        drawing.image(charts()[0])
