"""The layout of a packed batch, as it is on a device that nobody waits for as well."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from properties import cases

from ldt import attention
from ldt.attention import layout as module
from ldt.attention.layout import Layout, placed, places


@cases(100)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 5))
def test_places_of_a_known_count_are_those_that_are_counted(mask, spare):
    mask = torch.tensor(mask)
    expected = mask.nonzero().squeeze(1)
    found = placed(mask, len(expected) + spare)
    assert torch.equal(found[: len(expected)], expected)
    assert found[len(expected) :].tolist() == [len(mask)] * spare
    assert torch.equal(places(mask), expected)


def test_global_tokens_without_counting_are_those_of_each_document(monkeypatch):
    is_global = torch.zeros(50, dtype=torch.bool)
    is_global[[0, 3, 20, 21, 49]] = True
    given = torch.tensor([0, 20, 30, 50]), None, is_global
    counted = Layout(*given).cu_globals
    monkeypatch.setattr(module, "places", placed)  # the branch of CUDA
    known = Layout(*given, total=50, num_global=5)
    assert known.global_index.tolist() == [0, 3, 20, 21, 49]
    assert torch.equal(known.cu_globals, counted)
    assert known.cu_globals.tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_a_layout_first_used_in_inference_mode_serves_training(backend):
    marks = torch.arange(50) % 20 == 3
    first, fresh = (Layout(torch.tensor([0, 20, 50]), torch.arange(50) != 7, marks) for _ in "ab")
    x, weight, bias = torch.randn(50, 8), torch.randn(8, 8), torch.randn(8)

    def trained(layout):
        leaf = x.clone().requires_grad_()
        q, arguments = leaf.view(50, 2, 4), {"dropout": 0.2, "seed": 1, "backend": backend}
        out = attention.sliding_window_attention(q, q, q, layout, window=6, **arguments)
        maps = [(weight, bias)] * 3
        out = attention.fill_global_rows(out, leaf, *maps, layout, **arguments)
        out = attention.fill_projected_rows(out, q, q, q, layout, **arguments)
        cells = {"pooling": "max", "size": 5, "stride": 4, "window": 12}
        out = out + attention.pooled_attention(q, q, q, None, layout, **cells, **arguments)
        return (out, *torch.autograd.grad(out.sum(), leaf)) if out.requires_grad else (out,)

    with torch.inference_mode():
        trained(first)
    for found, expected in zip(trained(first), trained(fresh), strict=True):
        assert torch.equal(found, expected)
