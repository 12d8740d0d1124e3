"""ldt pretrain: run folders, exact steps and resuming, what is trained and what is not."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from training_runs import assert_same_run, rows, train, weights

from ldt.data.features import Collator
from ldt.errors import DataError, Interrupted, ModelError, RecipeError
from ldt.inference.engine import read_recipe
from ldt.inference.perplexity import scorer
from ldt.model import LdtForMaskedLM, load
from ldt.tasks.language_models import masked_lm_metrics
from ldt.training.arguments import settings
from ldt.training.masked_lm import Pretraining

GLOBAL = "longformer.encoder.layer.1.attention.self.query_global.weight"
LOCAL = GLOBAL.replace("_global", "")
POSITIONS = "longformer.embeddings.position_embeddings.weight"
SHORT = ("training.max_steps=2", "training.eval_strategy=no", "training.save_strategy=no")


@pytest.fixture
def recipe(pretraining_recipe):
    return pretraining_recipe


def test_a_run_folder_has_a_masked_lm_and_tells_its_figures(recipe, capsys):
    metrics = train(recipe())
    run = Path("runs/r")
    out, err = capsys.readouterr()
    assert "bits_per_token  " in out
    assert "train: 24 documents, " in err
    assert "the first input, masked:\n  <s>|" in err
    assert re.search(r"6 steps of \d+ inputs of up to 64 tokens, 2 a step, on cpu", err)
    results = json.loads((run / "metrics.json").read_text())
    assert results["metrics"] == metrics
    assert metrics.keys() == {
        "eval_loss",
        "eval_bits_per_token",
        "eval_bits_per_byte",
        "eval_perplexity",
        "train_loss",
    }
    about = results["data"]["eval"]
    assert about["bytes"] == sum(len(x) for x in Path("dev.txt").read_text().splitlines())
    expected = masked_lm_metrics(metrics["eval_loss"], 1, about["tokens"], about["bytes"])
    for name, value in expected.items():
        assert metrics[f"eval_{name}"] == pytest.approx(value)
    logged = [row for row in rows(run) if "loss" in row]
    for name in ("tokens_per_second", "memory", "grad_norm", "bits_per_token", "learning_rate"):
        assert all(row[name] >= 0 for row in logged)
    assert "# Masked language model for long documents" in (run / "README.md").read_text()
    assert not load(run, LdtForMaskedLM).new_weights


SCRATCH = (
    "model={config: {hidden_size: 16, num_attention_heads: 2, num_hidden_layers: 1, "
    "hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}, "
    "tokenizer: {vocab_size: 290}, window: 8}"
)


def test_a_stopped_run_resumes_bit_by_bit_over_epochs(recipe, at_step):
    options = ("training.max_steps=12",)
    train(recipe(*options, "training.output_dir=runs/whole"))
    at_step(9, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe(*options))
    at_step(0, None)
    train(recipe(*options), resume=True)
    assert_same_run("runs/whole", "runs/r")
    assert json.loads(Path("runs/r/metrics.json").read_text())["epochs"] > 1


def test_a_stream_trains_and_resumes_bit_by_bit(recipe, monkeypatch, at_step):
    monkeypatch.setattr("ldt.data.lm_inputs.SHUFFLED", 4)
    options = ("data.streaming=true", "training.max_steps=5", "data.packing=document")
    train(recipe(*options, "training.output_dir=runs/whole"))
    at_step(4, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe(*options))
    at_step(0, None)
    train(recipe(*options), resume=True)
    assert_same_run("runs/whole", "runs/r")
    assert not list(Path(".ldt").glob("*/*/train.txt-*"))


def test_of_two_processes_each_reads_its_part_of_a_stream(recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    job = Pretraining(recipe("data.streaming=true"))
    stream = job.prepare(job.open(settings(job.recipe), None), None).train_items
    assert (stream.part, stream.parts) == (1, 2)


def test_global_projections_become_copies_of_the_trained_local_ones(recipe, masked_lm):
    before = weights(masked_lm)
    train(recipe(*SHORT))
    after = weights()
    assert not after[LOCAL].equal(before[LOCAL])
    assert after[GLOBAL].equal(after[LOCAL])


def test_global_attention_trains_its_projections(recipe, masked_lm):
    train(recipe(*SHORT, "task.global_attention=[cls]"))
    after = weights()
    assert not after[GLOBAL].equal(after[LOCAL])
    assert not after[GLOBAL].equal(weights(masked_lm)[GLOBAL])


def test_projections_that_were_trained_before_stay(recipe, masked_lm, tmp_path):
    model = load(masked_lm, LdtForMaskedLM)
    with torch.no_grad():
        model.get_parameter(GLOBAL).add_(1)
    model.save_pretrained(tmp_path / "own")
    (tmp_path / "own/tokenizer.json").write_bytes((masked_lm / "tokenizer.json").read_bytes())
    config = masked_lm / "tokenizer_config.json"
    (tmp_path / "own/tokenizer_config.json").write_bytes(config.read_bytes())
    train(recipe(*SHORT, f"model.path={tmp_path / 'own'}"))
    assert weights()[GLOBAL].equal(weights(tmp_path / "own")[GLOBAL])


@pytest.mark.parametrize("optimizer", ["adamw_torch", "sgd"])
def test_only_the_new_positions_are_trained_and_the_rest_stays_bit_by_bit(
    recipe, masked_lm, optimizer
):
    only = ("task.trainable=positions", "task.source_length=30", f"training.optim={optimizer}")
    train(recipe(*SHORT, *only))
    before, after = weights(masked_lm), weights()
    changed = [name for name in before if not before[name].equal(after[name])]
    assert changed == [POSITIONS]
    table = (before[POSITIONS] != after[POSITIONS]).any(1)
    assert not table[:32].any()
    assert table[32:66].all()


def test_there_must_be_new_positions_to_train(recipe):
    with pytest.raises(RecipeError, match="128 tokens, the model has 128 positions: none is new"):
        train(recipe("task.trainable=positions", "task.source_length=128"))


def test_a_model_from_scratch_trains_its_own_tokenizer(recipe):
    train(recipe(*SHORT, SCRATCH, "data.eval=null", "data.eval_fraction=0.3"))
    model = load("runs/r", LdtForMaskedLM)
    assert model.config.vocab_size <= 290
    assert model.config.attention_window == 8
    assert model.config.intermediate_size == 64
    assert weights()["longformer.embeddings.position_embeddings.weight"].shape == (66, 16)
    results = json.loads(Path("runs/r/metrics.json").read_text())
    data = results["data"]
    assert data["train"]["documents"] + data["eval"]["documents"] == 24
    assert 0 < data["eval"]["documents"] < 20
    assert results["base_model"] is None


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (
            ["model={}"],
            "model={}: path, a folder or hub id of a masked LM, or config and tokenizer",
        ),
        (["model={config: {}}"], "needs both config and tokenizer"),
        (["model.config={}"], "path and config exclude each other"),
        (
            ["model={config: {hiden_size: 1}, tokenizer: {vocab_size: 300}}"],
            "hiden_size: unknown key, did you mean 'hidden_size'",
        ),
        (
            ["model={config: {vocab_size: 1}, tokenizer: {vocab_size: 300}}"],
            "vocab_size: is set by model.tokenizer",
        ),
        (
            ["model={config: {hidden_size: 15}, tokenizer: {vocab_size: 300}}"],
            "must be a multiple of num_attention_heads",
        ),
        (["data.max_length=512"], "data.max_length=512: 512 tokens"),
        (["data.streaming=true", "data.eval=null", "data.eval_fraction=0.1"], "is not split"),
        (["data.streaming=true", "training.max_steps=-1"], "max_steps"),
        (["training.gradient_accumulation_steps=9"], "data.tokens_per_step makes it 2"),
        (["data.stride=2"], "unknown key"),
        (["task.name=classification"], "classification is trained by ldt finetune"),
    ],
)
def test_a_recipe_that_cannot_work_is_told(recipe, overrides, what):
    with pytest.raises(RecipeError, match=what):
        train(recipe(*overrides))
    assert not Path("runs").exists()


def test_a_document_alone_is_not_split_with_what_would_do(recipe):
    with pytest.raises(DataError, match="document_unit=line or blank_line parts plain text"):
        train(recipe("data.eval=null", "data.eval_fraction=0.5", "data.document_unit=file"))


def test_a_dry_run_reads_a_little_and_writes_nothing(recipe, capsys, monkeypatch):
    monkeypatch.setattr("ldt.training.masked_lm.DRY", 5)
    made = recipe()
    before = sorted(Path().rglob("*"))
    assert train(made, dry_run=True) == {}
    assert "train: 5 documents, " in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before


def test_rows_of_packed_documents_do_not_see_each_other(recipe):
    made = Pretraining(recipe("data.packing=document"))
    ready = made.prepare(made.open({"seed": 42}, None), None)
    item = next(item for item in ready.train_items if len(item) > 1)
    run = scorer(ready.model.eval())
    together = run(Collator(1, LdtForMaskedLM)([item]))
    alone = torch.cat([run(Collator(1, LdtForMaskedLM)([[row]])) for row in item])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert sum(len(row["input_ids"]) for row in item) <= 64


def test_a_masked_lm_gives_no_answers(recipe):
    train(recipe(*SHORT))
    with pytest.raises(ModelError, match="runs/r: mlm has no answers; ldt finetune RECIPE"):
        read_recipe(Path("runs/r"))


def test_tied_weights_are_not_missing_from_the_best_checkpoint(recipe, caplog):
    train(recipe())
    assert "missing keys" not in caplog.text
    names = weights().keys()
    assert "lm_head.bias" in names
    assert not {"lm_head.decoder.weight", "lm_head.decoder.bias"} & names
    assert not load("runs/r", LdtForMaskedLM).new_weights
