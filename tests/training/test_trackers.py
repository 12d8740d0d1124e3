"""Reports of a training; what they report to is a stand-in, but for TensorBoard where it is."""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from training_runs import rows, train, weights
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from ldt.errors import RecipeError, UserError
from ldt.recipe.recipe import load
from ldt.recipe.run import Run
from ldt.training.progress import Reports

PRETRAIN = """
task: {name: TASK}
model: MODEL
data: {train: train.txt, eval: train.txt, max_length: 32}
training: {max_steps: 2, gradient_accumulation_steps: 1, report_to: stand_in}
"""
SIZES = "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32"


class Noted(TrainerCallback):
    """Notes what it is told, and prints."""

    seen: list = []

    def on_train_begin(self, args, state, control, **kwargs):
        print("hello from a tracker")
        names = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SILENT", "WANDB_CONSOLE")
        self.seen.append(("begin", args.run_name, {name: os.environ.get(name) for name in names}))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append(("log", state.global_step, dict(logs)))

    def on_train_end(self, args, state, control, **kwargs):
        print("goodbye")
        self.seen.append(("end", state.global_step))


@pytest.fixture
def seen(monkeypatch):
    """What a tracker called stand_in is told, one called wandb too."""
    monkeypatch.setattr(Noted, "seen", [])
    for name in ("stand_in", "wandb"):
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, Noted)
    return Noted.seen


def logged(seen, key):
    return [(entry[1], entry[2][key]) for entry in seen if entry[0] == "log" and key in entry[2]]


def test_a_tracker_is_told_what_the_log_has_and_prints_nothing(recipe, seen, capfd):
    train(recipe("training.report_to=stand_in"))
    assert [entry[:2] for entry in (seen[0], seen[-1])] == [("begin", "r"), ("end", 8)]
    for key in ("loss", "eval_macro_f1"):
        assert logged(seen, key) == [
            (row["step"], row[key]) for row in rows("runs/r") if key in row
        ]
        assert logged(seen, key)
    out, err = capfd.readouterr()
    assert "tracker" not in out + err
    assert "goodbye" not in out + err
    assert out.startswith("loss")


@pytest.mark.parametrize("task", ["mlm", "charlm"])
def test_pretraining_reports_too(task, place, seen, tiny_longformer):
    Path("train.txt").write_text("the party of the first part and the other\n" * 40)
    model = f"{{path: {tiny_longformer}}}" if task == "mlm" else f"{{config: {{{SIZES}}}}}"
    Path("p.yaml").write_text(PRETRAIN.replace("TASK", task).replace("MODEL", model))
    train(load("p.yaml", command="pretrain"))
    assert (seen[0][:2], seen[-1]) == (("begin", "p"), ("end", 2))
    assert [step for step, _ in logged(seen, "loss")] == [1, 2]
    assert logged(seen, "eval_loss")


def test_what_comes_before_and_after_the_training_is_no_step_of_it(seen, tmp_path):
    made, state = Reports("stand_in", Run(tmp_path)), SimpleNamespace(global_step=1)
    args = SimpleNamespace(run_name="r")
    for event in ("on_log", "on_train_begin", "on_log", "on_train_end", "on_log"):
        getattr(made, event)(args, state, None, logs={})
    assert [entry[0] for entry in seen] == ["begin", "log", "end"]


@pytest.mark.slow
def test_a_tracker_that_fails_is_left_out_and_training_goes_on(recipe, seen, monkeypatch, caplog):
    train(recipe("training.output_dir=runs/alone"))

    def fail(self, args, state, control, logs=None, **kwargs):
        raise ConnectionError("the network is gone\nfor good")

    monkeypatch.setattr(Noted, "on_log", fail)
    train(recipe("training.report_to=stand_in"))
    assert [line for line in caplog.messages if "stand_in" in line] == [
        "no more reports to stand_in from step 1 on: the network is gone"
    ]
    assert all((weights("runs/alone")[name] == value).all() for name, value in weights().items())


def test_a_tracker_that_does_not_begin_ends_the_run_before_its_first_step(
    recipe, seen, monkeypatch
):
    def fail(self, args, state, control, **kwargs):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(Noted, "on_train_begin", fail)
    with pytest.raises(UserError, match="report_to: stand_in does not begin: no route to host; "):
        train(recipe("training.report_to=stand_in"))
    assert not Path("runs/r/metrics.jsonl").exists()


@pytest.fixture
def wandb(seen, monkeypatch, tmp_path):
    """W&B as a stand-in, without a key; the runs that were closed."""
    closed = []
    module = ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    module.run, module.finish = None, lambda: closed.append(1)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return closed


@pytest.mark.slow
def test_wandb_takes_the_sessions_of_a_run_for_one_run(recipe, seen, wandb, monkeypatch, at_step):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONSOLE", "wrap")  # a user's own
    made = recipe("training.report_to=wandb")

    def stop(model):
        raise KeyError

    at_step(6, stop)
    with pytest.raises(KeyError):
        train(made)
    assert wandb == []
    at_step(0, None)
    train(made, resume=True)
    train(made, overwrite=True)
    assert wandb == [1, 1]
    first, second, third = [entry[2] for entry in seen if entry[0] == "begin"]
    assert first == second
    assert first["WANDB_RUN_ID"] != third["WANDB_RUN_ID"]
    assert third["WANDB_RUN_ID"] == json.loads(Path("runs/r/run.json").read_text())["id"]
    assert first | {"WANDB_RUN_ID": None} == {
        **{"WANDB_RUN_ID": None, "WANDB_RESUME": "allow"},
        **{"WANDB_SILENT": "true", "WANDB_CONSOLE": "wrap"},
    }
    assert "WANDB_RUN_ID" not in os.environ


def test_wandb_without_a_key_is_refused_before_it_can_ask(recipe, wandb, monkeypatch):
    Path("train.jsonl").unlink()
    made = recipe("training.report_to=[none, wandb]")
    with pytest.raises(RecipeError, match="wandb has no API key; wandb login asks for one"):
        train(made)
    Path("netrc").write_text("machine api.wandb.ai login user password key\n")
    Path("netrc").chmod(0o600)
    for settings in (
        {},
        {"NETRC": "none", "WANDB_API_KEY": "k"},
        {"NETRC": "", "WANDB_MODE": "offline"},
    ):
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=r"train\.jsonl"):  # which is read next
            train(made)


def test_tensorboard_has_one_curve_of_a_run_that_was_resumed(recipe, at_step, tmp_path):
    reading = "tensorboard.backend.event_processing.event_accumulator"
    why = "tensorboard is not installed; pip install tensorboard runs this test"
    accumulator = pytest.importorskip(reading, reason=why)
    made = recipe("training.report_to=tensorboard", "training.logging_steps=1")

    def stop(model):
        raise KeyError

    at_step(6, stop)  # a checkpoint of step 4, and a log of step 5
    with pytest.raises(KeyError):
        train(made)
    at_step(0, None)
    train(made, resume=True)
    read = accumulator.EventAccumulator("runs/r/tensorboard").Reload()
    for tag, key in (("train/loss", "loss"), ("eval/macro_f1", "eval_macro_f1")):
        found = [(event.step, event.value) for event in read.Scalars(tag)]
        wanted = [(row["step"], row[key]) for row in rows("runs/r") if key in row]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]
    assert len(read.Scalars("train/loss")) == 8
    train(made, overwrite=True)
    assert len(list(Path("runs/r/tensorboard").iterdir())) == 1
