"""The padded form against the definition, with padding anywhere and several global tokens a row."""

import pytest
import torch

from ldt import attention
from ldt.attention import POOLINGS, Layout, padded
from ldt.attention.padded import PaddedLayout

HEADS, DIM = 2, 4
SHAPES = [(1, 1), (1, 33), (3, 17), (2, 150)]


def masks(shape, share):
    """Real tokens, global ones among them, and the layout of the flattened batch."""
    torch.manual_seed(shape[1])
    rows, length = shape
    keep = torch.rand(shape) > 0.2
    keep[:, length // 2] = True
    if share == "first":
        is_global = torch.zeros(shape).scatter(1, keep.int().argmax(1, keepdim=True), 1) > 0
    else:
        is_global = (torch.rand(shape) < share) & keep
    flat = keep.flatten(), is_global.flatten() if share else None
    return keep, is_global, Layout(torch.arange(rows + 1) * length, *flat)


@pytest.mark.parametrize("window", [2, 6, 40])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0, 0.1, "first"])
def test_padded_rows_equal_the_definition(shape, window, share):
    keep, is_global, layout = masks(shape, share)
    width, total = HEADS * DIM, keep.numel()
    q, k, v = torch.randn(3, total, HEADS, DIM, dtype=torch.float64) * 2
    x = torch.randn(total, width, dtype=torch.float64)
    maps = [(torch.randn(width, width).double(), torch.randn(width).double()) for _ in "qkv"]
    far = padded.any_number(is_global) if share else None
    if share == "first":
        far = padded.one_a_row(is_global.int().argmax(1), keep)
    found = []
    for where, backend in ((layout, "reference"), (PaddedLayout.of(keep, far), "auto")):
        out = attention.sliding_window_attention(q, k, v, where, window=window, backend=backend)
        if share:
            rows = attention.fill_global_rows(out, x, *maps, where, backend=backend)
            out = torch.cat([rows, attention.fill_projected_rows(out, q, k, v, where)])
        found.append(out)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("size", "stride", "window"), [(5, 4, 24), (4, 4, 40), (2, 3, 8)])
@pytest.mark.parametrize("shape", SHAPES)
def test_padded_cells_equal_the_definition(shape, size, stride, window, pooling):
    keep, is_global, layout = masks(shape, 0.1)
    q, k, v = torch.randn(3, keep.numel(), HEADS, DIM, dtype=torch.float64) * 2
    weight = POOLINGS[pooling].initial(HEADS, DIM, size)
    weight = weight if weight is None else torch.randn(weight.shape, dtype=torch.float64)
    options = {"pooling": pooling, "size": size, "stride": stride, "window": window}
    far = padded.any_number(is_global)
    found, expected = (
        attention.pooled_attention(q, k, v, weight, where, **options, backend="reference")
        for where in (PaddedLayout.of(keep, far), layout)
    )
    torch.testing.assert_close(found, expected)


def test_a_row_has_one_global_token_or_none():
    keep = torch.tensor([[False, True, True], [False, False, False]])
    far = padded.one_a_row(torch.tensor([1, 0]), keep)
    assert far.is_global.tolist() == [[False, True, False], [False, False, False]]
    assert far.present.tolist() == [[True], [False]]
