"""Rankings of a collection by the vectors of a model, here and by mteb."""

import json
import random

import numpy as np
import pytest
from served import LONG, make_run

import ldt
from ldt import cli
from ldt.benchmarks.retrieval import read_run
from ldt.inference.retrieval import MtebModel, mine

DOCUMENTS = {
    "d1": "The red fox runs over the hill. " * 12,
    "d2": "A blue whale swims in the sea. " * 3,
    "d3": "An owl sees at night.",
    "d4": "",
}
QUERIES = {"q1": "Where does the fox run?", "q2": "What swims in the sea?"}
QRELS = {"q1": "d1", "q2": "d2"}


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collection")
    (folder / "qrels").mkdir()
    for name, texts in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    rows = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t1" for q, d in QRELS.items())]
    (folder / "qrels" / "test.tsv").write_text("\n".join(rows))
    return str(folder)


@pytest.fixture(scope="module")
def run(tiny_longformer, tmp_path_factory):
    """Maker of runs by the keys of their task."""

    def run(name="embedding", task=""):
        return str(make_run(tiny_longformer, tmp_path_factory.mktemp("run"), name, task))

    return run


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_definition(folder, query, **options):
    """Similarity of each document to a query: the largest of its vectors' cosines with each vector
    of the query, in the mean or, of tokens, their sum."""
    asked = unit(ldt.load(folder)({"query": query})["vectors"])
    answers = ldt.load(folder, **options)([{"text": text} for text in DOCUMENTS.values()])
    scores = {}
    for id, answer in zip(DOCUMENTS, answers, strict=True):
        rows = answer["vectors"]
        best = (asked @ unit(rows).T).max(1) if len(rows) else np.zeros(len(asked))
        scores[id] = float(best.sum() if len(asked) > 1 else best.mean())
    return scores


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("", {}),
        ("prompts: {query: 'q: '}", {"unit": "chunk", "unit_tokens": 10}),
        ("vectors: tokens", {}),
    ],
)
def test_documents_have_the_score_of_their_best_vector(
    run, collection, tmp_path, capsys, task, options
):
    folder, target = run(task=task), tmp_path / "a.run"
    keys = [f"{name}={value}" for name, value in options.items()]
    with pytest.raises(SystemExit) as end:
        cli.main(["evaluate", folder, *keys, "--gold", collection, "--rankings", str(target)])
    assert end.value.code == 0
    rankings = read_run(str(target))
    for query, text in QUERIES.items():
        assert rankings[query] == pytest.approx(by_definition(folder, text, **options), abs=1e-5)
    out = capsys.readouterr().out
    assert "trec: 2 queries, 2 predicted" in out
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "--gold", collection, "--pred", str(target), "--format", "trec"])
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("classification", [], "answers of classification are no vectors"),
        ("embedding", ["unit=word"], "unit"),
        ("embedding", ["--format", "trec"], "--format: no option of a collection"),
    ],
)
def test_what_does_not_suit_a_collection_is_refused(run, collection, capsys, name, more, expected):
    with pytest.raises(SystemExit) as end:
        cli.main(["evaluate", run(name), *more, "--gold", collection])
    assert end.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """File of queries with one or two right documents, the first query in two lines; all texts."""
    draw, words = random.Random(0), LONG.split()
    texts = [f"{n} " + " ".join(draw.choices(words, k=draw.randint(4, 12))) for n in range(30)]
    rows = [{"query": f"the {texts[n][:20]}", "pos": texts[n : n + 1 + n % 2]} for n in range(20)]
    rows.append({"anchor": rows[0]["query"], "positive": texts[25], "negative": texts[26]})
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file), [*dict.fromkeys(text for row in rows[:-1] for text in row["pos"])] + texts[
        25:27
    ]


@pytest.mark.parametrize(
    "keys",
    [{}, {"margin": 0.1, "negatives": 5}, {"ranks": (2, 7), "negatives": 9}],
    ids=["best", "margin", "ranks"],
)
def test_negatives_are_the_similar_documents_that_are_not_right(run, pairs, tmp_path, keys):
    source, texts = pairs
    folder, target = run(), tmp_path / "mined.jsonl"
    mine(source, str(target), model=folder, **keys)
    model = ldt.load(folder)
    vectors = {text: unit(model(text)["vectors"])[0] for text in texts}
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(lines) == 20
    assert lines[0]["pos"] == [texts[0], texts[-2]]
    first, last = keys.get("ranks", (0, 100))
    for line in lines:
        asked = unit(model({"query": line["query"]})["vectors"])[0]
        scores = {text: float(asked @ vector) for text, vector in vectors.items()}
        least = min(scores[text] for text in line["pos"])
        most = least - abs(least) * keys["margin"] if "margin" in keys else 1
        wrong = sorted(scores.keys() - {*line["pos"]}, key=scores.get, reverse=True)[: last + 2]
        wrong = [text for text in wrong if scores[text] <= most][first:last]
        assert line["neg"] == wrong[: keys.get("negatives", 3)]
    assert any(line["neg"] for line in lines)


def test_negatives_of_a_collection_are_mined_by_bm25(collection, tmp_path):
    pytest.importorskip("bm25s")
    mine(collection, str(tmp_path / "mined.jsonl"), negatives=1)
    first, second = map(json.loads, (tmp_path / "mined.jsonl").read_text().splitlines())
    assert first["pos"] == [DOCUMENTS["d1"]]
    assert len(first["neg"]) == 1
    assert second == {"query": QUERIES["q2"], "pos": [DOCUMENTS["d2"]], "neg": second["neg"]}


def test_what_mteb_asks_of_a_model(run):
    """A vector for each text where it asks for vectors, documents of their own to choose among."""
    folder = run(task="prompts: {query: 'q: '}")
    model, plain = MtebModel(folder), ldt.load(folder)
    role = type("PromptType", (), {"value": "query"})
    for name, key in ((None, "text"), (role, "query")):
        got = model.encode([{"text": ["a fox", "a whale"]}, {"text": ["an owl"]}], prompt_type=name)
        wanted = [plain({key: text})["vectors"][0] for text in ("a fox", "a whale", "an owl")]
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_allclose(model.similarity(got, got), got @ got.T, atol=1e-5)
    np.testing.assert_allclose(model.similarity_pairwise(got, got), np.ones(3), atol=1e-5)
    model.index([{"id": id, "title": "", "text": text} for id, text in DOCUMENTS.items()])
    asked = [{"id": id, "text": text} for id, text in QUERIES.items()]
    wanted = {query: by_definition(folder, text) for query, text in QUERIES.items()}
    best = {query: sorted(scores, key=scores.get)[::-1][:2] for query, scores in wanted.items()}
    assert {query: [*scores] for query, scores in model.search(asked, top_k=2).items()} == best
    chosen = model.search(asked, top_k=1, top_ranked={"q1": ["d3", "d9"], "q2": ["d4", "d1"]})
    assert chosen["q1"] == pytest.approx({"d3": wanted["q1"]["d3"]}, abs=1e-5)
    assert [*chosen["q2"]] == ["d4", "d1"]


def test_mteb_evaluates_a_run(run, collection):
    """By the vectors of chunks, as the command does, and in pairs of texts by one vector each."""
    mteb = pytest.importorskip("mteb")
    import datasets
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    from ldt.inference.retrieval import evaluate

    options = {"unit": "chunk", "unit_tokens": 10}
    folder = run()
    model = MtebModel(folder, **options)
    task = mteb.get_task("LEMBQMSumRetrieval")
    rows = [{"id": id, "title": "", "text": text} for id, text in DOCUMENTS.items()]
    split = RetrievalSplitData(
        corpus=datasets.Dataset.from_list(rows),
        queries=datasets.Dataset.from_list([{"id": q, "text": x} for q, x in QUERIES.items()]),
        relevant_docs={query: {document: 1} for query, document in QRELS.items()},
        top_ranked=None,
    )
    task.dataset, task.data_loaded = {"default": {"test": split}}, True
    result = mteb.evaluate(model, [task], cache=None, overwrite_strategy="always")
    theirs = result.task_results[0].scores["test"][0]
    ours = evaluate(folder, collection, options=options).metrics
    for name in ("ndcg_at_10", "mrr_at_10", "recall_at_1"):
        assert 100 * theirs[name] == pytest.approx(ours[name.replace("_at_", "@")], abs=1e-3)
