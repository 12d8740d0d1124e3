import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ldt import checkpoint, runs
from ldt import recipe as recipes
from ldt.errors import (
    EXIT_DIVERGED,
    EXIT_MODEL,
    EXIT_RECIPE,
    EXIT_RESOURCES,
    EXIT_USAGE,
    ModelError,
    RecipeError,
    ResourceError,
    TrainingDiverged,
    UserError,
)
from ldt.kernels import cpu
from ldt.model import LdtForSequenceClassification, load, load_tokenizer
from ldt.settings import settings
from ldt.train import Scorer, finetune
from ldt.trainer import Interrupted

WORDS = "the party of first part and other agree that this agreement ends".split()
LABELS = {
    "classes": lambda kind: kind,
    "several": lambda kind: ["x", kind] if kind == "a" else [],
    "number": lambda kind: 1.5 if kind == "a" else -0.25,
}


def documents(path, count, seed, label="classes"):
    """Documents of 5 to 60 words; the kind a has ZZZ in it."""
    rng = random.Random(seed)
    with open(path, "w") as file:
        for number in range(count):
            size, kind = rng.choice([5, 10, 20, 60]), "ab"[number % 2]
            words = [rng.choice(WORDS) for _ in range(size)]
            if kind == "a":
                words[rng.randrange(size)] = "ZZZ"
            row = {"id": f"doc-{number}", "text": " ".join(words), "label": LABELS[label](kind)}
            file.write(json.dumps(row) + "\n")


@pytest.fixture(autouse=True)
def one_library():
    """A machine under load may take another library for each run, and add in another order."""
    with cpu.chosen(dict.fromkeys(("linear", "bmm"), torch.backends.mkldnn.is_available())):
        yield


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current directory, with documents to train on (12) and to evaluate on (7)."""
    monkeypatch.chdir(tmp_path)
    documents("train.jsonl", 12, 0)
    documents("dev.jsonl", 7, 1)
    return tmp_path


@pytest.fixture
def recipe(place, tiny_longformer):
    """Makes a recipe of 8 steps: 2 epochs, 3 documents a step; a checkpoint every 2 steps."""

    def make(*overrides, name="r.yaml"):
        Path(name).write_text(
            f"""
task: {{name: classification}}
model: {{path: {tiny_longformer}}}
data: {{train: train.jsonl, eval: dev.jsonl}}
training:
  num_train_epochs: 2
  gradient_accumulation_steps: 3
  learning_rate: 0.01
  save_strategy: steps
  save_steps: 2
"""
        )
        return recipes.load(name, overrides, command="finetune")

    return make


def weights(folder="runs/r"):
    return load_file(Path(folder) / "model.safetensors")


def rows(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one, other):
    """Weights bit by bit, metrics and log, but for what depends on the clock."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    results = [json.loads(Path(run, "metrics.json").read_text()) for run in (one, other)]
    clock = {"seconds", "tokens_per_second", "finished"}
    first, second = ({k: v for k, v in r.items() if k not in clock} for r in results)
    assert first == second
    clock |= {"memory", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}
    first, second = (
        [{key: value for key, value in row.items() if key not in clock} for row in rows(run)]
        for run in (one, other)
    )
    assert first == second


class Stop(Exception):
    """What a test interrupts a run with."""


@pytest.fixture
def at_step(monkeypatch):
    """Has something done in the middle of a step of the next runs."""

    def patch(step, action):
        from ldt.progress import ProgressReport

        def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
            if state.global_step == step - 1:
                action(model)

        monkeypatch.setattr(
            ProgressReport, "on_pre_optimizer_step", on_pre_optimizer_step, raising=False
        )

    return patch


@pytest.fixture
def killed(recipe, at_step):
    """A run that died in step 6: with checkpoints of steps 2 and 4, in runs/r."""

    def die(model):
        raise Stop

    at_step(6, die)
    with pytest.raises(Stop):
        finetune(recipe())
    at_step(0, None)


def test_a_run_folder_describes_itself(recipe, capsys):
    metrics = finetune(recipe())
    run = Path("runs/r")
    out, err = capsys.readouterr()
    assert "macro_f1" in out
    assert "support" in out
    assert "train: 12 documents: " in err
    assert "train labels: a 6, b 6" in err
    assert "'doc-0', global tokens in stars: *<s>*|" in err
    assert "step 8/8  epoch 2.00  lr " in err
    results = json.loads((run / "metrics.json").read_text())
    assert results["metrics"] == metrics
    assert metrics.keys() == {
        "eval_loss",
        "eval_accuracy",
        "eval_macro_f1",
        "eval_micro_f1",
        "train_loss",
    }
    assert results["steps"] == 8
    assert [row["class"] for row in results["table"]] == ["a", "b"]
    assert results["data"]["train"]["sha256"] == checkpoint.digest(Path("train.jsonl"))
    model = load(run, LdtForSequenceClassification)
    assert model.config.id2label == {0: "a", 1: "b"}
    best = run / f"checkpoint-{results['step_of_weights']}" / "model.safetensors"
    assert best.read_bytes() == (run / "model.safetensors").read_bytes()
    assert load_tokenizer(run, model.config).model_max_length == 128
    card = (run / "README.md").read_text()
    assert f"| macro_f1 | {metrics['eval_macro_f1']:.4g} |" in card
    assert results["data"]["eval"]["sha256"] in card
    assert os.readlink("runs/latest") == "r"
    assert {path.name for path in run.iterdir() if path.is_file()} == {
        "README.md",
        "config.json",
        "metrics.json",
        "metrics.jsonl",
        "model.safetensors",
        "recipe.yaml",
        "run.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_finished_run_resumes_to_its_results_also_by_its_own_recipe(recipe, capsys):
    metrics = finetune(recipe())
    before = (Path("runs/r/model.safetensors")).stat().st_mtime_ns
    assert finetune(recipe(), resume=True) == metrics
    own = recipes.load("runs/r/recipe.yaml", command="finetune")
    assert settings(own) == own.training  # all defaults are in it
    assert finetune(own, resume=True) == metrics
    assert Path("runs/r/model.safetensors").stat().st_mtime_ns == before
    assert "this run is finished" in capsys.readouterr().err
    with pytest.raises(UserError, match="holds this run, finished; --overwrite trains it again"):
        finetune(recipe())


def test_a_run_killed_in_the_middle_of_an_epoch_resumes_bit_by_bit(recipe):
    finetune(recipe("training.output_dir=runs/whole"))
    recipe()
    command = [sys.executable, "-m", "ldt", "finetune", "r.yaml"]
    with open("killed.txt", "w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | {"LDT_ONEDNN": "1"}
        )
        while not Path("runs/r/checkpoint-2").exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL, Path("killed.txt").read_text()
    found = list(checkpoint.checkpoints(Path("runs/r")))
    assert found
    assert max(found) < 8
    again = subprocess.run(  # goes on with the library of the run, whatever it finds itself
        [*command, "--resume"],
        capture_output=True,
        text=True,
        env=os.environ | {"LDT_ONEDNN": "0"},
    )
    assert again.returncode == 0, again.stderr
    assert f"resuming from step {max(found)}" in again.stderr
    assert "macro_f1" in again.stdout
    assert_same_run("runs/whole", "runs/r")


def test_sigterm_ends_with_143_after_a_checkpoint_that_resumes(recipe, at_step, capsys):
    finetune(recipe("training.output_dir=runs/whole"))
    at_step(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted) as raised:
        finetune(recipe())
    assert raised.value.code == 143
    assert "step 5 is saved, --resume goes on" in capsys.readouterr().err
    assert not Path("runs/r/model.safetensors").exists()
    at_step(0, None)
    finetune(recipe(), resume=True)
    assert_same_run("runs/whole", "runs/r")


def test_a_damaged_newest_checkpoint_falls_back_and_the_result_is_the_same(recipe, killed, caplog):
    os.truncate("runs/r/checkpoint-4/optimizer.pt", 99)
    finetune(recipe(), resume=True)
    assert "step 4 is damaged: optimizer.pt has 99 bytes" in caplog.text
    finetune(recipe("training.output_dir=runs/whole"))
    assert_same_run("runs/whole", "runs/r")


def test_only_damaged_checkpoints_are_never_a_silent_restart(recipe, killed):
    for step in (2, 4):
        os.truncate(f"runs/r/checkpoint-{step}/model.safetensors", 99)
    with pytest.raises(ModelError, match="no checkpoint can be used") as raised:
        finetune(recipe(), resume=True)
    assert raised.value.exit_code == EXIT_MODEL


def test_a_run_killed_before_its_first_checkpoint_begins_again(recipe, at_step, capsys):
    at_step(1, lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        finetune(recipe())
    at_step(0, None)
    with pytest.raises(UserError, match="stopped before its first checkpoint; --resume"):
        finetune(recipe())
    Path("runs/r/metrics.jsonl").write_text('{"step": 1}\n')
    finetune(recipe(), resume=True)
    assert "resuming from the beginning, nothing was saved yet" in capsys.readouterr().err
    assert "loss" in rows("runs/r")[0]


def test_the_folder_of_an_unfinished_run_is_not_used_without_a_word(recipe, killed):
    with pytest.raises(UserError, match="stopped after step 4; --resume goes on with it") as raised:
        finetune(recipe())
    assert raised.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("resume", [False, True])
def test_another_run_in_the_folder_is_refused_with_what_differs(recipe, killed, resume):
    other = recipe("training.seed=7", "training.learning_rate=0.02", "data.max_length=64")
    with pytest.raises(UserError) as raised:
        finetune(other, resume=resume)
    lines = str(raised.value).splitlines()
    assert lines[0] == "runs/r: holds another run; it differs in"
    assert lines[1:4] == [
        "  data.max_length: nothing there, 64 here",
        "  training.learning_rate: 0.01 there, 0.02 here",
        "  training.seed: 42 there, 7 here",
    ]
    documents("train.jsonl", 12, 5)
    with pytest.raises(UserError, match=r"data.train \(sha256\): "):
        finetune(recipe(), resume=resume)


def test_a_resumed_run_may_have_other_settings_that_change_nothing(recipe, killed):
    other = recipe("training.logging_steps=1", "training.save_total_limit=1")
    finetune(other, resume=True)
    assert json.loads(Path("runs/r/run.json").read_text())["finished"]


def test_overwrite_replaces_the_run_and_leaves_what_is_not_of_it(recipe, killed):
    Path("runs/r/notes.txt").write_text("mine")
    finetune(recipe("training.max_steps=1", "training.save_strategy=no"), overwrite=True)
    assert list(checkpoint.checkpoints(Path("runs/r"))) == []
    assert Path("runs/r/notes.txt").read_text() == "mine"
    steps = {row["step"] for row in rows("runs/r")}
    assert steps == {1}


def test_a_folder_with_a_model_of_something_else_is_never_touched(recipe, tiny_longformer):
    before = sorted(path.name for path in tiny_longformer.iterdir())
    for overwrite in (False, True):
        with pytest.raises(UserError, match="holds files of something else .*config.json"):
            finetune(recipe(f"training.output_dir={tiny_longformer}"), overwrite=overwrite)
    assert sorted(path.name for path in tiny_longformer.iterdir()) == before


def test_there_must_be_a_run_to_resume(recipe):
    with pytest.raises(UserError, match="no run to resume there; without --resume one starts"):
        finetune(recipe(), resume=True)
    assert not Path("runs/r").exists()
    with pytest.raises(UserError, match="exclude each other"):
        finetune(recipe(), resume=True, overwrite=True)


def test_the_folder_is_checked_before_a_model_is_looked_for(recipe):
    Path("file").touch()
    with pytest.raises(UserError, match="file: is a file or lies in one"):
        finetune(recipe("training.output_dir=file", "model.path=nowhere"))
    with checkpoint.Lock(Path("runs/r")), pytest.raises(UserError, match="trains here since"):
        finetune(recipe("model.path=nowhere"))


def test_a_loss_that_is_not_finite_ends_with_8_and_keeps_the_checkpoint(recipe, at_step):
    def spoil(model):
        model.classifier.out_proj.bias.data.fill_(torch.nan)

    at_step(6, spoil)
    with pytest.raises(TrainingDiverged) as raised:
        finetune(recipe("training.eval_strategy=no", "training.save_steps=4"))
    assert raised.value.exit_code == EXIT_DIVERGED
    assert "at step 7: the loss is nan" in str(raised.value)
    assert "documents doc-" in str(raised.value)
    assert "the last checkpoint is step 4" in str(raised.value)
    assert checkpoint.newest_valid(Path("runs/r")).name == "checkpoint-4"


def test_the_seed_decides_everything(recipe):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        short = ("training.max_steps=2", "training.save_strategy=no", "training.eval_strategy=no")
        finetune(recipe(f"training.output_dir=runs/{name}", f"training.seed={seed}", *short))
    one, same, other = weights("runs/one"), weights("runs/same"), weights("runs/other")
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["classifier.dense.weight"], other["classifier.dense.weight"])


def test_early_stopping_ends_a_run_that_gets_no_better_also_over_a_resume(recipe, at_step):
    patient = recipe(
        "training.learning_rate=0.0",
        "training.num_train_epochs=9",
        "training.early_stopping_patience=2",
    )
    at_step(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        finetune(patient)
    at_step(0, None)
    finetune(patient, resume=True)
    results = json.loads(Path("runs/r/metrics.json").read_text())
    assert (results["steps"], results["step_of_weights"]) == (6, 2)


def test_evaluation_merges_the_windows_of_each_document(recipe):
    finetune(recipe("data.max_length=16", "training.max_steps=2", "data.stride=4"))
    results = json.loads(Path("runs/r/metrics.json").read_text())
    evaluated = results["data"]["eval"]
    assert evaluated["documents"] == 7
    assert evaluated["inputs"] > 7
    assert evaluated["windowed"] > 0
    assert sum(row["support"] for row in results["table"]) == 7


def test_the_scorer_gives_each_document_its_own_windows(recipe):
    class Task:
        def decode(self, windows, config):
            return windows.mean(0).tolist()

        def score(self, answers, golds, config):
            assert answers == golds
            return {"right": 1.0}, []

    class Windows:
        documents = np.array([0, 0, 0, 1, 2, 2])

    logits = np.array([[1.0], [2.0], [6.0], [5.0], [7.0], [8.0]])
    score = Scorer(Task(), None, Windows(), [[3.0], [5.0], [7.5]], ["a", "b", "c"])

    class Prediction:
        predictions = logits

    assert score(Prediction()) == {"right": 1.0}
    logits[4] = np.inf
    with pytest.raises(TrainingDiverged, match="not finite, documents c"):
        score(Prediction())


@pytest.mark.parametrize(
    ("label", "problem", "metric"),
    [
        ("several", "multi_label_classification", "macro_f1"),
        ("number", "regression", "mse"),
    ],
)
def test_all_kinds_of_labels_are_learnt(recipe, label, problem, metric):
    documents("train.jsonl", 12, 0, label)
    documents("dev.jsonl", 7, 1, label)
    metrics = finetune(recipe("training.max_steps=4"))
    results = json.loads(Path("runs/r/metrics.json").read_text())
    assert (results["problem"], results["metric"]) == (problem, metric)
    seen = [row[f"eval_{metric}"] for row in rows("runs/r") if f"eval_{metric}" in row]
    better = min if problem == "regression" else max
    assert metrics[f"eval_{metric}"] == better(seen)


def test_without_an_evaluation_set_the_last_weights_are_kept(recipe):
    metrics = finetune(recipe("data.eval=null", "training.max_steps=3"))
    assert metrics.keys() == {"train_loss"}
    last = load_file("runs/r/checkpoint-3/model.safetensors")
    assert all(torch.equal(last[name], value) for name, value in weights().items())
    assert "There was no evaluation set." in Path("runs/r/README.md").read_text()


def test_a_part_of_the_training_set_can_be_held_out(recipe):
    finetune(recipe("data.eval=null", "data.eval_fraction=0.34", "training.max_steps=2"))
    data = json.loads(Path("runs/r/metrics.json").read_text())["data"]
    assert (data["train"]["documents"], data["eval"]["documents"]) == (8, 4)
    assert data["eval"]["source"] == "0.34 of train.jsonl"


def test_a_position_table_that_is_too_short_names_the_command_that_helps(recipe, tiny_longformer):
    with pytest.raises(RecipeError) as raised:
        finetune(recipe("data.max_length=512"))
    assert raised.value.exit_code == EXIT_RECIPE
    path = tiny_longformer
    assert f"ldt convert {path} {path}-512 --max-length 512" in str(raised.value)
    assert str(raised.value).startswith("data.max_length=512: ")


def test_a_metric_that_is_not_there_is_found_before_the_first_step(recipe):
    with pytest.raises(RecipeError, match="no metric 'f1', there are accuracy, loss, macro_f1"):
        finetune(recipe("training.metric_for_best_model=f1"))
    assert not Path("runs/r").exists()


def test_values_that_transformers_refuses_are_errors_of_the_recipe(recipe):
    with pytest.raises(RecipeError, match="training: .*save and eval strategy to match"):
        finetune(recipe("training.eval_strategy=epoch", "training.load_best_model_at_end=true"))


def test_a_dry_run_shows_everything_and_writes_nothing(recipe, capsys):
    made = recipe()
    before = sorted(Path().rglob("*"))
    assert finetune(made, dry_run=True) == {}
    err = capsys.readouterr().err
    assert "12 documents" in err
    assert "nothing is trained and nothing written" in err
    assert sorted(Path().rglob("*")) == before
    Path("file").touch()
    with pytest.raises(UserError, match="is a file or lies in one"):
        finetune(recipe("training.output_dir=file/run"), dry_run=True)


def test_a_disk_that_is_full_at_the_end_exits_with_6_and_resume_finishes(recipe, monkeypatch):
    finetune(recipe("training.output_dir=runs/whole"))

    def full(run, folder):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "finish", full)
        with pytest.raises(ResourceError) as raised:
            finetune(recipe())
    assert raised.value.exit_code == EXIT_RESOURCES
    assert not Path("runs/r/model.safetensors").exists()
    assert not list(Path("runs/r").glob("*.tmp-*"))
    finetune(recipe(), resume=True)
    assert_same_run("runs/whole", "runs/r")


def test_too_small_a_disk_is_told_before_the_start(recipe, monkeypatch):
    usage = type("Usage", (), {"free": 100_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match="needed for 4 checkpoints and the model") as raised:
        finetune(recipe())
    assert raised.value.exit_code == EXIT_RESOURCES
    assert not Path("runs/r").exists()


def test_runs_latest_stays_where_it_is_a_folder(recipe, caplog):
    Path("runs/latest").mkdir(parents=True)
    finetune(recipe("training.max_steps=1", "training.save_strategy=no"))
    assert "runs/latest is not a link" in caplog.text


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}),
        ({"eval_strategy": "steps", "eval_steps": 7}, {"save_strategy": "steps", "save_steps": 7}),
        ({"save_strategy": "no"}, {"eval_strategy": "epoch", "load_best_model_at_end": False}),
        ({"eval_strategy": "no"}, {"save_strategy": "epoch", "load_best_model_at_end": False}),
        ({"save_strategy": "best"}, {"eval_strategy": "epoch", "load_best_model_at_end": True}),
        ({"per_device_train_batch_size": 4}, {"gradient_accumulation_steps": 2}),
        ({"per_device_train_batch_size": 16}, {"gradient_accumulation_steps": 1}),
        ({"seed": 3, "learning_rate": 0.5}, {"seed": 3, "learning_rate": 0.5}),
    ],
)
def test_settings_fit_to_what_the_recipe_sets(recipe, given, found):
    made = recipe()
    made.training = given
    full = settings(made)
    assert full | found == full
    made.training = full
    assert settings(made) == full


@pytest.mark.parametrize(
    ("training", "without", "what"),
    [
        ({"remove_unused_columns": True}, False, "is always False; leave it out"),
        ({"eval_strategy": "epoch"}, True, "needs data.eval or data.eval_fraction"),
        ({"early_stopping_patience": 1}, True, "needs data.eval or data.eval_fraction"),
        (
            {"early_stopping_patience": 1, "load_best_model_at_end": False},
            False,
            "needs load_best_model_at_end",
        ),
        ({"learning_rat": 1.0}, False, "did you mean 'learning_rate'"),
    ],
)
def test_settings_that_cannot_work_are_named(recipe, training, without, what):
    made = recipe()
    made.training = training
    if without:
        made.data.eval = None
    with pytest.raises(RecipeError, match=what):
        settings(made)
