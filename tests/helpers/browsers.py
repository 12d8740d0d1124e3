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
