"""A browser for the tests of a report's page."""

import os
import shutil
from importlib.util import find_spec

import pytest

from ldt.report.page import render

BROWSERS = "chromium chromium-browser google-chrome google-chrome-stable".split()


def found_browser():
    """The path of a Chromium; skips where there is none, or nothing to drive it."""
    if find_spec("playwright") is None:
        pytest.skip("playwright is not installed: pip install playwright")
    path = os.environ.get("LDT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium on this machine; LDT_BROWSER=/path/to/one names it")
    return path


@pytest.fixture(scope="module")
def browser():
    path = found_browser()
    from playwright.sync_api import sync_playwright

    arguments = ["--disable-gpu", "--disable-background-networking", "--disable-sync"]
    if os.name == "posix" and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # it refuses to be root's otherwise
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def shown(browser, tmp_path):
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
