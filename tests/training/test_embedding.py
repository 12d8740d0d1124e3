"""Vectors that a run learns: found documents, resuming, adapters, prediction and evaluation."""

import gzip
import json
import os
import random
import signal
import string
from dataclasses import replace
from pathlib import Path

import pytest
from training_runs import WORDS, assert_same_run, train
from transformers import AutoTokenizer

from ldt.convert import convert
from ldt.errors import Interrupted
from ldt.inference import evaluate
from ldt.inference.predict import predict
from ldt.metrics.ranking import similarities
from ldt.model.loading import read_config
from ldt.recipe import recipe as recipes
from ldt.tasks.embedding import Embedding

NAMES = [first + last for first in "abcdefgh" for last in "xyz"]


def pairs(path, count, seed, negatives=2):
    """Queries of a name; the right document has it among other words."""
    rng = random.Random(seed)

    def document(name):
        words = rng.choices(WORDS, k=rng.choice([4, 8, 12]))
        words.insert(rng.randrange(len(words)), f"{name} {name}")
        return " ".join(words)

    with open(path, "w") as file:
        for number in range(count):
            name, *others = rng.sample(NAMES, 1 + negatives)
            row = {"id": f"q{number}", "query": f"{name} {name} {name}", "pos": [document(name)]}
            file.write(json.dumps(row | {"neg": list(map(document, others))}) + "\n")


@pytest.fixture
def recipe(tmp_path, monkeypatch, one_library, tiny_longformer):
    """Makes a recipe of 6 steps of 4 queries, whose rows are run some at a time."""
    monkeypatch.chdir(tmp_path)
    pairs("train.jsonl", 12, 0)
    pairs("dev.jsonl", 10, 1)

    def make(*overrides):
        Path("r.yaml").write_text(f"""
task: {{name: embedding, negatives: 1, dimensions: [8]}}
model: {{path: {tiny_longformer}}}
data: {{train: train.jsonl, eval: dev.jsonl, max_length: 64}}
training:
  num_train_epochs: 2
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  train_batch_tokens: 256
  learning_rate: 0.003
  save_strategy: steps
  save_steps: 2
  eval_strategy: epoch
""")
        return recipes.load("r.yaml", overrides, command="finetune")

    return make


@pytest.mark.slow
def test_a_run_finds_documents_better_than_it_did_and_predicts_and_evaluates_so(recipe):
    pairs("train.jsonl", 48, 0)
    still = ("training.learning_rate=1.0e-9", "training.max_steps=1", "training.output_dir=runs/0")
    before = train(recipe(*still))
    losses = train(recipe("training.num_train_epochs=8", "training.learning_rate=0.01"))
    assert losses["eval_ndcg@10"] > before["eval_ndcg@10"] + 10
    assert predict("dev.jsonl", model="runs/r", output="found.jsonl") == 0
    result = evaluate.evaluate("dev.jsonl", "found.jsonl", recipe="runs/r")
    for name in ("ndcg@10", "mrr@10", "recall@10"):
        assert result.metrics[name] == pytest.approx(losses[f"eval_{name}"])


def test_a_run_that_was_stopped_resumes_bit_by_bit(recipe, at_step):
    train(recipe("training.output_dir=runs/whole"))
    at_step(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe())
    at_step(0, None)
    train(recipe(), resume=True)
    assert_same_run("runs/whole", "runs/r")


def test_an_adapter_is_trained_and_answers(recipe):
    pytest.importorskip("peft")
    train(recipe("training.lora={r: 4, alpha: 8}", "task.size=8"))
    assert predict("dev.jsonl", model="runs/r", output="found.jsonl") == 0
    found = [json.loads(line) for line in Path("found.jsonl").read_text().splitlines()]
    assert {len(vector) for line in found for vector in line["query"]} == {8}
    assert all(len(line["documents"]) == 3 for line in found)
    assert similarities(*[[line["query"]] for line in found[:2]]).item() < 1


def test_a_run_goes_on_with_the_vectors_of_its_model_where_its_recipe_has_none(recipe):
    made = ["task.pooling=max", "task.size=8", "task.prompts={query: the}", "task.dimensions=[4]"]
    train(recipe(*made, "training.max_steps=1", "training.output_dir=runs/first"))
    Path("r.yaml").unlink()
    mine = recipe("model.path=runs/first", "training.max_steps=1")
    keys = {"name": "embedding", "normalize": False, "negatives": 1}
    train(replace(mine, task=Embedding(**keys)))
    first, second = (read_config(Path(run)).embedding for run in ("runs/first", "runs/r"))
    assert second == first | {"normalize": False}
    assert (first["pooling"], first["size"], first["prompts"]["query"]) == ("max", 8, "the")


def test_clusters_from_a_model_of_vectors_are_no_model_of_vectors(recipe, caplog):
    train(recipe("training.max_steps=1", "training.output_dir=runs/first"))
    row = {"sentences": [["alpha", "beta", "alpha"]], "clusters": [[[0, 0], [2, 2]]]}
    Path("clusters.jsonl").write_text((json.dumps(row) + "\n") * 4)
    more = ["model.path=runs/first", "task={name: coreference}", "data={train: clusters.jsonl}"]
    train(recipe(*more, "training.max_steps=1", "training.eval_strategy=no"))
    assert Path("runs/first/modules.json").exists()
    assert not Path("runs/r/modules.json").exists()
    assert "no global token" not in caplog.text


def test_punctuation_has_no_vectors_and_documents_need_no_global_tokens(recipe, caplog):
    keys = ("task.vectors=tokens", "task.skip=punctuation", "task.global_attention=[query]")
    train(recipe(*keys, "training.max_steps=1"))
    tokenizer = AutoTokenizer.from_pretrained("runs/r")
    skipped = read_config(Path("runs/r")).embedding["skip"]
    assert tokenizer.convert_tokens_to_ids(",") in skipped
    assert all(not tokenizer.decode(each).strip(string.punctuation + " ") for each in skipped)
    assert "no global token" not in caplog.text


def questions(path, source, count):
    """Questions on meetings of QMSum, with what was said that answers them."""
    rows = []
    with gzip.open(source, "rt", encoding="utf-8") as file:
        for meeting in map(json.loads, file):
            turns = [f"{x['speaker']}: {x['content']}" for x in meeting["meeting_transcripts"]]
            for asked in meeting["specific_query_list"]:
                spans = [turns[int(a) : int(b) + 1] for a, b in asked["relevant_text_span"]]
                if said := " ".join(sum(spans, []))[:2000]:
                    rows.append({"query": asked["query"], "pos": [said]})
    chosen = random.Random(0).sample(rows, count)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in chosen))


@pytest.mark.nightly
def test_minilm_learns_to_find_what_answers_a_question(minilm, shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    convert(str(minilm), "long", max_length=512, window=256)
    questions("train.jsonl", shared_data / "qmsum" / "train.jsonl.gz", 192)
    questions("dev.jsonl", shared_data / "qmsum" / "val.jsonl.gz", 80)
    Path("r.yaml").write_text("""
task: {name: embedding}
model: {path: long}
data: {train: train.jsonl, eval: dev.jsonl, max_length: 96, overflow: truncate}
training:
  num_train_epochs: 1
  per_device_train_batch_size: 32
  gradient_accumulation_steps: 1
  train_batch_tokens: 4096
  learning_rate: 5.0e-5
  save_strategy: "no"
  eval_strategy: epoch
""")
    still = ["training.max_steps=1", "training.learning_rate=1.0e-9", "training.output_dir=runs/0"]
    before = train(recipes.load("r.yaml", still, command="finetune"))["eval_ndcg@10"]
    assert train(recipes.load("r.yaml", command="finetune"))["eval_ndcg@10"] > before + 1
