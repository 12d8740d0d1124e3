import json
import os
from pathlib import Path

import pytest
from processes import ldt as command

from ldt.errors import UserError
from ldt.io import files
from ldt.recipe.run import Run
from ldt.report.runs import SORTS, listed, summary


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def make(name, finished="2026-03-01T10:00:00+0000", f1=80.0, task="squad", rows=(), **identity):
    """A run folder; an unfinished one where ``finished`` is None."""
    folder = Path(name)
    keys = {"task.name": task, "model.path": "base", "data.max_length": 512} | identity
    record = {"identity": keys, "files": ["model.safetensors"], "finished": bool(finished)}
    write(folder / "run.json", record | {"scale": 100})
    write(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        write(folder / "model.safetensors", "x" * 2_500_000)
        metrics = {"eval_f1": f1, "eval_loss": 3.0, "train_loss": 1.0}
        results = {"metrics": metrics, "metric": "eval_f1", "base_model": "minilm", "scale": 100}
        results |= {"max_length": 4096, "seconds": 75.2, "finished": finished, "task": task}
        write(folder / "metrics.json", results)
    return folder


def read(folder):
    return summary(Run(folder))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finished_run_has_what_its_results_say(place):
    run = read(make("runs/a"))
    assert (run.name, run.task, run.model, run.metric, run.value) == (
        *("runs/a", "squad", "minilm"),
        *("f1", 80.0),
    )
    assert (run.length, run.time, run.state, run.note) == (4096, 75.2, "finished", "")
    assert run.date.isoformat() == "2026-03-01T10:00:00+00:00" or run.date.utcoffset()
    assert run.size == sum(path.stat().st_size for path in Path("runs/a").iterdir())


def test_a_run_without_an_evaluation_has_its_loss(place):
    folder = make("runs/a")
    results = json.loads((folder / "metrics.json").read_text())
    write(folder / "metrics.json", results | {"metric": None, "metrics": {"train_loss": 1.25}})
    assert (read(folder).metric, read(folder).value) == ("train_loss", 1.25)


def test_a_stopped_run_says_how_it_goes_on(place):
    rows = [{"step": 1, "loss": 2.0}, {"step": 4, "eval_loss": 3.0, "eval_f1": 7.0, "epoch": 1.0}]
    folder = make("runs/a", finished=None, rows=rows)
    run = read(folder)
    assert (run.state, run.metric, run.value, run.time) == ("stopped", "f1", 7.0, None)
    assert run.note == (
        "stopped before its first checkpoint; ldt finetune runs/a/recipe.yaml --resume goes on"
    )
    (folder / "checkpoint-12").mkdir()
    assert "stopped after step 12; " in read(folder).note
    make("runs/a", finished=None, task="mlm", rows=[{"step": 1, "loss": float("nan")}])
    run = read(folder)
    assert "ldt pretrain runs/a/recipe.yaml --resume" in run.note
    assert (run.metric, run.value) == ("train_loss", None)
    make("runs/a", finished=None, task="charlm")
    assert "ldt pretrain RECIPE --resume" in read(folder).note


def test_a_run_that_somebody_trains_is_running(place):
    folder = make("runs/a", finished=None, rows=[{"step": 1200, "loss": 2.0, "epoch": 0.5}])
    with files.Lock(folder):
        run = read(folder)
        assert run.state == "running"
        assert run.note.startswith(f"process {os.getpid()} on ")
        assert run.note.endswith(": step 1,200, epoch 0.50")
        assert files.holder(folder)["pid"] == os.getpid()
    assert files.holder(folder) is None
    assert read(folder).state == "stopped"


@pytest.mark.parametrize("owner", [{"pid": 2**22 + 1}, {"pid": "x"}, {}, {"pid": os.getppid()}])
def test_a_lock_whose_process_is_gone_is_nobodys(place, owner):
    folder = make("runs/a", finished=None)
    with files.Lock(folder):
        host = json.loads((folder / ".lock.json").read_text())["host"]
    write(folder / ".lock.json", owner | {"host": host})
    os.utime(folder / ".lock.json", (1000, 1000))  # written before the parent of this process began
    assert files.holder(folder) is None
    write(folder / ".lock.json", owner | {"host": f"not-{host}"})
    assert files.holder(folder) == owner | {"host": f"not-{host}"}


@pytest.mark.parametrize(
    ("file", "content", "note"),
    [
        ("run.json", "{", "run.json cannot be read"),
        ("run.json", "[" * 100_000, "run.json cannot be read"),
        ("run.json", "[]", "run.json cannot be read"),
        ("metrics.json", "{}", "metrics.json cannot be read"),
        ("metrics.json", "[]", "metrics.json cannot be read"),
        ("metrics.json", '{"metrics": {}, "finished": 7}', "metrics.json cannot be read"),
        ("metrics.json", "\udcff", "metrics.json cannot be read"),
        ("metrics.json", None, "metrics.json cannot be read"),
        ("model.safetensors", None, "model.safetensors is missing"),
    ],
)
def test_a_damaged_run_is_listed_as_damaged(place, file, content, note):
    folder = make("runs/a")
    make("runs/b")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    found = {run.name: run for run in listed(["runs"])}
    assert (found["runs/a"].state, found["runs/a"].note) == ("damaged", note)
    assert found["runs/b"].state == "finished"


def test_keys_of_another_type_are_no_traceback(place):
    folder = make("runs/a", None, task=7, rows=[{"step": 1, "loss": "x", "epoch": []}])
    write(folder / "metrics.jsonl", '{"step": 1, "loss": "x", "epoch": []}\n[]\n{"st')
    run = read(folder)
    assert (run.task, run.state, run.value) == (None, "stopped", None)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    assert read(folder).note == "metrics.jsonl: Is a directory"


def test_runs_are_found_below_a_folder_once_and_links_are_not_followed(place):
    for name in ("runs/a", "runs/a/phase-1", "runs/x/y/z", "runs/1/2/3/4", "runs/.hidden"):
        make(name)
    make("runs/a/checkpoint-4")
    make("runs/b.tmp-12")
    os.symlink("a", "runs/latest")
    os.symlink("x", "runs/0-link")
    assert [run.name for run in listed(["runs"], "name")] == [
        "runs/a",
        "runs/a/phase-1",
        "runs/x/y/z",
    ]
    assert [run.name for run in listed(["runs/latest"], "name")][0] == "runs/latest"
    assert len(listed(["runs", "runs/latest", "runs/a"])) == 3
    for wrong in ("nowhere", "runs/a/run.json"):
        with pytest.raises(UserError, match="ldt report lists the runs of folders"):
            listed([wrong])


def test_every_order_is_of_all_runs_and_the_best_or_newest_come_first(place):
    make("runs/a", "2026-03-01T10:00:00+0000", f1=70.0)
    make("runs/b", "2026-03-03T10:00:00+0000", f1=90.0)
    make("runs/c", "2026-03-02T10:00:00+0000", f1=80.0)
    make("runs/d", None)
    (Path("runs/d") / "run.json").write_text("{")
    orders = {sort: [run.name[-1] for run in listed(["runs"], sort)] for sort in SORTS}
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in orders.values())
    assert orders["date"] == ["b", "c", "a", "d"]
    assert orders["metric"] == ["b", "c", "a", "d"]
    assert orders["name"] == ["a", "b", "c", "d"]
    for name, loss in (("a", 2.0), ("b", 3.0), ("c", 1.0)):
        path = Path(f"runs/{name}/metrics.json")
        results = json.loads(path.read_text())
        write(path, results | {"metric": "eval_loss", "metrics": {"eval_loss": loss}})
    assert [run.name[-1] for run in listed(["runs"], "metric")] == ["c", "a", "b", "d"]


def test_a_pipe_gets_every_column_whole(place):
    long = "runs/a-name-that-no-narrow-column-holds"
    make(long)
    make("runs/b", None)
    done = command("report", env={"COLUMNS": "60", "TZ": "UTC"})
    head, *lines = done.stdout.decode().splitlines()
    assert head.split() == "name date task model metric length time size state".split()
    row = next(line for line in lines if line.split()[0] == long)
    assert row.split()[1:] == (
        "2026-03-01 10:00 squad minilm f1 80.00 4,096 1:15 2.5 MB finished".split()
    )
    assert done.stderr.decode().splitlines() == [
        "runs/b: stopped before its first checkpoint; ldt finetune runs/b/recipe.yaml --resume "
        "goes on"
    ]
    assert done.returncode == 0


def test_json_has_the_runs_at_full_precision(place):
    make("runs/a", f1=80.123456)
    (run,) = json.loads(command("report", "--json", "-").stdout)
    assert (run["value"], run["time"], run["state"]) == (80.123456, 75.2, "finished")
    assert run["date"].startswith("2026-03-01T")
    done = command("report", "runs", "--json", "list.json")
    assert json.loads(Path("list.json").read_text()) == [run]
    assert done.stdout


def test_no_runs_is_a_line(place):
    Path("runs").mkdir()
    done = command("report")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"no runs in runs; ldt finetune RECIPE makes one\n"
    done = command("report", "runs", "--gold", "x")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: --gold: no option of a list of runs; runs is no run\n"
