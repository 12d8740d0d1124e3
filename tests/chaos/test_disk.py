"""Trainings on disks that are full, limited or refuse: exit 6 and a line, or a sound run."""

import errno
import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from faults import sample
from zygote import Fault

COMMANDS = {"ft": "finetune", "mlm": "pretrain", "ch": "pretrain"}
SIZES = (1, 100, 1_000, 4_000, 16_000, 40_000, 64_000, 100_000, 200_000, 600_000, 10**6, 10**7)
LIMITS = [(name, size) for name in COMMANDS for size in SIZES]
REFUSED = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS]
EVENTS = [(name, at, code) for name in COMMANDS for at in range(1, 90) for code in REFUSED]


def check(outcome, home, size=10**9):
    """A run that ended well is what it says; any other ended with a line, if that has room."""
    assert not outcome.bug, outcome.err
    run = home / "runs/r"
    if outcome.code == 0:
        assert_named_weights(run)
    else:
        errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 or len(outcome.err) >= size, outcome.err
        record = run / "run.json"
        assert not record.exists() or not json.loads(record.read_text())["finished"]
    assert not [path for path in home.rglob("*") if ".tmp-" in path.name]


def assert_named_weights(run):
    """The weights are those that metrics.json names."""
    assert json.loads((run / "run.json").read_text())["finished"]
    named = json.loads((run / "metrics.json").read_text())["weights"]
    assert set(named) == {"model.safetensors"}
    for name, value in named.items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == value


def again(ldt, home, name, *overrides):
    """Without the fault the run is resumed, begun again, or finished already."""
    command = (COMMANDS[name], f"{name}.yaml", *overrides)
    outcome = ldt(*command, "--resume", cwd=home)
    if outcome.code == 2 and "without --resume one starts" in outcome.err:
        outcome = ldt(*command, cwd=home)
    assert outcome.code == 0, outcome.err
    assert_named_weights(home / "runs/r")


@pytest.mark.parametrize(("name", "size"), sample(LIMITS, 4))
def test_a_limit_on_files_costs_no_truth(name, size, ldt, home):
    outcome = ldt(COMMANDS[name], f"{name}.yaml", cwd=home, fault=Fault(file_size=size))
    check(outcome, home, size)
    assert outcome.code in (0, 6)
    again(ldt, home, name)


@pytest.mark.parametrize(("name", "at", "code"), sample(EVENTS, 4))
def test_a_disk_that_refuses_once_costs_no_truth(name, at, code, ldt, home):
    outcome = ldt(COMMANDS[name], f"{name}.yaml", cwd=home, fault=Fault(at=at, errno=code))
    check(outcome, home)
    assert outcome.code in (0, 2, 6)
    again(ldt, home, name)


def test_best_weights_that_only_the_model_holds_are_kept(ldt, home):
    # Files may have the size of the weights, not that of the optimizer's state.
    outcome = ldt("finetune", "ft.yaml", cwd=home, fault=Fault(file_size=620_000))
    assert outcome.code == 0, outcome.err
    assert "CHECKPOINT NOT SAVED at step 4: the disk did not take all of a file." in outcome.err
    assert not list((home / "runs/r").glob("checkpoint-*"))
    assert json.loads((home / "runs/r/metrics.json").read_text())["step_of_weights"] == 4
    assert_named_weights(home / "runs/r")


def test_best_weights_that_are_lost_are_said(ldt, home):
    # The loss falls, so by this measure the weights of step 2 are the best.
    falling = ("training.metric_for_best_model=loss", "training.greater_is_better=true")
    command = ("finetune", "ft.yaml", *falling)
    whole = ldt(*command, "training.output_dir=runs/whole", cwd=home)
    assert json.loads((home / "runs/whole/metrics.json").read_text())["step_of_weights"] == 2
    at = next(n for n, event in enumerate(whole.events, 1) if "checkpoint-2.tmp" in event)
    outcome = ldt(*command, cwd=home, fault=Fault(at=at, errno=errno.ENOSPC))
    assert outcome.code == 6
    last = outcome.err.splitlines()[-1]
    assert last.startswith("error: runs/r: the best weights, of step 2, could not be kept")
    assert "the model there is that of step 4; free some disk space, then --resume" in last
    again(ldt, home, "ft", *falling)


@pytest.fixture
def disk(home):
    """Mounts a disk of some KiB of its own as the folder ``disk``."""
    place = home / "disk"
    place.mkdir()
    mounted = []

    def mount(size):
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
        if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root, and not in every container, mounts a disk")
        mounted.append(place)
        return place

    yield mount
    for each in mounted:
        subprocess.run(["umount", "-l", str(each)], check=True)


KIBS = (4, 16, 64, 128, 256, 400, 600, 800, 1200, 1600, 2048, 4096)
FULL = [(name, size) for name in COMMANDS for size in KIBS]


@pytest.mark.parametrize(("name", "size"), sample(FULL, 3))
def test_a_disk_that_is_full_costs_no_truth(name, size, ldt, home, disk):
    place = disk(size)
    command = [COMMANDS[name], f"{name}.yaml", "training.output_dir=disk/r"]
    command += ["data.cache=disk/cache"] * (name == "mlm")
    outcome = ldt(*command, cwd=home)
    assert not outcome.bug, outcome.err
    assert outcome.code in (0, 6), outcome.err
    if outcome.code == 0:
        assert_named_weights(place / "r")
    else:
        assert outcome.err.splitlines()[-1].startswith("error: ")
    assert not [path for path in home.rglob("*") if ".tmp-" in path.name]
    subprocess.run(["mount", "-o", "remount,size=99m", str(place)], check=True)
    outcome = ldt(*command, "--resume", cwd=home)
    if outcome.code == 2 and "without --resume one starts" in outcome.err:
        outcome = ldt(*command, cwd=home)
    assert outcome.code == 0, outcome.err
    assert_named_weights(place / "r")


@pytest.mark.parametrize("size", sample((4, 16, 64, 300, 500), 1))
@pytest.mark.parametrize(
    "command",
    [
        "predict new.jsonl --model runs/done --output disk/a.jsonl",
        "convert short disk/long --max-length 512 --window 16",
    ],
)
def test_a_result_on_a_disk_that_is_full_is_whole_or_not_there(command, size, ldt, home, disk):
    place = disk(size)
    (place / "other").write_bytes(bytes(4096 * max(0, size // 4 - 1)))
    outcome = ldt(*command.split(), cwd=home)
    assert outcome.code == 6, outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert [path.name for path in place.iterdir()] == ["other"]
    (place / "other").unlink()
    subprocess.run(["mount", "-o", "remount,size=99m", str(place)], check=True)
    assert ldt(*command.split(), cwd=home).code == 0


MEMORY = [(name, mib << 20) for name in COMMANDS for mib in (1, 4, 16, 32, 64, 128, 256, 512)]


@pytest.mark.parametrize(("name", "size"), sample(MEMORY, 3))
def test_little_memory_is_a_line(name, size, ldt, home):
    outcome = ldt(COMMANDS[name], f"{name}.yaml", cwd=home, fault=Fault(memory=size))
    check(outcome, home)
    assert outcome.code in (0, 6)
    again(ldt, home, name)


def test_a_cache_that_cannot_be_written_is_a_line(ldt, home):
    Path(home, ".ldt").write_text("")
    outcome = ldt("pretrain", "mlm.yaml", cwd=home)
    assert outcome.code == 3
    assert "data: cache: .ldt/tokens is a file or lies in one" in outcome.err
