"""Documents ranked by a cross-encoder, read, encoded, drawn, learnt and answered."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import train
from transformers import AutoTokenizer, PretrainedConfig

from ldt.data.features import Drawn, Features
from ldt.errors import DataError
from ldt.inference.engine import Engine
from ldt.inference.evaluate import evaluate
from ldt.io.records import Example
from ldt.recipe import recipe
from ldt.recipe.recipe import DataSection
from ldt.tasks import Reranking
from ldt.tasks.base import score_all

TEXTS = ["the first part ends", "the other party", "agree"]
LONG = "the party of the first part and the other party agree " * 3
CONFIG = PretrainedConfig(problem_type=None, ranking={"loss": "listwise", "teacher": True})
DATA = DataSection(train="t.jsonl", eval="e.jsonl")


def record(**fields):
    return Example({"query": "the party"} | fields, "q", "train.jsonl:17")


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture
def encode(tiny):
    def encode(example, max_length=64, config=None, task=None, **data):
        data, task = DataSection(**data), task or Reranking()
        return task.encode(example, tiny, data=data, max_length=max_length, config=config)

    return encode


# reading


@pytest.mark.parametrize(
    ("fields", "data", "texts", "labels"),
    [
        ({"pos": ["a", "b"], "neg": ["c"]}, {}, ["a", "b", "c"], [1, 1, 0]),
        ({"pos": "a"}, {}, ["a"], [1]),
        ({"documents": ["a", "b"], "label": [2, 0]}, {}, ["a", "b"], [2, 0]),
        ({"document": "a", "label": "0.25"}, {}, ["a"], [0.25]),
        ({"pos": [{"title": "A", "text": "b"}], "neg": []}, {}, ["A b"], [1]),
        (
            {"positive_passages": [{"docid": 3, "text": "b"}], "negative_passages": ["c"]},
            {"fields": {"pos": "positive_passages", "neg": "negative_passages"}},
            *(["b", "c"], [1, 0]),
        ),
        ({"sentence2": "b", "score": 0.5}, {}, ["b"], [0.5]),
        ({"positive": "a", "negative": ["b", "c"]}, {}, ["a", "b", "c"], [1, 0, 0]),
        ({"hit": "b", "grade": 3}, {"text": "hit", "label": "grade"}, ["b"], [3]),
    ],
)
def test_records_of_training_files_are_read(fields, data, texts, labels):
    task, data = Reranking(), DataSection(**data)
    assert task.documents(record(**fields), data) == texts
    assert task.gold(record(**fields), data, CONFIG) == labels
    assert task.parts(record(**fields), data) == ("\n".join(texts), "the party")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no field 'pos'"),
        ({"query": " ", "pos": "a"}, "the question is empty"),
        ({"pos": [], "neg": ["a"]}, "field 'pos': a list, empty, expected texts, or objects of"),
        ({"pos": [1]}, "field 'pos': a list of 1, expected texts"),
        ({"documents": ["a", "b"]}, "no field 'label'"),
        ({"documents": ["a", "b"], "label": [1]}, "field 'label' is a list of 1, expected 2"),
        ({"documents": ["a"], "label": ["x"]}, "field 'label' is a list of 1, expected 1 numbers"),
        ({"documents": ["a"], "label": -1}, "relevance -1, expected 0 or more"),
        ({"pos": ["a"], "pos_scores": [1, 2]}, "field 'pos_scores' is a list of 2, expected 1"),
    ],
)
def test_what_cannot_be_read_is_a_data_error(encode, fields, message):
    with pytest.raises(DataError, match="train.jsonl:17: ") as caught:
        encode(record(**fields), config=CONFIG)
    assert message in str(caught.value)


def test_the_loss_is_chosen_by_the_records():
    several, pair = record(pos=["a"], neg=["b"]), record(document="a", label=0.5)
    learnt = Reranking(best_chunks=2).learn([pair, several], DATA)
    assert learnt["ranking"] == {"loss": "listwise", "teacher": False, "best_chunks": 2}
    assert (learnt["num_labels"], learnt["problem_type"]) == (1, None)
    learnt = Reranking().learn([pair], DATA)
    assert (learnt["ranking"]["loss"], learnt["problem_type"]) == ("pointwise", "regression")
    taught = record(pos=["a"], neg=["b"], pos_scores=[3], neg_scores=[1])
    assert Reranking().learn([taught], DATA)["ranking"]["teacher"]
    for wrong, message in (
        ([], "t.jsonl: no queries"),
        ([record(pos=["a", "b"])], "t.jsonl: no query has documents of which one is more rel"),
        ([record(document="a", label=2)], "17: relevance 2; a pointwise loss takes 0 to 1"),
        ([several, taught], "17: no pos_scores, which train.jsonl:17 has"),
    ):
        with pytest.raises(DataError, match=message):
            Reranking().learn(wrong, DATA)
    with pytest.raises(DataError, match="e.jsonl: one document a query, of which there is no ord"):
        Reranking().check([pair], DATA, CONFIG)


# encoding


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased"])
def test_an_input_is_that_of_the_tokenizer_for_two_texts(name, shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    example = record(query="Who?", documents=["Hello world!", "It is."])
    features = Reranking().encode(example, tokenizer, data=DataSection(), max_length=40)
    wanted = tokenizer(["Who?"] * 2, example.fields["documents"])
    for key, rows in wanted.items():
        if key != "attention_mask":
            assert [feature[key] for feature in features] == rows
    assert len(wanted) == (3 if name.startswith("bert") else 2)


def test_cls_and_query_are_global_and_stand_before_each_chunk(tiny, encode):
    whole = encode(record(documents=[LONG, *TEXTS]), max_length=128)
    features = encode(record(documents=[LONG, *TEXTS]), max_length=20, stride=2)
    head = 1 + len(tiny("the party", add_special_tokens=False)["input_ids"])
    for feature in features:
        mask = feature["global_attention_mask"]
        assert mask == [1] * head + [0] * (len(mask) - head)
        assert feature["input_ids"][:head] == whole[0]["input_ids"][:head]
        assert len(mask) <= 20
        assert feature["tokens"] == sum(len(each["input_ids"]) for each in whole)
    places = [feature["documents"] for feature in features]
    assert places == [0] * features[0]["chunks"] + [1, 2, 3]
    assert features[0]["chunks"] > 1
    (alone, *_) = encode(record(documents=TEXTS), task=Reranking(global_attention=["cls"]))
    assert sum(alone["global_attention_mask"]) == 1


def test_tokens_of_all_documents_that_go_unread_are_flagged(encode):
    example = record(documents=[LONG, "the party", LONG + LONG])
    whole = encode(example, max_length=256)
    cut = encode(example, max_length=20, overflow="truncate")
    lengths = [[len(each["input_ids"]) for each in features] for features in (whole, cut)]
    unread = sum(lengths[0]) - sum(lengths[1])
    assert [each["flags"] for each in cut] == [{"truncated": True, "unread_tokens": unread}] * 3
    assert encode(record(documents=[" ", ""]))[0]["flags"] == {"empty": True}
    assert encode(record(documents=["a", ""]))[0]["flags"] == {}


# training


def test_each_epoch_draws_a_relevant_document_and_others_that_are_less(encode):
    fields = {"pos": ["the first part", LONG], "neg": [f"party {n}" for n in range(9)]}
    fields |= {"pos_scores": [1, 2], "neg_scores": [*range(9)]}
    task = Reranking(group_size=4)
    parts = encode(record(**fields), max_length=20, config=CONFIG, task=task)
    features = Features(part | {"document": number} for number in range(2) for part in parts)

    def drawn(epoch, seed=0):
        items = Drawn(features, task.draw, seed)
        items.set_epoch(epoch)
        return [[part["documents"] for part in items[number]] for number in range(2)]

    seen = set()
    for epoch in range(40):
        for places in drawn(epoch):
            chunks = parts[1]["chunks"] if 1 in places else 1
            assert len(places) == 3 + chunks  # all chunks of a document
            assert len({0, 1} & {*places}) == 1
            assert len({*places}) == 4
            seen |= {*places}
    assert seen == {*range(11)}
    assert drawn(3) == drawn(3) != drawn(4)
    assert drawn(3) != drawn(3, seed=1)
    chosen = [part for part in parts if part["documents"] == 4]
    assert [(part["labels"], part["teacher"]) for part in chosen] == [(0, 2)]


def write(path):
    """Eight queries, whose relevant document has ZZ in it."""
    with path.open("w") as file:
        for number in range(8):
            others = ["the party", "ends", LONG, f"other {number}"][number % 2 :]
            fields = {"query": "x", "pos": [f"the ZZ {number}"], "neg": others}
            file.write(json.dumps({"id": f"q{number}"} | fields) + "\n")


@pytest.fixture
def asked(tmp_path, monkeypatch, tiny_longformer):
    """Function that gives a recipe with some keys changed."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "all.jsonl")
    (tmp_path / "r.yaml").write_text(
        f"""
task: {{name: reranking, group_size: 3}}
model: {{path: {tiny_longformer}}}
data: {{train: all.jsonl, eval: all.jsonl, max_length: 24}}
training: {{num_train_epochs: 2, per_device_train_batch_size: 4, learning_rate: 0.01}}
"""
    )
    return lambda *keys: recipe.load("r.yaml", [*keys], command="finetune")


@pytest.mark.parametrize("loss", ["listwise", "pointwise"])
@pytest.mark.slow
def test_eight_queries_are_learnt_and_answered_as_they_were_evaluated(asked, tmp_path, loss):
    keys = ["training.num_train_epochs=8", "training.output_dir=run", f"task.loss={loss}"]
    metrics = train(asked(*keys))
    assert metrics["eval_ndcg@10"] == pytest.approx(100)
    engine = Engine.open("run", precision="fp32")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    figures = [
        1 / (1 + answer["ranking"].index(0)) for answer in map(engine, lines)
    ]  # of the only relevant one
    assert metrics["eval_mrr@10"] == pytest.approx(100 * np.mean(figures), abs=1e-3)
    (first,) = lines[:1]
    by_hand = engine(
        {"id": "q0", "query": first["query"], "documents": first["pos"] + first["neg"]}
    )
    assert by_hand == engine(first)
    ranked = [by_hand["scores"][place] for place in by_hand["ranking"]]
    assert ranked == sorted(by_hand["scores"], reverse=True)


# answers


def test_the_best_chunks_score_a_document_and_the_order_is_that_of_the_logits(encode):
    features = encode(record(documents=[TEXTS[0], LONG, TEXTS[1]]), max_length=20)
    chunks = features[1]["chunks"]
    assert chunks > 2
    logits = np.random.default_rng(0).normal(size=len(features))
    outputs = [{"logits": np.array([value])} for value in logits]
    inner = sorted(logits[1:-1])
    for best, wanted in ((1, inner[-1]), (2, sum(inner[-2:]) / 2), (99, sum(inner) / chunks)):
        task = Reranking(best_chunks=best)
        merged = [logits[0], wanted, logits[-1]]
        assert task.raw_scores(outputs, {}, features) == pytest.approx(merged)
        answer = task.decode(outputs, CONFIG, record(), features)
        assert answer == {
            "scores": pytest.approx([1 / (1 + math.exp(-value)) for value in merged]),
            "ranking": sorted(range(3), key=lambda place: -merged[place]),
            "chunks": chunks,
        }
        assert json.loads(json.dumps(answer)) == answer


def test_a_ranking_is_measured_over_queries_and_pairs_as_numbers():
    # Where scores are equal by their digits, the order is that of the answer.
    answers = [{"scores": [0.2, 0.9, 0.5]}, {"scores": [0.5, 0.5], "ranking": [0, 1]}]
    metrics, _ = score_all(Reranking(), answers, [[1, 0, 2], [1, 0]], CONFIG)
    ideal = 2 + 1 / math.log2(3)
    first = (2 / math.log2(3) + 1 / 2) / ideal
    assert metrics == {
        "ndcg@10": pytest.approx(100 * (first + 1) / 2),
        "mrr@10": pytest.approx(75),
        "recall@10": pytest.approx(100),
        "map": pytest.approx(100 * ((1 / 2 + 2 / 3) / 2 + 1) / 2),
    }
    pairs = PretrainedConfig(problem_type="regression")
    pairs, _ = score_all(Reranking(), [{"scores": [0.5]}, {"scores": [1.0]}], [[0], [1]], pairs)
    assert (pairs["mse"], pairs["spearman"]) == (pytest.approx(0.125), pytest.approx(1))


@pytest.mark.parametrize("pairs", [False, True])
def test_files_of_answers_are_scored(asked, tmp_path, pairs):
    records = [
        {"id": "a", "query": "x", "documents": ["1", "2", "3"], "label": [0, 1, 0]},
        {"id": "b", "query": "y", "document": "1", "label": 1},
    ]
    answers = [{"id": "a", "scores": [0.9, 0.5, 0.1]}, {"id": "b", "scores": [0.5]}]
    if pairs:
        records[0] |= {"documents": ["1"], "label": [0]}
        answers[0]["scores"] = [0.25]
    for name, lines in (("gold", records), ("pred", answers)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    result = evaluate("gold.jsonl", "pred.jsonl", recipe="r.yaml")
    if pairs:
        assert result.metrics["mse"] == pytest.approx((0.25**2 + 0.5**2) / 2)
        assert result.baselines["mse"].answer == "always 0.5"
    else:
        assert result.metrics["mrr@10"] == pytest.approx(75)
        assert result.intervals["mrr@10"]
    (tmp_path / "pred.jsonl").write_text(json.dumps({"id": "a", "scores": []}) + "\n")
    with pytest.raises(DataError, match=r"^pred.jsonl:1: (not as ldt pred|.*expected 1 numbers)"):
        evaluate("gold.jsonl", "pred.jsonl", recipe="r.yaml")


# sentence-transformers


@pytest.fixture(params=["tiny_longformer", "tiny_modernbert"])
def theirs(request, tmp_path, monkeypatch):
    """A `CrossEncoder` with large weights, which differs between texts, saved in ``theirs``."""
    library = pytest.importorskip("sentence_transformers", reason="not installed")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    options = {"activation_fn": torch.nn.Identity(), "max_length": 64, "device": "cpu"}
    folder = str(request.getfixturevalue(request.param))
    model = library.CrossEncoder(folder, num_labels=1, **options)
    for weight in model.model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.7)
    model.save_pretrained("theirs")
    return library


def scored(library, folder):
    model = library.CrossEncoder(folder, device="cpu")
    return model.predict([("the party", text) for text in [*TEXTS, LONG]]).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("segments", ["[cls]", "[cls,query]"])
def test_sentence_transformers_gives_the_scores_of_a_run(theirs, segments, asked):
    keys = ["model.path=theirs", "data.max_length=64", "training.learning_rate=1e-12"]
    train(asked(*keys, f"task.global_attention={segments}", "training.output_dir=run"))
    config = json.loads(Path("run/config.json").read_text())
    # Where ldt is imported, as here, theirs reads a folder of ldt's alone too.
    assert config["model_type"] in ("longformer", "modernbert", "ldt")
    assert (config["model_type"] == "ldt") == ("pooling" in config)
    answer = Engine.open("run", precision="fp32")
    answer = answer({"query": "the party", "documents": [*TEXTS, LONG]})
    assert answer["chunks"] == 1
    assert scored(theirs, "run") == pytest.approx(answer["scores"], abs=2e-6)
    assert np.ptp(answer["scores"]) > 5e-3


@pytest.mark.slow
def test_a_folder_of_a_cross_encoder_answers_and_is_trained_on(theirs, asked):
    wanted = scored(theirs, "theirs")
    record = {"query": "the party", "documents": [*TEXTS, LONG]}
    found = Engine.open("theirs", precision="fp32", raw_scores=True)(record)
    assert found["scores"] == pytest.approx(wanted, abs=2e-5)
    keys = ["model.path=theirs", "data.max_length=64", "task.global_attention=[cls]"]
    train(asked(*keys, "training.learning_rate=1e-12", "training.output_dir=run"))
    found = Engine.open("run", precision="fp32")(record)["scores"]
    assert found == pytest.approx([1 / (1 + math.exp(-value)) for value in wanted], abs=1e-5)
