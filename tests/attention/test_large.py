"""Larger batches than those of the other tests: 2,000 tokens, 100 documents, 200 global tokens."""

from types import SimpleNamespace

import pytest
import torch
from cells import pooled
from device import on_device
from hypothesis import given
from hypothesis import strategies as st
from patterns import as_close, band, rows, rows_as_close, same
from properties import cases

from ldt.attention import POOLINGS, Layout, blocked, reference

TOKENS, GLOBALS = 2000, 200


def layout(documents, seed=0):
    """``documents`` of random lengths with holes, a global token here and there."""
    generator = torch.Generator().manual_seed(seed)
    cuts = torch.randperm(TOKENS - 1, generator=generator)[: documents - 1] + 1
    borders = torch.cat([torch.tensor([0]), cuts.sort().values, torch.tensor([TOKENS])])
    keep = torch.rand(TOKENS, generator=generator) < 0.97
    chosen = torch.randperm(TOKENS, generator=generator)
    is_global = torch.zeros(TOKENS, dtype=torch.bool)
    is_global[chosen[keep[chosen]][:GLOBALS]] = True
    return Layout(borders, keep, is_global)


def check(where, window, dilation, dropout, pooling, seed=0):
    """Blocked against the dense definition: windows, global rows and the second level."""
    assert len(where.global_index) == GLOBALS

    def windows(backend, generator):
        how = {"window": window, "dilation": dilation, "dropout": dropout, "seed": seed}
        return band(blocked if backend else reference, where, generator, **how)

    def of_globals(backend, generator):
        run = (blocked if backend else reference).global_attention
        return rows(run, where, generator, dropout=dropout, seed=seed)

    def level(backend, generator):
        how = {"window": window, "dropout": dropout, "seed": seed}
        return pooled(blocked if backend else reference, where, generator, pooling, 5, 4, **how)

    for run in (windows, of_globals, level):
        ours, exact = (run(x, torch.Generator().manual_seed(seed)) for x in (True, False))
        assert same(ours, exact), run.__name__


@pytest.mark.parametrize("documents", [1, 100])
def test_a_large_batch_equals_the_definition(documents):
    check(layout(documents), 128, (1, 3), 0.1, "ldconv")


@pytest.mark.nightly
@cases(2)
@given(
    st.sampled_from([1, 2, 40, 100, 500]),
    st.sampled_from([2, 64, 512, 4000]),
    st.sampled_from([1, (2, 7), (1, 100)]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(list(POOLINGS)),
    st.integers(0, 2**31),
)
def test_any_large_batch_equals_the_definition(documents, window, dilation, dropout, pooling, seed):
    check(layout(documents, seed), window, dilation, dropout, pooling, seed)


@pytest.mark.nightly
@pytest.mark.usefixtures("kernels_device")
@pytest.mark.parametrize("documents", [1, 100])
def test_kernels_are_as_close_on_a_large_batch(documents):
    pytest.importorskip("triton")
    from ldt.attention import triton

    where, run = layout(documents), on_device(triton.global_attention)
    windows = SimpleNamespace(sliding_window_attention=on_device(triton.sliding_window_attention))
    assert not as_close(windows, where, torch.float32, dim=16, window=128, dilation=(1, 3))
    assert not rows_as_close(run, where, torch.float32, dim=16)
