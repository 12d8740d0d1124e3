"""The page of a report as text: nothing of it is HTML but its own, and it needs nothing else."""

import json
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from report_examples import CLAUSE, HOSTILE, documents, example, hostile, prose

from ldt.report import html, page
from ldt.report.charts import Lines
from ldt.report.html import visible
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Figure, Mark, Report
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

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag, "elements lie in one another"

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def handle_comment(self, data):
        self.comments.append(data)

    def named(self, tag):
        return [element for element in self.elements if element["tag"] == tag]


def rows(html):
    """The documents of a page, as its script reads them."""
    return json.loads(Parsed(html).named("script")[0]["text"])["documents"]


@pytest.fixture(scope="module")
def whole():
    return render(example(), all_texts=True)


def test_hostile_text_is_text_and_nothing_of_it_hides():
    text = render(hostile())
    parsed = Parsed(text)
    assert parsed.open == parsed.comments == []
    scripts = parsed.named("script")
    assert [each["attributes"].get("type") for each in scripts] == ["application/json", None]
    assert "<" not in scripts[0]["text"], "a comment or a tag could begin there"
    names = {name for each in parsed.elements for name in each["attributes"]}
    assert not names & {"onerror", "onload", "style"}
    assert not set(text) & {"\0", "\u202e", "\u200b"}
    assert parsed.named("h1")[0]["text"] == visible(HOSTILE)
    (row,) = rows(text)
    assert row["id"] == row["gold"] == row["answer"] == HOSTILE
    assert (row["asks"], row["parts"]) == ([[HOSTILE] * 2], [[0, HOSTILE]])
    assert row["marks"][0]["label"] == HOSTILE
    for image in parsed.named("img"):
        svg = b64decode(image["attributes"]["src"].partition(",")[2]).decode()
        assert not set(svg) & {"\0", "\u202e", "\u200b"}
        assert "<script" not in svg
        assert "<img" not in svg


def test_what_cannot_be_seen_is_named_and_what_scripts_need_stays():
    assert visible("a\u202eb\u200b\0\ufeff\ud800") == ("a⟨U+202E⟩b⟨U+200B⟩⟨U+0000⟩⟨U+FEFF⟩⟨U+D800⟩")
    assert visible("one\ftwo") == "one⟨page break⟩two"
    same = (
        "tab\t, lines\r\n, emoji 👩\u200d👧, Persian می\u200cخواهم, e\u0301, \u200f, soft\u00adly"
    )
    assert visible(same) == same
    value = ["\ud800 & </script>", same]
    assert json.loads(html.script_json(value).encode("utf-8")) == value


@pytest.mark.parametrize(("name", "connect"), [("report", "'none'"), ("serve", "'self'")])
def test_a_page_asks_nobody_and_its_policy_allows_its_own_script_and_style_alone(name, connect):
    if name == "report":
        text = render(example())
    else:
        text, policy = html.render("serve", connect="'self'", title="ldt")
        assert Parsed(text).named("meta")[1]["attributes"]["content"] == policy
    parsed = Parsed(text)
    for element in parsed.elements:
        for attribute in ("href", "src"):
            address = element["attributes"].get(attribute, "#")
            assert address.startswith(("#", "data:")) or address == "openapi.json"
    (style,) = parsed.named("style")
    script = parsed.named("script")[-1]
    assert not re.search(r"url\(|@import", style["text"])
    assert not re.search(r"https?:|//[a-z]|\son[a-z]+=", re.sub(r"data:[^\"]*", "", text))
    forbidden = "innerHTML|outerHTML|insertAdjacentHTML|document\\.write|eval\\("
    assert not re.search(forbidden, script["text"])
    rules = dict(
        rule.split(maxsplit=1)
        for rule in parsed.named("meta")[1]["attributes"]["content"].split("; ")
    )
    assert (rules["default-src"], rules["connect-src"]) == ("'none'", connect)
    for source, element in (("script-src", script), ("style-src", style)):
        digest = b64encode(sha256(element["text"].encode()).digest()).decode()
        assert rules[source] == f"'sha256-{digest}'"


def contrast(one, other):
    """Of two colours "#rrggbb", by WCAG 2.2's definition."""
    light = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        light.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_and_lines_stand_out_from_what_is_behind_them(scheme, whole):
    style = Parsed(whole).named("style")[0]["text"]
    colours = dict(
        re.findall(r"--([\w-]+): (#\w{6});", re.findall(r":root \{([^}]+)\}", style)[scheme])
    )
    behind = "paper", "soft", "answer-soft", "gold-soft", "passage-soft"
    for name in ("ink", "muted"):
        assert min(contrast(colours[name], colours[each]) for each in behind) >= 4.5
    for name in ("link", "gold", "answer", "passage", "wrong"):
        assert contrast(colours[name], colours["paper"]) >= 4.5


def test_a_page_is_the_same_each_time():
    assert render(example()) == render(example())


def test_ids_of_a_page_are_its_own_and_links_lead_somewhere(whole):
    elements = Parsed(whole).elements
    ids = [each["attributes"]["id"] for each in elements if "id" in each["attributes"]]
    assert len(set(ids)) == len(ids)
    written = {f"#document-{i + 1}" for i in range(120)}  # by the script
    for element in elements:
        link = element["attributes"].get("href", "#").partition("data:,")[0]
        assert link in ("", "#") or link[1:] in ids or link in written
        for name in element["attributes"].get("aria-labelledby", "").split():
            assert name in ids or name == "document-title"


def test_a_page_has_figures_with_intervals_and_baselines(whole):
    cells = [each["text"].split() for each in Parsed(whole).named("tr")]
    assert ["f1", "83.30", "76.00", "to", "90.00", "12.50", "the", "first", "words"] in cells
    assert ["ece", "0.0412", "–", "–"] in cells
    assert ["documents", "120", "–", "–"] in cells
    alone = render(Report("t", "s", figures=[Figure("mse", 3.25)], scale="in the unit"))
    assert "Scores, in the unit" in alone
    assert "interval" not in Parsed(alone).named("table")[0]["text"]


def test_every_chart_has_its_title_and_its_numbers_as_a_table(whole):
    charts = Parsed(whole).named("figure")
    for figure, chart in zip(charts, example().charts, strict=True):
        assert chart.title in figure["text"]
    assert re.findall(r"\d+", charts[4]["text"].rpartition("licence")[2]) == ["0", "0", "3"]
    text = render(Report("t", "s", charts=[Lines("Empty", "x", "y", {})]))
    assert "<img" not in text
    assert "Empty" in text


def test_the_worst_errors_are_those_of_most_confidence(whole):
    tables = {each["text"].split()[0]: each["text"] for each in Parsed(whole).named("table")}
    worst = re.findall(r"contract-(\d+)", tables["Worst"])
    wrong = sorted(range(0, 120, 3), key=lambda i: -(i * 37 % 100))
    assert list(map(int, worst)) == wrong[:10]
    doubtful = re.findall(r"contract-(\d+)", tables["Doubtful"])
    assert list(map(int, doubtful)) == list(range(0, 100, 10))
    assert "arXiv:1911.00068" in tables["Doubtful"]


def test_where_right_is_a_matter_of_degree_the_worst_score_least():
    scores = [0.5, 0.1, 0.9]
    found = [Document(f"d{i}", "", scores={"rouge1": s}) for i, s in enumerate(scores)]
    table = Parsed(render(Report("t", "s", documents=found))).named("table")[0]["text"]
    assert re.findall(r"d(\d)", table) == ["1", "0", "2"]
    assert "lowest rouge1" in table
    assert re.findall(r"\d+%", table) == ["10%", "50%", "90%"]


def test_a_report_of_one_sentence_is_a_page():
    text = render(Report("empty", "Nothing was answered."))
    assert "Nothing was answered." in text
    assert "<h2" not in text


def test_texts_of_the_worst_and_of_some_at_random_are_in_a_page_and_all_that_are_asked_for(
    monkeypatch,
):
    monkeypatch.setattr(page, "WORST", 3)
    monkeypatch.setattr(page, "DRAWN", 5)
    text = render(example())
    there = {i for i, row in enumerate(rows(text)) if "parts" in row}
    worst = sorted(range(0, 120, 3), key=lambda i: -(i * 37 % 100))[:3]
    doubtful = set(range(0, 100, 10))  # those that are listed
    assert there >= {*worst, *doubtful}
    assert len(there) == len({*worst, *doubtful}) + 5
    assert f"The texts of {len(there)} of 120 documents are in this page" in text
    assert all("Delaware" in row["gold"] for row in rows(text))
    text = render(example(), all_texts=True)
    assert [row["parts"] for row in rows(text)] == [[[0, each.text]] for each in documents()]
    assert "are in this page" not in text


def test_marks_of_the_same_characters_are_one_and_none_is_outside():
    text = "😀 e\u0301 👩\u200d👧 the laws of Delaware, USA"
    first, second = text.index("laws"), text.index("Delaware")
    marks = [
        Mark(first, second + 8, ANSWER, "answer"),
        Mark(second, len(text), GOLD, "place", 0.25),
        Mark(second, len(text), ANSWER, "place"),
        Mark(-5, 1, PASSAGE, "smile"),
        Mark(len(text), len(text) + 9, GOLD, "outside"),
    ]
    (row,) = rows(render(Report("t", "s", documents=[Document("d", "", text, marks=marks)])))
    assert [tuple(each.values()) for each in row["marks"]] == [
        (0, 1, "smile", ["passage"], None),
        (first, second + 8, "", ["answer"], None),
        (second, len(text), "place", ["gold", "answer"], 0.25),
    ]


def test_of_a_very_long_text_the_begin_and_what_is_around_marks_is_there():
    text = prose(50_000) + CLAUSE + prose(50_000)
    start = text.index(CLAUSE)
    marks = [Mark(start, start + 9, GOLD, "a"), Mark(start + 2500, len(text), ANSWER, "b")]
    document = Document("d", "", text, {"question": text}, text, text, False, marks=marks)
    (row,) = rows(render(Report("t", "s", documents=[document])))
    assert [place for place, _ in row["parts"]] == [0, start - 1000]
    assert all(text[place : place + len(part)] == part for place, part in row["parts"])
    assert [len(part) for _, part in row["parts"]] == [3000, 6500]
    assert row["characters"] == len(text)
    assert max(map(len, (row["gold"], row["answer"], row["asks"][0][1]))) == 20_000


def test_a_document_without_a_text_has_none():
    text = render(Report("t", "s", documents=[Document("d", "", gold="a", answer="")]))
    (row,) = rows(text)
    assert (row["gold"], row["answer"], row["asks"]) == ("a", "", [])
    assert "parts" not in row
    assert "are in this page" not in text
