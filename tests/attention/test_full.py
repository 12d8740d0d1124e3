"""Attention of all tokens to their whole document, and rows with keys that are there already."""

import pytest
import torch
from peers import assert_close

from ldt.attention import (
    Layout,
    blocked,
    fill_projected_rows,
    full_attention,
    reference,
    sliding_window_attention,
)

LENGTHS = (1, 37, 5, 260)


def layout(holes=False, some=False):
    """All tokens global, or ``some`` of them; with ``holes`` padding inside of documents."""
    borders = torch.tensor([0, *LENGTHS]).cumsum(0)
    total = int(borders[-1])
    keep = torch.rand(total) < 0.8 if holes else torch.ones(total, dtype=torch.bool)
    keep[borders[:-1]] = True
    marks = keep & (torch.rand(total) < 0.1) if some else keep
    return Layout(borders, keep if holes else None, marks, total, int(marks.sum()))


def tensors(dtype=torch.float64):
    total = sum(LENGTHS)
    made = torch.randn(total, 3, 4, 8, dtype=dtype, requires_grad=True)
    return made, made.unbind(1)  # as of one product


def gradients(out, made):
    target = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out - target).square().sum(), made)[0]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_rows_are_those_of_the_definition(holes, dtype, onednn, monkeypatch):
    monkeypatch.setattr(blocked, "choices", lambda: {"bmm": onednn})  # which library is faster
    monkeypatch.setattr(blocked, "ROW_ELEMENTS", 1 << 10)  # several blocks meet the same keys
    where = layout(holes)
    made, (q, k, v) = tensors(dtype)
    exact = made.detach().double().requires_grad_()
    out = full_attention(q, k, v, where)
    expected = torch.zeros_like(exact[:, 0])
    parts = exact.unbind(1)
    index = where.global_index
    rows = reference.projected_global_attention(parts[0][index], *parts[1:], where)
    expected = expected.index_copy(0, index, rows)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert_close(out.double(), expected, tolerance, "output")
    slopes = gradients(out, made).double()
    assert_close(slopes, gradients(expected, exact), 4 * tolerance, "gradients")
    if holes:
        assert not out[~where.key_padding_mask].any()


@pytest.mark.fast("reference")
@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_rows_of_global_tokens_are_filled_with_the_layers_own_keys(backend):
    where = layout(holes=True, some=True)
    made, (q, k, v) = tensors()
    window = sliding_window_attention(q, k, v, where, window=6, backend=backend)
    out = fill_projected_rows(window, q, k, v, where, backend=backend)
    index = where.global_index
    expected = reference.sliding_window_attention(q, k, v, where, window=6)
    rows = reference.projected_global_attention(q[index], k, v, where)
    expected = expected.index_copy(0, index, rows)
    assert_close(out, expected, 1e-12, "output")
    assert_close(gradients(out, made), gradients(expected, made), 1e-11, "gradients")
    none = Layout(where.cu_seqlens, where.key_padding_mask, num_global=0)
    assert torch.equal(fill_projected_rows(window, q, k, v, none, backend=backend), window)


def test_dropout_of_all_rows_is_that_of_the_definition():
    where = layout()
    _, (q, k, v) = tensors()
    options = {"dropout": 0.4, "seed": 7}
    found = full_attention(q, k, v, where, **options)
    expected = reference.projected_global_attention(q, k, v, where, **options)
    assert_close(found, expected, 1e-12, "output")
