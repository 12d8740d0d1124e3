"""The layout of a packed batch, as it is on a device that nobody waits for as well."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from properties import cases

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


@pytest.mark.parametrize("count", [None, 3])
def test_a_mask_on_another_device_is_not_counted_where_the_count_is_known(count, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "placed", lambda mask, count: calls.append(count) or "places")
    mask = torch.empty(5, dtype=torch.bool, device="meta")
    if count is None:
        with pytest.raises(NotImplementedError):  # to count it is to wait for it
            places(mask, count)
    else:
        assert places(mask, count) == "places"
    assert calls == [count] * (count is not None)


def test_global_tokens_without_counting_are_those_of_each_document(monkeypatch):
    is_global = torch.zeros(50, dtype=torch.bool)
    is_global[[0, 3, 20, 21, 49]] = True
    given = torch.tensor([0, 20, 30, 50]), None, is_global
    counted = Layout(*given).cu_globals
    monkeypatch.setattr(module, "places", placed)  # the branch of CUDA
    known = Layout(*given, total_tokens=50, num_global=5)
    assert known.global_index.tolist() == [0, 3, 20, 21, 49]
    assert torch.equal(known.cu_globals, counted)
    assert known.cu_globals.tolist() == [0, 2, 4, 5]
