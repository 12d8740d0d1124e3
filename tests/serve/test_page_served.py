"""The page on servers that run a model: what it shows is what `ldt predict` answers."""

import json

import pytest
from browsers import Watched, browser, shown_text  # noqa: F401
from served import LONG, assert_same, predicted

pytestmark = pytest.mark.browser

QUESTION = "when does this agreement end?"
# Characters that JavaScript counts twice, and lines, before what the model reads.
TEXT = "😀 𝔄cme Ltd.\nIt pays rent.\n" + LONG
SHOWN = 300  # marks in a document
CHOICES = ["in May", "in June", "never"]
ASKED = {
    "classification": ({}, {"text": TEXT}, {"passages": 3}),
    "squad": ({"question": QUESTION}, {"question": QUESTION, "context": TEXT}, {"passages": 3}),
    "token_classification": ({}, {"text": TEXT}, {}),
    "multiple_choice": (
        {"question": QUESTION, "choices": "\n".join(CHOICES)},
        {"question": QUESTION, "choices": CHOICES, "context": TEXT},
        {"passages": 3},
    ),
    "summarization": ({}, {"text": "the parties agree."}, {}),
}


@pytest.fixture
def opened(browser, serve):  # noqa: F811
    """A function that opens the page of a task's server; nobody else was asked, nothing failed."""
    pages, urls = Watched(browser), []

    def open_page(name):
        urls.append(serve(name).url)
        shown = pages.open(urls[-1])
        shown.locator("#ask:not([disabled])").wait_for()
        return shown

    yield open_page
    pages.close()
    assert pages.said == []
    assert [url for url in pages.asked if not url.startswith((*urls, "data:,"))] == []


def answered(shown, text, fields=()):
    """The answer that the page has in JSON, once it is there."""
    for name, value in dict(fields).items():
        shown.fill(f"#field-{name}", value)
    shown.fill("#text", text)
    shown.locator("#ask").click()
    shown.locator("#status", has_text="Answered in").wait_for()
    return json.loads(shown.locator("details pre").text_content())


def places(answer):
    """Where the spans of an answer are that the page marks."""
    spans = [*answer.get("entities", ()), *answer.get("passages", ())]
    spans += [answer] if answer.get("answer") and "start" in answer else []
    return [(each["start"], each["end"]) for each in spans[:SHOWN]]


@pytest.mark.parametrize("task", ASKED)
def test_it_shows_what_predict_answers(task, opened, runs, tmp_path):
    fields, record, options = ASKED[task]
    text = record.get("context", record.get("text"))
    shown = opened(task)
    found = answered(shown, text, fields)
    (right,) = predicted(runs(task), [{"id": 1} | record], tmp_path, **options)
    right.setdefault("windows", 1)
    ranking = found.pop("ranking", None)
    assert_same(dict(sorted(found.items())), dict(sorted(right.items())))
    if ranking:
        best = [text for _, text in sorted(zip(right["scores"], CHOICES, strict=True))[::-1]]
        assert [each["text"] for each in ranking] == best
        assert shown.locator("tbody th").all_inner_texts() == best
    if isinstance(right.get("scores"), dict):
        best = sorted(right["scores"], key=lambda label: -right["scores"][label])
        assert shown.locator("tbody th").all_inner_texts() == best
        assert right["label"] == best[0]
    if spans := places(right):
        assert shown_text(shown) == text
        covered = {place for start, end in spans for place in range(start, end)}
        marked = "".join(shown.locator(".text > mark").all_text_contents())
        assert marked == "".join(text[place] for place in sorted(covered))
    verdict = right.get("summary", right.get("answer", right.get("label")))
    if "entities" in right:
        verdict = f"{len(right['entities'])} entities"
    assert shown.locator("#verdict").text_content() == verdict
