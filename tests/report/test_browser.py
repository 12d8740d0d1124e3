"""The page of a report in a browser: sorting, finding, reading, keys, and what must not happen."""

import random
import re
import time

import pytest
from browsers import shown_text, violations
from report_examples import HOSTILE, example, hostile, prose

from ldt.report.html import visible
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Mark, Report

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def until(page, expression, value):
    """Wait until a JavaScript expression has a value. Playwright's own waiting evaluates text
    within the page, which the page's policy forbids."""
    end = time.monotonic() + 30
    while (found := page.evaluate(expression)) != value:
        assert time.monotonic() < end, f"{found!r} has not become {value!r}"
        time.sleep(0.02)


TITLE = "document.getElementById('document-title')?.textContent"
FOUND = "document.getElementById('found').textContent"


def ids(page):
    return page.locator("#table tbody th").all_inner_texts()


def count(page):
    return page.locator("#found").inner_text()


def head(page, name):
    return page.locator("#table thead th", has_text=re.compile(f"^{name}$"))


def opened(page):
    """The title of the document that is open, once it is."""
    page.wait_for_selector("#document:not([hidden]) h3")
    return page.locator("#document h3").inner_text()


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("Document", lambda i: i),
        ("Verdict", lambda i: i % 3 == 0),  # right before wrong, as in a dictionary
        ("f1", lambda i: i % 3 != 0),
        ("Confidence", lambda i: i * 37 % 100),
        ("Words", lambda i: i),
        ("Doubt", lambda i: i % 10 != 0),  # those without one last
    ],
)
def test_every_column_sorts_both_ways(shown, column, key):
    page = shown(example())
    button = head(page, column).get_by_role("button")
    button.click()
    assert head(page, column).get_attribute("aria-sort") == "ascending"
    assert ids(page) == [f"contract-{i}" for i in sorted(range(120), key=key)[:50]]
    button.press("Enter")
    assert head(page, column).get_attribute("aria-sort") == "descending"
    falling = sorted(range(120), key=key, reverse=True)
    if column == "Doubt":
        falling = sorted(range(120), key=key)
    assert [key(int(each.split("-")[1])) for each in ids(page)] == list(map(key, falling[:50]))
    button.press("Space")
    assert head(page, column).get_attribute("aria-sort") == "ascending"
    assert page.locator("[aria-sort]").count() == 1


def test_search_finds_in_ids_answers_questions_and_texts(shown):
    found = [
        Document("alpha", "", f"{prose(2000)} Ärger {prose(2000)}", {"question": "Who?"}, "x", "y"),
        Document("beta", "", prose(50), {"question": "Which <b>law</b>?"}, "gold one", "an answer"),
        Document("gamma", "", prose(50), notes=["odd"]),
    ]
    page = shown(Report("t", "s", documents=found))
    for needle, names in (
        ("ALPHA", ["alpha"]),
        ("<b>law", ["beta"]),
        ("a\u0308rger", ["alpha"]),  # composed there
        ("GOLD one", ["beta"]),
        ("odd", ["gamma"]),
        ("nowhere", []),
        ("", ["alpha", "beta", "gamma"]),
    ):
        page.fill("#search", needle)
        listed = "[...document.querySelectorAll('#table tbody th')].map((each) => each.textContent)"
        until(page, listed, names)
        assert count(page) == f"{len(names)} of 3 documents"


def test_marks_differ_by_their_lines_and_are_announced(shown):
    text = "one two three four five"
    marks = [
        Mark(4, 7, GOLD, "gold"),
        Mark(8, 13, ANSWER, "PER", 0.5),
        Mark(14, 18, PASSAGE, "why"),
    ]
    page = shown(Report("t", "s", documents=[Document("d", "", text, marks=marks)]), "#document-1")
    opened(page)
    styles = page.evaluate(
        """() => [...document.querySelectorAll('#document .text mark')]
        .map((each) => getComputedStyle(each).textDecorationStyle)"""
    )
    assert styles == ["solid", "dashed", "dotted"]
    assert page.locator("#document .legend mark").all_inner_texts() == ["gold", "answer", "passage"]
    said = page.evaluate("() => document.querySelector('#document .text').textContent")
    assert said == (
        "one  [gold] two [end of gold]   [answer: PER 50%] three [end of PER]  "
        " [passage: why] four [end of why]  five"
    )


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_marks_every_character_is_there_once_and_in_its_marks(shown, seed):
    random_ = random.Random(seed)
    text = "😀 e\u0301 " + prose(random_.choice([3, 300, 3000]), seed)
    marks = []
    for i in range(random_.randrange(1, 12)):
        start = random_.randrange(len(text))
        end = min(start + random_.choice([1, 20, 400, 5000]), len(text))
        marks.append(Mark(start, end, random_.choice([GOLD, ANSWER, PASSAGE]), f"m{i}"))
    page = shown(Report("t", "s", documents=[Document("d", "", text, marks=marks)]), "#document-1")
    opened(page)
    assert shown_text(page) == text
    for kind in (GOLD, ANSWER, PASSAGE):
        places = {p for m in marks if m.kind == kind for p in range(m.start, m.end)}
        marked = "".join(page.locator(f"#document .text mark.{kind}").all_text_contents())
        assert marked == "".join(text[place] for place in sorted(places))


def test_keys_go_through_the_documents(shown):
    page = shown(example())
    page.locator("#filters label", has_text="Wrong").click()
    first = page.locator("#table tbody a").first
    first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "contract-3"
    page.keyboard.press("Enter")
    assert opened(page) == "contract-3"
    assert page.evaluate("document.activeElement.id") == "document-title"
    assert page.locator("#table [aria-current=true] th").inner_text() == "contract-3"
    for key, title in (("j", "contract-6"), ("j", "contract-9"), ("k", "contract-6")):
        page.keyboard.press(key)
        until(page, TITLE, title)
    page.keyboard.press("Escape")
    assert page.locator("#document").is_hidden()
    assert page.evaluate("document.activeElement.textContent") == "contract-6"
    page.locator("#search").focus()
    page.keyboard.press("j")
    assert page.locator("#search").input_value() == "j", "in a field a letter is a letter"


def test_hostile_text_is_inert(shown):
    page = shown(hostile(), "#document-1")
    assert opened(page) == visible(HOSTILE)
    page.fill("#search", "<script>alert")
    until(page, FOUND, "1 of 1 document")
    assert page.locator("img:not([src^='data:'])").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("#document .text mark").all_text_contents() == [visible(HOSTILE)]
    page.locator("#document details").evaluate_all("all => all.forEach((each) => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_scrolls_sideways_and_no_scheme_bars_anyone(shown, width, scheme):
    page = shown(example(), color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for _ in range(2):  # closed, then with a document open and all details
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
        page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        page.evaluate("location.hash = '#document-4'")
        assert opened(page) == "contract-3"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = min(map(int, re.findall(r"\d+", background))) > 200
    assert light is (scheme == "light")


def test_without_a_script_figures_charts_and_tables_are_there(shown):
    page = shown(example(), java_script_enabled=False)
    assert page.locator("#figures").is_visible()
    assert page.locator("figure img").count() == 5
    assert page.locator("noscript").inner_text().startswith("The documents")
    assert page.locator("#browse").is_hidden()
    page.locator("summary").first.click()
    assert page.locator("details table").first.is_visible()
