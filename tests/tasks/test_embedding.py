"""Queries with documents to inputs and labels, vectors to answers, and how they rank documents."""

import random
from math import log2
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer

from ldt.data.near_duplicates import fingerprint
from ldt.data.options import DataSection
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.tasks import TASKS
from ldt.tasks.base import metric_of, score_all
from ldt.tasks.embedding import Embedding

WORDS = "the party of first part and other agree that this agreement ends".split()
QUERY, RIGHT, WRONG = range(3)


def example(**fields):
    return Example(fields, "e", "t.jsonl:1")


LAYOUTS = {
    "lists": ({"query": "q", "pos": ["a", "b"], "neg": ["c"]}, ["a", "b", "c"], 2, None),
    "texts": ({"query": "q", "pos": "a", "neg": "c"}, ["a", "c"], 1, None),
    "titles": ({"query": "q", "pos": [{"title": "t", "text": "a"}]}, ["t a"], 1, None),
    "no negatives": ({"query": "q", "pos": ["a"], "neg": None}, ["a"], 1, None),
    "triplet": ({"anchor": "q", "positive": "a", "negative": "c"}, ["a", "c"], 1, None),
    "pair": ({"sentence1": "q", "sentence2": "a"}, ["a"], 1, None),
    "graded": ({"sentence1": "q", "sentence2": "a", "score": "2.5"}, ["a"], 1, [2.5]),
    "taught": (
        {"query": "q", "pos": ["a"], "neg": ["c"], "pos_scores": [3], "neg_scores": [-1.5]},
        ["a", "c"],
        1,
        [3.0, -1.5],
    ),
}
KINDS = {"graded": "graded", "taught": "kl"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_with_documents_are_read_as_they_are_published(layout, tokenizer_folder):
    fields, documents, right, scores = LAYOUTS[layout]
    task, data, tokenizer = (
        Embedding(),
        DataSection(),
        AutoTokenizer.from_pretrained(tokenizer_folder),
    )
    config = SimpleNamespace(**task.learn([example(**fields)], data))
    assert config.embedding["loss"] == KINDS.get(layout, "contrastive")
    assert metric_of(task, config) == ("spearman" if layout == "graded" else "ndcg@10")
    features = task.encode(example(**fields), tokenizer, data=data, max_length=20, config=config)
    assert [each["labels"] for each in features] == [
        QUERY,
        *[RIGHT] * right,
        *[WRONG] * (len(documents) - right),
    ]
    assert [each.get("scores") for each in features][1:] == (scores or [None] * len(documents))
    texts = [tokenizer.decode(each["input_ids"][1:-1]) for each in features]
    assert texts == ["q", *documents]
    gold = task.gold(example(**fields), data, config)
    assert gold["documents"] == [fingerprint(each) for each in documents]
    assert gold["right"] == right
    assert gold.get("score") == (2.5 if layout == "graded" else None)


REFUSED = [
    ({"query": "q"}, "no query and pos, anchor and positive, sentence1 and sentence2"),
    ({"query": "q", "pos": []}, "field 'pos': a list, empty, expected texts"),
    ({"query": "q", "pos": ["a", 3]}, "field 'pos': .*expected texts"),
    ({"query": "q", "pos": ["a"], "neg": ["c"], "pos_scores": [1]}, "no field 'neg_scores'"),
    ({"query": "q", "pos": ["a"], "pos_scores": [1, 2]}, "'pos_scores' is .*expected 1 numbers"),
    ({"sentence1": "q", "sentence2": "a", "score": "high"}, "'score' is 'high', expected 1 number"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_no_query_with_documents_is_refused_by_its_place(fields, message):
    with pytest.raises(DataError, match=f"^t.jsonl:1: .*{message}"):
        Embedding().learn([example(**fields)], DataSection())


def test_a_training_set_is_learnt_by_one_loss():
    pair = {"sentence1": "q", "sentence2": "a"}
    with pytest.raises(DataError, match="^t.jsonl:1: graded, examples before are contrastive"):
        Embedding().learn([example(**pair), example(**pair, score=1)], DataSection())


@pytest.mark.parametrize("name", ["embedding", "reranking"])
def test_an_evaluation_set_has_the_scores_that_are_learnt(name, tokenizer_folder):
    """By which its loss is computed."""
    task, data = TASKS[name](), DataSection()
    fields = {"query": "q", "pos": ["a"], "neg": ["c"]}
    taught = {"pos_scores": [3], "neg_scores": [1]}
    config = SimpleNamespace(**task.learn([example(**fields, **taught)], data))
    options = {"data": data, "max_length": 20, "config": config}
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert task.encode(example(**fields, **taught), tokenizer, **options)
    with pytest.raises(DataError, match="^t.jsonl:1: no scores, which the training set has"):
        task.encode(example(**fields), tokenizer, **options)


@pytest.fixture
def encode(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)

    def encode(fields, trained=True, data=None, max_length=20, **keys):
        task, data = Embedding(**keys), DataSection(**data or {})
        config = SimpleNamespace(**task.learn([example(**fields)], data)) if trained else None
        options = {"data": data, "max_length": max_length, "config": config}
        return tokenizer, task, task.encode(example(**fields), tokenizer, **options)

    return encode


def test_prompts_stand_in_front_and_queries_may_be_global(encode):
    prompts = {"query": "the ", "document": "and "}
    fields = {"query": "party", "pos": ["agree"]}
    tokenizer, _, (query, document) = encode(fields, prompts=prompts, global_attention=["query"])
    assert tokenizer.decode(query["input_ids"]) == "<s>the party</s>"
    assert tokenizer.decode(document["input_ids"]) == "<s>and agree</s>"
    assert query["global_attention_mask"] == [0, *[1] * (len(query["input_ids"]) - 2), 0]
    assert not any(document["global_attention_mask"])
    for trained in (True, False):
        first = encode(fields, trained, pooling="cls")[2][0]["global_attention_mask"]
        assert sum(first) == first[0] == 1
    assert not any(
        encode(fields, pooling="cls", global_attention=[])[2][0]["global_attention_mask"]
    )


def test_a_long_document_is_read_in_chunks_that_are_one_text(encode):
    fields = {"query": "party", "pos": [" ".join(WORDS * 2)], "neg": ["agree"]}
    for overflow, chunks in (("chunks", True), ("truncate", False)):
        features = encode(fields, data={"overflow": overflow})[2]
        texts = [feature["texts"] for feature in features]
        assert (texts.count(texts[1]) > 1) == chunks
        assert len(set(texts)) == 3
        assert features[1]["labels"] == features[-2]["labels"] == RIGHT
    _, task, features = encode(fields, data={"overflow": "truncate"})
    outputs = [{"vectors": np.ones((1, 4), np.float32)} for _ in features]
    flags = task.decode(outputs, None, example(**fields), features)
    assert flags["truncated"]
    assert flags["chunks"] == 1  # of each text
    assert flags["unread_tokens"] == features[1]["flags"]["unread_tokens"] > 0


def test_an_epoch_draws_some_negatives_of_each_query(encode):
    fields = {"query": "q", "pos": ["a", "b"], "neg": [" ".join(WORDS * 3), "c", "d", "e"]}
    _, task, features = encode(fields, negatives=2)
    drawn = set()
    for epoch in range(20):
        taken = task.draw(features, np.random.default_rng(epoch))
        assert [each["text"] for each in taken if each["labels"] != WRONG] == [0, 1, 2]
        wrong = [each["text"] for each in taken if each["labels"] == WRONG]
        assert len(set(wrong)) == 2
        assert wrong.count(3) in (0, sum(each["text"] == 3 for each in features))
        drawn |= set(wrong)
    assert drawn == {3, 4, 5, 6}
    assert encode(fields)[1].draw(features, np.random.default_rng(0)) == features


# ranking


def answers_and_golds(generator):
    """12 queries on documents of one to three vectors, some of which several queries have."""
    documents = {number: generator.standard_normal((1 + number % 3, 4)) for number in range(30)}
    answers, golds = [], []
    for _ in range(12):
        mine = generator.choice(30, 5, replace=False).tolist()
        query = generator.standard_normal((1 + len(golds) % 2, 4))
        answers.append({"query": query.tolist(), "documents": [documents[n] for n in mine]})
        golds.append({"documents": mine, "right": 1 + len(golds) % 3})
    return answers, golds


def similarity(query, document, total):
    rows = [[one / np.linalg.norm(one) for one in each] for each in (query, document)]
    best = [max(float(a @ b) for b in rows[1]) for a in map(np.array, rows[0])]
    return sum(best) if total else sum(best) / len(best)


@pytest.mark.parametrize("vectors", ["document", "tokens"])
def test_each_query_ranks_the_documents_of_all(vectors):
    answers, golds = answers_and_golds(np.random.default_rng(0))
    total, rows = vectors == "tokens", []
    pool = {}
    for answer, gold in zip(answers, golds, strict=True):
        pool |= zip(gold["documents"], answer["documents"], strict=True)
    for answer, gold in zip(answers, golds, strict=True):
        scores = {n: similarity(answer["query"], each, total) for n, each in pool.items()}
        ranking = sorted(scores, key=scores.__getitem__, reverse=True)[:10]
        right = gold["documents"][: gold["right"]]
        ranks = [rank for rank, n in enumerate(ranking, 1) if n in right]
        ideal = sum(1 / log2(rank + 1) for rank in range(1, len(right) + 1))
        rows.append(
            (
                sum(1 / log2(rank + 1) for rank in ranks) / ideal,
                1 / ranks[0] if ranks else 0,
                len(ranks) / len(right),
            )
        )
    found, _ = score_all(Embedding(vectors=vectors), answers, golds, None)
    want = dict(zip(("ndcg@10", "mrr@10", "recall@10"), 100 * np.mean(rows, 0), strict=True))
    assert found == pytest.approx(want, rel=1e-5)
    assert 10 < found["ndcg@10"] < 90


def test_graded_pairs_are_measured_by_their_order():
    generator = random.Random(0)
    angles = [0.1, 0.9, 0.5, 1.3]
    answers = [{"query": [[2.0, 0.0]], "documents": [[[np.cos(x), np.sin(x)]]]} for x in angles]
    wanted = [9.0, 2.0, 5.0, 1.0]
    golds = [{"documents": [n], "right": 1, "score": score} for n, score in enumerate(wanted)]
    assert score_all(Embedding(), answers, golds, None)[0] == {"spearman": pytest.approx(1)}
    generator.shuffle(wanted)
    golds = [gold | {"score": score} for gold, score in zip(golds, wanted, strict=True)]
    assert score_all(Embedding(), answers, golds, None)[0]["spearman"] < 0.9
