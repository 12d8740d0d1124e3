import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_runs import assert_same_run, rows, train

from ldt.errors import Interrupted, UserError
from ldt.recipe import recipe as recipes
from ldt.recipe.run import Run
from ldt.training.arguments import settings


def test_a_finished_run_resumes_to_its_results_also_by_its_own_recipe(recipe, capsys):
    metrics = train(recipe())
    before = (Path("runs/r/model.safetensors")).stat().st_mtime_ns
    assert not [*Run("runs/r").checkpoints(), *Path("runs/r").glob("*.tmp-*")]
    assert train(recipe(), resume=True) == metrics
    own = recipes.load("runs/r/recipe.yaml", command="finetune")
    assert settings(own) == own.training  # all defaults are in it
    assert train(own, resume=True) == metrics
    assert Path("runs/r/model.safetensors").stat().st_mtime_ns == before
    assert "this run is finished" in capsys.readouterr().err
    with pytest.raises(UserError, match="holds this run, finished; --overwrite trains it again"):
        train(recipe())


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_an_epoch_resumes_bit_by_bit(recipe):
    recipe()
    command = [sys.executable, "-m", "ldt", "finetune", "r.yaml"]
    environment = os.environ | {"LDT_ONEDNN": "1"}
    # A process of its own as well: what other tests have left in this one changes the last bits.
    subprocess.run([*command, "training.output_dir=runs/whole"], check=True, env=environment)
    with open("killed.txt", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        while not Path("runs/r/checkpoint-2").exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL, Path("killed.txt").read_text()
    found = list(Run("runs/r").checkpoints())
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
    train(recipe("training.output_dir=runs/whole"))
    at_step(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted) as raised:
        train(recipe())
    assert raised.value.code == 143
    assert "step 5 is saved, --resume goes on" in capsys.readouterr().err
    assert not Path("runs/r/model.safetensors").exists()
    at_step(0, None)
    train(recipe(), resume=True)
    assert_same_run("runs/whole", "runs/r")


@pytest.mark.slow
def test_a_resumed_reranker_draws_the_documents_that_one_without_a_break_does(
    tmp_path, monkeypatch, tiny_longformer, at_step
):
    monkeypatch.chdir(tmp_path)
    fields = {"query": "party", "pos": ["a", "the party"], "neg": [*"bcdefgh"]}
    Path("all.jsonl").write_text("".join(json.dumps({"id": n} | fields) + "\n" for n in range(6)))
    Path("r.yaml").write_text(
        f"""
task: {{name: reranking, group_size: 3}}
model: {{path: {tiny_longformer}}}
data: {{train: all.jsonl, max_length: 32}}
training: {{num_train_epochs: 3, per_device_train_batch_size: 2, gradient_accumulation_steps: 1}}
"""
    )
    keys = ["training.save_strategy=steps", "training.save_steps=2", "training.learning_rate=0.01"]
    train(recipes.load("r.yaml", [*keys, "training.output_dir=whole"], command="finetune"))
    broken = recipes.load("r.yaml", [*keys, "training.output_dir=broken"], command="finetune")

    def die(model):
        raise KeyError

    at_step(6, die)
    with pytest.raises(KeyError):
        train(broken)
    at_step(0, None)
    train(broken, resume=True)
    assert_same_run("whole", "broken")


def test_a_damaged_newest_checkpoint_falls_back_and_the_result_is_the_same(recipe, killed, caplog):
    os.truncate("runs/r/checkpoint-4/optimizer.pt", 99)
    train(recipe(), resume=True)
    assert "step 4 is damaged: optimizer.pt has 99 bytes" in caplog.text
    train(recipe("training.output_dir=runs/whole"))
    assert_same_run("runs/whole", "runs/r")


def test_a_run_killed_before_its_first_checkpoint_begins_again(recipe, at_step, capsys):
    at_step(1, lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(recipe())
    at_step(0, None)
    with pytest.raises(UserError, match="stopped before its first checkpoint; --resume"):
        train(recipe())
    Path("runs/r/metrics.jsonl").write_text('{"step": 1}\n')
    train(recipe(), resume=True)
    assert "resuming from the beginning, nothing was saved yet" in capsys.readouterr().err
    assert "loss" in rows("runs/r")[0]
