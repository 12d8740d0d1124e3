"""Trainings that are killed at any of their file events lose nothing that was saved."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
from faults import SEED, sample
from zygote import Fault

COMMANDS = {"ft": "finetune", "mlm": "pretrain", "ch": "pretrain"}
MOST_EVENTS = 90


def command(name):
    return COMMANDS[name], f"{name}.yaml"


@pytest.fixture(scope="module")
def wanted(ldt, made, tmp_path_factory):
    """Weights and metrics of each recipe's undisturbed run, and its file events."""
    results = {}
    for name in COMMANDS:
        home = tmp_path_factory.mktemp("wanted") / "home"
        shutil.copytree(made, home, symlinks=True)
        outcome = ldt(*command(name), cwd=home)
        assert outcome.code == 0, outcome.err
        results[name] = (*result(home), len(outcome.events))
    return results


def result(home, run="runs/r"):
    """Weights and metrics of a finished run."""
    assert json.loads(Path(home, run, "run.json").read_text())["finished"]
    metrics = json.loads(Path(home, run, "metrics.json").read_text())["metrics"]
    return Path(home, run, "model.safetensors").read_bytes(), metrics


def leftovers(home):
    return [str(path) for path in home.rglob("*") if ".tmp-" in path.name]


KILLS = [(name, at) for name in COMMANDS for at in range(1, MOST_EVENTS)]


MOMENTS = [random.Random(SEED + number).uniform(0.05, 1.5) for number in range(30)]


@pytest.mark.parametrize("moment", sample(MOMENTS, 1))
def test_a_training_that_was_killed_at_any_moment_comes_to_the_same_weights(
    moment, ldt, home, wanted
):
    weights, metrics, _ = wanted["ft"]
    ldt(*command("ft"), cwd=home, fault=Fault(after=moment, number=signal.SIGKILL))
    outcome = ldt(*command("ft"), "--resume", cwd=home)
    if outcome.code == 2 and "without --resume one starts" in outcome.err:
        outcome = ldt(*command("ft"), cwd=home)
    assert outcome.code == 0, outcome.err
    assert result(home) == (weights, metrics)
    assert not leftovers(home / "runs")


@pytest.mark.parametrize(("name", "at"), sample(KILLS, 5))
def test_a_training_that_was_killed_is_resumed_or_begun_again(name, at, ldt, home, wanted):
    weights, metrics, events = wanted[name]
    killed = ldt(*command(name), cwd=home, fault=Fault(at=at, number=signal.SIGKILL))
    assert killed.code == (-signal.SIGKILL if at <= events else 0)
    other = home.with_name("other")
    shutil.copytree(home, other, symlinks=True)
    outcome = ldt(*command(name), "--resume", cwd=home)
    if outcome.code == 2 and "without --resume one starts" in outcome.err:
        outcome = ldt(*command(name), cwd=home)
    assert outcome.code == 0, outcome.err
    assert result(home) == (weights, metrics)
    assert not leftovers(home / "runs")
    outcome = ldt(*command(name), "--overwrite", cwd=other)
    assert outcome.code == 0, outcome.err
    assert result(other) == (weights, metrics)
