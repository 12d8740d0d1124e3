"""The server's page: its headers, and what people see of a server that the tests make up."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browsers import Watched, browser, shown_text, violations  # noqa: F401
from report_examples import HOSTILE

from ldt.report.html import visible

EMOJI = "😀 The tenant, 𝔄cme Ltd, pays\r\nrent in May. It ends in June."
TEXT = EMOJI.replace("\r\n", "\n")  # as a browser sends it
INFO = {"model_id": "contracts", "task": "classification", "max_chunk_length": 4096}


def place(words):
    """A span as an answer has it, in characters."""
    start = TEXT.index(words)
    return {"start": start, "end": start + len(words), "text": words, "score": 0.75}


LABELLED = {
    "id": 1,
    "label": "lease",
    "scores": {"lease": 0.9, "loan": 0.1},
    "chunks": 3,
    "passages": [place("pays\nrent in May."), place("rent")],
}


class Server(ThreadingHTTPServer):
    """A server of the page.

    Attributes:
        info: what /info answers.
        answers: route -> function of a body that gives (status, body of the answer).
        asked: (route, body, headers) of each POST.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.info, self.answers, self.asked, self.key = INFO, {}, [], None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def reply(self, status, body, headers):
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def as_json(self, status, value):
        self.reply(status, json.dumps(value).encode(), {"content-type": "application/json"})

    def refused(self):
        if self.server.key and self.headers["authorization"] != f"Bearer {self.server.key}":
            self.reply(401, b"", {})
            return True
        return False

    def do_GET(self):
        if self.path == "/":
            from ldt.serve.app import page

            self.reply(200, page().body, dict(page().headers))
        elif not self.refused():
            self.as_json(200, self.server.info)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body, dict(self.headers)))
        if not self.refused():
            self.as_json(*self.server.answers[self.path.strip("/")](body))

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = Server()
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def opened(browser, server):  # noqa: F811
    """A function that opens the page; afterwards nothing was said, and nobody else was asked."""
    pages = Watched(browser)

    def open_page(**options):
        return pages.open(server.url, **options)

    open_page.said = pages.said
    yield open_page
    pages.close()
    # Chromium tells of any 4xx.
    assert [each for each in pages.said if "status of 4" not in each] == []
    assert [url for url in pages.asked if not url.startswith((server.url, "data:,"))] == []


def ask(shown, text=TEXT, **fields):
    for name, value in fields.items():
        shown.fill(f"#field-{name}", value)
    shown.fill("#text", text)
    shown.locator("#ask:not([disabled])").click()
    shown.locator("#result:not([hidden])").wait_for()


def marks(shown, kind):
    return shown.locator(f".text mark.{kind}").all_text_contents()


@pytest.mark.browser
def test_a_document_is_classified_with_its_passages_where_they_are(server, opened):
    server.answers["answer"] = lambda body: (200, LABELLED)
    shown = opened()
    ask(shown, EMOJI)
    assert server.asked[0][:2] == ("/answer", {"text": TEXT, "passages": 3})
    assert shown.locator("#verdict").inner_text() == "lease"
    assert shown.locator("#model").inner_text() == "contracts"
    assert "read in 3 chunks" in shown.locator("#status").inner_text()
    assert shown.locator("tbody th").all_inner_texts() == ["lease", "loan"]
    assert marks(shown, "passage") == ["pays\n", "rent", " in May."]
    assert shown_text(shown) == TEXT
    assert shown.locator(".jump").all_text_contents() == ["pays\nrent in May.", "rent"]
    shown.locator(".jump").first.click()
    assert shown.evaluate("document.activeElement.id") == "mark-0"


@pytest.mark.browser
def test_the_lines_of_a_text_are_ranked_by_a_query(server, opened):
    server.info = INFO | {"task": "reranking"}
    best = [{"index": n, "score": 0.9 - n, "text": text} for n, text in ((1, "lease"), (0, "loan"))]
    server.answers["rerank"] = lambda body: (200, best)
    shown = opened()
    ask(shown, "loan\n\n lease ", query="rent")
    body = {"return_text": True, "texts": ["loan", "lease"], "query": "rent"}
    assert server.asked[0][:2] == ("/rerank", body)
    assert shown.locator("#verdict").inner_text() == "lease"
    assert shown.locator("tbody th").all_inner_texts() == ["lease", "loan"]


@pytest.mark.browser
def test_hostile_text_is_inert(server, opened):
    text = HOSTILE.replace("\0", "")
    there = {"start": 0, "end": len(text), "text": text, "label": text}
    server.info = INFO | {"model_id": text, "task": "token_classification"}
    server.answers["entities"] = lambda body: (200, {"entities": [there], text: text})
    shown = opened()
    ask(shown, text)
    assert shown.locator("#model").text_content() == visible(text)
    assert marks(shown, "answer") == [visible(text)]
    assert shown.locator("img, main script").count() == 0
    assert shown.evaluate("document.scripts.length") == 1
    server.answers["entities"] = lambda body: (422, {"error": text, "error_type": text})
    shown.locator("#ask").click()
    shown.locator("#problem:not([hidden])").wait_for()
    assert shown.locator("#problem").text_content() == visible(text)


@pytest.mark.browser
def test_a_server_with_a_key_is_asked_with_it(server, opened):
    server.key = "secret"
    server.answers["answer"] = lambda body: (200, LABELLED)
    shown = opened()
    shown.locator("#key-label:not([hidden])").wait_for()
    assert shown.locator("#problem").inner_text() == "The server wants its key."
    shown.fill("#key", "secret")
    shown.locator("#key").press("Tab")
    ask(shown)
    assert server.asked[0][2]["authorization"] == "Bearer secret"
    assert "secret" not in shown.evaluate("JSON.stringify([localStorage, sessionStorage])")


@pytest.mark.browser
def test_keys_and_files_do_all_of_it(server, opened, tmp_path):
    server.answers["answer"] = lambda body: (200, LABELLED)
    shown = opened()
    shown.locator("#ask:not([disabled])").wait_for()
    file = tmp_path / "contract.txt"
    file.write_bytes(EMOJI.encode())
    shown.set_input_files("#file", file)
    shown.locator("#status", has_text="contract.txt").wait_for()
    shown.locator("#text").press("Control+Enter")
    shown.locator("#result:not([hidden])").wait_for()
    assert server.asked[0][1]["text"] == TEXT
    assert shown.evaluate("document.activeElement.id") == "answered"
    dropped = shown.evaluate_handle(
        """() => { const data = new DataTransfer();
        data.items.add(new File(['dropped here'], 'b.txt', {type: 'text/plain'})); return data; }"""
    )
    shown.dispatch_event("body", "drop", {"dataTransfer": dropped})
    shown.locator("#status", has_text="b.txt").wait_for()
    assert shown.input_value("#text") == "dropped here"
    file.write_bytes(b"PK\0\1")
    shown.set_input_files("#file", file)
    shown.locator("#problem", has_text="contract.txt is no text file").wait_for()
    assert shown.input_value("#text") == "dropped here"


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1500])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_scrolls_sideways_and_no_scheme_bars_anyone(server, opened, width, scheme):
    server.answers["answer"] = lambda body: (200, LABELLED)
    shown = opened(color_scheme=scheme)
    shown.set_viewport_size({"width": width, "height": 900})
    for answered in (False, True):
        if answered:
            ask(shown)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(shown) == []
