"""The padded form against the definition, with padding anywhere and several global tokens a row."""

import pytest
import torch

from ldt.attention import POOLINGS, Layout, padded, reference
from ldt.attention.pooled import reference as pooled_reference
from ldt.attention.pooled.cells import Cells

HEADS, DIM = 2, 4
SHAPES = [(1, 1), (1, 33), (3, 17), (2, 150)]


def masks(shape, share):
    """Real tokens, global ones among them, and the layout of the flattened batch."""
    torch.manual_seed(shape[1])
    rows, length = shape
    keep = torch.rand(shape) > 0.2
    keep[:, length // 2] = True
    is_global = (torch.rand(shape) < share) & keep
    flat = keep.flatten(), is_global.flatten() if share else None
    return keep, is_global, Layout(torch.arange(rows + 1) * length, *flat)


def by_head(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def packed(x):
    """[b, heads, n, dim] as the definition has it."""
    return x.transpose(1, 2).flatten(0, 1)


@pytest.mark.parametrize("window", [2, 6, 40])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0, 0.1])
def test_padded_rows_equal_the_definition(shape, window, share):
    keep, is_global, layout = masks(shape, share)
    width = HEADS * DIM
    q, k, v = torch.randn(3, *shape, HEADS, DIM, dtype=torch.float64) * 2
    far = padded.any_number(is_global) if share else None
    out = padded.Window(keep, far, window).attention(*by_head(q, k, v))
    flat = (t.flatten(0, 1) for t in (q, k, v))
    expected = reference.sliding_window_attention(*flat, layout, window=window)
    if not share:
        torch.testing.assert_close(packed(out), expected)
        return

    x = torch.randn(*shape, width, dtype=torch.float64)
    key, value = ((torch.randn(width, width).double(), torch.randn(width).double()) for _ in "kv")
    at = far.positions[:, None, :, None].expand(-1, HEADS, -1, DIM)
    (asking,) = by_head(q)
    given = asking.gather(2, at), x, key, value, keep
    asked = q.flatten(0, 1)[layout.global_index]
    everything = x.flatten(0, 1), key, value, layout
    expected[layout.global_index] = reference.global_attention(asked, *everything)
    for attention in (padded.global_attention, padded.folded_global_attention):
        filled = padded.fill_global_rows(out, attention(*given), far)
        torch.testing.assert_close(packed(filled), expected)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("size", "stride", "window"), [(5, 4, 24), (4, 4, 40), (2, 3, 8)])
@pytest.mark.parametrize("shape", SHAPES)
def test_padded_cells_equal_the_definition(shape, size, stride, window, pooling):
    keep, is_global, layout = masks(shape, 0.1)
    q, k, v = torch.randn(3, *shape, HEADS, DIM, dtype=torch.float64) * 2
    weight = POOLINGS[pooling].initial(HEADS, DIM, size)
    weight = weight if weight is None else torch.randn(weight.shape, dtype=torch.float64)
    options = {"pooling": pooling, "size": size, "stride": stride, "window": window}
    far = padded.any_number(is_global)
    out = padded.pooled_attention(*by_head(q, k, v), weight, keep, far, **options)
    cells = Cells(layout, size, stride)
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    pooled = pooled_reference.pool(pooling, *flat[1:], weight, cells)
    expected = pooled_reference.cell_attention(flat[0], *pooled, cells, window=window)
    torch.testing.assert_close(packed(out), expected)


def test_a_row_has_one_global_token_or_none():
    keep = torch.tensor([[False, True, True], [False, False, False]])
    far = padded.one_a_row(torch.tensor([1, 0]), keep)
    assert far.is_global.tolist() == [[False, True, False], [False, False, False]]
    assert far.present.tolist() == [[True], [False]]
