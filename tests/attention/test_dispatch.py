from functools import partial

import pytest
import torch

from ldt import attention
from ldt.attention import Layout, choose, sliding_window_attention
from ldt.attention.triton import devices


@pytest.mark.parametrize(
    ("device", "dtype", "dim", "name", "why"),
    [
        ("cpu", torch.float32, 64, "blocked", "the fast one on cpu"),
        ("cuda", torch.bfloat16, 64, "triton", "fused kernels on CUDA"),
        ("cuda:1", torch.float32, 128, "triton", "fused kernels on CUDA"),
        ("cuda", torch.float64, 64, "blocked", "float64 has no kernel"),
        ("cuda", torch.float16, 129, "blocked", "heads of more than 128 dims have no kernel"),
    ],
)
def test_auto_takes_the_fastest_that_can_run_and_says_why(device, dtype, dim, name, why, gpu):
    gpu(devices.LATEST)
    assert choose(device, dtype, dim) == (name, why)


def test_auto_does_without_triton(monkeypatch):
    monkeypatch.setattr(attention, "_has_triton", lambda: False)
    assert choose("cuda", torch.float32) == ("blocked", "the package triton is not installed")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "tvm"}, "reference, blocked, triton, got 'tvm'"),
        ({"window": 5}, "attention_window must be even and at least 2, got 5"),
        ({"window": 0}, "attention_window must be even and at least 2, got 0"),
        ({"dilation": (1, 2)}, r"one for each of the 1 heads, got \(1, 2\)"),
        ({"dilation": 0}, "attention_dilation must be a number >= 1"),
        ({"causal": True}, "causal attention has no global tokens"),
        ({"backend": "triton"}, "takes tensors of one dtype, .* got float64|CUDA, .* on cpu"),
    ],
)
def test_what_has_no_meaning_is_refused(changes, message):
    q = torch.randn(4, 1, 4, dtype=torch.float64)
    layout = Layout(torch.tensor([0, 4]), None, torch.tensor([True, False, False, False]))
    with pytest.raises(ValueError, match=message):
        attention.sliding_window_attention(q, q, q, layout, **{"window": 4} | changes)


def test_relative_positions_run_where_they_are_or_are_refused_by_name():
    q = torch.randn(9, 2, 4, dtype=torch.float64)
    table = torch.randn(2, 5, 4, dtype=torch.float64)
    layout = Layout(torch.tensor([0, 9]))
    run = partial(sliding_window_attention, q, q, q, layout, window=4)
    expected = run(relative=(q, table), backend="reference")
    for backend in ("auto", "blocked"):
        torch.testing.assert_close(run(relative=(q, table), backend=backend), expected)
    with pytest.raises(ValueError, match="auto, reference, blocked for relative .* got 'triton'"):
        run(relative=(q, table), backend="triton")
    with pytest.raises(ValueError, match=r"a table .*\[2, 3, 4\]\], got .* \[2, 5, 4\]\]"):
        run(relative=(q, table), causal=True)
