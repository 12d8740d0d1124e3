"""The Triton band against the dense definition: output and gradients, on a GPU or interpreted."""

import patterns
import pytest
import torch
from device import DEVICE, on_device, there
from hypothesis import given
from hypothesis import strategies as st
from patterns import band, pack, same
from properties import cases
from tiled import tiled

pytest.importorskip("triton")

from ldt.attention import reference
from ldt.attention.triton import attention as kernels
from ldt.attention.triton import backward, dropout, splits, tiles
from ldt.attention.triton.launch import Launch
from ldt.attention.triton.pattern import windows

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class OnDevice:
    """A module's sliding_window_attention for tensors of the CPU, where the definition runs."""

    def __init__(self, module=kernels):
        self.sliding_window_attention = on_device(module.sliding_window_attention)


def as_close(layout, dtype, seed=0, **arguments):
    """`patterns.as_close` of the kernels, but for what summing in another order makes of a zero."""
    found = patterns.as_close(OnDevice(), layout, dtype, seed, factor=3, **arguments)
    return not [name for name, error, allowed in found if not error <= allowed + patterns.SUMS]


@cases(6, shrink=False)
@given(
    patterns.patterns().filter(lambda pattern: pattern[0].total_tokens <= 350),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([16, 20, 48, 64, 100, 128]),
    st.sampled_from([(64, 64), (128, 64), (64, 128)]),
    st.integers(0, 2**31),
)
def test_any_pattern_is_as_close_as_the_definition(pattern, dtype, dim, tile, seed):
    layout, _, arguments = pattern
    del arguments["seed"]  # see test_dropout_takes_what_the_definition_takes
    with tiled(*tile):
        assert as_close(layout, dtype, seed, dim=dim, **arguments)


SHAPES = {
    "the window is longer than the document": ([40, 3, 1], {}, {"window": 512}),
    "documents shorter than the window": ([5, 1, 20, 2, 2, 50], {}, {"window": 32}),
    "one of 700 tokens": ([700], {"globals": [0]}, {"window": 66}),
    "every token is global": ([30, 10], {"globals": range(40)}, {"window": 8}),
    "no token is kept": ([20, 30], {"holes": range(50)}, {"window": 8}),
    "a window of nothing but holes": ([90], {"holes": range(20, 80)}, {"window": 8}),
    "a window of nothing but global tokens": ([60], {"globals": range(1, 50)}, {"window": 8}),
    "more global tokens than a tile holds": (
        [60, 60],
        {"globals": [0, 2, *range(65, 100)]},
        {"window": 12},
    ),
    "global tokens in one document of three": ([20, 30, 25], {"globals": [22, 49]}, {"window": 6}),
    "a gap longer than the documents": ([9, 14, 4], {}, {"window": 6, "dilation": (20, 1)}),
    "gaps among holes and global tokens": (
        [70, 31],
        {"globals": [3, 81], "holes": range(10, 100, 7)},
        {"window": 14, "dilation": (3, 2)},
    ),
    "causal, with a gap": ([50, 40], {"holes": [5]}, {"window": 14, "dilation": 2, "causal": True}),
}


@pytest.mark.fast("the window is longer than the document", "more global tokens than a tile holds")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_where_kernels_break(shape):
    lengths, tokens, arguments = SHAPES[shape]
    with tiled(*((64, 64) if max(lengths) > 100 else (16, 16))):
        assert as_close(pack(lengths, **tokens), torch.float32, dim=16, **arguments)


@pytest.mark.fast("dtype0")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_default_tiles_are_as_close_as_the_definition(dtype):
    layout, arguments = pack([130, 41], [0, 130], [7]), {"window": 126, "dropout": 0.2}
    assert as_close(layout, dtype, dim=40, **arguments)


@pytest.mark.parametrize("seed", [0, -(2**40) - 1, 2**31, torch.tensor(-(2**33) - 5)])
def test_dropout_takes_what_the_definition_takes(seed):
    run = {"layout": pack([60, 5, 1]), "dtype": torch.float32, "window": 8, "dropout": 0.5}
    run["seed"] = seed
    ours, dense = (
        band(module, generator=torch.Generator().manual_seed(1), **run)
        for module in (OnDevice(), reference)
    )
    assert same(ours, dense, 1e-4)
    assert int(dropout.on_device(seed, DEVICE)) == int(seed) % 2**32  # of the host
    assert dropout.on_device(moved := there(torch.tensor(3)), DEVICE) is moved


@pytest.mark.slow
def test_two_runs_give_the_same_bits():
    layout, arguments = pack([100, 60], [0, 1, 110], [40]), {"window": 32, "dropout": 0.3}
    arguments |= {"dilation": (1, 2), "dtype": torch.bfloat16, "dim": 16}
    first, second = (
        band(OnDevice(), layout, torch.Generator().manual_seed(0), **arguments) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_views_of_a_fused_projection_need_no_copy():
    layout, generator = pack([50, 20], [3]), torch.Generator().manual_seed(0)
    fused = torch.randn(70, 3, 2, 16, generator=generator)
    up = torch.randn(2, 16, 70, generator=generator).permute(2, 0, 1)  # no dimension contiguous
    found = []
    for module in (OnDevice(), reference):
        leaf = fused.clone().requires_grad_()
        out = module.sliding_window_attention(*leaf.unbind(1), layout, window=20)
        found.append((out, *torch.autograd.grad(out, leaf, up)))
    assert same(*found, 1e-5)


def test_places_for_global_tokens_that_are_not_there_stay_unread():
    layout = pack([40, 30], [2, 50])
    expected = band(OnDevice(), layout, torch.Generator().manual_seed(0), torch.float32, window=8)
    spare = there(layout)
    count, index = spare.cu_globals, spare.global_index
    nowhere = torch.full((40,), 2**40, device=DEVICE)
    spare.__dict__.update(cu_globals=count, global_index=torch.cat([index, nowhere]))
    generator = torch.Generator().manual_seed(0)
    shape = 70, 2, 4
    q, k, v, up = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(4))
    leaves = [x.to(DEVICE, torch.float32).requires_grad_() for x in (q, k, v)]
    out = kernels.sliding_window_attention(*leaves, spare, window=8)
    ours = (out, *torch.autograd.grad(out, leaves, up.to(out)))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, expected, strict=True))


def test_a_long_document_meets_its_global_keys_in_pieces(monkeypatch):
    monkeypatch.setattr(splits, "PIECE", 16)
    layout = pack([90, 20, 30], [0, 95, 111])
    with tiled(32, 16):
        assert as_close(layout, torch.float32, window=16)


@pytest.mark.parametrize(
    ("tokens", "globals", "expected"),
    [
        (100, 1, 100),  # one for each PIECE tokens, here 1
        (300, 1, 256),  # at most
        (300, 60, 128),  # 2 blocks of global keys in 8 heads: PROGRAMS / 16
    ],
)
def test_global_keys_meet_a_document_in_a_bounded_number_of_pieces(
    tokens, globals, expected, monkeypatch
):
    """Each costs memory for all global keys, so a document of any length has as many at most."""
    assert (splits.SPLITS, splits.PROGRAMS, splits.PIECE) == (256, 2048, 128)
    monkeypatch.setattr(splits, "PIECE", 1)
    launches = []

    def note(self, *tensors):
        launches.append((self._grid, tensors))

    pattern = windows(there(pack([tokens], range(globals))), 4, (1,) * 8)
    x, lse = there(torch.randn(tokens, 8, 16)), torch.zeros(8, tokens, device=DEVICE)
    monkeypatch.setattr(Launch, "__call__", note)
    with tiled(32, 32):
        backward.backward(x, x, x, x, x, lse, pattern)
    (of_queries, _), (of_keys, tensors), _ = launches
    blocks, of_gathered = -(-tokens // 32), -(-globals // 32)
    assert of_queries == (blocks, 8, 1)
    assert of_keys == (blocks + of_gathered * expected, 8, 1)
    assert tensors[5].shape[1] == expected


def test_what_kernels_cannot_do_is_refused_with_what_can(monkeypatch):
    layout, q = there(pack([4])), there(torch.randn(4, 1, 16))
    for x, message in (
        (q.double(), "got float64; backend 'blocked' takes float64"),
        (
            there(torch.randn(4, 1, 256)),
            "float32 of 256 dims: heads of more than 128 dims .* 'blocked' takes any",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.sliding_window_attention(x, x, x, layout, window=4)
    with pytest.raises(ValueError, match="one dtype, .* got bfloat16, float32"):
        kernels.sliding_window_attention(q, q, q.bfloat16(), layout, window=4)
    monkeypatch.setattr(tiles, "PLACES", ["cuda"])
    q, layout = q.cpu(), pack([4])
    with pytest.raises(ValueError, match="on cpu; backend 'blocked' runs there"):
        kernels.sliding_window_attention(q, q, q, layout, window=4)
