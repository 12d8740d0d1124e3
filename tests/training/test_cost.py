"""What a training takes, told before it starts."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import assert_same_run, rows, train

from ldt import training
from ldt.errors import EXIT_RECIPE, RecipeError
from ldt.training import cost
from ldt.training.arguments import settings
from ldt.training.cost import Cost, Peak

GIB = 2**30
NEW = {  # of a dry run of 12 documents
    "steps": 8,
    "seconds": 600.0,
    "memory": 3 * GIB,
    "limit": 8 * GIB,
    "batch": 4,
    "fits": True,
    "largest": 8,
    "longest": 4096,
    "unit": "token",
    "device": "cpu",
}


@pytest.mark.parametrize(
    ("changes", "line", "level"),
    [
        (
            {},
            "about 8 steps, 10 min on cpu, 3.0 GiB of memory at the peak; the largest batch that "
            "fits is 8 inputs of 4,096 tokens",
            logging.INFO,
        ),
        (
            {"steps": None, "seconds": 4.21, "largest": 1, "batch": 1, "unit": "byte"},
            "about 4.2 s a step on cpu, 3.0 GiB of memory at the peak; the largest batch that "
            "fits is 1 input of 4,096 bytes",
            logging.INFO,
        ),
        (
            {"memory": 12 * GIB, "batch": 16, "seconds": 72000, "fits": False},
            "about 8 steps, 20.0 h on cpu; 16 inputs of 4,096 tokens at a time take 12.0 GiB of "
            "memory at the peak, 8.0 GiB are there: the largest batch that fits is 8 inputs of "
            "4,096 tokens: training.per_device_train_batch_size=auto takes it",
            logging.WARNING,
        ),
        (
            {"memory": 9 * GIB, "batch": 1, "fits": False, "largest": 0, "seconds": 40},
            "about 8 steps, 40 s on cpu; 1 input of 4,096 tokens at a time take 9.0 GiB of memory "
            "at the peak, 8.0 GiB are there: training.gradient_checkpointing=true or a shorter "
            "data.max_length needs less",
            logging.WARNING,
        ),
    ],
)
def test_the_line_says_steps_time_memory_and_what_fits(changes, line, level):
    notice = Cost(**NEW | changes).notice
    assert (notice.text, notice.level) == (line, level)


@pytest.mark.slow
def test_a_dry_run_says_how_many_steps_there_will_be(recipe, capsys):
    found = training.train(recipe(), dry_run=True).cost
    train(recipe())
    assert found.steps == json.loads(Path("runs/r/metrics.json").read_text())["steps"] == 8
    assert found.batch == 1
    assert found.fits
    assert found.largest >= 8  # of short documents and a small model
    assert found.seconds > 0
    assert GIB / 10 < found.memory < found.limit
    capsys.readouterr()
    train(recipe("training.max_steps=5"), dry_run=True)
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"about 5 steps, [\d.]+ s on cpu, [\d.]+ GiB of memory at the peak; the", said)


@pytest.mark.slow
def test_a_dry_run_of_a_part_of_a_text_tells_the_time_of_a_step(pretraining_recipe, monkeypatch):
    from ldt.training import masked_lm

    assert training.train(pretraining_recipe(), dry_run=True).cost.steps
    monkeypatch.setattr(masked_lm, "DRY", 2)
    changes = ["training.max_steps=-1", "training.num_train_epochs=1"]
    assert training.train(pretraining_recipe(*changes), dry_run=True).cost.steps is None


@pytest.mark.slow
def test_measuring_changes_nothing_of_the_training(recipe):
    sizes = ["per_device_train_batch_size=8", "gradient_accumulation_steps=1"]
    train(recipe(*(f"training.{size}" for size in sizes), "training.output_dir=runs/given"))
    sizes = ["per_device_train_batch_size=auto", "gradient_accumulation_steps=8"]
    train(recipe(*(f"training.{size}" for size in sizes), "training.output_dir=runs/found"))
    assert_same_run("runs/found", "runs/given")


class Stop(Exception):
    """What a test interrupts a run with."""


@pytest.mark.slow
def test_an_automatic_batch_takes_what_memory_holds_and_resuming_repeats_it(
    recipe, monkeypatch, at_step, capsys
):
    tried = []

    def measured(trainer, batches, evaluated=None, micro_batch=None):
        """Memory ends with more than 4 inputs at a time."""
        tried.append([*map(len, batches), micro_batch])
        steps = [cost.Step(1.0, 0.5, 2 * GIB, 3 * GIB) for _ in batches]
        return steps, evaluated and steps[0], micro_batch and min(micro_batch, 4)

    def stop(model):
        raise Stop

    monkeypatch.setattr(cost, "measure", measured)
    monkeypatch.setattr(cost, "memory_limit", lambda device: 99 * GIB)
    sizes = ["per_device_train_batch_size=auto", "gradient_accumulation_steps=8"]
    made = recipe(*(f"training.{key}" for key in (*sizes, "save_steps=1", "eval_steps=1")))
    at_step(3, stop)
    with pytest.raises(Stop):
        train(made)
    at_step(0, None)
    assert tried[2:] == [[1, 8, 8], [1, 4, 4]]
    assert "auto: 4 inputs at a time" in " ".join(capsys.readouterr().err.split())
    train(made, resume=True)
    assert len(tried) == 4  # what the checkpoint says
    assert json.loads(Path("runs/r/metrics.json").read_text())["inputs_at_a_time"] == 4
    assert len([row for row in rows("runs/r") if "loss" in row]) == 4


@pytest.mark.parametrize(
    ("change", "environment", "message"),
    [
        (["training.auto_find_batch_size=true"], {}, "per_device_train_batch_size: auto does not"),
        (
            ["training.per_device_train_batch_size=auto"],
            {"WORLD_SIZE": "2"},
            "auto is for a single process",
        ),
        (["training.per_device_train_batch_size=most"], {}, "per_device_train_batch_size"),
    ],
)
def test_what_cannot_be_found_is_refused(recipe, monkeypatch, change, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match=message) as refused:
        settings(recipe(*change))
    assert refused.value.exit_code == EXIT_RECIPE


def test_an_automatic_batch_has_the_inputs_of_a_step(recipe):
    made = recipe("training.per_device_train_batch_size=auto")
    found = settings(made)
    assert found["per_device_train_batch_size"] == 3  # the recipe's gradient_accumulation_steps
    assert found["gradient_accumulation_steps"] == 1


def estimated(recipe, monkeypatch, limit, most=99):
    """The cost of batches of 8, where an input of 67 tokens takes 1 GiB over 2 of the process, and
    memory ends with more than ``most`` inputs of a batch."""
    tried = []

    def measured(trainer, batches, evaluated=None, micro_batch=None):
        tried.extend(len(batch) for batch in batches)
        sizes = [cost.tokens(batch) / 67 for batch in batches]
        steps = [cost.Step(1.0, 0.5, 2 * GIB, int((2 + size) * GIB)) for size in sizes]
        fits = micro_batch if max(map(len, batches)) <= most else most
        return steps, None, fits

    monkeypatch.setattr(cost, "measure", measured)
    monkeypatch.setattr(cost, "memory_limit", lambda device: int(limit * GIB))
    sizes = ["per_device_train_batch_size=8", "gradient_accumulation_steps=1"]
    made = recipe(*(f"training.{size}" for size in sizes))
    return training.train(made, dry_run=True).cost, tried


def test_what_surely_does_not_fit_is_not_tried(recipe, monkeypatch):
    found, tried = estimated(recipe, monkeypatch, limit=100)
    assert found.fits
    assert found.largest == 64  # of 88 GiB
    assert tried == [1, 1, 1, 2, 8, 8, 8, 8]
    found, tried = estimated(recipe, monkeypatch, limit=4.6)
    assert not found.fits
    assert found.largest == 2
    assert tried == [1, 1, 1, 2, 8, 8, 8]  # not the largest batch of 8
    found, tried = estimated(recipe, monkeypatch, limit=3)
    assert (found.fits, found.largest) == (False, 0)
    assert tried == [1, 1, 1, 8, 8, 8]


def test_memory_that_ends_while_measuring_is_the_limit(recipe, monkeypatch):
    found, _ = estimated(recipe, monkeypatch, limit=100, most=4)
    assert (found.fits, found.largest) == (False, 4)


# -- lengths, memory


def feature(size, number=0):
    ids = np.arange(size)
    return {"input_ids": ids, "global_attention_mask": ids * 0, "document": number}


def test_the_peak_is_seen_between_two_looks():
    with Peak(torch.device("cpu")) as peak:
        peak.begin()
        for _ in range(5):
            torch.ones(1 << 25).sum()  # 128 MiB
        step = peak.end()
        assert step.peak > step.base + (100 << 20)
        peak.begin()
        step = peak.end()
        assert step.peak < step.base + (100 << 20)


def test_a_measurement_says_that_it_is_one_and_ends_soon(recipe, caplog, monkeypatch):
    from ldt.io import progress

    sizes, measure = [], cost.measure

    def measured(trainer, batches, last=None, *more):
        sizes.append([*map(len, batches), len(last or ())])
        return measure(trainer, batches, last, *more)

    monkeypatch.setattr(cost, "measure", measured)
    monkeypatch.setattr(progress, "EVERY", 0)
    keys = "training.per_device_train_batch_size=4"
    training.train(recipe(keys), dry_run=True)
    monkeypatch.setattr(cost, "MOST_SECONDS", 0)
    with caplog.at_level("INFO", "ldt"):
        found = training.train(recipe(keys), dry_run=True).cost
    whole, short = sizes[1], sizes[3]
    assert max(whole) == 4
    assert short == [1, 2, 1, 1, 1, 1]
    assert found.steps
    lines = [record.getMessage() for record in caplog.records]
    assert "measuring what the training will take: 1 of 2 steps" in lines
    assert not any(line.startswith("step ") for line in lines)
