"""The page of a report as text: nothing of it is HTML but its own, and it needs nothing else."""

import json
import random
import re
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from report_examples import CLAUSE, HOSTILE, documents, example, hostile, prose

from ldt.report import charts as drawing
from ldt.report import page, texts
from ldt.report.escaping import visible
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Figure, Lines, Mark, Matrix, Report
from ldt.report.page import render

VOID = set("meta input img br hr link".split())


class Parsed(HTMLParser):
    """The elements of a page: their tags, attributes and texts."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.comments, self.open = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attributes": dict(attrs), "text": ""}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, "attributes": dict(attrs), "text": ""})

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag, "elements lie in one another"

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def handle_comment(self, data):
        self.comments.append(data)

    def named(self, tag):
        return [element for element in self.elements if element["tag"] == tag]


def data(html):
    """The documents of a page, as its script reads them, each with its texts unpacked."""
    (block,) = (
        each
        for each in Parsed(html).named("script")
        if each["attributes"].get("type") == "application/json"
    )
    found = json.loads(block["text"])
    for row in found["documents"]:
        row["texts"] = json.loads(zlib.decompress(b64decode(row.pop("packed"))))
    return found


def pieces(row):
    """The pieces of a document's text, unfolded."""
    return [
        piece
        for part in row["texts"]["parts"]
        for piece in (part.get("pieces", []) if isinstance(part, dict) else [part])
    ]


@pytest.fixture(scope="module")
def html():
    return render(example())


def test_hostile_text_is_text_and_nothing_of_it_hides():
    html = render(hostile())
    parsed = Parsed(html)
    assert parsed.open == []
    assert parsed.comments == []
    assert [each["attributes"].get("type") for each in parsed.named("script")] == [
        "application/json",
        None,
    ]
    assert "<" not in parsed.named("script")[0]["text"], "a comment or a tag could begin there"
    assert parsed.named("img") == []
    assert {name for each in parsed.elements for name in each["attributes"]} & {
        "onerror",
        "onload",
        "style",
        "src",
    } == set()
    assert not set(html) & {"\0", "\u202e", "\u200b"}
    assert parsed.named("h1")[0]["text"] == visible(HOSTILE)
    (row,) = data(html)["documents"]
    assert row["id"] == row["gold"] == row["answer"] == visible(HOSTILE)
    assert row["texts"]["gold"] == row["texts"]["answer"] == visible(HOSTILE)
    assert row["texts"]["asks"] == [[visible(HOSTILE)] * 2]
    assert row["texts"]["marks"][0]["label"] == visible(HOSTILE)
    assert pieces(row) == [[visible(HOSTILE), [0]]]


def test_what_cannot_be_seen_is_named_and_what_scripts_need_stays():
    assert visible("a\u202eb\u200b\0\ufeff\ud800") == ("a⟨U+202E⟩b⟨U+200B⟩⟨U+0000⟩⟨U+FEFF⟩⟨U+D800⟩")
    assert visible("one\ftwo") == "one⟨page break⟩two"
    kept = (
        "tab\t, lines\r\n, emoji 👩\u200d👧, Persian می\u200cخواهم, e\u0301, \u200f, soft\u00adly"
    )
    assert visible(kept) == kept


def test_a_page_asks_nothing_of_anyone(html):
    parsed = Parsed(html)
    for element in parsed.elements:
        attributes = element["attributes"]
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
    assert parsed.named("link") == []
    (style,) = parsed.named("style")
    assert "url(" not in style["text"]
    assert "@import" not in style["text"]
    assert set(re.findall(r"https?://[^\"<\s]+", html)) == {"http://www.w3.org/2000/svg"}


def test_the_policy_allows_this_script_and_this_style_alone(html):
    parsed = Parsed(html)
    (policy,) = (
        each["attributes"]["content"]
        for each in parsed.named("meta")
        if each["attributes"].get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    (style,) = parsed.named("style")
    script = parsed.named("script")[-1]
    for name, element in (("script-src", script), ("style-src", style)):
        digest = b64encode(sha256(element["text"].encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert "innerHTML" not in script["text"]
    assert not re.search(r"outerHTML|insertAdjacentHTML|document\.write|eval\(", script["text"])


def contrast(one, other):
    """Of two colours "#rrggbb", by WCAG 2.2's definition."""
    light = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        light.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_and_lines_stand_out_from_what_is_behind_them(scheme):
    style = page._asset("page.css")
    colours = dict(
        re.findall(r"--([\w-]+): (#\w{6});", re.findall(r":root \{([^}]+)\}", style)[scheme])
    )
    behind = [colours[name] for name in ("paper", "soft", "answer-soft", "gold-soft")]
    behind.append(colours["passage-soft"])
    for name in ("ink", "muted"):
        assert min(contrast(colours[name], each) for each in behind) >= 4.5
    for name in ("link", "gold", "answer", "passage", "wrong"):
        assert contrast(colours[name], colours["paper"]) >= 4.5
    assert contrast(colours["wrong"], colours["soft"]) >= 4.5
    for i in range(6):
        assert contrast(colours[f"c{i}"], colours["paper"]) >= 3


def test_a_chart_by_itself_has_the_light_colours():
    style = page._asset("page.css")
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", style.partition("@media")[0]))
    names = {"grid": "line"}
    assert {name: colours[names.get(name, name)] for name in drawing.COLOURS} == drawing.COLOURS


def test_a_page_is_the_same_each_time(html):
    assert render(example()) == html


def test_ids_of_a_page_are_its_own_and_links_lead_somewhere(html):
    elements = Parsed(html).elements
    ids = [each["attributes"]["id"] for each in elements if "id" in each["attributes"]]
    assert len(set(ids)) == len(ids)
    made = {f"#document-{i + 1}" for i in range(120)}  # by the script
    for element in elements:
        link = element["attributes"].get("href")
        assert link is None or link[1:] in ids or link in made
        for name in element["attributes"].get("aria-labelledby", "").split():
            assert name in ids or name == "document-title"


def test_a_page_has_figures_with_intervals_and_baselines(html):
    rows = [each["text"].split() for each in Parsed(html).named("tr")]
    assert ["f1", "83.30", "76.00", "to", "90.00", "12.50", "the", "first", "words"] in rows
    assert ["ece", "0.0412", "–", "–"] in rows
    assert ["documents", "120", "–", "–"] in rows
    (drawn,) = (each for each in Parsed(html).named("circle"))
    assert drawn["attributes"]["cx"] == "83.30"


def test_figures_of_another_unit_are_not_drawn():
    report = Report("t", "s", figures=[Figure("mse", 3.25, (3.0, 4.0))], scale="in the unit")
    assert "<circle" not in render(report)


def test_every_chart_has_its_numbers_as_a_table(html):
    charts = Parsed(html).named("figure")
    assert len(charts) == 5
    for figure, chart in zip(charts, example().charts, strict=True):
        assert chart.title in figure["text"]
        assert chart.says in figure["text"]
    assert re.findall(r"\d+", charts[4]["text"].rpartition("licence")[2]) == ["0", "0", "3"]


def test_a_chart_without_numbers_is_a_sentence():
    html = render(Report("t", "s", charts=[Lines("Empty", "x", "y", {}, "No step was logged.")]))
    assert "<svg" not in html
    assert "No step was logged." in html


def test_a_part_of_the_numbers_is_said_to_be_one():
    long = Lines("t", "x", "y", {"": [(i, i) for i in range(500)]}, "s")
    large = Matrix("t", list("abcdefghijklmnop"), list("abcdefghijklmnop"), [[1] * 16] * 16, "s")
    short = Lines("t", "x", "y", {"": [(0, 1)]}, "s")
    for chart, is_part in ((long, True), (large, True), (short, False)):
        assert ("A selection" in render(Report("t", "s", charts=[chart]))) is is_part


def test_the_worst_errors_are_those_of_most_confidence(html):
    lists = {each["text"].split("\n")[1]: each for each in Parsed(html).named("section")}
    worst = re.findall(r"contract-(\d+)", lists["Worst errors"]["text"])
    wrong = sorted(range(0, 120, 3), key=lambda i: -(i * 37 % 100))
    assert list(map(int, worst)) == wrong[:10]
    doubtful = re.findall(r"contract-(\d+)", lists["Doubtful labels"]["text"])
    assert list(map(int, doubtful)) == list(range(0, 100, 10))
    assert "arXiv:1911.00068" in lists["Doubtful labels"]["text"]


def test_where_right_is_a_matter_of_degree_the_worst_score_least():
    scores = [0.5, 0.1, 0.9]
    found = [Document(f"d{i}", "", scores={"rouge1": s}) for i, s in enumerate(scores)]
    html = render(Report("t", "s", documents=found))
    (section,) = (each for each in Parsed(html).named("section") if "Worst" in each["text"])
    assert re.findall(r"d(\d)", section["text"]) == ["1", "0", "2"]
    assert "lowest rouge1" in section["text"]
    assert re.findall(r"\d+\.\d", section["text"]) == ["10.0", "50.0", "90.0"]


def test_a_report_of_one_sentence_is_a_page_without_a_script():
    html = render(Report("empty", "Nothing was answered."))
    parsed = Parsed(html)
    assert parsed.named("script") == []
    assert "Nothing was answered." in html
    assert "<h2" not in html


def test_texts_are_whole_as_long_as_they_fit(html):
    for row, document in zip(data(html)["documents"], documents(), strict=True):
        assert "".join(text for text, _ in pieces(row)) == document.text
        folds = [part for part in row["texts"]["parts"] if isinstance(part, dict)]
        assert len(folds) == 2, "before the clause and after it"
        for fold in folds:
            assert fold["count"] == sum(len(text) for text, _ in fold["pieces"])
    assert "To keep this page small" not in html


def test_marks_are_where_they_are_after_emoji_and_where_they_overlap():
    text = "😀 e\u0301 👩\u200d👧 the laws of Delaware, USA"
    first, second = text.index("laws"), text.index("Delaware")
    marks = [
        Mark(first, second + 8, ANSWER, "answer"),
        Mark(second, len(text), GOLD, "place", 0.25),
        Mark(second, len(text), ANSWER, "place"),
        Mark(-5, 1, PASSAGE, "smile"),
        Mark(len(text), len(text) + 9, GOLD, "outside"),
    ]
    html = render(Report("t", "s", documents=[Document("d", "", text, marks=marks)]))
    (row,) = data(html)["documents"]
    assert pieces(row) == [
        ["😀", [0]],
        [" e\u0301 👩\u200d👧 the ", []],
        ["laws of ", [1]],
        ["Delaware", [1, 2]],
        [", USA", [2]],
    ]
    assert [(each["kinds"], each["label"], each["score"]) for each in row["texts"]["marks"]] == [
        (["passage"], "smile", None),
        (["answer"], "", None),
        (["gold", "answer"], "place", 0.25),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_marks_every_character_is_there_once_and_in_its_marks(seed):
    random_ = random.Random(seed)
    text = prose(random_.choice([3, 300, 3000]), seed)
    marks = []
    for _ in range(random_.randrange(12)):
        start = random_.randrange(len(text))
        length = random_.choice([1, 20, 400, 5000])
        kind = random_.choice([GOLD, ANSWER, PASSAGE])
        marks.append(Mark(start, min(start + length, len(text)), kind, "m"))
    ours = [mark for mark, _ in texts.merged(marks, len(text))]
    extent = random_.choice([texts.WHOLE, texts.Extent(whole=True, shown=700, context=50)])
    parts = texts.parts(text, ours, extent)
    place = seen = 0
    for part in parts:
        inside = part["pieces"] if isinstance(part, dict) else [part]
        for piece, indices in inside:
            assert piece == text[place : place + len(piece)]
            for at in (place, place + len(piece) - 1):
                assert indices == [i for i, m in enumerate(ours) if m.start <= at < m.end]
            place += len(piece)
            seen += 0 if isinstance(part, dict) else len(piece)
        if isinstance(part, dict):
            assert part["count"] == sum(len(piece) for piece, _ in inside)
    assert place == len(text)
    assert seen == texts.shown(Document("", "", text, marks=marks), extent) <= extent.shown


def test_a_fold_leaves_what_is_around_a_mark():
    text = prose(3000)
    mark = Mark(9003, 9013, GOLD, "gold")
    parts = texts.parts(text, [mark], texts.Extent())
    assert [type(part) for part in parts] == [list, dict, list, list, list, dict]
    head, fold, before, marked, after, rest = parts
    assert marked == [text[9003:9013], [0]]
    assert 300 <= len(before[0]) <= 330
    assert 300 <= len(after[0]) <= 330
    assert text[:9003].endswith(before[0])
    assert text[9003 - len(before[0]) - 1] == " ", "no word is cut"
    assert text[9013 + len(after[0])] == " "
    assert 300 <= len(head[0]) <= 330
    assert "pieces" not in fold
    assert len(head[0]) + fold["count"] + len(before[0]) == 9003
    assert len(head[0] + before[0] + after[0]) + 10 + fold["count"] + rest["count"] == len(text)


def test_a_fold_of_few_characters_is_none():
    text = "x" * 3000
    for gap, is_folded in ((200, False), (201, True)):
        marks = [Mark(400, 410, GOLD, "a"), Mark(1010 + gap, 1020 + gap, GOLD, "b")]
        parts = texts.parts(text, marks, texts.Extent())
        assert [part["count"] for part in parts if isinstance(part, dict)][:-1] == (
            [gap] if is_folded else []
        )


def test_a_page_keeps_its_size_and_says_what_is_left_out(monkeypatch):
    monkeypatch.setattr(page, "LIMIT", 300_000)
    many = [replace(each, text=prose(7000, i) + CLAUSE) for i, each in enumerate(documents(80))]
    many = [
        replace(each, marks=[Mark(len(each.text) - 5, len(each.text), GOLD, "gold")])
        for each in many
    ]
    html = render(example(documents=many))
    assert 280_000 < len(html.encode()) <= 300_000
    rows = data(html)["documents"]
    whole = [
        i for i, row in enumerate(rows) if "".join(text for text, _ in pieces(row)) == many[i].text
    ]
    assert 0 < len(whole) < 40
    assert all(many[i].right is False for i in whole), "wrong ones are looked at first"
    assert f"{len(whole)} of 80 texts are in it whole" in html
    for row in rows:
        assert row["texts"]["marks"][0]["kinds"] == ["gold"]
        assert pieces(row)[-1] == ["icts.", [0]]


def test_a_page_with_room_for_nothing_has_its_answers(monkeypatch):
    monkeypatch.setattr(page, "LIMIT", 0)
    monkeypatch.setattr(page, "LEAST", 20_000)
    html = render(example())
    rows = data(html)["documents"]
    assert len(rows) == 120
    assert all(row["texts"]["gold"] == "Delaware" for row in rows)
    assert all(row["texts"]["parts"][0]["count"] > 5000 for row in rows)


def test_a_line_of_ten_megabytes_is_folded():
    text = "x" * 10_000_000
    document = Document("d", "", text, {"question": text}, text, text, False)
    html = render(Report("t", "s", documents=[document]))
    assert len(html) < 500_000
    (row,) = data(html)["documents"]
    first, fold = row["texts"]["parts"]
    assert len(first[0]) == 1200
    assert fold["count"] == sum(len(text) for text, _ in fold["pieces"]) == 10_000_000 - 1200
    assert row["texts"]["gold"] == "x" * 20_000 + "… (9,980,000 more)"
    assert len(row["gold"]) == 160


def test_a_document_without_a_text_has_none():
    html = render(Report("t", "s", documents=[Document("d", "", gold="a", answer="")]))
    (row,) = data(html)["documents"]
    assert row["texts"] == {"gold": "a", "answer": "", "asks": []}
    assert "To keep this page small" not in html
