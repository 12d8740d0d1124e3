from dataclasses import replace
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
        ({"backend": "tvm"}, "reference, loop, blocked, flash, triton, got 'tvm'"),
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
    with pytest.raises(ValueError, match="'loop' has no relative positions; auto, reference"):
        run(relative=(q, table), backend="loop")
    with pytest.raises(ValueError, match=r"a table \[2, 3, 4\], got .* and \[2, 5, 4\]"):
        run(relative=(q, table), causal=True)


def test_layout_still_has_its_earlier_name_which_warns():
    with pytest.warns(DeprecationWarning, match="ldt.attention.Documents is now .*.Layout"):
        from ldt.attention import Documents
    cu_seqlens = torch.tensor([0, 3, 5])
    masks = torch.tensor([True, True, False, True, True]), torch.tensor([1, 0, 0, 0, 0]).bool()
    old = Documents(cu_seqlens, *masks)
    new = Layout(cu_seqlens, key_padding_mask=masks[0], is_global=masks[1])
    assert isinstance(old, Layout)
    assert torch.equal(old.keep, new.key_padding_mask)
    assert torch.equal(old.silent, new.masked_queries)
    assert (old.total, old.globals) == (new.total_tokens, new.num_global) == (5, None)
    assert (old.borders, old.global_borders) == (new.cu_seqlens_host, new.cu_globals_host)
    given = Documents(cu_seqlens, keep=masks[0], total=5, globals=0)
    assert (given.key_padding_mask is masks[0], given.total_tokens, given.num_global) == (
        True,
        5,
        0,
    )
    assert replace(old, is_global=None).is_global is None
    with pytest.raises(AttributeError, match="'Documents' object has no attribute 'lengths'"):
        old.lengths  # noqa: B018


def test_sliding_window_attention_still_has_its_earlier_name_which_warns():
    with pytest.warns(DeprecationWarning, match="band_attention is now .*sliding_window_attention"):
        from ldt.attention import band_attention
    q, k, v = torch.randn(3, 9, 2, 4)
    layout = Layout(torch.tensor([0, 9]))
    found = band_attention(q, k, v, documents=layout, window=4)
    assert torch.equal(found, sliding_window_attention(q, k, v, layout, window=4))


def test_global_attention_still_has_its_earlier_name_which_warns():
    with pytest.warns(
        DeprecationWarning, match="global_rows is now ldt.attention.global_attention"
    ):
        from ldt.attention import global_rows
    layout = Layout(torch.tensor([0, 9]), is_global=torch.arange(9) == 4)
    q, x, weight, bias = (torch.randn(*n) for n in ((1, 2, 4), (9, 8), (8, 8), (8,)))
    given = q, x, (weight, bias), (weight, bias)
    found = global_rows(*given, documents=layout, backend="reference")
    assert torch.equal(found, attention.global_attention(*given, layout, backend="reference"))


def test_a_name_that_never_was_is_no_attribute():
    with pytest.raises(AttributeError, match="'ldt.attention' has no attribute 'dense'"):
        attention.dense  # noqa: B018
