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


# name -> (bytes, status, error_type)
KINDS = {
    "no JSON": (predict(b"{inputs"), 400, "Validation"),
    "an empty body": (predict(b""), 400, "Validation"),
    "JSON that breaks off": (predict(b'{"inputs": "a'), 400, "Validation"),
    "more behind the JSON": (predict(b'{"inputs": "a"} {}'), 400, "Validation"),
    "lists 50,000 deep": (predict(b'{"inputs": ' + b"[" * 50_000), 400, "Validation"),
    "closed lists 50,000 deep": (
        predict(b'{"inputs": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        400,
        "Validation",
    ),
    "objects 20,000 deep": (predict(b'{"a":' * 20_000 + b"1" + b"}" * 20_000), 400, "Validation"),
    "lists 900 deep": (predict(b'{"inputs":' + b"[" * 900 + b"]" * 900 + b"}"), 400, "Validation"),
    "lists 30 deep": (
        post("/answer", b'{"text":' + b"[" * 30 + b"]" * 30 + b"}"),
        400,
        "Validation",
    ),
    "lists 10 deep": (
        post("/answer", b'{"text":' + b"[" * 10 + b"]" * 10 + b"}"),
        422,
        "Validation",
    ),
    "a key twice": (predict(b'{"inputs": "a", "inputs": "b"}'), 400, "Validation"),
    "NaN": (predict(b'{"inputs": NaN}'), 400, "Validation"),
    "Infinity": (predict(b'{"inputs": "a", "x": -Infinity}'), 400, "Validation"),
    "a float too large": (predict(b'{"inputs": 1e999}'), 400, "Validation"),
    "an integer of 10,000 digits": (predict(b'{"inputs": ' + b"9" * 10_000), 400, "Validation"),
    "an integer of 4,000 digits": (
        predict(b'{"inputs": "a", "parameters": {"top_k": ' + b"9" * 4_000 + b"}}"),
        422,
        "Validation",
    ),
    "bytes that are no UTF-8": (predict(b'{"inputs": "\xff\xfe"}'), 400, "Validation"),
    "UTF-16": (predict('{"inputs": "a"}'.encode("utf-16")), 400, "Validation"),
    "a byte order mark": (predict(b"\xef\xbb\xbf" + TEXT), 400, "Validation"),
    "a list": (predict([]), 422, "Validation"),
    "a text": (predict("a"), 422, "Validation"),
    "null": (predict(None), 422, "Validation"),
    "no inputs": (predict({}), 422, "Validation"),
    "a number as inputs": (predict({"inputs": 7}), 422, "Validation"),
    "null as inputs": (predict({"inputs": None}), 422, "Validation"),
    "inputs of numbers": (predict({"inputs": [[1], [2]]}), 422, "Validation"),
    "mixed inputs": (predict({"inputs": [["a"], "b", {"text": "c"}]}), 422, "Validation"),
    "objects and a number": (predict({"inputs": [{"text": "c"}, 3]}), 422, "Validation"),
    "an object of other fields": (predict({"inputs": {"txt": "a"}}), 422, "Validation"),
    "an object of wrong types": (predict({"inputs": {"text": {"a": 1}}}), 422, "Validation"),
    "a pair": (predict({"inputs": ["a", "b"]}), 422, "Validation"),
    "no documents": (predict({"inputs": []}), 400, "Empty"),
    "empty batches": (predict({"inputs": [[], []]}), 422, "Validation"),
    "too many inputs": (predict({"inputs": [["a"]] * 9}), 422, "Validation"),
    "25,000 inputs": (predict({"inputs": [["a"]] * 25_000}), 422, "Validation"),
    "100,000 empty lists": (predict(b'{"inputs":[' + b"[]," * 60_000 + b"[]]}"), 422, "Validation"),
    "an unknown key": (predict({"inputs": "a", "trucate": True}), 422, "Validation"),
    "truncate as text": (predict({"inputs": "a", "truncate": "yes"}), 422, "Validation"),
    "truncate from the left": (
        predict({"inputs": "a", "truncation_direction": "left"}),
        422,
        "Validation",
    ),
    "parameters as a list": (predict({"inputs": "a", "parameters": []}), 422, "Validation"),
    "top_k of -1": (predict({"inputs": "a", "parameters": {"top_k": -1}}), 422, "Validation"),
    "top_k of true": (predict({"inputs": "a", "parameters": {"top_k": True}}), 422, "Validation"),
    "a stride": (predict({"inputs": "a", "parameters": {"stride": 3}}), 422, "Validation"),
    "another function": (
        predict({"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}}),
        422,
        "Validation",
    ),
    "passages without number": (
        post("/answer", b'{"text": "a", "passages": 100000000}'),
        422,
        "Validation",
    ),
    "passages by occlusion": (
        post("/answer", b'{"text": "a", "passages": 1, "passages_by": "occlusion"}'),
        422,
        "Validation",
    ),
    "an id that is a list": (post("/answer", b'{"text": "a", "id": []}'), 422, "Validation"),
    "a field that is a path": (
        post("/answer", b'{"text": "a", "context_file": "../../etc/passwd"}'),
        422,
        "Validation",
    ),
    "sets of a share beyond 1": (
        post("/answer", b'{"text": "a", "label_sets": 7}'),
        422,
        "Validation",
    ),
    "a route of another task": (post("/entities", b'{"text": "a"}'), 424, "Backend"),
    "a ranking": (post("/rerank", b'{"query": "a", "texts": ["b"]}'), 424, "Backend"),
    "tokens of numbers": (post("/tokenize", b'{"inputs": [1, 2]}'), 422, "Validation"),
    "tokens of too many": (
        post("/tokenize", json.dumps({"inputs": ["a"] * 9}).encode()),
        422,
        "Validation",
    ),
    "another content type": (
        post("/predict", TEXT).replace(b"application/json", b"text/plain"),
        415,
        "Validation",
    ),
    "no content type": (
        post("/predict", TEXT).replace(b"Content-Type: application/json\r\n", b""),
        415,
        "Validation",
    ),
    "a gzip bomb": (
        predict(gzip.compress(b" " * 20_000_000), "Content-Encoding: gzip"),
        415,
        "Validation",
    ),
    "gzip that is not said": (predict(gzip.compress(TEXT)), 400, "Validation"),
    "a body too long": (predict({"inputs": "a" * 200_000}), 413, "Validation"),
    "a length too long": (predict(TEXT, "Content-Length: 99999999999"), 413, "Validation"),
    "chunks too long": (chunked(*[b"a" * 50_000] * 5), 413, "Validation"),
    "a length below zero": (predict(TEXT, "Content-Length: -1"), 400, "Validation"),
    "a length that is none": (predict(TEXT, "Content-Length: ten"), 400, "Validation"),
    "a length of too many digits": (
        predict(TEXT, "Content-Length: " + "9" * 5_000),
        400,
        "Validation",
    ),
    "two lengths": (
        predict(TEXT, "Content-Length: 15", "Content-Length: 16"),
        400,
        "Validation",
    ),
    "a body that does not come": (predict(b'{"inp', "Content-Length: 15"), 408, "Validation"),
    "chunks that do not end": (chunked(b'{"inp', end=b""), 408, "Validation"),
    "chunks of no size": (
        post("/predict", b"", "Transfer-Encoding: chunked") + b"zz\r\nabc\r\n",
        400,
        "Validation",
    ),
    "an unknown transfer": (
        post("/predict", b"", "Transfer-Encoding: rot13"),
        400,
        "Validation",
    ),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "Validation"),
    "no host": (
        b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
        + TEXT,
        400,
        "Validation",
    ),
    "another host": (
        predict(TEXT).replace(b"Host: 127.0.0.1", b"Host: evil.example"),
        403,
        "Forbidden",
    ),
    "a head too large": (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * 66_000,
        400,
        "Validation",
    ),
    "another method": (predict(TEXT).replace(b"POST", b"DELETE"), 405, "Validation"),
    "GET of /predict": (GET % b"/predict", 405, "Validation"),
    "an unknown method": (GET.replace(b"GET", b"FROB") % b"/predict", 405, "Validation"),
    "a path up": (GET % b"/../../etc/passwd", 404, "NotFound"),
    "a path up, escaped": (GET % b"/..%2f..%2fetc%2fpasswd", 404, "NotFound"),
    "a path with NUL": (GET % b"/predict%00", 404, "NotFound"),
    "a path that is no UTF-8": (GET % b"/%ff%fe", 404, "NotFound"),
    "a path of 60,000 letters": (GET % (b"/" + b"a" * 60_000), 404, "NotFound"),
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
    assert found["windows"] >= 1


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
