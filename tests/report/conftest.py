"""A browser for the tests of a report's page."""

import pytest
from browsers import Watched, browser  # noqa: F401

from ldt.report.page import render


@pytest.fixture
def shown(browser, tmp_path):  # noqa: F811
    """A function that opens a report's page; afterwards nothing was said or asked for."""
    pages = Watched(browser)

    def show(report, fragment="", **options):
        path = tmp_path / f"{len(pages.contexts)}.html"
        path.write_text(render(report), "utf-8")
        return pages.open(path.as_uri() + fragment, **options)

    show.said = pages.said
    yield show
    pages.close()
    assert pages.said == [], "the console has something to say"
    assert [url for url in pages.asked if not url.startswith("file:")] == []
    assert len(pages.asked) == len(pages.contexts), "one request a page: the page itself"
