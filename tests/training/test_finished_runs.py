"""What a run leaves behind when it is finished, and what it refuses before it begins."""

import json
import os
from pathlib import Path

import pytest
from training_runs import train, weights

from ldt.errors import EXIT_RECIPE, RecipeError
from ldt.recipe.recipe import load
from ldt.recipe.run import Run
from ldt.training import checkpoints

LM = """
task: {name: mlm}
model: {path: PLACE}
data: {train: train.txt, documents: line, max_length: 32}
training: {max_steps: 1, gradient_accumulation_steps: 1, report_to: none}
"""


def steps(run="runs/r"):
    return list(Run(run).checkpoints())


def test_a_finished_run_has_no_checkpoints_and_nothing_is_left_to_resume(recipe, caplog):
    caplog.set_level("INFO", "ldt")
    metrics = train(recipe())
    assert steps() == []
    assert not list(Path("runs/r").glob("*.tmp-*"))
    kept = weights()
    assert train(recipe(), resume=True) == metrics
    assert "this run is finished, there is nothing left to do" in caplog.text
    assert kept.keys() == weights().keys()


def test_checkpoints_are_kept_where_that_is_asked(recipe):
    train(recipe(), keep_checkpoints=True)
    assert steps()[-1] == 8
    train(recipe(), resume=True)
    assert steps()[-1] == 8


def test_an_interrupted_run_keeps_its_checkpoints_until_it_is_resumed(killed, recipe):
    assert steps() == [2, 4]
    train(recipe(), resume=True)
    assert steps() == []


def test_a_checkpoint_that_is_held_on_to_is_a_warning(recipe, monkeypatch, caplog):
    def busy(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(checkpoints, "_remove", busy)
    train(recipe("training.save_total_limit=9"))
    assert "checkpoint-8: not removed: Device or resource busy" in caplog.text


def test_checkpoints_of_the_model_alone_are_kept_pruned_and_hold_the_best(recipe):
    train(recipe("training.save_only_model=true", "training.save_total_limit=2"))
    best = json.loads(Path("runs/r/metrics.json").read_text())["step_of_weights"]
    assert set(steps()) == {best, 6, 8}
    folder = Path(f"runs/r/checkpoint-{best}")
    assert not (folder / "optimizer.pt").exists()
    assert (folder / "model.safetensors").read_bytes() == Path(
        "runs/r/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(("umask", "rights"), [(0o022, 0o644), (0o077, 0o600)])
def test_all_files_have_the_rights_that_the_umask_leaves(recipe, umask, rights):
    before = os.umask(umask)
    try:
        train(recipe("training.max_steps=2"), keep_checkpoints=True)
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in Path("runs/r").rglob("*.*")}
    files = {path for path in found if path.is_file()}
    assert Path("runs/r/checkpoint-2/model.safetensors") in files
    assert Path("runs/r/model.safetensors") in files
    assert {found[path] for path in files} == {rights}


def test_the_saved_tokenizer_has_the_maximum_of_the_run(recipe, tiny_longformer):
    train(recipe("data.max_length=100", "training.max_steps=2"), keep_checkpoints=True)
    Path("train.txt").write_text("the party of the first part\n" * 40)
    Path("lm.yaml").write_text(LM.replace("PLACE", str(tiny_longformer)))
    train(load("lm.yaml", command="pretrain"))
    for folder, length in (("runs/r", 100), ("runs/r/checkpoint-2", 100), ("runs/lm", 32)):
        saved = json.loads(Path(folder, "tokenizer_config.json").read_text())
        assert saved["model_max_length"] == length


def test_long_work_before_the_first_step_is_heard_of(recipe, tiny_longformer, monkeypatch, caplog):
    caplog.set_level("INFO", "ldt")
    monkeypatch.setattr("ldt.io.progress.EVERY", 0)
    train(recipe("training.max_steps=2"), dry_run=True)
    for line in (
        "reading train.jsonl: 12 documents, after 0:00",
        "encoding train: 12 of 12 documents, ETA 0:00",
        "encoding eval: 7 of 7 documents, ETA 0:00",
    ):
        assert line in caplog.messages
    Path("train.txt").write_text("the party of the first part\n" * 40)
    Path("lm.yaml").write_text(LM.replace("PLACE", str(tiny_longformer)))
    train(load("lm.yaml", command="pretrain"), dry_run=True)
    assert any(line.startswith("tokenizing train.txt: 40 documents") for line in caplog.messages)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wandb", "wandb is not installed; pip install wandb"),
        ("tensorboard", "tensorboard is not installed; pip install tensorboard"),
        ("[none, comet_ml]", r"comet_ml is not installed; pip install comet-ml>=[\d.]+\d"),
        ("nothing", "nothing is not supported, only .*"),
    ],
)
def test_reports_that_cannot_be_had_are_refused_before_the_data_are_read(
    name, line, recipe, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda *args: None)
    Path("train.jsonl").unlink()
    with pytest.raises(RecipeError, match=rf"^training.report_to=\S+.*: {line}$") as raised:
        train(recipe(f"training.report_to={name}"))
    assert raised.value.exit_code == EXIT_RECIPE
    assert not Path("runs").exists()
