"""The GPU suite: what it calls right, how it counts, and that no job loses rows of another."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

pytest.importorskip("triton")

from ldt.attention import reference

BAND = {"window": 8}
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.fixture
def suite(script, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return script("gpu")


@pytest.fixture
def checks(script):
    return script("gpu_correctness")


class Off:
    """A backend that is off by some of what the definition itself is off."""

    def __init__(self, times):
        self.times = times

    def sliding_window_attention(self, q, k, v, layout, **arguments):
        out = reference.sliding_window_attention(q, k, v, layout, **arguments)
        wide = (x.double() for x in (q, k, v))
        exact = reference.sliding_window_attention(*wide, layout, **arguments)
        error = (out - exact).abs().max() + torch.finfo(q.dtype).eps / 2 * exact.abs().max()
        return out + (self.times * error + 64 * (self.times > 1) * 2**-23).to(out).detach()


class Turns:
    """A backend that gives other bits at every second call."""

    calls = 0

    def sliding_window_attention(self, q, *args, **arguments):
        self.calls += 1
        out = reference.sliding_window_attention(q, *args, **arguments)
        return out * (1 + self.calls % 2 * 2**-23)


class Raises:
    def sliding_window_attention(self, *args, **arguments):
        raise RuntimeError("illegal memory access")


def rows_of(checks, backends, dtype=torch.float32):
    layout = checks.layout((40, 9), "cpu")
    run = {"band": partial(checks.band, layout=layout, dim=16, pattern=BAND)}
    return list(checks.checked(run, reference, backends, {}, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("times", "right"), [(0.0, True), (0.5, True), (4.0, False), (9.0, False)])
def test_a_backend_that_is_off_is_called_wrong(suite, checks, times, right, dtype):
    rows = rows_of(checks, {"blocked": Off(times)}, dtype)
    assert [row["ok"] for row in rows] == [right]
    assert suite.bad(rows) == ([] if right else rows)


@pytest.mark.parametrize(("name", "right"), [("triton", False), ("blocked", True)])
def test_only_kernels_must_give_the_same_bits_twice(checks, name, right):
    (row,) = rows_of(checks, {name: Turns()})
    assert (row["ok"], row["same_bits_twice"]) == (right, False)


def test_a_backend_that_raises_has_a_row_of_its_own(checks):
    rows = rows_of(checks, {"blocked": Raises(), "loop": reference})
    assert [row["ok"] for row in rows] == [False, True]
    assert rows[0]["failed"] == "RuntimeError: illegal memory access"


def test_flop_of_a_band_are_those_of_the_pairs_in_reach(suite):
    full = (1, 2, 40, 64), (1, 2, 40, 64), (1, 2, 40, 64)
    forward, backward = sdpa_flop_count(*full), sdpa_backward_flop_count(full[0], *full)
    place = torch.arange(40)
    count = suite.gpu_jobs.band_flops
    for window in (80, 8, 2):
        near = (place[:, None] - place).abs() <= window // 2
        share = near.double().mean().item()
        assert count([40], window, 128, "forward") == pytest.approx(share * forward)
        both = share * (forward + backward)
        assert count([40, 40], window, 128, "training") == pytest.approx(2 * both)


def jobs(suite, **runs):
    """A step of jobs of these functions, all at once."""
    made = [suite.gpu_jobs.Job(name, run, 2) for name, run in runs.items()]
    return suite.Step("trial", lambda sizes, rows: list(made), len(made))


def well():
    yield {"ms": 1.0}
    yield {"ms": 2.0}


def crashes():
    yield {"ms": 3.0}
    os.write(2, b"an illegal memory access\n")
    os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    yield {"ms": 4.0}
    time.sleep(60)


def raises():
    yield from ()
    raise ValueError("no such kernel")


def run(suite, folder, seconds=60.0, known=()):
    about = {"gpu": "NVIDIA H200", "torch": "2.11"}
    end = time.monotonic() + seconds
    return suite.Run(suite.gpu_jobs.TINY, folder, end, about, set(known))


def test_a_job_that_dies_or_hangs_loses_no_row(suite, tmp_path):
    one = run(suite, tmp_path)
    step = jobs(suite, crashes=crashes, hangs=hangs, raises=raises, well=well)
    one.stage((step,), ["trial"])
    rows = one.rows()
    assert sorted(row["ms"] for row in rows if "ms" in row) == [1.0, 2.0, 3.0, 4.0]
    ends = {row["job"]: row for row in rows if "done" in row}
    assert {name: row["done"] for name, row in ends.items()} == {
        **dict.fromkeys(("crashes", "hangs", "raises"), False),
        "well": True,
    }
    assert ends["crashes"]["failed"] == "died of SIGKILL"
    assert any("illegal memory access" in line for line in ends["crashes"]["tail"])
    assert ends["hangs"]["failed"] == "killed after 2 s"
    (told,) = (row for row in rows if row["job"] == "raises" and "failed" in row)
    assert told["failed"] == "ValueError: no such kernel"
    assert {row["job"] for row in suite.bad(rows)} == {"crashes", "hangs", "raises"}


def test_what_would_begin_too_late_is_left_out_and_done_by_the_next_run(suite, tmp_path):
    late = run(suite, tmp_path, -1.0)
    late.stage((jobs(suite, well=well),), ["trial"])
    (row,) = late.rows()
    assert row["left_out"]
    assert suite.finished(late.rows(), "NVIDIA H200") == set()
    late.file.unlink()
    first = run(suite, tmp_path)
    first.stage((jobs(suite, well=well),), ["trial"])
    done = suite.finished(first.rows(), "NVIDIA H200")
    assert done == {("trial", "well")}
    assert suite.finished(first.rows(), "NVIDIA H100") == set()
    assert suite.finished(first.rows(), "NVIDIA H200", "2.12") == set()
    first.file.unlink()
    rest = run(suite, tmp_path, known=done)
    rest.stage((jobs(suite, well=well, raises=raises),), ["trial"])
    assert {row["job"] for row in rest.rows()} == {"raises"}


def test_rows_of_a_run_take_the_place_of_earlier_ones_of_their_job(suite, tmp_path):
    about = {"gpu": "NVIDIA H200", "step": "kernels"}
    old = [
        {**about, "job": "a", "ms": 1.0},
        {**about, "job": "a"},
        {**about, "job": "b", "ms": 2.0},
    ]
    suite.merge(old, tmp_path)
    suite.merge(
        [{**about, "job": "a", "ms": 9.0}, {**about, "job": "b", "left_out": "x"}], tmp_path
    )
    found = json.loads((tmp_path / "gpu-h200.json").read_text())
    assert sorted(row["ms"] for row in found["rows"]) == [2.0, 9.0]


def test_the_parent_asks_no_gpu_that_its_children_need(suite, monkeypatch):
    def refuse(*_):
        raise AssertionError("CUDA in the parent")

    for name in ("_lazy_init", "is_available", "device_count", "get_device_capability"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    sizes = replace(suite.gpu_jobs.FULL)
    steps = [step for stage in suite.STAGES for step in stage]
    assert {step.name: bool(step.jobs(sizes, [])) for step in steps} == {
        **dict.fromkeys(suite.NAMES, True),
        "chosen": False,  # of tiles that nothing has timed yet
    }


def test_the_results_that_are_kept_are_those_of_their_gpu(suite):
    for file in Path(suite.RESULTS).glob("gpu-*.json"):
        found = json.loads(file.read_text())
        assert suite.results_of(found["gpu"], suite.RESULTS) == file
        assert all(row["gpu"] == found["gpu"] and row["date"] for row in found["rows"])


@pytest.mark.slow
def test_the_suite_runs_tiny_on_the_cpu_and_writes_its_results(tmp_path):
    command = [sys.executable, SCRIPT, "--dry-run", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DRY RUN, figures mean nothing" in done.stdout
    rows = json.loads((tmp_path / "gpu-none.json").read_text())["rows"]
    assert {row["step"] for row in rows} == {
        *("facts", "right", "compile", "launch", "kernels", "sweep", "chosen", "encoder"),
        *("tests", "finetune", "others", "reach"),
    }
    checked = [row for row in rows if "operation" in row]
    assert {row["operation"] for row in checked} >= {"band", "pooled-ldconv", "pooled-max", "far"}
    assert all(row["ok"] for row in checked)


def test_without_a_gpu_the_suite_says_so(suite, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        suite.main()
    assert "no CUDA device here; --dry-run" in f"{end.value.code}{capsys.readouterr().err}"
