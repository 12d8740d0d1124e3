"""Faults put into the kernels that attend by a pattern, each seen by one small batch."""

import pytest
import torch
from device import on_device
from patterns import band, pack, rand, rows, same
from tiled import tiled
from torch.nn import functional as F

pytest.importorskip("triton")

from family import mutant

from ldt.attention import reference
from ldt.attention.cells import Cells

pytestmark = pytest.mark.slow


def windows(attend, definition=reference.sliding_window_attention):
    """Edges of windows and documents, keys between them, holes, global tokens, dropout."""
    layout, how = pack([60, 14], [0, 9, 65], [26, *range(67, 74)]), {"window": 46, "dropout": 0.3}
    name = "sliding_window_attention"
    return compared(attend, definition, name, band, layout, heads=1, **how)


def causal(attend, definition=reference.sliding_window_attention):
    """Causal windows, with a dilation in one head."""
    how = {"window": 12, "causal": True, "dilation": (1, 2)}
    name = "sliding_window_attention"
    return compared(attend, definition, name, band, pack([26, 14]), **how)


def cells(attend, definition=reference.cell_attention):
    """Cells of padding and of none, at edges of windows and documents, dropout."""

    def run(module, layout, generator, dtype, size=5, stride=4, **how):
        cells, kind = Cells(layout, size, stride), {"generator": generator, "dtype": dtype}
        q, up = (rand(layout.total_tokens, 1, 8, **kind) for _ in range(2))
        k, v = (rand(cells.count, 1, 8, **kind) for _ in range(2))
        out = module.cell_attention(q, k, v, cells, **how)
        return out, *torch.autograd.grad(out, (q, k, v), up)

    layout = pack([50, 14], [9, 60], [0, 1, *range(24, 34), 55])
    given = attend, definition, "cell_attention", run
    of_some = compared(*given, layout, window=16, dropout=0.3)
    return of_some and compared(*given, pack([24, 1]), window=2)


def globals(attend, definition=reference.projected_global_attention):
    """Rows of global tokens in two documents, with holes and dropout."""

    def run(module, layout, *rest, **how):
        def projected(q, x, key, value, layout, **how):
            k, v = (F.linear(x, *part).view(-1, *q.shape[1:]) for part in (key, value))
            return module.projected_global_attention(q, k, v, layout, **how)

        return rows(projected, layout, *rest, **how)

    layout = pack([50, 20], [3, 30, 55], [5, 44])
    name = "projected_global_attention"
    return compared(attend, definition, name, run, layout, dropout=0.3)


def compared(attend, definition, name, run, layout, **how):
    """True if a module's function and the definition give the same."""
    found = []
    for function in (on_device(getattr(attend, name)), definition):
        module = type("Module", (), {name: staticmethod(function)})
        generator = torch.Generator().manual_seed(0)
        found.append(run(module, layout, generator, torch.float32, **how))
    return same(*found, 1e-4)


FAULTS = {
    # name: what sees it, module, code, what stands there instead
    "a window begins a token late": (
        windows,
        "pattern",
        "tl.maximum(first, step - back)",
        "tl.maximum(first, step - back + 1)",
    ),
    "a window is a token too long": (windows, "pattern", "step + ahead + 1", "step + ahead + 2"),
    "tokens before a document are seen": (
        windows,
        "pattern",
        "tl.maximum(first, step - back)",
        "tl.maximum(0, step - back)",
    ),
    "tokens behind a document are seen": (
        windows,
        "pattern",
        "tl.minimum(last, step + ahead + 1)",
        "tl.minimum(tokens, step + ahead + 1)",
    ),
    "a tile over the left edge is not masked": (
        windows,
        "blocks",
        "tl.cdiv(tl.maximum(inner_begin - begin, 0), BLOCK)",
        "tl.maximum(inner_begin - begin, 0) // BLOCK",
    ),
    "a tile over the right edge is not masked": (
        windows,
        "blocks",
        "(tl.minimum(inner_end, end) - begin) // BLOCK",
        "tl.cdiv(tl.minimum(inner_end, end) - begin, BLOCK)",
    ),
    "the last tile is left out": (
        windows,
        "blocks",
        "tiles = tl.cdiv(end - begin, BLOCK)",
        "tiles = (end - begin) // BLOCK",
    ),
    "tiles behind the inner ones are not masked": (
        windows,
        "blocks",
        "if (i < left) | (i >= right):",
        "if i < left:",
    ),
    "hidden keys between the edges are not noticed": (
        windows,
        "blocks",
        "inner_end = tl.minimum(inner_end, tl.cdiv(hidden - residue, dilation))",
        "pass",
    ),
    "hidden keys in a tile are not noticed": (
        windows,
        "blocks",
        "< first + column.shape[0] * dilation",
        "< first",
    ),
    "hidden keys are seen": (windows, "forward", "v_ptr, None, hidden_ptr", "v_ptr, None, None"),
    "hidden keys are seen by gradients": (
        windows,
        "backward",
        "v_ptr, None, hidden_ptr",
        "v_ptr, None, None",
    ),
    "hidden keys get gradients": (
        windows,
        "backward",
        "dk = tl.where((hidden == 0)[:, None], dk, 0.0)",
        "pass",
    ),
    "masked queries attend": (
        windows,
        "forward",
        "full = full & (tl.load(masked_ptr + query) == 0)",
        "pass",
    ),
    "masked queries send gradients": (
        windows,
        "forward",
        'm_i + tl.log2(l_i), float("inf")',
        "m_i + tl.log2(l_i), 0.0",
    ),
    "a masked query ends its program": (windows, "forward", "alive = tl.min(", "alive = tl.max("),
    "a masked query ends its program of gradients": (
        windows,
        "backward",
        "alive = tl.min(lse, 0)",
        "alive = tl.max(lse, 0)",
    ),
    "a hidden key ends its program": (
        windows,
        "backward",
        "alive = tl.min(hidden",
        "alive = tl.max(hidden",
    ),
    "the last global key is not seen": (
        windows,
        "forward",
        "0, 1, begin, end, tiles",
        "0, 1, begin, end - 1, tiles",
    ),
    "the last global key is not seen by gradients": (
        windows,
        "backward",
        "0, 1, begin, end, tiles",
        "0, 1, begin, end - 1, tiles",
    ),
    "global keys of other documents are seen": (
        windows,
        "forward",
        "low, high, query_codes, k_ptr, v_ptr, gathered_ptr",
        "low, high * 0 + 9, query_codes, k_ptr, v_ptr, gathered_ptr",
    ),
    "global keys get no gradients": (windows, "backward", "if sums is not None:", "if False:"),
    "gradients of global keys go to others": (
        windows,
        "splits",
        "tl.load(place_ptr + row)",
        "tl.load(place_ptr + row) + 1",
    ),
    "a split is left out": (windows, "blocks", "split * size", "(1 + split) * size"),
    "the sum is missing in the log-sum-exp": (windows, "forward", "m_i + tl.log2(l_i)", "m_i"),
    "the output is not rescaled": (windows, "forward", "acc * alpha[:, None]", "acc"),
    "the sum is not rescaled": (windows, "forward", "l_i * alpha", "l_i"),
    "keys have the dropout of queries": (windows, "forward", "head, KEY", "head, QUERY"),
    "gradients of keys have the dropout of queries": (
        windows,
        "backward",
        "inside, seed, head, KEY",
        "inside, seed, head, QUERY",
    ),
    "dropout does not reach gradients of scores": (
        windows,
        "backward",
        "dp = tl.where(keep, dp * gain, 0.0)",
        "pass",
    ),
    "dropout does not reach gradients of values": (
        windows,
        "backward",
        "left_over = tl.where(keep, p, 0.0)",
        "pass",
    ),
    "the gain of dropout is missing": (windows, "backward", "dv * gain", "dv"),
    "the scale is missing in the gradients of queries": (windows, "backward", "dq * factor", "dq"),
    "the scale is missing in the gradients of keys": (windows, "backward", "dk * factor", "dk"),
    "the gradient through the sum is missing": (windows, "backward", "p * (dp - delta)", "p * dp"),
    "keys of another residue are met": (
        causal,
        "blocks",
        "place = residue + place * dilation",
        "place = place * dilation",
    ),
    "all heads have the windows of one dilation": (
        causal,
        "blocks",
        "* 2 + 1).to(tl.int64) * count",
        "* 2 + 1).to(tl.int64) * 0",
    ),
    "queries that see a key are those that it would see": (
        causal,
        "pattern",
        "tl.maximum(first, step - ahead)",
        "tl.maximum(first, step - back)",
    ),
    "a query too many sees a cell": (cells, "pattern", "+ window) // 2 + 1", "+ window) // 2 + 2"),
    "the last query that sees a cell is missed": (
        cells,
        "pattern",
        "+ window) // 2 + 1",
        "+ window) // 2",
    ),
    "the first query that sees a cell is missed": (
        cells,
        "pattern",
        "(cells.size - window) // 2",
        "(cells.size - window) // 2 + 1",
    ),
    "cells are seen from other documents": (
        cells,
        "pattern",
        "place.maximum(start).minimum(stop)",
        "place.clamp(0, layout.total_tokens)",
    ),
    "rows that are no cell are seen": (
        cells,
        "pattern",
        "else ~cells.valid",
        "else cells.valid & False",
    ),
    "dropout of a cell is that of the token with its number": (
        cells,
        "pattern",
        "cells.tokens(0)[0]",
        "torch.arange(cells.count).to(first.device)",
    ),
    "splits are added without their weights": (
        globals,
        "splits",
        "(share / tl.where(l_i > 0, l_i, 1.0))[:, None]",
        "(1 / splits)",
    ),
    "the sum of splits is missing in the log-sum-exp": (
        globals,
        "splits",
        "m_i + tl.log2(l_i)",
        "m_i",
    ),
    "global tokens see padding": (
        globals,
        "pattern",
        "else ~layout.key_padding_mask",
        "else layout.key_padding_mask & False",
    ),
    "global tokens have the dropout of others": (
        globals,
        "pattern",
        "*gathered[1:], *places[:, token])",
        "*gathered[1:], *places[:, 0 * token])",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_seen(fault, tmp_path, monkeypatch):
    sees, module, old, new = FAULTS[fault]
    monkeypatch.syspath_prepend(tmp_path)
    modules = mutant(tmp_path, f"mutant{list(FAULTS).index(fault)}", module, old, new)
    monkeypatch.setattr(modules["splits"], "PIECE", 16)
    with tiled(16, 16):
        assert not sees(modules["attention"])


@pytest.mark.parametrize("sees", [windows, causal, cells, globals])
def test_kernels_without_a_fault_are_right(sees, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    modules = mutant(tmp_path, f"right_{sees.__name__}", "pattern", "", "")
    monkeypatch.setattr(modules["splits"], "PIECE", 16)
    with tiled(16, 16):
        assert sees(modules["attention"])
