"""A browser for tests of pages."""

import os
import shutil
from importlib.util import find_spec

import pytest

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


def shown_text(page):
    """The text of the document that a page shows, without the names of its marks."""
    return page.locator(".text").evaluate(
        """(each) => { const text = each.cloneNode(true);
        text.querySelectorAll('.tag, .hidden').forEach((name) => name.remove());
        return text.textContent; }"""
    )


def violations(page):
    """What axe-core finds that bars people from a page; skips where it is not installed."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    found = axe.Axe().run(page).response["violations"]
    return [(each["id"], each["help"], each["nodes"][0]["html"][:200]) for each in found]


class Watched:
    """Pages of a browser, each in a context of its own.

    Attributes:
        said: on the consoles and in dialogs.
        asked: addresses of all requests.
        contexts: of the pages, in order.
    """

    def __init__(self, browser):
        self.browser, self.said, self.asked, self.contexts = browser, [], [], []

    def open(self, address, **options):
        """The page of an address, which may take its time."""
        screen = {"viewport": {"width": 1300, "height": 900}} | options
        self.contexts.append(self.browser.new_context(**screen))
        page = self.contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(address)
        return page

    def close(self):
        """Leave all of them."""
        for context in self.contexts:
            context.close()
