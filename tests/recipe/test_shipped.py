"""Every recipe loads, names the command that runs it, and trains a step on tiny stand-ins."""

import json
from pathlib import Path

import pytest
from recipe_data import LINES
from training_runs import train

from ldt.errors import UserError
from ldt.recipe import load, shipped
from ldt.recipe.recipe import COMMANDS as COMMANDS_BY_KIND
from ldt.tasks import TASKS
from ldt.tasks.writing import WritingTask

SMALL = {  # by kind of recipe, overrides beside those of all
    "finetune": {"data.stride": 8},
    "pretrain": {"data.tokens_per_step": 128},
    "summarization": {
        "task.max_target_tokens": 32,
        "task.generation": "{max_length: 6}",
        "data.text": "text",
        "data.fields": "{}",
    },
    "qasper_generation": {"task.generation": "{max_length: 6}", "model.window": 8},
    "charlm": {
        "model.config.hidden_size": 16,
        "model.config.intermediate_size": 16,
        "task.phases": [{"steps": 1}],
        "training.gradient_accumulation_steps": 1,
    },
}
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def test_every_task_has_a_recipe():
    assert {load(path).task.name for path in RECIPES} == set(LINES) == set(TASKS)


@pytest.mark.fast(
    "bart_summarization",
    "charlm_tiny",
    "classification",
    "cuad",
    "hotpotqa",
    "led_arxiv",
    "lexglue_eurlex",
    "contractnli",
    "multiple_choice",
    "nq",
    "nq_triviaqa",
    "poolingformer_squad",
    "pretrain",
    "qasper",
    "reranking",
    "squad",
    "token_classification",
    "triviaqa",
    "tydiqa",
    "wikihop",
    "modernbert_pretrain",
    "led_qasper",
)
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_a_step(
    path, tiny_longformer, tiny_modernbert, tiny_led, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    said = load(path)
    data = tmp_path / "data.jsonl"
    make = LINES[said.task.name]
    lines = [json.dumps({"id": number} | make(number)) + "\n" for number in range(12)]
    data.write_text("".join(lines), encoding="utf-8")
    command = COMMANDS_BY_KIND[said.task.reads.kind]
    kind = said.task.name if said.task.name in SMALL else command
    overrides = SMALL[kind] | {
        "data.train": data,
        "data.format": "jsonl",
        "data.max_length": 64,
        "training.output_dir": tmp_path / "run",
    }
    if kind != "charlm":
        overrides["training.max_steps"] = 1
    if said.model.path is not None:
        encoder = tiny_modernbert if path.stem.startswith("modernbert") else tiny_longformer
        overrides["model.path"] = tiny_led if isinstance(said.task, WritingTask) else encoder
    elif kind == "pretrain":
        small = {"hidden_size": 16, "num_attention_heads": 2}
        overrides["model.config"] = said.model.config | small
        overrides["model.tokenizer"] = {"vocab_size": 300}
    if said.data.eval:
        overrides["data.eval"] = data
    elif kind == "pretrain":
        overrides["data.eval_fraction"] = 0.3
    recipe = load(path, [f"{key}={value}" for key, value in overrides.items()], command=command)
    metrics = train(recipe)
    results = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert metrics["eval_" + results["metric"].removeprefix("eval_")] >= 0
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_begins_with_what_it_is_and_how_to_run_it(path):
    comment = path.read_text("utf-8").partition("\ntask:")[0].splitlines()
    assert all(line.startswith("# ") for line in comment)
    assert f"ldt {COMMANDS_BY_KIND[load(path).task.reads.kind]} recipes/{path.name}" in " ".join(
        comment
    )


def test_a_shipped_recipe_is_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(shipped()) == [path.stem for path in RECIPES]
    for name in ("wikihop", "wikihop.yaml", "recipes/wikihop.yaml"):
        assert load(name).path.samefile(shipped()["wikihop"])
    Path("wikihop.yaml").write_text("task: {name: squad}\n")
    assert load("wikihop.yaml").task.name == "squad"


@pytest.mark.parametrize(
    ("overrides", "there", "found"),
    [
        (["data.train=mine.json"], False, (None, 0.1)),
        (["data.train=mine.json", "data.eval=null"], False, (None, None)),
        (["data.train=mine.json", "data.eval=dev.json"], False, ("dev.json", None)),
        (["data.train=mine.json"], True, ("data/wikihop/dev.json", None)),
        (["training.seed=1"], False, ("data/wikihop/dev.json", None)),
    ],
)
def test_a_shipped_recipe_evaluates_on_its_own_files_where_they_are(
    tmp_path, monkeypatch, caplog, overrides, there, found
):
    monkeypatch.chdir(tmp_path)
    if there:
        Path("data/wikihop").mkdir(parents=True)
        Path("data/wikihop/dev.json").touch()
    with caplog.at_level("INFO"):
        data = load("wikihop", overrides).data
    assert (data.eval, data.eval_fraction) == found
    line = "data.eval: data/wikihop/dev.json of the recipe is not there: data.eval_fraction=0.1"
    assert (line in caplog.text) == (found == (None, 0.1))
    own = Path("own.yaml")
    own.write_bytes(shipped()["wikihop"].read_bytes())
    assert load(own, ["data.train=mine.json"]).data.eval == "data/wikihop/dev.json"


@pytest.mark.parametrize("name", ["mine/wikihop.yaml", "wikihop.yml", "recipes/wikihob.yaml"])
def test_other_paths_are_not_taken_for_shipped_recipes(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="No such file or directory, did you mean 'wikihop'"):
        load(name)


def test_shipped_recipes_are_found_in_the_package(tmp_path, monkeypatch):
    (tmp_path / "ldt" / "recipes").mkdir(parents=True)
    (tmp_path / "ldt" / "recipes" / "only.yaml").touch()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "foreign.yaml").touch()
    monkeypatch.setattr("ldt.recipe.recipe._PACKAGE", tmp_path / "ldt")
    assert shipped() == {"only": tmp_path / "ldt" / "recipes" / "only.yaml"}
