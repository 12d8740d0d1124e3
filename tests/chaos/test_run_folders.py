"""Run folders that go away, and checkpoints that somebody else wrote, while a run trains."""

import json
import pickle
import shutil
import signal
from pathlib import Path

import pytest
import torch
from faults import sample
from zygote import Fault

COMMAND = ("finetune", "ft.yaml")
CHANGES = {  # Python that runs at a file event of the training, with what the message says
    "removed": ("import shutil; shutil.rmtree('runs/r')", "was removed or renamed"),
    "renamed": ("import os; os.rename('runs/r', 'runs/other')", "was removed or renamed"),
    "with its parent": ("import shutil; shutil.rmtree('runs')", "was removed or renamed"),
    "replaced by a file": (
        "import os; os.rename('runs/r', 'runs/other'); open('runs/r', 'w').close()",
        "was replaced or taken",
    ),
    "replaced by a folder": (
        "import os; os.rename('runs/r', 'runs/other'); os.mkdir('runs/r')",
        "was replaced or taken",
    ),
    "without run.json": ("import os; os.remove('runs/r/run.json')", "lost its run.json"),
    "another run": (
        "import json, pathlib; p = pathlib.Path('runs/r/run.json'); r = json.loads(p.read_text());"
        "r['session'] = 'x'; p.write_text(json.dumps(r))",
        "was replaced or taken",
    ),
}
# When: as the first log is written, in the middle of a checkpoint, while the model is saved.
MOMENTS = ("runs/r/metrics.jsonl", "runs/r/checkpoint-2.tmp", "runs/r/model.tmp")
GONE = [(change, moment) for change in CHANGES for moment in MOMENTS]
# What is written at the very moment goes on where the name then leads.
IN_FLIGHT = ("metrics.jsonl", "checkpoint-2", "model.tmp")


@pytest.fixture(scope="module")
def trained(ldt, made, tmp_path_factory):
    """A folder with a run that was stopped after its last checkpoint, and the file events."""
    home = tmp_path_factory.mktemp("trained") / "home"
    shutil.copytree(made, home, symlinks=True)
    outcome = ldt(*COMMAND, cwd=home)
    assert outcome.code == 0, outcome.err
    return home, outcome.events


@pytest.mark.parametrize(("change", "moment"), sample(GONE, 5))
def test_a_folder_that_goes_away_costs_no_model(change, moment, ldt, home, trained):
    _, events = trained
    code, said = CHANGES[change]
    at = next(n for n, event in enumerate(events, 1) if event.split()[1].startswith(moment))
    outcome = ldt(*COMMAND, cwd=home, fault=Fault(at=at, run=code))
    assert outcome.code == 6, outcome.err
    (line,) = (line for line in outcome.err.splitlines() if line.startswith("error: "))
    assert line.startswith(f"error: runs/r: {said}")
    rescued = home / "runs/r-rescued"
    assert str(rescued.relative_to(home)) in line
    assert (rescued / "model.safetensors").is_file()
    answers = ldt(
        *("predict", "new.jsonl", "--model", "runs/r-rescued", "--output", "a.jsonl"), cwd=home
    )
    assert answers.code == 0, answers.err
    if "--resume" in line:
        again = ldt(*COMMAND, "training.output_dir=runs/r-rescued", "--resume", cwd=home)
        assert again.code == 0, again.err
    assert json.loads((rescued / "run.json").read_text())["finished"]
    if change == "replaced by a folder":
        assert (home / "runs/r").is_dir()
        names = [path.name for path in (home / "runs/r").iterdir()]
        assert all(name.startswith(IN_FLIGHT) for name in names)
        assert not any("model" in name and "tmp" in name for name in names)


def test_a_rescue_leaves_an_older_one_alone(ldt, home, trained):
    _, events = trained
    (home / "runs/r-rescued").mkdir(parents=True)
    (home / "runs/r-rescued/mine").write_text("x")
    at = next(n for n, event in enumerate(events, 1) if "checkpoint-2.tmp" in event)
    fault = Fault(at=at, run=CHANGES["renamed"][0])
    outcome = ldt(*COMMAND, cwd=home, fault=fault)
    assert "runs/r-rescued-2" in outcome.err
    assert [path.name for path in (home / "runs/r-rescued").iterdir()] == ["mine"]


class Poison:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def stopped(ldt, home, trained):
    """A run that was killed between its two checkpoints."""
    _, events = trained
    at = next(n for n, event in enumerate(events, 1) if "checkpoint-4.tmp" in event)
    assert ldt(*COMMAND, cwd=home, fault=Fault(at=at, number=signal.SIGKILL)).code == -9
    newest = home / "runs/r/checkpoint-2"
    assert newest.is_dir()
    return newest


def seal(checkpoint):
    """Give the checkpoint a manifest that fits its files."""
    from ldt.io import files

    (checkpoint / "manifest.json").unlink()
    files.write_manifest(checkpoint, step=2)


CONTENTS = {
    "a pickle with code": pickle.dumps(Poison()),
    "nothing": b"",
    "bytes of no kind": bytes(range(256)) * 4,
    "a list": None,
    "text": b"{}",
}
NAMES = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "run_state.pt", "trainer_state.json")
POISONED = [(name, content) for name in NAMES for content in CONTENTS]


@pytest.mark.parametrize(("name", "content"), sample(POISONED, 4))
def test_a_poisoned_checkpoint_is_a_line_and_runs_no_code(name, content, ldt, home, trained):
    checkpoint = stopped(ldt, home, trained)
    if CONTENTS[content] is None:
        torch.save([1, 2], checkpoint / name)
    else:
        (checkpoint / name).write_bytes(CONTENTS[content])
    seal(checkpoint)
    outcome = ldt(*COMMAND, "--resume", cwd=home)
    assert not (home / "executed").exists()
    assert outcome.code == 5, outcome.err
    (line,) = (line for line in outcome.err.splitlines() if line.startswith("error: "))
    assert line.startswith("error: runs/r/checkpoint-2: cannot be resumed: ")
    shutil.rmtree(checkpoint)  # as the message says
    outcome = ldt(*COMMAND, "--resume", cwd=home)
    assert outcome.code == 0, outcome.err
    weights = (home / "runs/r/model.safetensors").read_bytes()
    assert weights == (trained[0] / "runs/r/model.safetensors").read_bytes()


MANIFESTS = ("", "[]", "{}", '{"files": []}', '{"files": {"x": 1}}', "[" * 100_000, "\xff")
MANIFESTS += ('{"files": {"\\u0000": {"bytes": 1, "sha256": ""}}}',)
MANIFESTS += ('{"files": {"x": {"bytes": "y", "sha256": 1}}}',)


@pytest.mark.parametrize("manifest", sample(MANIFESTS, 2), ids=lambda text: text[:20])
def test_a_manifest_of_nonsense_costs_its_checkpoint(manifest, ldt, home, trained):
    checkpoint = stopped(ldt, home, trained)
    (checkpoint / "manifest.json").write_text(manifest, "latin-1")
    outcome = ldt(*COMMAND, "--resume", cwd=home)
    assert outcome.code == 5, outcome.err  # there is no other
    assert "step 2 is damaged" in outcome.err
    outcome = ldt(*COMMAND, "--overwrite", cwd=home)
    assert outcome.code == 0, outcome.err
