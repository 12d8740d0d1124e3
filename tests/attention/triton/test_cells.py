"""The Triton attention to cells against the definition: output and gradients, interpreted."""

from contextlib import ExitStack

import pytest
import torch
from device import PLAIN, on_device, there
from hypothesis import example, given
from hypothesis import strategies as st
from patterns import SUMS, batches, dropouts, further, pack, rand, same
from properties import cases
from tiled import tiled
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

from ldt.attention import Layout, pooled_attention, reference
from ldt.attention.cells import Cells
from ldt.attention.triton import attention as kernels
from ldt.attention.triton import pooling, tiles
from ldt.attention.triton.launch import Launch
from ldt.attention.triton.pattern import of_cells

NAMES = "out", "dq", "dk", "dv"


class OnDevice:
    """A module's cell_attention for tensors of the CPU, where the definition runs."""

    def __init__(self, module=kernels):
        self.cell_attention = on_device(module.cell_attention)


@pytest.fixture
def tiles_of():
    """A function that has every kernel take tiles of these sizes."""
    with ExitStack() as stack:
        yield lambda rows, columns: stack.enter_context(tiled(rows, columns))


def attend(
    module, layout, size, stride, dtype=torch.float32, dim=16, draw=0, rounded=torch.float64, **how
):
    """Output and all gradients of a module's attention to cells of random keys and values."""
    generator, cells = torch.Generator().manual_seed(draw), Cells(layout, size, stride)
    kind = {"generator": generator, "dtype": dtype, "rounded": rounded}
    q, up = (rand(layout.total_tokens, 2, dim, **kind) for _ in range(2))
    k, v = (rand(cells.count, 2, dim, **kind) for _ in range(2))
    out = module.cell_attention(q, k, v, cells, **how)
    return out, *torch.autograd.grad(out, (q, k, v), up)


def off(layout, size, stride, dtype=torch.float32, **how):
    """Tensors of the kernels that are further off than `further` allows, but for what summing in
    another order makes of a zero."""

    def run(module, dtype, rounded):
        return attend(module, layout, size, stride, dtype, rounded=rounded, **how)

    return further(NAMES, run, reference, OnDevice(), dtype, factor=3, least=SUMS)


@cases(8, shrink=False)
@example((pack([261], [119, 124]), None), (5, 4), 2, 0.0, 16, (32, 32), 261)
@given(
    batches(longest=300).filter(lambda batch: batch[0].total_tokens <= 400),
    st.sampled_from([(5, 4), (4, 4), (2, 3), (1, 1), (6, 2), (9, 16)]),
    st.sampled_from([2, 6, 32, 130, 512]),
    dropouts,
    st.sampled_from([16, 20, 64, 100, 128]),
    st.sampled_from([(32, 16), (32, 64), (16, 64)]),
    st.integers(0, 2**31),
)
def test_any_batch_is_as_close_as_the_definition(
    tiles_of, batch, cell, window, dropout, dim, tile, seed
):
    tiles_of(*tile)
    assert not off(batch[0], *cell, window=window, dropout=dropout, seed=seed, dim=dim, draw=seed)


SHAPES = {
    "the window is longer than the document": ([40, 3, 1], {}, (5, 4), 512),
    "documents shorter than a cell, some out of its reach": ([2, 1, 3, 30, 1], {}, (7, 4), 4),
    "every token is global": ([20, 10], {"globals": range(30)}, (5, 4), 8),
    "no token is kept": ([12, 30], {"holes": range(42)}, (5, 4), 8),
    "a window of nothing but holes": ([90], {"holes": range(20, 80)}, (5, 4), 8),
    "documents begin and end with holes": (
        [50, 9, 40],
        {"holes": [*range(7), *range(44, 61), 98], "globals": [8, 70]},
        (5, 4),
        24,
    ),
    "few tokens reach a cell": ([60, 20], {"globals": [0, 60]}, (2, 5), 2),
    "a cell at every token": ([40, 15], {"holes": [3]}, (3, 1), 14),
    "more documents than a tile has rows": ([1, 2, 1, 1, 3] * 5, {"globals": [4]}, (5, 4), 16),
}


@pytest.mark.fast("the window is longer than the document")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_where_kernels_break(shape, tiles_of):
    lengths, tokens, cell, window = SHAPES[shape]
    tiles_of(16, 16)
    assert not off(pack(lengths, **tokens), *cell, window=window)


@pytest.mark.fast("dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_default_tiles_are_as_close_as_the_definition(dtype):
    layout = pack([170, 41], [0, 170], [7, *range(60, 70)])
    assert not off(layout, 5, 4, dtype, window=64, dropout=0.2, dim=40)


@pytest.mark.parametrize("seed", [-(2**40) - 1, torch.tensor(-(2**33) - 5)])
def test_dropout_takes_what_the_definition_takes(seed):
    layout, how = pack([60, 5, 1], holes=[0, 1]), {"window": 16, "dropout": 0.5, "seed": seed}
    ours, dense = (attend(m, layout, 5, 4, **how) for m in (OnDevice(), reference))
    assert same(ours, dense, 1e-4)


@pytest.mark.slow
def test_two_runs_give_the_same_bits(tiles_of):
    tiles_of(32, 16)
    layout, how = pack([100, 60], [0, 110], [40]), {"window": 32, "dropout": 0.3}
    first, second = (attend(OnDevice(), layout, 5, 4, torch.bfloat16, **how) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_views_are_read_by_their_strides():
    layout, generator = pack([50, 20], [3]), torch.Generator().manual_seed(0)
    cells = Cells(layout, 5, 4)
    fused = torch.randn(70, 3, 2, 16, generator=generator)
    pooled = torch.randn(2, 2, cells.count, 20, generator=generator)
    up = torch.randn(2, 16, 70, generator=generator).permute(2, 0, 1)  # no dimension contiguous
    found = []
    for module in (OnDevice(), reference):
        leaves = [x.clone().requires_grad_() for x in (fused, pooled)]
        k, v = leaves[1].transpose(1, 2)[..., 2:18]
        out = module.cell_attention(leaves[0][:, 1], k, v, cells, window=20)
        found.append((out, *torch.autograd.grad(out, leaves, up)))
    assert same(*found, 1e-5)


def test_tables_are_made_without_waiting_for_the_device(monkeypatch):
    monkeypatch.setattr(Launch, "__call__", lambda *_: None)
    with FakeTensorMode():  # has no numbers to wait for
        masks = torch.empty(50, dtype=torch.bool), torch.empty(50, dtype=torch.bool)
        layout = Layout(torch.empty(4, dtype=torch.int64), *masks, total=50, num_global=2)
        cells = Cells(layout, 5, 4)
        assert of_cells(cells, 16).keys.shape == (5, 15)
        assert pooling.Tables.of(cells).share.shape == (15, 5)
        assert cells.tokens(0)[0].shape == (15,)


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.parametrize("pooling", ["ldconv", "max"])
def test_the_whole_level_is_that_of_the_definition_compiled_as_well(pooling):
    layout, generator = there(pack([40, 21], [2], [50]), PLAIN), torch.Generator().manual_seed(0)
    q, k, v = (rand(61, 2, 16, generator=generator, dtype=torch.float32) for _ in range(3))
    weight = torch.randn(2, 5, 16, generator=generator) if pooling == "ldconv" else None
    q, k, v, weight = there((q, k, v, weight), PLAIN)
    how = {"pooling": pooling, "size": 5, "stride": 4, "window": 16}

    def run(backend, call=pooled_attention):
        out = call(q, k, v, weight, layout, **how, dropout=0.2, seed=3, backend=backend)
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v))

    compiled = torch.compile(pooled_attention, fullgraph=True, backend="aot_eager")
    expected, ours = run("reference"), run("triton")
    assert same(ours, expected, 1e-4)
    assert all(torch.equal(a, b) for a, b in zip(run("triton", compiled), ours, strict=True))


def test_what_kernels_cannot_do_is_refused_with_what_can(monkeypatch):
    cells, x = there(Cells(pack([4]), 5, 4)), there(torch.randn(4, 1, 16))
    k = there(torch.randn(cells.count, 1, 16))
    with pytest.raises(ValueError, match="got float64; backend 'blocked' takes float64"):
        kernels.cell_attention(x.double(), k.double(), k.double(), cells, window=4)
    with pytest.raises(ValueError, match="one dtype, .* got bfloat16, float32"):
        kernels.cell_attention(x, k, k.bfloat16(), cells, window=4)
    monkeypatch.setattr(tiles, "PLACES", ["cuda"])
    with pytest.raises(ValueError, match="on cpu; backend 'blocked' runs there"):
        kernels.cell_attention(x.cpu(), k, k, cells, window=4)
