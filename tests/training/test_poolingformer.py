"""A converted Poolingformer in training: its gate opens, an interrupted run resumes bit by bit, and
the recipe's model predicts with its second level."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file
from training_runs import train, weights
from typer.testing import CliRunner

from ldt.cli import app
from ldt.convert import convert
from ldt.model import LdtConfig
from ldt.recipe import recipe as recipes

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = RECIPES / "poolingformer_classification.yaml"
POOLED = "longformer.encoder.layer.0.attention.self.pooled."


@pytest.fixture
def pooled(place, tiny_longformer):
    """Folder of a converted Poolingformer with a second level in layer 0."""
    convert(tiny_longformer, "pooled", architecture="poolingformer", max_length=128, window=8)
    return "pooled"


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
