"""What the GPU suite holds for right, and how it counts."""

import sys
from dataclasses import replace
from pathlib import Path

import dense_flash
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from ldt.attention import BACKENDS, flash, reference


@pytest.fixture
def suite(monkeypatch):
    """The modules gpu and gpu_correctness of the benchmarks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu
    import gpu_correctness

    yield gpu, gpu_correctness
    for name in ("gpu", "gpu_correctness", "gpu_parts", "gpu_pooling", "gpu_tune"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_error_is_measured_by_twice_that_of_the_definition(suite, dtype):
    exact = [torch.full((5,), 4.0, dtype=torch.float64) for _ in range(4)]
    dense = [x + 0.25 for x in exact]
    allowed = 2 * 0.25 + torch.finfo(dtype).eps * 4  # and a rounding of the largest number
    for share in (0.5, 0.99, 1.01, 2.0):
        ours = [x.clone() for x in exact]
        ours[2][3] -= share * allowed
        found = suite[1].compare("band", exact, dense, ours, dtype)
        assert found == pytest.approx({"out": 0, "dq": 0, "dk": share, "dv": 0})


def test_no_error_is_allowed_where_all_is_zero(suite):
    zeros = [torch.zeros(3, dtype=torch.float64)]
    assert suite[1].compare("rows-0.01", zeros, zeros, zeros, torch.float32) == {"out": 0}
    found = suite[1].compare("rows-0.01", zeros, zeros, [zeros[0] + 1e-30], torch.float32)
    assert found["out"] == 1.0


class Off:
    """A backend that is off by some of what the definition itself is off."""

    def __init__(self, times):
        self.times = times

    def sliding_window_attention(self, q, k, v, layout, **arguments):
        out = reference.sliding_window_attention(q, k, v, layout, **arguments)
        wide = (x.double() for x in (q, k, v))
        exact = reference.sliding_window_attention(*wide, layout, **arguments)
        error = (out - exact).abs().max() + torch.finfo(q.dtype).eps / 2 * exact.abs().max()
        return out + (self.times * error).to(out).detach()


@pytest.mark.parametrize(("times", "right"), [(0.0, True), (0.5, True), (4.0, False), (9.0, False)])
def test_a_backend_that_is_off_is_called_wrong(suite, times, right):
    gpu, checks = suite
    layout = checks.layout((40, 9), "cpu")
    run = {"band": lambda module, dtype: checks.band(module, layout, 16, dtype, {"window": 8})}
    dtypes = (torch.float32, torch.bfloat16)
    rows = checks.checked(run, reference, {"blocked": Off(times)}, {}, "cpu", dtypes)
    assert [row["ok"] for row in rows] == [right] * 2
    assert gpu.wrong({"correctness": rows}) == ([] if right else rows)


def test_a_kernel_that_gives_other_bits_the_second_time_is_called_wrong(suite):
    turns = iter(range(100))

    class Turns:
        def sliding_window_attention(self, q, *args, **arguments):
            out = reference.sliding_window_attention(q, *args, **arguments)
            return out * (1 + next(turns) % 2 * 2**-23)

    layout = suite[1].layout((40,), "cpu")
    run = {"band": lambda module, dtype: suite[1].band(module, layout, 16, dtype, {"window": 8})}
    how = {}, "cuda", (torch.float32,)
    for name, right in (("triton", False), ("blocked", True)):
        (row,) = suite[1].checked(run, reference, {name: Turns()}, *how)
        assert (row["ok"], row["same_bits_twice"]) == (right, False)


def test_flop_of_a_band_are_those_of_the_pairs_in_reach(suite):
    full = (1, 2, 40, 64), (1, 2, 40, 64), (1, 2, 40, 64)
    forward, backward = sdpa_flop_count(*full), sdpa_backward_flop_count(full[0], *full)
    place = torch.arange(40)
    for window in (80, 8, 2):
        near = (place[:, None] - place).abs() <= window // 2
        share = near.double().mean().item()
        count = suite[0].band_flops
        assert count(40, window, 128, "forward") == pytest.approx(share * forward)
        assert count(40, window, 128, "training") == pytest.approx(share * (forward + backward))


def test_flash_is_checked_on_windows_without_holes(suite, monkeypatch):
    monkeypatch.setattr(flash, "kernels", dense_flash.kernels)
    cases = ((40, 7), 8, 16, {"holes": False}), ((40,), 8, 16, {})
    rows = suite[1].correctness("cpu", (torch.float32,), cases, ())
    found = [row for row in rows if row["backend"] == "flash"]
    assert [(row["operation"], row["lengths"]) for row in found] == [("band", (40, 7))]
    assert found[0]["ok"]


def test_the_rate_of_a_matrix_product_counts_each_sum_and_product(suite, monkeypatch):
    gpu = suite[0]

    def medians(runs, rounds, device):
        with FlopCounterMode(display=False) as counter:
            runs["mm"]()
        assert counter.get_total_flops() > 0
        flops.append(counter.get_total_flops())
        return {"mm": 0.5}

    flops = []
    monkeypatch.setattr(gpu, "medians", medians)
    assert gpu.matmul_rate(gpu.TINY) == flops[0] / 0.5


@pytest.mark.parametrize("kind", ["forward", "training"])
def test_the_share_of_the_rate_is_that_of_the_band_alone(suite, kind, monkeypatch):
    gpu = suite[0]
    monkeypatch.delitem(BACKENDS, "triton")

    def medians(runs, rounds, device):
        return {name: 2.0 if name == "band, dilation 1" else 0.1 for name in runs}

    monkeypatch.setattr(gpu, "medians", medians)
    sizes = replace(gpu.TINY, longest_dense=0)
    row = gpu.attention_row(30, kind, 1e6, sizes)
    flops = gpu.band_flops(30, 512, sizes.width, kind)
    assert row["share_of_matmul_rate"] == pytest.approx(flops / 2.0 / 1e6)


def test_a_section_that_breaks_off_is_told_and_leaves_the_others(suite, monkeypatch, capsys):
    gpu = suite[0]

    def breaks(sizes):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(gpu.SECTIONS, "attention", breaks)
    monkeypatch.setitem(gpu.SECTIONS, "reach", lambda sizes: [])
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--dry-run", "--only", "attention", "reach"])
    monkeypatch.setattr(gpu.gpu_parts, "pretend", lambda: None)
    with pytest.raises(SystemExit) as end:
        gpu.main()
    assert end.value.code == 1
    told = capsys.readouterr().out
    assert "no such kernel" in told
    assert "failed attention" in told
    assert "reach: 0 s" in told


def test_what_would_begin_too_late_is_left_out(suite, monkeypatch):
    gpu = suite[0]
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: 1000.0)
    assert gpu.run("reach", gpu.TINY, 1000.0 - gpu.LIMIT - 1) == {
        "left_out": f"it would begin after {gpu.LIMIT} seconds"
    }


def test_a_backend_that_does_not_run_is_wrong_and_a_peer_is_not(suite):
    failed = {"flash": "RuntimeError: no kernel", "cudnn": "ValueError: not here"}
    row = {"tokens": 9, "pass": "forward", "failed": failed, "seconds": {}}
    (wrong,) = suite[0].wrong({"attention": [row]})
    assert (wrong["backend"], wrong["error"]) == ("flash", "RuntimeError: no kernel")


def test_a_backend_that_raises_has_a_row_of_its_own(suite):
    class Raises:
        def sliding_window_attention(self, *args, **arguments):
            raise RuntimeError("illegal memory access")

    layout = suite[1].layout((40,), "cpu")
    run = {"band": lambda module, dtype: suite[1].band(module, layout, 16, dtype, {"window": 8})}
    backends = {"blocked": Raises(), "loop": reference}
    rows = suite[1].checked(run, reference, backends, {}, "cpu", (torch.float32,))
    assert [row["ok"] for row in rows] == [False, True]
    assert rows[0]["error"] == "RuntimeError: illegal memory access"


def test_tensors_that_lie_far_apart_give_the_same_bits(suite, monkeypatch):
    (row,) = suite[1].far("cpu", ["blocked"], 2**16)
    assert row["ok"]
    plain = suite[1].sliding_window_attention

    def wraps(q, k, v, *args, **how):
        """Reads keys as if the offset had fewer bits than it takes."""
        k = k if k.stride(0) < 2**16 else k.roll(1, 0)
        return plain(q, k, v, *args, **how)

    monkeypatch.setattr(suite[1], "sliding_window_attention", wraps)
    (row,) = suite[1].far("cpu", ["blocked"], 2**16)
    assert not row["ok"]


def test_failed_tests_are_named(suite, monkeypatch):
    parts = suite[0].gpu_parts
    said = "FAILED tests/attention/test_a.py::test_b - assert\n1 failed, 3 passed in 2s\n"

    class Done:
        stdout, stderr, returncode = said, "", 1

    monkeypatch.setattr(parts.subprocess, "run", lambda *args, **how: Done)
    found = parts.tests(suite[0].TINY)
    assert found["failed"] == ["tests/attention/test_a.py::test_b"]
    assert suite[0].failed({"tests": found, "attention": {"error": "x"}}) == [
        "attention",
        "tests/attention/test_a.py::test_b",
    ]
