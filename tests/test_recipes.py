"""Every recipe loads, names the command that runs it, and trains a step on tiny stand-ins."""

import json
from pathlib import Path

import pytest

from ldt.recipe import load
from ldt.train import finetune

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))
TEXT = "the party agrees. " * 9


def test_there_are_recipes():
    assert [path.name for path in RECIPES] == [
        "classification.yaml",
        "cuad_clauses.yaml",
        "cuad_group.yaml",
    ]


@pytest.fixture
def data(tmp_path):
    """Lines with the fields of every recipe's data."""
    path = tmp_path / "data.jsonl"
    with path.open("w") as file:
        for i in range(12):
            line = {"id": i, "text": f"{i} {TEXT}", "label": "ab"[i % 2], "group": "xyz"[i % 3]}
            names = ("Cap On Liability", "Audit Rights", "Insurance", "Anti-Assignment")
            line["clauses"] = {name: i % (k + 2) == 0 for k, name in enumerate(names)}
            file.write(json.dumps(line) + "\n")
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_a_step(path, data, tiny_longformer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = {
        "model.path": tiny_longformer,
        "data.train": data,
        "data.max_length": 64,
        "training.output_dir": tmp_path / "run",
        "training.max_steps": 1,
    }
    if load(path).data.eval:
        overrides["data.eval"] = data
    recipe = load(path, [f"{key}={value}" for key, value in overrides.items()], command="finetune")
    metrics = finetune(recipe)
    assert 0 <= metrics["eval_macro_f1"] <= 1
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_begins_with_what_it_is_and_how_to_run_it(path):
    comment = path.read_text("utf-8").partition("\ntask:")[0].splitlines()
    assert all(line.startswith("# ") for line in comment)
    assert f"ldt finetune recipes/{path.name}" in " ".join(comment)
