"""A browser for the tests of a report's page."""

import pytest
from browsers import browser  # noqa: F401

from ldt.report.page import render


@pytest.fixture
def shown(browser, tmp_path):  # noqa: F811
    """A function that opens a report's page; afterwards nothing was said or asked for."""
    said, asked, contexts = [], [], []

    def show(report, fragment="", **options):
        path = tmp_path / f"{len(contexts)}.html"
        path.write_text(render(report), "utf-8")
        contexts.append(browser.new_context(viewport={"width": 1300, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri() + fragment)
        return page

    show.said = said
    yield show
    for context in contexts:
        context.close()
    assert said == [], "the console has something to say"
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == len(contexts), "one request a page: the page itself"
