"""A run folder: what is refused before a run begins in it, and what is left when it is finished."""

import json
import os
import re
from pathlib import Path

import pytest
from processes import ldt
from training_runs import documents, rows, train

from ldt.errors import EXIT_RECIPE, EXIT_USAGE, RecipeError, UserError
from ldt.io import files
from ldt.recipe.run import Run
from ldt.report.runs import listed


def steps(run="runs/r"):
    return list(Run(run).checkpoints())


def test_the_folder_of_an_unfinished_run_is_not_used_without_a_word(recipe, killed):
    with pytest.raises(UserError, match="stopped after step 4; --resume goes on with it") as raised:
        train(recipe())
    assert raised.value.exit_code == EXIT_USAGE


@pytest.mark.slow
@pytest.mark.parametrize("resume", [False, True])
def test_another_run_in_the_folder_is_refused_with_what_differs(recipe, killed, resume):
    other = recipe("training.seed=7", "training.learning_rate=0.02", "data.max_length=64")
    with pytest.raises(UserError) as raised:
        train(other, resume=resume)
    lines = str(raised.value).splitlines()
    assert lines[0] == "runs/r: holds another run; it differs in"
    assert lines[1:4] == [
        "  data.max_length: nothing there, 64 here",
        "  training.learning_rate: 0.01 there, 0.02 here",
        "  training.seed: 42 there, 7 here",
    ]
    documents("train.jsonl", 12, 5)
    with pytest.raises(UserError, match=r"data.train \(sha256\): "):
        train(recipe(), resume=resume)


@pytest.mark.slow
def test_a_resumed_run_may_have_other_settings_that_change_nothing(recipe, killed):
    less = "training.gradient_checkpointing=true"
    other = recipe("training.logging_steps=1", "training.save_total_limit=1", less)
    train(other, resume=True)
    assert json.loads(Path("runs/r/run.json").read_text())["finished"]


@pytest.mark.slow
def test_overwrite_replaces_the_run_and_leaves_what_is_not_of_it(recipe, killed):
    Path("runs/r/notes.txt").write_text("mine")
    train(recipe("training.max_steps=1", "training.save_strategy=no"), overwrite=True)
    assert steps() == []
    assert Path("runs/r/notes.txt").read_text() == "mine"
    assert {row["step"] for row in rows("runs/r")} == {1}


def test_a_folder_with_a_model_of_something_else_is_never_touched(recipe, tiny_longformer):
    before = sorted(path.name for path in tiny_longformer.iterdir())
    for overwrite in (False, True):
        with pytest.raises(UserError, match="holds files of something else .*config.json"):
            train(recipe(f"training.output_dir={tiny_longformer}"), overwrite=overwrite)
    assert sorted(path.name for path in tiny_longformer.iterdir()) == before


def test_there_must_be_a_run_to_resume(recipe):
    with pytest.raises(UserError, match="no run to resume there; without --resume one starts"):
        train(recipe(), resume=True)
    assert not Path("runs/r").exists()
    with pytest.raises(UserError, match="exclude each other"):
        train(recipe(), resume=True, overwrite=True)


def test_the_folder_is_checked_before_a_model_is_looked_for(recipe):
    Path("file").touch()
    with pytest.raises(UserError, match="file: is a file or lies in one"):
        train(recipe("training.output_dir=file", "model.path=nowhere"))
    with files.Lock(Path("runs/r")), pytest.raises(UserError, match="trains here since"):
        train(recipe("model.path=nowhere"))


def test_runs_latest_stays_where_it_is_a_folder(recipe, caplog):
    Path("runs/latest").mkdir(parents=True)
    train(recipe("training.max_steps=1", "training.save_strategy=no"))
    assert "runs/latest is not a link" in caplog.text


@pytest.mark.slow
def test_the_command_that_is_told_for_a_stopped_run_goes_on_with_it(recipe, killed):
    run = listed(["runs"])[0]
    assert (run.name, run.state, run.metric) == ("runs/r", "stopped", "macro_f1")
    told = re.fullmatch("stopped after step 4; ldt (.+) goes on", run.note)[1]
    os.remove("r.yaml")
    done = ldt(*told.split())
    assert done.returncode == 0, done.stderr
    finished = listed(["runs"])[0]
    assert (finished.state, finished.note, finished.model) == ("finished", "", run.model)
    assert (
        finished.value
        == json.loads(Path("runs/r/metrics.json").read_text())["metrics"]["eval_macro_f1"]
    )
    assert [made.name for made in listed(["runs"])] == ["runs/r"]  # runs/latest is a link


def test_weights_are_hashed_once_and_a_change_of_them_is_noticed(tmp_path, recipe):
    run, own = Run(tmp_path / "run"), recipe()
    run.folder.mkdir()
    weights, made = run.folder / "model.safetensors", tmp_path / "made"
    made.mkdir()
    (made / weights.name).write_bytes(b"weights")
    run.begin({}, own, {})
    run.finish(made, (), hashes={weights.name: files.digest(made / weights.name)})
    before, time = run.fingerprint(own), weights.stat().st_mtime_ns
    weights.write_bytes(b"changed")
    os.utime(weights, ns=(time, time))
    assert run.fingerprint(own) == before  # not read, since size and time are those of `finish`
    os.utime(weights, ns=(time + 1, time + 1))
    assert run.fingerprint(own) != before
    weights.write_bytes(b"weights")
    assert run.fingerprint(own) == before
    weights.write_bytes(b"weights and more")
    os.utime(weights, ns=(time, time))
    assert run.fingerprint(own) != before
    (run.folder / "run.json").write_text("{")  # on which no answer depends
    assert len(run.fingerprint(own)) == 64


def test_checkpoints_are_kept_until_the_run_is_finished_or_where_that_is_asked(killed, recipe):
    assert steps() == [2, 4]
    train(recipe(), resume=True)
    assert steps() == []
    train(recipe(), overwrite=True, keep_checkpoints=True)
    assert steps()[-1] == 8
    train(recipe(), resume=True)
    assert steps()[-1] == 8


def test_checkpoints_of_the_model_alone_are_kept_pruned_and_hold_the_best(recipe):
    train(recipe("training.save_only_model=true", "training.save_total_limit=2"))
    best = json.loads(Path("runs/r/metrics.json").read_text())["step_of_weights"]
    assert set(steps()) == {best, 6, 8}
    folder = Path(f"runs/r/checkpoint-{best}")
    assert not (folder / "optimizer.pt").exists()
    assert (folder / "model.safetensors").read_bytes() == Path(
        "runs/r/model.safetensors"
    ).read_bytes()


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
