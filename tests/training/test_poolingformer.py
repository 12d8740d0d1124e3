"""A converted Poolingformer in training: its gate opens, an interrupted run resumes bit by bit, and
the recipe's model predicts with its second level."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from convertible import random_encoder
from recipe_data import LINES
from safetensors.torch import save_file
from training_runs import assert_same_run, rows, train, weights
from typer.testing import CliRunner
from writers import SMALL, random_writer

from ldt.cli import app
from ldt.convert import convert
from ldt.errors import Interrupted
from ldt.model import LdtConfig, LdtForConditionalGeneration, load
from ldt.recipe import recipe as recipes

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = RECIPES / "poolingformer_classification.yaml"
POOLED = "longformer.encoder.layer.0.attention.self.pooled."


@pytest.fixture
def pooled(place, tiny_longformer):
    """Folder of a converted Poolingformer with a second level in layer 0."""
    convert(tiny_longformer, "pooled", architecture="poolingformer", max_length=128, window=8)
    return "pooled"


def test_a_poolingformer_trains_and_resumes_bit_by_bit(recipe, at_step, pooled):
    options = ("model.path=pooled", "task.pooling=mean", "training.load_best_model_at_end=false")
    train(recipe(*options, "training.output_dir=runs/whole"))
    found = weights("runs/whole")
    assert found[POOLED + "gate"].all()
    assert found[POOLED + "weight"].any()
    first = found[POOLED.removesuffix("pooled.") + "query.weight"]
    assert not first.equal(found[POOLED + "query.weight"])
    at_step(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe(*options))
    at_step(0, None)
    train(recipe(*options), resume=True)
    assert_same_run("runs/whole", "runs/r")


def test_the_recipes_model_says_what_it_is_and_predicts_with_its_second_level(pooled):
    changes = {
        "model.path": pooled,
        "data.train": "train.jsonl",
        "data.eval": "dev.jsonl",
        "data.label": "label",
        "data.max_length": 64,
        "training.output_dir": "run",
        "training.max_steps": 3,
        "training.learning_rate": 0.01,
    }
    changes = [f"{key}={value}" for key, value in changes.items()]
    train(recipes.load(RECIPE, changes, command="finetune"))
    assert LdtConfig.from_pretrained("run").pooling_layers == [0]
    card = Path("run", "README.md").read_text("utf-8")
    assert "It is a Poolingformer: layers 0 (from 0) have a second level" in card
    shutil.copytree("run", "closed")
    found = weights("run")
    save_file(found | {POOLED + "gate": found[POOLED + "gate"] * 0}, "closed/model.safetensors")
    scores = []
    for model in ("run", "closed"):
        options = ["--input", "dev.jsonl", "--model", model, "--output", f"{model}.jsonl"]
        result = CliRunner().invoke(app, ["predict", *options])
        assert result.exit_code == 0, result.output
        answers = Path(f"{model}.jsonl").read_text("utf-8").splitlines()
        scores.append([json.loads(line)["scores"] for line in answers])
    assert [len(part) for part in scores] == [7, 7]
    assert scores[0] != scores[1]


def test_the_gates_of_a_converted_model_open_in_pretraining_and_go_on_in_fine_tuning(pooled):
    def run(name, base, **changes):
        options = {
            "model.path": base,
            "data.train": "train.jsonl",
            "data.max_length": 64,
            "training.output_dir": name,
            "training.max_steps": 4,
            "training.learning_rate": 0.01,
            "training.warmup_steps": 0,
            **changes,
        }
        command = "pretrain" if name == "longer" else "finetune"
        file = RECIPE if command == "finetune" else RECIPES / "poolingformer_pretrain.yaml"
        options = [f"{key}={value}" for key, value in options.items()]
        train(recipes.load(file, options, command=command))
        found = json.loads(Path(name, "metrics.json").read_text("utf-8"))["pooling_gates"]
        assert list(found) == ["0"]  # the layer
        (gate,) = (
            x for key, x in weights(name).items() if key.endswith("0.attention.self.pooled.gate")
        )
        assert found["0"] == pytest.approx([100 * x for x in gate.tolist()])
        card = Path(name, "README.md").read_text("utf-8")
        assert f"stand at {min(found['0']):.3f} to {max(found['0']):.3f}." in card
        return found["0"]

    assert not weights(pooled)[POOLED.removeprefix("longformer.") + "gate"].any()
    small = {"data.format": "jsonl", "data.eval_fraction": 0.3, "data.tokens_per_step": 128}
    opened = run("longer", pooled, **small)
    assert all(opened)
    told = {"data.eval": "dev.jsonl", "data.label": "label"}
    changed = run("told", "longer", **told)
    # Adam moves a number by at most about the rate a step: they went on from where they were.
    assert 0 < max(abs(a - b) for a, b in zip(opened, changed, strict=True)) <= 4 * 100 * 0.01
    kept = run("as it was", "longer", **told, **{"training.learning_rate": 0})
    assert kept == pytest.approx(opened)


def test_a_multilingual_model_goes_all_the_way_from_conversion_to_questions(place, capsys):
    source = random_encoder(place, "xlm-roberta", "ForMaskedLM", None)
    convert(str(source), "long", architecture="poolingformer", max_length=128, window=8)
    lines = [json.dumps({"id": n} | LINES["squad"](n)) + "\n" for n in range(6)]
    Path("questions.jsonl").write_text("".join(lines), encoding="utf-8")
    steps = {
        "data.format": "jsonl",
        "data.max_length": 64,
        "training.max_steps": 2,
        "training.learning_rate": 0.01,
        "training.warmup_steps": 0,
        "training.logging_steps": 1,
    }

    def run(recipe, command, **changes):
        options = [f"{key}={value}" for key, value in (steps | changes).items()]
        train(recipes.load(RECIPES / f"{recipe}.yaml", options, command=command))
        return [row["gate"] for row in rows(changes["training.output_dir"]) if "gate" in row]

    texts = {"data.train": "train.jsonl", "data.eval_fraction": 0.3, "data.tokens_per_step": 128}
    opened = run(
        "poolingformer_pretrain",
        "pretrain",
        **{"model.path": "long", "training.output_dir": "longer"} | texts,
    )
    assert len(opened) == 2
    assert 0 < opened[0] < opened[1]
    (last,) = json.loads(Path("longer", "metrics.json").read_text("utf-8"))[
        "pooling_gates"
    ].values()
    assert opened[1] == pytest.approx(sum(map(abs, last)) / len(last))
    assert f"gate {opened[0]:.4f}  loss" in capsys.readouterr().err
    asked = {"data.train": "questions.jsonl", "data.eval": "questions.jsonl", "data.stride": 8}
    answering = {"model.path": "longer", "training.output_dir": "told"}
    shut = {"training.learning_rate": 0}
    kept = run("poolingformer_squad", "finetune", **asked | answering | shut)
    assert kept == pytest.approx([opened[1]] * 2)


@pytest.mark.slow
def test_a_summariser_begins_as_the_led_of_its_source_and_its_gate_opens(
    place, tokenizer_folder, capsys
):
    source = str(random_writer(place, "bart", tokenizer_folder, encoder_layers=4))
    for target, architecture in (("plain", "longformer"), ("pooled", "poolingformer")):
        convert(source, target, architecture=architecture, **SMALL)
    ids = torch.randint(5, 250, (3, 40), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][1, 23:] = 0

    def said(folder):
        model = load(folder, LdtForConditionalGeneration)
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=ids[:, :9]).logits
            return logits, model.generate(**inputs, max_length=12)

    closed = said("pooled")
    assert all(map(torch.equal, said("plain"), closed))
    lines = [json.dumps({"id": n} | LINES["summarization"](n)) + "\n" for n in range(6)]
    Path("texts.jsonl").write_text("".join(lines), encoding="utf-8")
    options = {
        "model.path": "pooled",
        "data.train": "texts.jsonl",
        "data.eval": "texts.jsonl",
        "data.max_length": 40,
        "task.max_target_tokens": 16,
        "task.generation": "{max_length: 6}",
        "training.output_dir": "run",
        "training.max_steps": 3,
        "training.learning_rate": 0.001,
        "training.warmup_steps": 0,
        "training.logging_steps": 1,
    }
    options = [f"{key}={value}" for key, value in options.items()]
    file = RECIPES / "poolingformer_summarization.yaml"
    train(recipes.load(file, options, command="finetune"))
    opened = [row["gate"] for row in rows("run") if "gate" in row]
    assert len(opened) == 3
    assert all(gate > 0 for gate in opened)
    assert f"gate {opened[0]:.4f}  loss" in capsys.readouterr().err
    found = json.loads(Path("run", "metrics.json").read_text("utf-8"))["pooling_gates"]
    assert list(found) == ["2"]
    card = Path("run", "README.md").read_text("utf-8")
    assert "It is a Poolingformer: layers 2 (from 0) have a second level" in card
    logits = said("run")[0]
    level = "led.encoder.layers.2.self_attn.longformer_self_attn.pooled.gate"
    shutil.copytree("run", "closed")
    save_file(weights("run") | {level: weights("run")[level] * 0}, "closed/model.safetensors")
    assert not torch.equal(said("closed")[0], logits)
