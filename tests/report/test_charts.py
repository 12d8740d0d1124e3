"""Charts of a report: what is drawn where, and that it is fit for a page."""

import re
from xml.etree import ElementTree

import pytest
from report_examples import CLASSES, HOSTILE, charts

from ldt.errors import UserError
from ldt.report import charts as drawing
from ldt.report.escaping import visible
from ldt.report.model import Bars, Lines, Matrix

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart, name="chart"):
    return ElementTree.fromstring(drawing.svg(chart, name))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def box(path):
    """(left, top, right, bottom) of the points of a path."""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
    return min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])


def paths(root, classes):
    return [each for each in root.iter(f"{SVG}path") if classes in each.get("class", "").split()]


def lines(root, classes):
    """Paths that are no markers: those are filled."""
    return [path for path in paths(root, classes) if path.get("fill") == "none"]


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.title)
def test_a_chart_is_an_image_with_a_name_and_a_description(chart):
    root = drawn(chart, "x")
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    named = {each.get("id"): each.text for each in root if each.get("id")}
    assert named[root.get("aria-labelledby")] == chart.title
    assert named[root.get("aria-describedby")] == chart.says


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.title)
def test_a_chart_has_no_style_of_its_own_and_no_word_from_outside(chart):
    text = drawing.svg(chart)
    assert "style" not in text, "a strict content security policy refuses it"
    assert "<script" not in text
    assert re.findall(r'(?:href|src)="(?!#)', text) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert "DejaVu" not in text


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.title)
def test_ids_of_charts_do_not_clash_and_all_references_are_met(chart):
    one, other = drawing.svg(chart, "one"), drawing.svg(chart, "other")
    ids = [re.findall(r' id="([^"]+)"', text) for text in (one, other)]
    assert len(set(ids[0])) == len(ids[0])
    assert not set(ids[0]) & set(ids[1])
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', one)) <= set(ids[0])


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.title)
def test_a_chart_is_the_same_each_time(chart):
    assert drawing.svg(chart) == drawing.svg(chart)


def test_bars_are_as_long_as_their_values():
    chart = Bars("t", "words", "F1", {"a": 80.0, "b": 40.0, "c": 0.0}, {"a": 3, "b": 1200}, "s")
    root = drawn(chart)
    boxes = [box(path) for path in paths(root, "fill-c0")]
    lengths = [right - left for left, _, right, _ in boxes]
    assert lengths[0] == pytest.approx(2 * lengths[1], rel=1e-3)
    assert lengths[2] == pytest.approx(0, abs=0.02)
    assert boxes[0][1] < boxes[1][1] < boxes[2][1], "the first one is at the top"
    assert {"a", "b", "c", "80 (n = 3)", "40 (n = 1,200)", "0"} <= set(texts(root))


def test_a_line_goes_through_its_points():
    points = [(0, 4.0), (10, 2.0), (40, 1.0)]
    (path,) = lines(drawn(Lines("t", "step", "loss", {"": points}, "s")), "stroke-c0")
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
    x, y = numbers[::2], numbers[1::2]
    assert (x[1] - x[0]) * 3 == pytest.approx(x[2] - x[1], rel=1e-2)
    assert (y[1] - y[0]) == pytest.approx(2 * (y[2] - y[1]), rel=1e-2)
    assert y[0] < y[1] < y[2], "up is more"


def test_what_is_no_number_is_not_drawn():
    nan, inf = float("nan"), float("inf")
    (path,) = lines(
        drawn(Lines("t", "x", "y", {"": [(0, 1), (1, nan), (2, inf), (3, 4)]}, "s")), "stroke-c0"
    )
    assert re.findall("[ML]", path.get("d")) == ["M", "L"]
    drawn(Bars("t", "x", "y", {"a": nan}, {}, "s"))


def test_points_are_not_joined_and_a_diagonal_goes_from_corner_to_corner():
    points = {"": [(0.1, 1.0), (0.7, 0.0)]}
    root = drawn(Lines("t", "x", "y", points, "s", points=True))
    assert len(list(root.iter(f"{SVG}use"))) >= 2
    assert lines(root, "stroke-c0") == []
    root = drawn(Lines("t", "x", "y", points, "s", diagonal=True))
    dotted = [each for each in lines(root, "stroke-muted") if each.get("stroke-dasharray")]
    left, top, right, bottom = box(dotted[0])
    assert right - left == pytest.approx(bottom - top, rel=1e-2)


def test_series_differ_by_more_than_colour():
    series = {f"s{i}": [(0, i), (1, 2 * i)] for i in range(6)}
    root = drawn(Lines("t", "x", "y", series, "s"))
    looks = {lines(root, f"stroke-c{i}")[0].get("stroke-dasharray") for i in range(6)}
    assert len(looks) == 6
    assert set(series) <= set(texts(root))


def test_a_matrix_has_its_counts_and_is_shaded_by_the_share_of_its_row():
    root = drawn(Matrix("t", CLASSES, CLASSES, [[5, 1, 0], [2, 1234, 0], [0, 0, 3]], "s"))
    assert {"5", "1,234", "0", *CLASSES} <= set(texts(root))
    shades = [float(each.get("opacity")) for each in paths(root, "fill-heat")]
    assert len(shades) == 5, "one for each count that is not 0"
    assert shades[0] > shades[1]
    assert shades[4] == max(shades) <= 0.7
    assert len(lines(root, "stroke-muted")) >= 3, "a frame around what is right"


def test_labels_are_plain_text_and_cut_where_they_are_long():
    root = drawn(Bars("t", "x", "y", {"$a_1$ & <b>": 1.0, "_c": 1.0, "d" * 60: 1.0}, {}, "s"))
    assert "$a_1$ & <b>" in texts(root)
    assert "d" * (drawing.LABEL - 1) + "…" in texts(root)
    root = drawn(Lines("t", "x", "y", {"_one": [(0, 1)], "two": [(0, 1)]}, "s"))
    assert texts(root)[-2:] == ["_one", "two"]


def test_hostile_names_are_text():
    root = drawn(Bars(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: 1.0}, {HOSTILE: 1}, HOSTILE))
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        *"svg title desc g path text defs use clipPath rect".split()
    }
    assert root.find(f"{SVG}title").text == visible(HOSTILE)


@pytest.mark.parametrize(
    "chart",
    [Lines("t", "x", "y", {}, "s"), Bars("t", "x", "y", {}, {}, "s"), Matrix("t", [], [], [], "s")],
)
def test_an_empty_chart_is_drawn_and_has_no_numbers(chart):
    drawn(chart)
    assert drawing.table(chart)[1] == []


def test_the_numbers_of_charts():
    lines, reliability, _, bars, matrix = charts()
    assert drawing.table(lines) == (
        ["", "step", "loss"],
        [["train", 0, 2.0], ["train", 50, 1.0], ["eval", 50, 1.2]],
    )
    assert drawing.table(reliability) == (["sure", "right"], [[0.2, 0.1], [0.9, 0.8]])
    assert drawing.table(bars) == (
        ["words", "F1", "number"],
        [["short", 80.0, 3], ["long", 40.0, 1]],
    )
    assert drawing.table(matrix)[1] == [
        ["lease", 5, 1, 0],
        ["loan", 2, 7, 0],
        ["licence", 0, 0, 3],
    ]
    assert drawing.table(matrix, most=3) == (
        ["gold", "answer", "number"],
        [["loan", "loan", 7], ["lease", "lease", 5], ["licence", "licence", 3]],
    )


def test_a_long_line_has_as_many_numbers_as_a_table_shows():
    rows = drawing.table(Lines("t", "x", "y", {"": [(i, i) for i in range(1001)]}, "s"))[1]
    assert len(rows) <= 200
    assert rows[:2] == [[0, 0], [6, 6]]


def test_without_matplotlib_a_line_says_what_would_do(monkeypatch):
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="^a report needs matplotlib.*pip install matplotlib"):
        drawing.svg(charts()[0])
