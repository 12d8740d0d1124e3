import json
import os

import pytest

from ldt.errors import EXIT_MODEL, ModelError
from ldt.io import files as files_
from ldt.recipe.run import Run
from ldt.training import checkpoints

FILES = {
    "model.safetensors": b"weights" * 99,
    "optimizer.pt": b"moments" * 99,
    "scheduler.pt": b"rate",
    "rng_state.pth": b"random",
    "run_state.pt": b"loss",
    "trainer_state.json": b"{}",
}


def saved(run, step, files=FILES):
    """A checkpoint of these files, saved as the Trainer saves one."""
    target = run / f"checkpoint-{step}"
    folder = files_.temporary(target)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    checkpoints.seal(folder, target, step)
    return target


def test_a_sealed_checkpoint_is_valid_and_its_manifest_has_sizes_and_hashes(tmp_path):
    target = saved(tmp_path, 7)
    manifest = json.loads((target / "manifest.json").read_text())
    assert manifest["step"] == 7
    assert manifest["files"].keys() == FILES.keys()
    assert manifest["files"]["rng_state.pth"] == {
        "bytes": 6,
        "sha256": "a441b15fe9a3cf56661190a0b93b9dec7d04127288cc87250967cf3b52894d11",
    }
    assert checkpoints.problem(target) is None
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped bit": (
        lambda folder: flip(folder / "model.safetensors"),
        "model.safetensors has changed since it was saved (sha256)",
    ),
    "cut off": (
        lambda folder: os.truncate(folder / "optimizer.pt", 600),
        "optimizer.pt has 600 bytes, not 693",
    ),
    "no scheduler": (
        lambda folder: (folder / "scheduler.pt").unlink(),
        "scheduler.pt is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(tmp_path, damage):
    spoil, what = DAMAGES[damage]
    target = saved(tmp_path, 1)
    spoil(target)
    assert checkpoints.problem(target) == what


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "run_state.pt"])
def test_a_checkpoint_saved_without_what_resuming_needs_is_invalid(tmp_path, name):
    target = saved(tmp_path, 1, {key: value for key, value in FILES.items() if key != name})
    assert checkpoints.problem(target) == f"no {name.split('.')[0]} was saved in it"


def test_the_newest_valid_checkpoint_is_by_step_not_by_name_or_time(tmp_path):
    for step in (10, 9, 100):
        saved(tmp_path, step)
    os.utime(tmp_path / "checkpoint-9", (2e9, 2e9))
    assert checkpoints.newest_valid(Run(tmp_path)).name == "checkpoint-100"


def test_only_damaged_checkpoints_are_an_error_and_none_at_all_is_not(tmp_path):
    assert checkpoints.newest_valid(Run(tmp_path)) is None
    flip(saved(tmp_path, 5) / "optimizer.pt")
    with pytest.raises(ModelError, match="checkpoint-5: optimizer.pt has changed") as raised:
        checkpoints.newest_valid(Run(tmp_path))
    assert raised.value.exit_code == EXIT_MODEL


def test_half_written_checkpoints_are_not_seen_and_are_removed(tmp_path):
    saved(tmp_path, 5)
    (tmp_path / "checkpoint-6.tmp-123").mkdir()
    (tmp_path / "checkpoint-6.tmp-123" / "model.safetensors").touch()
    (tmp_path / "metrics.json.tmp-123").touch()
    (tmp_path / "notes.tmp").touch()
    assert list(Run(tmp_path).checkpoints()) == [5]
    files_.remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-5", "notes.tmp"}


def test_pruning_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 3, 4, 5):
        saved(tmp_path, step)
    checkpoints.prune(Run(tmp_path), 2, tmp_path / "checkpoint-2")
    assert list(Run(tmp_path).checkpoints()) == [2, 4, 5]
    checkpoints.prune(Run(tmp_path), None, None)
    assert list(Run(tmp_path).checkpoints()) == [2, 4, 5]


def test_nothing_is_pruned_while_the_newest_is_incomplete(tmp_path):
    for step in (1, 2, 3):
        saved(tmp_path, step)
    os.truncate(tmp_path / "checkpoint-3" / "model.safetensors", 1)
    checkpoints.prune(Run(tmp_path), 1, None)
    assert list(Run(tmp_path).checkpoints()) == [1, 2, 3]
