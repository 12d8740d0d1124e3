"""The page of a report in a browser: sorting, finding, reading, keys, and what must not happen."""

import re
import time

import pytest
from report_examples import HOSTILE, documents, example, hostile, prose

from ldt.report.escaping import visible
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Mark, Report
from ldt.report.page import render

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


def test_filters_leave_what_they_say_and_the_count_is_told(shown):
    page = shown(example())
    assert page.locator("#found").get_attribute("role") == "status"
    assert count(page) == "120 of 120 documents"
    for name, number in (("Right", 80), ("Wrong", 40), ("Doubtful", 12), ("With notes", 18)):
        page.locator("#filters label", has_text=name).click()
        assert count(page) == f"{number} of 120 documents"
    page.locator("#filters label", has_text="Wrong").click()
    assert set(page.locator("#table .verdict").all_inner_texts()) == {"wrong"}
    page.get_by_role("radio", name="Wrong").press("ArrowLeft")
    assert count(page) == "80 of 120 documents"


def test_search_finds_in_ids_answers_questions_and_folded_texts(shown):
    found = [
        Document("alpha", "", f"{prose(2000)} Ärger {prose(2000)}", {"question": "Who?"}, "x", "y"),
        Document("beta", "", prose(50), {"question": "Which <b>law</b>?"}, "gold one", "an answer"),
        Document("gamma", "", prose(50), notes=["odd"]),
    ]
    page = shown(Report("t", "s", documents=found))
    for needle, names in (
        ("ALPHA", ["alpha"]),
        ("<b>law", ["beta"]),
        ("a\u0308rger", ["alpha"]),  # in a fold, composed there
        ("GOLD one", ["beta"]),
        ("odd", ["gamma"]),
        ("nowhere", []),
        ("", ["alpha", "beta", "gamma"]),
    ):
        page.fill("#search", needle)
        listed = "[...document.querySelectorAll('#table tbody th')].map((each) => each.textContent)"
        until(page, listed, names)
        assert count(page) == f"{len(names)} of 3 documents"


def test_pages_of_the_table_turn(shown):
    page = shown(example())
    assert len(ids(page)) == 50
    assert page.locator("#back").is_disabled()
    page.click("#forth")
    assert ids(page)[0] == "contract-50"
    page.click("#forth")
    assert ids(page) == [f"contract-{i}" for i in range(100, 120)]
    assert page.locator("#page").inner_text() == "Page 3 of 3"
    assert page.locator("#forth").is_disabled()


def test_a_document_shows_its_texts_marks_and_folds(shown):
    page = shown(example())
    page.locator("#table a[href='#document-4']").click()
    assert opened(page) == "contract-3"
    article = page.locator("#document")
    assert "Which law governs?" in article.inner_text()
    assert article.locator(".side.gold .value").inner_text() == "Delaware"
    assert article.locator(".side.answer .value").inner_text() == "laws of Delaware"
    assert article.locator(".text mark.gold").all_inner_texts() == ["Delaware"]
    assert article.locator(".text mark.answer").all_inner_texts() == ["laws of ", "Delaware"]
    folds = article.locator(".fold button")
    assert folds.count() == 2
    folds.first.press("Enter")
    folds.first.press("Enter")
    assert folds.count() == 0
    whole = page.evaluate(
        """() => { const text = document.querySelector('#document .text').cloneNode(true);
        text.querySelectorAll('.tag, .hidden').forEach((each) => each.remove());
        return text.textContent; }"""
    )
    assert whole == documents(4)[3].text


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


def test_a_mark_in_a_fold_is_told_when_it_is_unfolded(shown):
    text = prose(5000)
    marks = [Mark(100, 20_000, PASSAGE, "long"), Mark(10_000, 10_010, GOLD, "gold")]
    page = shown(Report("t", "s", documents=[Document("d", "", text, marks=marks)]), "#document-1")
    opened(page)
    while page.locator(".fold button").count():
        page.locator(".fold button").first.click()
    assert page.locator("#document .tag").all_text_contents() == [
        " [passage: long] ",
        " [gold] ",
    ]
    assert (
        "".join(page.locator("#document .text mark.gold").all_text_contents())
        == text[10_000:10_010]
    )
    assert (
        "".join(page.locator("#document .text mark.passage").all_text_contents())
        == text[100:20_000]
    )


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


def test_the_tab_key_reaches_all_controls_and_is_seen(shown):
    page = shown(example(documents=documents(3)))
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
        outline = page.evaluate(
            """() => { const each = document.activeElement;
            const seen = each.type === 'radio' ? each.nextElementSibling : each;
            return getComputedStyle(seen).outlineStyle; }"""
        )
        if page.evaluate("document.activeElement === document.body"):
            break
        assert outline == "solid", reached
    assert reached[0] == "Skip to the documents"
    panes = page.locator(".scroll:visible")
    assert panes.count() == 5, "figures, a table, two lists, the documents"
    for i in range(panes.count()):
        scrolls, stops = panes.nth(i).evaluate(
            """(each) => [each.scrollWidth > each.clientWidth
            || each.scrollHeight > each.clientHeight, each.tabIndex === 0]"""
        )
        assert scrolls is stops, "the tab key stops at what scrolls, and only at that"
    reached = reached[reached.index("search") :]  # the lists of errors have links too
    order = [
        reached.index(name) for name in ("search", "No.", "Document", "contract-0", "contract-2")
    ]
    assert order == sorted(order)


def test_names_of_buttons_are_said_without_their_arrows(shown):
    page = shown(example())
    assert page.get_by_role("button", name="Confidence", exact=True).count() == 1
    assert page.get_by_role("searchbox", name="Search in ids").count() == 1
    assert page.get_by_role("img", name="Confusion", exact=True).count() == 1
    assert page.get_by_role("table", name="By class").count() == 1


def test_a_link_to_a_document_opens_it_whatever_is_filtered(shown):
    page = shown(example(), "#document-90")
    assert opened(page) == "contract-89"
    assert "contract-89" in ids(page)
    page.locator("#filters label", has_text="Right").click()
    page.locator("a[href='#document-31']").first.click()  # among the doubtful labels; it is wrong
    until(page, TITLE, "contract-30")
    assert count(page) == "120 of 120 documents"


def test_hostile_text_is_inert(shown):
    page = shown(hostile(), "#document-1")
    assert opened(page) == visible(HOSTILE)
    page.fill("#search", "<script>alert")
    until(page, FOUND, "1 of 1 document")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("#document .text mark").all_text_contents() == [visible(HOSTILE)]
    page.locator("#document details").evaluate_all("all => all.forEach((each) => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_smuggled_in_is_not_run(shown):
    """The policy holds where escaping would not."""
    page = shown(example())
    page.evaluate(
        """() => { const each = document.createElement('div');
        each.innerHTML = '<details open ontoggle="document.title=1"></details>'
          + '<p style="color:red">p</p>';
        document.body.append(each);
        const script = document.createElement('script');
        script.textContent = 'document.title = 2';
        document.body.append(script); }"""
    )
    page.wait_for_timeout(200)
    assert page.title() == "contracts"
    assert page.evaluate(
        "getComputedStyle(document.querySelector('div:last-of-type p')).color"
    ) != ("rgb(255, 0, 0)")
    refused = [each for each in shown.said if "Content Security Policy" in each]
    assert len(refused) == len(shown.said) == 3, "a handler, a style and a script"
    shown.said.clear()


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_scrolls_sideways_and_no_scheme_bars_anyone(shown, width, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    page = shown(example(), color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for _ in range(2):  # closed, then with a document open and all folds of the page unfolded
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(page).response["violations"]
        told = [(each["id"], each["help"], each["nodes"][0]["html"][:200]) for each in found]
        assert told == []
        page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        page.evaluate("location.hash = '#document-4'")
        assert opened(page) == "contract-3"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = min(map(int, re.findall(r"\d+", background))) > 200
    assert light is (scheme == "light")


def test_colours_of_charts_follow_the_scheme(shown):
    colours = {}
    for scheme in ("light", "dark"):
        page = shown(example(), color_scheme=scheme)
        colours[scheme] = page.evaluate(
            """() => ['.chart .fill-ink', '.chart .stroke-c0'].map((each) => {
            const style = getComputedStyle(document.querySelector(each));
            return each.includes('fill') ? style.fill : style.stroke; })"""
        )
    assert colours["light"] == ["rgb(27, 31, 36)", "rgb(0, 114, 178)"]
    assert not set(colours["light"]) & set(colours["dark"])


def test_print_shows_the_document_and_no_controls(shown):
    page = shown(example(), "#document-4", color_scheme="dark")
    opened(page)
    page.emulate_media(media="print")
    for selector in (".controls", ".pager", "#document .bar", ".fold button >> nth=0"):
        assert page.locator(selector).is_hidden()
    assert page.locator("#document .text").is_visible()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    left = page.evaluate("getComputedStyle(document.querySelector('.fold'), '::after').content")
    assert re.fullmatch(r'"[\d,]+ characters left out"|"[\d,]+ characters" " left out"', left), left
    assert page.pdf()[:4] == b"%PDF"


def test_without_a_script_figures_charts_and_tables_are_there(shown):
    page = shown(example(), java_script_enabled=False)
    assert page.locator("#figures").is_visible()
    assert page.locator("svg.chart").count() == 5
    assert page.locator("noscript").inner_text().startswith("The documents")
    assert page.locator("#browse").is_hidden()
    page.locator("summary").first.click()
    assert page.locator("details table").first.is_visible()


def test_a_line_of_ten_megabytes_does_not_hold_up_the_page(shown):
    document = Document("d", "", "x" * 10_000_000, gold="a", answer="b", right=False)
    page = shown(Report("t", "s", documents=[document, Document("e", "", "y")]), "#document-1")
    assert opened(page) == "d"
    button = page.locator(".fold button")
    assert button.inner_text() == "Show the next 20,000 of 9,998,800 characters"
    button.click()
    assert button.inner_text() == "Show the next 20,000 of 9,978,800 characters"
    assert page.evaluate("document.querySelector('#document .text').textContent.length") < 30_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#next").click()
    until(page, TITLE, "e")


def test_no_character_is_cut_where_a_fold_stops(shown):
    text = "😀" * 1200 + "x" + "😀" * 30_000  # two units each; the fold begins with the letter
    page = shown(Report("t", "s", documents=[Document("d", "", text)]), "#document-1")
    opened(page)
    page.locator(".fold button").click()
    spans = page.locator("#document .text > span:not(.fold)").all_text_contents()
    assert spans == ["x" + "😀" * 10_000]


@pytest.mark.slow
def test_a_thousand_contracts_open(shown, capsys):
    """How large and how fast is printed; it is a matter of the machine."""
    many = [
        Document(
            f"contract-{i}",
            f"c.jsonl:{i}",
            prose(8000, i),
            gold="a",
            answer="b",
            right=i % 4 > 0,
            marks=[
                Mark(k * 9000, k * 9000 + 80, [GOLD, ANSWER, PASSAGE][k % 3], "m") for k in range(5)
            ],
        )
        for i in range(1000)
    ]
    report = example(documents=many)
    start = time.perf_counter()
    size = len(render(report).encode())
    rendered = time.perf_counter() - start
    page = shown(report)
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete / 1000")
    start = time.perf_counter()
    page.fill("#search", "contract-999")
    until(page, FOUND, "1 of 1,000 documents")
    searched = time.perf_counter() - start
    assert size <= 5_000_000
    with capsys.disabled():
        print(
            f"\n1,000 contracts: {size / 1e6:.2f} MB, written in {rendered:.1f} s, "
            f"opened in {loaded:.2f} s, first search {searched:.2f} s"
        )
