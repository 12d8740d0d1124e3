"""The Triton pooling against the definition: cells and all gradients, on a GPU or interpreted."""

import pytest
import torch
from cells import pool_weight
from device import on_device
from hypothesis import given
from hypothesis import strategies as st
from patterns import SUMS, batches, further, rand, same
from properties import cases

pytest.importorskip("triton")

from ldt.attention import POOLINGS, Layout, blocked, reference
from ldt.attention.cells import Cells
from ldt.attention.triton import pooling as kernels

NAMES = "keys", "values", "dk", "dv", "dw"
HEADS = 2


def layout(lengths, holes=()):
    """Documents of these lengths, with holes at these packed places."""
    keep = torch.ones(sum(lengths), dtype=torch.bool)
    keep[list(holes)] = False
    borders = torch.tensor([0, *lengths]).cumsum(0)
    return Layout(borders, keep if holes else None)


pool_there = on_device(kernels.pool)  # for tensors of the CPU, where the definition runs


def run(
    pool,
    pooling,
    docs,
    size,
    stride,
    dtype=torch.float32,
    dim=16,
    seed=0,
    weight=None,
    rounded=torch.float64,
):
    """Keys, values and all gradients of a pool function."""
    kind = {"generator": torch.Generator().manual_seed(seed), "rounded": rounded}
    k, v = (rand(docs.total_tokens, HEADS, dim, dtype=dtype, **kind) for _ in range(2))
    weight = pool_weight(pooling, size, HEADS, dim, dtype=weight or dtype, **kind)
    cells = Cells(docs, size, stride)
    ups = [rand(cells.count, HEADS, dim, dtype=dtype, **kind) for _ in range(2)]
    found = pool(pooling, k, v, weight, cells)
    leaves = [k, v] if weight is None else [k, v, weight]
    return *found, *torch.autograd.grad(found, leaves, ups)


def off(pooling, docs, size, stride, dtype=torch.float32, **how):
    """Tensors of the kernels that are further off than `further` allows."""

    def found(pool, dtype, rounded):
        tensors = run(pool, pooling, docs, size, stride, dtype, rounded=rounded, **how)
        assert all(x.dtype == dtype for x in tensors)
        return tensors

    return further(NAMES, found, reference.pool, pool_there, dtype, least=SUMS)


@cases(5, shrink=False)
@given(
    batches(globals=False, longest=120).filter(lambda batch: batch[0].total_tokens <= 150),
    st.sampled_from(list(POOLINGS)),
    st.sampled_from([(5, 4), (4, 4), (2, 3), (1, 1), (6, 2), (7, 3), (18, 16)]),
    st.sampled_from([16, 20, 64, 100, 128]),
    st.integers(0, 2**31),
)
def test_any_batch_is_as_close_as_the_definition(batch, pooling, cell, dim, seed):
    assert not off(pooling, batch[0], *cell, dim=dim, seed=seed)


SHAPES = {
    "one token": ([1], (), 5, 4),
    "documents shorter than a cell, all holes, and first holes": (
        [3, 1, 2, 4, 9, 1],
        [*range(6, 10), 10, 11],
        *(5, 4),
    ),
    "no token is kept": ([7, 5], range(12), 5, 4),
    "a cell of nothing but holes, and centres that are holes": ([40], [2, *range(12, 24)], 5, 4),
    "the last centre is behind the end": ([9, 9], [3], 6, 4),
    "gaps between cells": ([30, 7], [8, 16, 17], 2, 5),
    "one cell for all": ([12], (), 17, 64),
    "a cell at every token": ([20, 3], [5], 3, 1),
}


@pytest.mark.fast("one token")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_where_kernels_break(shape):
    lengths, holes, size, stride = SHAPES[shape]
    for pooling in POOLINGS:
        assert not off(pooling, layout(lengths, holes), size, stride), pooling


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_low_precision_is_as_close_as_the_definition(pooling, dtype):
    assert not off(pooling, layout([60, 21], [4, 50]), 5, 4, dtype, dim=40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_of_equal_maxima_the_first_gets_the_gradient(dtype):
    docs, generator = layout([50, 9], [7, 30]), torch.Generator().manual_seed(0)
    x, up = torch.randint(-2, 3, (2, 59, HEADS, 16), generator=generator)
    found = []
    for pool, of in ((blocked.pool, torch.float64), (pool_there, dtype)):
        leaf = x.to(of).requires_grad_()
        keys, values = pool("max", leaf, leaf, None, Cells(docs, 5, 4))
        up_keys = up[: len(keys)].to(of)
        (grad,) = torch.autograd.grad((keys, values), leaf, (up_keys, 2 * up_keys))
        found.append([y.double() for y in (keys, values, grad)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("pooling", ["ldconv", "conv"])
def test_a_weight_may_be_wider_than_the_tokens(pooling):
    docs, dtype = layout([70], [9]), torch.bfloat16

    def found(pool, kind, rounded):
        weight = torch.promote_types(kind, torch.float32)
        tensors = run(pool, pooling, docs, 5, 4, kind, weight=weight, rounded=rounded)
        assert [x.dtype for x in tensors] == [kind] * 4 + [weight]
        return tensors

    assert not further(NAMES, found, reference.pool, pool_there, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["ldconv", "conv"])
def test_two_runs_give_the_same_bits(pooling, monkeypatch):
    monkeypatch.setattr(kernels, "PARTS", 2)
    docs = layout([130, 9], [40])
    first, second = (run(pool_there, pooling, docs, 5, 4, torch.bfloat16) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("pooling", ["ldconv", "conv"])
def test_gradients_of_a_weight_are_sums_of_parts_of_many_cells(pooling, monkeypatch):
    monkeypatch.setattr(kernels, "PARTS", 2)
    assert not off(pooling, layout([130, 9], [9]), 5, 4)


@pytest.mark.parametrize(("pooling", "kernel"), [("ldconv", "scores"), ("conv", "filters")])
def test_the_sums_of_a_weight_have_a_bound(pooling, kernel, monkeypatch):
    """Each is as large as the weight, so a batch of any length has as many at most."""
    grids = {}

    class Launched:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            grids[self.name] = grid[0]
            return lambda *args, **how: None

    assert kernels.PARTS == 128
    for name in ("collect", "scores", "filters", "spread"):
        monkeypatch.setattr(kernels, name, Launched(name))
    for tokens, most in ((40, 2), (10_000, 128), (50_000, 128)):
        run(pool_there, pooling, layout([tokens]), 2, 2)
        assert most / 2 <= grids[kernel] <= most


@pytest.mark.parametrize("pooling", POOLINGS)
def test_what_stands_at_holes_and_around_views_is_not_read(pooling):
    docs, generator = layout([30, 20], [0, 11, 12, 49]), torch.Generator().manual_seed(0)
    fused = torch.randn(50, 3, HEADS, 20, generator=generator)
    weight = pool_weight(pooling, 5, HEADS, 16, generator, torch.float32)
    found = []
    for x in (fused, fused.clone()):
        if found:
            x[~docs.key_padding_mask] = float("nan")
            x[:, 0] = float("nan")
            x[..., 16:] = float("nan")
        leaf = x.requires_grad_()
        keys, values = pool_there(pooling, *leaf[..., :16].unbind(1)[1:], weight, Cells(docs, 5, 4))
        up = torch.ones_like(keys)
        found.append((keys, values, *torch.autograd.grad((keys, values), leaf, (up, up))))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    cells = Cells(docs, 5, 4)
    theirs = reference.pool(pooling, *fused[..., :16].unbind(1)[1:], weight, cells)
    assert same(found[0][:2], theirs, 1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_number_that_is_not_finite_is_not_lost(pooling):
    docs, generator = layout([20], [3]), torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 20, HEADS, 16, generator=generator)
    k[9, 0, 2], v[4, 1, 5] = float("nan"), float("inf")
    weight = pool_weight(pooling, 5, HEADS, 16, generator, torch.float32)
    found = (
        torch.cat(pool(pooling, k, v, weight, Cells(docs, 5, 4))).isfinite()
        for pool in (pool_there, reference.pool)
    )
    assert torch.equal(*found)


def test_what_kernels_cannot_do_is_refused_with_what_can():
    cells, x = Cells(layout([4]), 5, 4), torch.randn(4, 1, 16)
    for k, v, message in (
        (x.double(), x.double(), "got float64; backend 'blocked' takes float64"),
        (x, x.half(), "one dtype, .* got float16, float32"),
        (torch.randn(4, 1, 130), torch.randn(4, 1, 130), "of 130 dims: heads of more than 128"),
    ):
        with pytest.raises(ValueError, match=message):
            on_device(kernels.pool)("mean", k, v, None, cells)
