from pathlib import Path

import pytest
from training_runs import documents, train

from ldt.recipe import recipe as recipes


class Stop(Exception):
    """What a test interrupts a run with."""


@pytest.fixture
def place(tmp_path, monkeypatch, one_library):
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


@pytest.fixture
def at_step(monkeypatch):
    """Has something done in the middle of a step of the next runs."""

    def patch(step, action):
        from ldt.training.progress import ProgressReport

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
        train(recipe())
    at_step(0, None)
