"""A folder of a ModernBERT in every command: each task, pretraining, adapters, int8, conversion."""

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from recipe_data import LINES
from training_runs import assert_same_run, train
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, pipeline

from ldt.convert import convert
from ldt.errors import Interrupted, ModelError, RecipeError
from ldt.inference.predict import predict
from ldt.model import LdtForMaskedLM, LdtModernBertModel, load
from ldt.recipe import recipe as recipes
from ldt.tasks import TASKS
from ldt.tasks.writing import WritingTask

ANSWERING = [
    name
    for name, task in TASKS.items()
    if task.reads.kind == "examples" and not issubclass(task, WritingTask)
]
SHORT = ("training.max_steps=2", "training.eval_strategy=no", "training.save_strategy=no")


def write_lines(name, count=8):
    lines = [json.dumps({"id": n} | LINES[name](n)) for n in range(count)]
    Path("data.jsonl").write_text("\n".join(lines) + "\n")


def answers(run, source="data.jsonl", **options):
    Path("answers.jsonl").unlink(missing_ok=True)
    assert predict(source, model=run, output="answers.jsonl", **options) == 0
    return [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]


@pytest.mark.fast("squad-False")
@pytest.mark.parametrize(
    ("name", "windows"),
    [*((name, False) for name in ANSWERING), ("squad", True), ("wikihop", True)],
)
def test_each_task_learns_and_answers_on_it(name, windows, tiny_modernbert, place):
    write_lines(name)
    model = str(tiny_modernbert)
    if windows:
        convert(model, "long", max_length=128, window=8)
        model = "long"
    Path("r.yaml").write_text(
        f"task: {{name: {name}}}\nmodel: {{path: {model}}}\n"
        "data: {train: data.jsonl, max_length: 64}\n"
    )
    train(recipes.load("r.yaml", SHORT, command="finetune"))
    config = json.loads(Path("runs/r/config.json").read_text())
    assert config["model_type"] == ("ldt_modernbert" if windows else "modernbert")
    assert type(load("runs/r", TASKS[name].model_construct().head()).base_model) is (
        LdtModernBertModel
    )
    found = answers("runs/r")
    assert len(found) == 8
    assert not any("error" in answer for answer in found)


@pytest.mark.slow
def test_a_classification_learns_is_resumed_and_is_read_by_transformers(
    recipe, tiny_modernbert, at_step
):
    options = (f"model.path={tiny_modernbert}",)
    metrics = train(recipe(*options, "training.output_dir=runs/whole"))
    assert metrics["eval_accuracy"] >= 0
    config = json.loads(Path("runs/whole/config.json").read_text())
    assert config["classifier_pooling"] == "mean"  # the model's own, as the recipe says none
    at_step(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe(*options))
    at_step(0, None)
    train(recipe(*options), resume=True)
    assert_same_run("runs/whole", "runs/r")
    found = {answer["id"]: answer for answer in answers("runs/r", "dev.jsonl")}
    classify = pipeline("text-classification", model="runs/r", top_k=None)
    texts = [json.loads(line) for line in Path("dev.jsonl").read_text().splitlines()]
    for line in texts:
        mine = found[line["id"]]["scores"]
        for other in classify(line["text"])[0]:
            assert mine[other["label"]] == pytest.approx(other["score"], abs=1e-3)
    assert type(AutoModelForSequenceClassification.from_pretrained("runs/r")).__name__ == (
        "ModernBertForSequenceClassification"
    )


@pytest.mark.slow
def test_a_masked_lm_is_trained_on(pretraining_recipe, tiny_modernbert):
    options = (f"model.path={tiny_modernbert}", "task.mask_fraction=0.3")
    metrics = train(pretraining_recipe(*options))
    first, *_, last = (
        row["loss"]
        for row in map(json.loads, Path("runs/r/metrics.jsonl").read_text().splitlines())
        if "loss" in row
    )
    assert last < first
    assert metrics["eval_loss"] > 0
    model = load("runs/r", LdtForMaskedLM)
    assert model.new_weights == ()
    before = load(tiny_modernbert, LdtForMaskedLM)
    moved = [
        name
        for name, weight in model.named_parameters()
        if not torch.equal(weight, before.get_parameter(name))
    ]
    assert len(moved) == len(list(model.parameters()))


NEW = {
    "model_type": "modernbert",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "local_attention": 8,
}


def scratch(**changes):
    return "model=" + json.dumps({"config": NEW | changes, "tokenizer": {"vocab_size": 300}})


@pytest.mark.slow
def test_a_model_from_scratch_is_one_that_transformers_loads(pretraining_recipe):
    train(pretraining_recipe(scratch(), *SHORT))
    config = json.loads(Path("runs/r/config.json").read_text())
    assert config["model_type"] == "modernbert"
    assert config["layer_types"] == ["full_attention", "sliding_attention"]
    found = {key: config[key] for key in ("intermediate_size", "max_position_embeddings")}
    assert found == {"intermediate_size": 24, "max_position_embeddings": 64}
    special = [config[f"{name}_token_id"] for name in ("bos", "cls", "pad", "eos", "sep")]
    assert special == [0, 0, 1, 2, 2]
    model, peer = load("runs/r", LdtForMaskedLM), AutoModelForMaskedLM.from_pretrained("runs/r")
    ids = torch.tensor([[0, 20, 4, 30, 2]])
    torch.testing.assert_close(model(ids).logits, peer(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "neobert"}, "model_type: expected one of ldt, modernbert, ldt_modernbert"),
        ({"local_atention": 8}, "local_atention: unknown key, did you mean 'local_attention'"),
        ({"vocab_size": 8}, "vocab_size: is set by model.tokenizer"),
        ({"hidden_size": 18, "num_attention_heads": 6}, "an even number, got 6 heads"),
        ({"type_vocab_size": 2}, "type_vocab_size: unknown key"),
    ],
)
def test_configs_from_scratch_that_cannot_be_are_refused(pretraining_recipe, changes, what):
    with pytest.raises(RecipeError, match=what):
        train(pretraining_recipe(scratch(**changes)))


def test_a_window_of_a_model_from_scratch_is_a_key_of_its_config(pretraining_recipe):
    with pytest.raises(RecipeError, match="model.window=8: a ModernBERT has windows of its own"):
        train(pretraining_recipe(scratch(), "model.window=8"))


def test_positions_alone_and_other_windows_are_refused_in_a_line(
    pretraining_recipe, recipe, tiny_modernbert
):
    path = f"model.path={tiny_modernbert}"
    with pytest.raises(RecipeError, match="trainable=positions: a ModernBERT has no table"):
        train(pretraining_recipe(path, "task.trainable=positions", "task.source_length=32"))
    for make in (recipe, pretraining_recipe):
        with pytest.raises(ModelError, match="attention_window: a ModernBERT has windows of its"):
            train(make(path, "model.window=8"))
    with pytest.raises(RecipeError, match="makes a model that reads them"):
        train(recipe(path, "data.max_length=256"))


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("peft"), reason="the package peft is not installed")
def test_an_adapter_is_trained_and_merged(recipe, tiny_modernbert):
    train(recipe(f"model.path={tiny_modernbert}", "training.lora={r: 2}"))
    adapter = json.loads(Path("runs/r/adapter/adapter_config.json").read_text())
    assert adapter["target_modules"] == ["Wqkv"]
    merged, alone = (answers(run, "dev.jsonl") for run in ("runs/r", "runs/r/adapter"))
    for a, b in zip(merged, alone, strict=True):
        assert b["scores"] == pytest.approx(a["scores"], abs=1e-4)
