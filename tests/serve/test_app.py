"""Requests of the clients that there are, over HTTP, and their answers beside ldt predict's."""

import base64
import json
import math
import random
import re
import shutil
import threading
from contextlib import ExitStack

import numpy as np
import pytest
from recipe_data import LINES
from served import LONG, assert_same, make_run, predicted

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
from serving import post, running  # noqa: E402

from ldt import load  # noqa: E402
from ldt.serve.limits import ServerLimits  # noqa: E402
from ldt.serve.model import Served  # noqa: E402

WORDS = "the party of this agreement ends and other first part".split()


@pytest.fixture
def client(monkeypatch):
    """`InferenceClient` of an address here, which it may call though the hub is out of reach."""
    from huggingface_hub import InferenceClient, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return InferenceClient


def scores(answer):
    """An answer of ldt predict in TEI's shape."""
    best = sorted(answer["scores"].items(), key=lambda item: -item[1])
    return [{"score": score, "label": label} for label, score in best]


@pytest.fixture(scope="module")
def expected(runs, tmp_path_factory):
    """The answers of ldt predict for some texts, by text."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 90))) for _ in range(30)]
    texts += [LONG, "like"]
    records = [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    answers = predicted(runs("classification"), records, tmp_path_factory.mktemp("predicted"))
    return dict(zip(texts, answers, strict=True))


def test_the_curl_lines_of_tei_are_answered(serve, expected):
    """As its documentation has them, byte for byte."""
    here = serve("classification")
    one = b'{"inputs":"like"}'
    status, body = here.raw(post("/predict", one))
    assert status == 200
    assert_same(json.loads(body), scores(expected["like"]))
    # curl sends this type with -H 'Content-Type: application/json', and Accept: */*
    status, body = here.raw(
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: curl/8.5.0\r\nAccept: */*"
        b"\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n" + one
    )
    assert_same(json.loads(body), scores(expected["like"]))
    batch = b'{"inputs":[["like"],["like"]]}'
    status, body = here.raw(post("/predict", batch))
    assert_same(json.loads(body), [scores(expected["like"])] * 2)


def test_answers_are_those_of_predict_alone_in_a_batch_and_under_load(serve, expected):
    here, texts = serve("classification"), list(expected)
    wanted = [scores(answer) for answer in expected.values()]
    alone = [here.ask("/predict", {"inputs": text})[1] for text in texts]
    assert_same(alone, wanted)
    assert_same(here.ask("/predict", {"inputs": [[text] for text in texts]})[1], wanted)
    found = {}

    def caller(number):
        order = random.Random(number).sample(range(len(texts)), len(texts))
        got = {at: here.ask("/predict", {"inputs": texts[at]})[1] for at in order}
        found[number] = [got[at] for at in range(len(texts))]

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        assert_same(found[number], wanted)


@pytest.mark.nightly
def test_an_exported_model_is_served(tokenizer_folder, tmp_path):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    from exported import make_run

    from ldt.export import export

    run = make_run(tokenizer_folder, tmp_path / "run", "classification")
    export(str(run), tmp_path / "exported")
    records = [{"id": f"d{n}", "text": text} for n, text in enumerate(("like", LONG))]
    wanted = predicted(run, records, tmp_path)
    with running(Served(str(tmp_path / "exported"), runtime="onnx")) as here:
        assert_same(here.ask("/answer", {"documents": records})[1], wanted)
        status, found, _ = here.ask("/answer", {"text": "a", "passages": 1})
        assert status == 422
        assert "has no gradients" in found["error"]
        chunks = {"text": LONG, "passages": 1, "passages_by": "chunks"}
        assert here.ask("/answer", chunks)[0] == 200


@pytest.mark.parametrize("path", ["", "/predict"])
def test_inference_client_classifies(path, serve, expected, client):
    here = serve("classification")
    found = client(here.url + path).text_classification(LONG)
    assert_same([{"score": e.score, "label": e.label} for e in found], scores(expected[LONG]))
    (best,) = client(here.url).text_classification(LONG, top_k=1)
    assert best.label == expected[LONG]["label"]
    raw = client(here.url).text_classification(LONG, function_to_apply="none")
    assert sum(e.score for e in raw) != pytest.approx(1)


def test_inference_client_finds_entities(serve, runs, tmp_path, client):
    text = "It is Party of the first part. " * 12
    (answer,) = predicted(runs("token_classification"), [{"text": text}], tmp_path)
    here = serve("token_classification")
    found = client(here.url).token_classification(text)
    assert len(found) == len(answer["entities"]) > 3
    for one, other in zip(found, answer["entities"], strict=True):
        assert (one.start, one.end, one.word) == (other["start"], other["end"], other["text"])
        assert one.entity_group == other["label"]
        assert abs(one.score - other["score"]) <= 2e-5
        assert text[one.start : one.end] == one.word
    assert client(here.url).token_classification(text, ignore_labels=["PER"]) == []


def test_inference_client_answers_questions(serve, runs, tmp_path, client):
    record = {"question": "who?", "context": LONG}
    (answer,) = predicted(runs("triviaqa"), [record], tmp_path, n_best=3)
    here = serve("triviaqa")
    found = client(here.url).question_answering(**record)
    assert (found.answer, found.start, found.end) == tuple(answer[k] for k in SPAN)
    several = client(here.url).question_answering(**record, top_k=3)
    assert [(e.answer, e.start, e.end) for e in several] == [
        tuple(each[k] for k in SPAN) for each in answer["n_best"]
    ]


SPAN = ("answer", "start", "end")


@pytest.fixture
def changed(runs, tmp_path):
    """A function that serves the run of a task with other values in its config."""
    with ExitStack() as stack:

        def serve(name, **values):
            folder = shutil.copytree(runs(name), tmp_path / name)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | values))
            return stack.enter_context(running(Served(str(folder))))

        yield serve


def test_several_labels_at_once_are_sigmoids(changed):
    here = changed("classification", problem_type="multi_label_classification")
    raw = here.ask("/predict", {"inputs": LONG, "raw_scores": True})[1]
    body = {"inputs": LONG, "parameters": {"function_to_apply": "sigmoid"}}
    for found in (here.ask("/predict", {"inputs": LONG})[1], here.ask("/", body)[1][0]):
        wanted = [each | {"score": 1 / (1 + math.exp(-each["score"]))} for each in raw]
        assert_same(found, wanted)
    body["parameters"]["function_to_apply"] = "softmax"
    status, found, _ = here.ask("/predict", body)
    assert status == 422
    assert "answers by sigmoid" in found["error"]


def test_no_answer_is_an_answer_unless_the_caller_wants_none(changed, client):
    here = changed("squad", no_answer_threshold=0.0)
    record = {"question": "who?", "context": LONG}
    own = here.ask("/answer", record)[1]
    assert own["answer"] == ""
    found = client(here.url).question_answering(**record)
    assert (found.answer, found.start, found.end) == ("", 0, 0)
    assert found.score == pytest.approx(own["no_answer"], abs=2e-5)
    found = client(here.url).question_answering(**record, handle_impossible_answer=False)
    assert (found.answer, found.start, found.end) == tuple(
        own[k] for k in ("best", "best_start", "best_end")
    )
    several = client(here.url).question_answering(**record, top_k=2)
    assert [each.answer for each in several] == ["", own["best"]]


def test_inference_client_summarizes(serve, client):
    found = client(serve("summarization").url).summarization("the party agrees. it ends.")
    assert isinstance(found.summary_text, str)


@pytest.mark.parametrize(
    ("task", "route", "options"),
    [
        ("classification", "answer", {"passages": 2, "chunks": True, "raw_scores": True}),
        ("token_classification", "entities", {"passages": 1}),
        ("squad", "answer", {"n_best": 3, "passages": 1}),
        ("triviaqa", "answer", {}),
        ("wikihop", "answer", {"n_best": 2}),
        ("multiple_choice", "answer", {}),
        ("reranking", "answer", {"raw_scores": True}),
        ("hotpotqa", "answer", {}),
        ("evidence_classification", "answer", {}),
        ("coreference", "coreference", {"resolved": True}),
        ("summarization", "summarize", {}),
    ],
)
def test_own_routes_give_the_answers_of_predict(task, route, options, serve, runs, tmp_path):
    records = [{"id": f"d{n}"} | LINES[task](n) for n in range(1, 5)]
    wanted = predicted(runs(task), records, tmp_path, **options)
    here = serve(task)
    status, found, headers = here.ask(f"/{route}", {"documents": records} | options)
    assert status == 200
    for each in found:
        assert each["chunks"] >= 1
        wanted[found.index(each)].setdefault("chunks", each["chunks"])
    by_name = [dict(sorted(each.items())) for each in found]
    assert_same(by_name, [dict(sorted(each.items())) for each in wanted])
    assert headers["x-chunks"] == ",".join(str(each["chunks"]) for each in found)


@pytest.mark.parametrize("task", ["multiple_choice", "wikihop"])
def test_choices_are_ranked(task, serve):
    fields = {"query": "who?", "candidates": ["yes", "no", "both"], "context": LONG[:400]}
    status, found, _ = serve(task).ask("/rank", fields)
    assert status == 200
    ranking = found["ranking"]
    assert sorted(each["index"] for each in ranking) == [0, 1, 2]
    assert [each["text"] for each in ranking] == [
        fields["candidates"][each["index"]] for each in ranking
    ]
    assert [e["score"] for e in ranking] == sorted((e["score"] for e in ranking), reverse=True)
    assert found["answer"] == ranking[0]["text"]
    assert "n_best" not in found
    assert len(serve(task).ask("/rank", fields | {"n_best": 2})[1]["ranking"]) == 2


def test_texts_are_ranked_as_tei_and_as_cohere_have_it(serve, runs, tmp_path):
    texts = ["the party agrees", LONG[:900], "no"]
    (wanted,) = predicted(runs("reranking"), [{"query": "who?", "documents": texts}], tmp_path)
    pairs = [(place, wanted["scores"][place]) for place in wanted["ranking"]]
    assert wanted["chunks"] > 3
    here = serve("reranking")
    status, found, headers = here.ask("/rerank", {"query": "who?", "texts": texts})
    assert status == 200
    assert_same(found, [{"index": place, "score": score} for place, score in pairs])
    assert max(map(int, headers["x-chunks"].split(","))) == wanted["chunks"]
    body = {"query": "who?", "texts": texts, "return_text": True, "raw_scores": True}
    for each, (place, score) in zip(here.ask("/rerank", body)[1], pairs, strict=True):
        assert (each["index"], each["text"]) == (place, texts[place])
        assert 1 / (1 + math.exp(-each["score"])) == pytest.approx(score, abs=2e-5)
    documents = [{"text": texts[0]}, *texts[1:]]
    body = {"model": "m", "query": "who?", "documents": documents, "top_n": 2}
    for path in ("/v1/rerank", "/v2/rerank"):
        results = here.ask(path, body | {"return_documents": True})[1]["results"]
        best = [
            {"index": n, "relevance_score": score, "document": {"text": texts[n]}}
            for n, score in pairs[:2]
        ]
        assert_same(results, best)
    assert here.ask("/info")[1]["model_type"]["reranker"]["id2label"] == {"0": "relevance"}
    for path, body, status in (
        ("/rerank", {"query": "who?", "texts": []}, 400),
        ("/v1/rerank", {"query": "who?", "documents": texts, "max_tokens_per_doc": 9}, 422),
    ):
        assert here.ask(path, body)[0] == status
    assert serve("classification").ask("/rerank", {"query": "a", "texts": ["b"]})[0] == 424


def test_vectors_have_the_shapes_of_tei_and_of_openai(serve, runs):
    texts = ["the party", "this agreement ends. " * 30, "The party agrees. Nobody else does!"]
    model, here = load(str(runs("embedding"))), serve("embedding")
    expected = np.concatenate([answer["vectors"] for answer in model(texts)])
    for path in ("/embed", "/"):  # InferenceClient.feature_extraction posts to the root
        body = {"inputs": texts, "normalize": True, "truncate": False}
        status, vectors, headers = here.ask(path, body)
        np.testing.assert_allclose(vectors, expected, atol=2e-5)
    assert int(headers["x-compute-tokens"]) > 64
    assert np.allclose(here.ask("/embed", {"inputs": texts[0]})[1], expected[:1], atol=2e-5)
    parts = here.ask("/embed", {"inputs": texts[2], "unit": "sentence"})[1][0]
    late = model.with_(unit="sentence")(texts[2])
    assert [[part["start"], part["end"]] for part in parts] == late["spans"] == [[0, 17], [18, 35]]
    np.testing.assert_allclose([x["embedding"] for x in parts], late["vectors"], atol=2e-5)
    queries = here.ask("/embed", {"inputs": texts[0], "prompt_name": "query"})[1]
    np.testing.assert_allclose(queries, model({"query": texts[0]})["vectors"], atol=2e-5)
    for encoding in ("float", "base64"):
        body = {"input": texts, "model": "any", "encoding_format": encoding}
        answer = here.ask("/v1/embeddings", body)[1]
        vectors = [each["embedding"] for each in answer["data"]]
        if encoding == "base64":
            vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
        np.testing.assert_allclose(vectors, expected, atol=2e-5)
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert answer["usage"]["total_tokens"] == sum(answer["tokens"] for answer in model(texts))
    assert here.ask("/info")[1]["model_type"] == {"embedding": {"pooling": "mean"}}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {"inputs": "a", "dimensions": 4}, "dimensions=4: the vectors were trained with"),
        ("/embed", {"inputs": []}, "inputs cannot be empty"),
        ("/embed", {"inputs": [[1, 2]]}, "inputs: input should be a valid string"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input: a text is empty"),
    ],
)
def test_vectors_that_are_not_there_are_refused(serve, path, body, message):
    status, answer, _ = serve("embedding").ask(path, body)
    assert status in (400, 422)
    assert message in answer["error"]
    assert serve("classification").ask(path, body)[0] == 424


def test_clusters_need_a_document_and_a_model_of_them(serve):
    for task, path, body, message in [
        ("coreference", "/coreference", {"documents": []}, "documents cannot be empty"),
        ("coreference", "/coreference", {"tokens": "one"}, "tokens"),
        ("classification", "/coreference", {"text": "a"}, "/coreference is for a model of"),
        ("classification", "/answer", {"text": "a", "resolved": True}, "have no clusters"),
    ]:
        status, answer, _ = serve(task).ask(path, body)
        assert 400 <= status < 500
        assert message in answer["error"]


def test_a_document_is_cut_only_where_the_request_says_so(serve):
    here = serve("classification")
    whole = here.ask("/answer", {"text": LONG})[1]
    cut = here.ask("/answer", {"text": LONG, "truncate": True})[1]
    assert whole["chunks"] > 5
    assert "truncated" not in whole
    assert cut["chunks"] == 1
    assert cut["truncated"] is True
    status, found, _ = serve("summarization").ask("/summarize", {"text": LONG})
    assert status == 422
    assert "would not be read" in found["error"]
    assert serve("summarization").ask("/summarize", {"text": LONG, "truncate": True})[0] == 200


def test_tokens_have_their_places(serve):
    status, (tokens,), _ = serve("classification").ask("/tokenize", {"inputs": "the party"})
    assert status == 200
    assert [t["special"] for t in tokens][:1] == [True]
    inside = [t for t in tokens if not t["special"]]
    assert [t["text"] for t in inside] == ["the party"[t["start"] : t["stop"]] for t in inside]
    assert "".join(t["text"] for t in inside).replace(" ", "") == "theparty"
    body = {"inputs": ["a", "b"], "add_special_tokens": False}
    found = serve("classification").ask("/tokenize", body)[1]
    assert len(found) == 2
    assert not any(t["special"] for text in found for t in text)


def test_a_browser_gets_the_page_and_others_an_empty_answer(serve):
    here = serve("classification")
    status, content, headers = here.ask("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert content.startswith(b"<!doctype html>")
    assert "default-src 'none'" in headers["content-security-policy"]
    for accept in ("*/*", "application/json"):
        assert here.ask("/", headers={"Accept": accept})[:2] == (200, b"")


def test_info_names_limits_and_no_path(serve, runs):
    status, info, _ = serve("classification").ask("/info")
    assert status == 200
    assert info["model_id"] == "classification"
    assert info["model_type"]["classifier"]["id2label"] == {"0": "a", "1": "b"}
    assert info["max_client_batch_size"] == 32
    assert (info["auto_truncate"], info["max_input_length"]) == (False, None)
    assert str(runs("classification").parent) not in json.dumps(info)


def test_parts_of_a_text_and_a_cut_are_those_of_the_training(tiny_longformer, tmp_path):
    keys = {"text": ["title", "body"], "overflow": "truncate", "stride": 0}
    run = make_run(tiny_longformer, tmp_path / "run", "classification", **keys)
    with running(Served(str(run))) as here:
        whole = here.ask("/answer", {"text": "a title\n\na body"})[:2]
        assert here.ask("/answer", {"title": "a title", "body": "a body"})[:2] == whole
        assert whole[0] == 200
        status, said, _ = here.ask("/answer", {"title": "a title"})
        assert (status, "no field 'body'" in said["error"]) == (422, True)
        assert here.ask("/info")[1]["max_input_length"] == 64
        status, said, _ = here.ask("/answer", {"text": "word " * 200})
        assert '"truncate": true has it cut' in said["error"]
        assert here.ask("/answer", {"text": "word " * 200, "truncate": True})[1]["truncated"]


def test_the_openapi_document_names_the_routes_and_is_one(serve):
    found = serve("squad").ask("/openapi.json")[1]
    assert found["openapi"].startswith("3.1")
    assert {"/predict", "/answer", "/coreference", "/tokenize", "/info"} <= set(found["paths"])
    assert {"question", "context", "passages", "resolved"} <= set(
        found["components"]["schemas"]["Native"]["properties"]
    )
    text = json.dumps(found)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in found["components"]["schemas"]
    for path in found["paths"]:
        method = "POST" if "post" in found["paths"][path] else "GET"
        assert serve("squad").ask(path, b"{}" if method == "POST" else None)[0] != 404


def test_metrics_count_by_the_names_of_tei(runs):
    with running(Served(str(runs("classification"))), ServerLimits(documents=4)) as here:
        assert here.ask("/predict", {"inputs": "a"})[0] == 200
        assert here.ask("/predict", {"inputs": [["a"], ["b"]]})[0] == 200
        assert here.ask("/predict", {"inputs": [["a"]] * 5})[0] == 422
        assert here.ask("/predict", {})[0] == 422
        text = here.ask("/metrics")[1].decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    assert lines['te_request_count{method="single"}'] == "1"
    assert lines['te_request_count{method="batch"}'] == "1"
    assert lines['te_request_success{method="batch"}'] == "1"
    assert lines['te_request_failure{err="batch_size"}'] == "1"
    assert lines['te_request_failure{err="validation"}'] == "1"
    assert lines["te_predict_success"] == "3"
    assert lines["te_request_duration_count"] == "2"
    assert lines["te_predict_duration_count"] == "3"
    assert lines['te_request_input_length_bucket{le="+Inf"}'] == "3"
    assert int(lines["te_batch_next_size_count"]) >= 2
    assert lines["te_queue_size"] == "0"
