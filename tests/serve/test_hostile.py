"""Requests that mean no good: the code and the form of each, and an answer for who comes next."""

import gzip
import json

import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
from recipe_data import LINES  # noqa: E402
from serving import post, running  # noqa: E402

from ldt.serve.limits import ServerLimits  # noqa: E402
from ldt.serve.model import Served  # noqa: E402

LIMITS = ServerLimits(body=200_000, bodies=800_000, reading=1.0, documents=8, places=64)
TEXT = b'{"inputs": "a"}'
GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def predict(body, *more):
    return post("/predict", body if isinstance(body, bytes) else json.dumps(body).encode(), *more)


def chunked(*parts, end=b"0\r\n\r\n"):
    head = post("/predict", b"", "Transfer-Encoding: chunked")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


# (status, error_type) -> name -> bytes
REFUSED = {
    (400, "Validation"): {
        "no JSON": predict(b"{inputs"),
        "an empty body": predict(b""),
        "JSON that breaks off": predict(b'{"inputs": "a'),
        "more behind the JSON": predict(b'{"inputs": "a"} {}'),
        "lists 50,000 deep": predict(b'{"inputs": ' + b"[" * 50_000),
        "closed lists 50,000 deep": predict(b'{"inputs": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        "objects 20,000 deep": predict(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
        "lists 900 deep": predict(b'{"inputs":' + b"[" * 900 + b"]" * 900 + b"}"),
        "lists 30 deep": post("/answer", b'{"text":' + b"[" * 30 + b"]" * 30 + b"}"),
        "a key twice": predict(b'{"inputs": "a", "inputs": "b"}'),
        "NaN": predict(b'{"inputs": NaN}'),
        "Infinity": predict(b'{"inputs": "a", "x": -Infinity}'),
        "a float too large": predict(b'{"inputs": 1e999}'),
        "an integer of 10,000 digits": predict(b'{"inputs": ' + b"9" * 10_000),
        "bytes that are no UTF-8": predict(b'{"inputs": "\xff\xfe"}'),
        "UTF-16": predict('{"inputs": "a"}'.encode("utf-16")),
        "a byte order mark": predict(b"\xef\xbb\xbf" + TEXT),
        "gzip that is not said": predict(gzip.compress(TEXT)),
        "a length below zero": predict(TEXT, "Content-Length: -1"),
        "a length that is none": predict(TEXT, "Content-Length: ten"),
        "a length of too many digits": predict(TEXT, "Content-Length: " + "9" * 5_000),
        "two lengths": predict(TEXT, "Content-Length: 15", "Content-Length: 16"),
        "chunks of no size": post("/predict", b"", "Transfer-Encoding: chunked") + b"zz\r\nabc\r\n",
        "an unknown transfer": post("/predict", b"", "Transfer-Encoding: rot13"),
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "no host": post("/predict", TEXT).replace(b"Host: 127.0.0.1\r\n", b""),
        "a head too large": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * 66_000,
    },
    (422, "Validation"): {
        "lists 10 deep": post("/answer", b'{"text":' + b"[" * 10 + b"]" * 10 + b"}"),
        "an integer of 4,000 digits": predict(
            b'{"inputs": "a", "parameters": {"top_k": ' + b"9" * 4_000 + b"}}"
        ),
        "a list": predict([]),
        "a text": predict("a"),
        "null": predict(None),
        "no inputs": predict({}),
        "a number as inputs": predict({"inputs": 7}),
        "null as inputs": predict({"inputs": None}),
        "inputs of numbers": predict({"inputs": [[1], [2]]}),
        "mixed inputs": predict({"inputs": [["a"], "b", {"text": "c"}]}),
        "objects and a number": predict({"inputs": [{"text": "c"}, 3]}),
        "an object of other fields": predict({"inputs": {"txt": "a"}}),
        "an object of wrong types": predict({"inputs": {"text": {"a": 1}}}),
        "a pair": predict({"inputs": ["a", "b"]}),
        "empty batches": predict({"inputs": [[], []]}),
        "too many inputs": predict({"inputs": [["a"]] * 9}),
        "25,000 inputs": predict({"inputs": [["a"]] * 25_000}),
        "100,000 empty lists": predict(b'{"inputs":[' + b"[]," * 60_000 + b"[]]}"),
        "an unknown key": predict({"inputs": "a", "trucate": True}),
        "truncate as text": predict({"inputs": "a", "truncate": "yes"}),
        "truncate from the left": predict({"inputs": "a", "truncation_direction": "left"}),
        "parameters as a list": predict({"inputs": "a", "parameters": []}),
        "top_k of -1": predict({"inputs": "a", "parameters": {"top_k": -1}}),
        "top_k of true": predict({"inputs": "a", "parameters": {"top_k": True}}),
        "a stride": predict({"inputs": "a", "parameters": {"stride": 3}}),
        "another function": predict(
            {"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}}
        ),
        "passages without number": post("/answer", b'{"text": "a", "passages": 100000000}'),
        "passages by occlusion": post(
            "/answer", b'{"text": "a", "passages": 1, "passages_by": "occlusion"}'
        ),
        "an id that is a list": post("/answer", b'{"text": "a", "id": []}'),
        "a field that is a path": post(
            "/answer", b'{"text": "a", "context_file": "../../etc/passwd"}'
        ),
        "sets of a share beyond 1": post("/answer", b'{"text": "a", "label_sets": 7}'),
        "tokens of numbers": post("/tokenize", b'{"inputs": [1, 2]}'),
        "tokens of too many": post("/tokenize", json.dumps({"inputs": ["a"] * 9}).encode()),
    },
    (400, "Empty"): {
        "no documents": predict({"inputs": []}),
    },
    (424, "Backend"): {
        "a route of another task": post("/entities", b'{"text": "a"}'),
        "a ranking": post("/rerank", b'{"query": "a", "texts": ["b"]}'),
    },
    (415, "Validation"): {
        "another content type": post("/predict", TEXT).replace(b"application/json", b"text/plain"),
        "no content type": post("/predict", TEXT).replace(
            b"Content-Type: application/json\r\n", b""
        ),
        "a gzip bomb": predict(gzip.compress(b" " * 20_000_000), "Content-Encoding: gzip"),
    },
    (413, "Validation"): {
        "a body too long": predict({"inputs": "a" * 200_000}),
        "a length too long": predict(TEXT, "Content-Length: 99999999999"),
        "chunks too long": chunked(*[b"a" * 50_000] * 5),
    },
    (408, "Validation"): {
        "a body that does not come": predict(b'{"inp', "Content-Length: 15"),
        "chunks that do not end": chunked(b'{"inp', end=b""),
    },
    (403, "Forbidden"): {
        "another host": predict(TEXT).replace(b"Host: 127.0.0.1", b"Host: evil.example"),
    },
    (405, "Validation"): {
        "another method": predict(TEXT).replace(b"POST", b"DELETE"),
        "GET of /predict": GET % b"/predict",
        "an unknown method": GET.replace(b"GET", b"FROB") % b"/predict",
    },
    (404, "NotFound"): {
        "a path up": GET % b"/../../etc/passwd",
        "a path up, escaped": GET % b"/..%2f..%2fetc%2fpasswd",
        "a path with NUL": GET % b"/predict%00",
        "a path that is no UTF-8": GET % b"/%ff%fe",
        "a path of 60,000 letters": GET % (b"/" + b"a" * 60_000),
    },
}
KINDS = {
    name: (request, *refused)
    for refused, requests in REFUSED.items()
    for name, request in requests.items()
}


@pytest.fixture(scope="module")
def here(runs):
    with running(Served(str(runs("classification"))), LIMITS) as server:
        yield server


@pytest.mark.parametrize("name", KINDS)
def test_the_code_and_form_of_each_kind_and_the_next_request(name, here, runs, caplog):
    request, status, kind = KINDS[name]
    found, body = here.raw(request)
    assert found == status, body
    said = json.loads(body)
    assert list(said) == ["error", "error_type"]
    assert said["error_type"] == kind
    assert len(said["error"]) < 400
    text = body.decode()
    assert str(runs("classification").parent) not in text
    assert "Traceback" not in text
    assert "/etc/passwd" not in text
    assert "Traceback" not in caplog.text  # no bug behind it
    assert here.ask("/predict", {"inputs": "a"})[0] == 200


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\ud800 alone",
        "a\x00b\x1b[31m",
        "\u202e\u2066",
        "a" * 100_000,
        "\U0001f600" * 9_000,
    ],
    ids=["nothing", "space", "surrogate", "controls", "directions", "one word", "emoji"],
)
def test_odd_texts_are_answered(text, here):
    status, found, _ = here.ask("/answer", {"text": text})
    assert status == 200
    assert found["chunks"] >= 1


@pytest.mark.parametrize(
    "task", ["squad", "multiple_choice", "wikihop", "evidence_classification", "hotpotqa"]
)
@pytest.mark.parametrize(
    "value", [None, 7, True, "", [], {}, [[]], [None], {"a": []}, [1.5], ["a"]]
)
def test_fields_of_any_type_are_answered_or_refused(task, value, serve, caplog):
    here, record = serve(task), LINES[task](1)
    names = {"squad": ["question", "context"], "hotpotqa": ["question", "context"]}.get(
        task, list(record)
    )
    for name in names:
        status, found, _ = here.ask("/answer", {"documents": [record | {name: value}]})
        assert status in (200, 422), (name, found)
    assert "Traceback" not in caplog.text


def test_no_request_names_a_file(serve, tmp_path):
    (tmp_path / "secret.txt").write_text("the secret")
    record = {"question": "who?", "context_file": str(tmp_path / "secret.txt")}
    for body in (record, {"documents": [record]}):
        status, found, _ = serve("triviaqa").ask("/answer", body)
        assert status == 422
        assert "secret" not in str(found).replace(str(tmp_path), "")
