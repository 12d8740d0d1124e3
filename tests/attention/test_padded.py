"""The padded form against the definition, with padding anywhere and several global tokens a row."""

import pytest
import torch

from ldt.attention import Layout, padded, reference

HEADS, DIM = 2, 4


@pytest.mark.parametrize("window", [2, 6, 40])
@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (3, 17), (2, 150)])
def test_padded_rows_equal_the_definition(shape, window):
    torch.manual_seed(shape[1])
    width, (rows, length) = HEADS * DIM, shape
    keep = torch.rand(shape) > 0.2
    keep[:, length // 2] = True
    is_global = (torch.rand(shape) < 0.1) & keep
    is_global[0, length // 2] = True
    layout = Layout(torch.arange(rows + 1) * length, keep.flatten(), is_global.flatten())
    q, k, v = torch.randn(3, *shape, HEADS, DIM, dtype=torch.float64) * 2
    positions, present = padded.global_tokens(is_global)
    masks = keep, is_global, positions, present
    out = padded.sliding_window_attention(q, k, v, *masks, window=window)
    flat = (t.flatten(0, 1) for t in (q, k, v))
    expected = reference.sliding_window_attention(*flat, layout, window=window)
    torch.testing.assert_close(out.flatten(0, 1), expected)

    x = torch.randn(*shape, width, dtype=torch.float64)
    key, value = ((torch.randn(width, width).double(), torch.randn(width).double()) for _ in "kv")
    at = positions[:, :, None, None].expand(-1, -1, HEADS, DIM)
    out = padded.global_attention(q.gather(1, at), x, key, value, keep)[present]
    asked = q.flatten(0, 1)[layout.global_index]
    everything = x.flatten(0, 1), key, value, layout
    torch.testing.assert_close(out, reference.global_attention(asked, *everything))
