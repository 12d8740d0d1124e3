"""What a training takes, told before it starts."""

import json
import logging
import re
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from groups import tree
from training_runs import assert_same_run, rows, train

from ldt import system, training
from ldt.data.features import Features, Items
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


@pytest.mark.slow
def test_an_automatic_batch_takes_what_memory_holds_and_resuming_repeats_it(
    recipe, monkeypatch, at_step, capsys
):
    tried = []

    def measured(trainer, batches, evaluated=None, micro_batch=None):
        tried.append([len(batch) for batch in batches])
        return real(trainer, batches, evaluated, micro_batch)

    def known(*arguments):
        return Cost(**NEW | {"batch": 8, "largest": 4})

    real = cost.measure
    monkeypatch.setattr(cost, "measure", measured)
    monkeypatch.setattr("ldt.training.loop.estimate", known)
    made = recipe(
        "training.per_device_train_batch_size=auto",
        "training.gradient_accumulation_steps=8",
        "training.save_steps=1",
        "training.eval_steps=1",
    )
    at_step(3, stopped)
    with pytest.raises(Stop):
        train(made)
    at_step(0, None)
    assert tried == [[1, 4]]
    assert "auto: 4 inputs at a time" in " ".join(capsys.readouterr().err.split())
    train(made, resume=True)
    assert tried == [[1, 4]]  # what the checkpoint says
    assert json.loads(Path("runs/r/metrics.json").read_text())["inputs_at_a_time"] == 4
    assert len([row for row in rows("runs/r") if "loss" in row]) == 4


class Stop(Exception):
    """What a test interrupts a run with."""


def stopped(model):
    raise Stop


def test_an_automatic_batch_is_halved_where_it_does_not_fit(recipe, monkeypatch):
    taken = []

    def measured(trainer, batches, evaluated, size):
        taken.append(size)
        step = cost.Step(1.0, 0.1, 0, 7 * GIB * size // 4)
        return [step, step], None, size

    monkeypatch.setattr(cost, "measure", measured)
    prepared = namedtuple("Prepared", "train_items")([feature(3), feature(4)])
    found = Cost(**NEW | {"batch": 16, "largest": 8})
    assert cost.fitting(prepared, None, found) == 4
    assert taken == [8, 4]
    assert cost.fitting(prepared, None, Cost(**NEW | {"batch": 4})) is None  # all of it fits
    assert cost.fitting(prepared, None, Cost(**NEW | {"largest": 0})) == 1


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


def test_batches_of_known_lengths_stand_for_all():
    lengths = [5, 90, 20, 10, 30, 40, 15, 25]
    features = Features(feature(size, number) for number, size in enumerate(lengths))
    found = cost._Lengths(features)
    assert found.count == 8
    assert found.most == 90
    assert found.mean == np.mean(lengths)
    assert [len(one["input_ids"]) for one in found.longest(3)] == [90, 40, 30]
    assert cost.tokens(found.longest(10)) > cost.tokens(found.longest(8)) == sum(lengths)
    typical = found.typical(2, 4)
    assert sorted(len(one["input_ids"]) for part in typical for one in part) == sorted(lengths)
    assert 90 < cost.tokens(found.largest(2)) <= 130


def test_groups_and_what_is_made_on_access_have_lengths_too():
    features = Features(feature(size, number // 2) for number, size in enumerate([5, 9, 2, 1]))
    assert cost._Lengths(Items(features)).tokens.tolist() == [14, 3]
    unknown = [[feature(size), feature(1)] for size in range(1, 201)]
    found = cost._Lengths(unknown)
    assert found.count == 200
    assert found.most == 201
    assert len(found.tokens) == cost.SAMPLED


def test_memory_grows_by_the_token_up_to_the_room():
    line = cost._Memory(one=2 * GIB, longest=4096, a_token=GIB / 4096)
    assert line.of([feature(4096)] * 3) == 4 * GIB
    assert line.largest(8 * GIB, 4096) == 4  # 7.2 GiB: six
    assert line.largest(GIB, 4096) == 0
    assert line.largest(round(2.3 * GIB), 4096) == 1


def test_the_limit_is_that_of_a_group_around_the_own_one(monkeypatch, tmp_path):
    files = {"memory/jobs/memory.limit_in_bytes": "100000"}
    monkeypatch.setattr(system, "ROOT", tree(tmp_path, "5:memory:/jobs/7", files))
    assert cost.memory_limit(torch.device("cpu")) == 100_000


def test_the_peak_is_seen_between_two_looks():
    with Peak(torch.device("cpu")) as peak:
        peak.reset()
        for _ in range(5):
            torch.ones(1 << 25).sum()  # 128 MiB
        assert peak.bytes > peak.base + (100 << 20)
        peak.reset()
        assert peak.bytes < peak.base + (100 << 20)


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
    monkeypatch.setattr(cost, "SAID", 0)
    with caplog.at_level("INFO", "ldt"):
        found = training.train(recipe(keys), dry_run=True).cost
    whole, short = sizes[1], sizes[3]
    assert max(whole) == 4
    assert short == [1, 2, 1, 1, 1, 1]
    assert found.steps
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("measuring what the training will take, nothing") for line in lines)
    assert "measuring what the training will take: 1 of 2 steps" in lines
    assert not any(line.startswith("step ") for line in lines)
