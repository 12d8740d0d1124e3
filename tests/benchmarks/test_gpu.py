"""The GPU suite: what it calls right, how it counts, and that no job loses rows of another."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

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
