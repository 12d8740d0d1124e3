"""The blocked backend against the dense definition, in float64 where both are exact."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patterns import as_close, band, batches, dropouts, patterns, rand, rows, same
from properties import cases

from ldt.attention import Layout, block, blocked, reference


@pytest.mark.parametrize("extra", [None, "relative", "bias"])
@cases(60)
@given(batch=patterns())
def test_band_equals_the_definition_with_all_gradients(extra, batch):
    layout, generator, arguments = batch
    if extra == "bias" and layout.is_global is None:
        return
    if extra:
        arguments[extra] = True
    state = generator.get_state()
    expected = band(reference, layout, generator, **arguments)
    assert same(band(blocked, layout, generator.set_state(state), **arguments), expected)


@cases(40)
@given(batches(longest=300), dropouts, st.integers(0, 2**31))
def test_biases_of_global_rows_equal_the_definition_with_all_gradients(batch, dropout, seed):
    layout, generator = batch
    count, longest = len(layout.global_index), int(layout.cu_seqlens.diff().max())
    shapes = (count, 2, 4), *[(layout.total_tokens, 2, 4)] * 2, (count, 2, longest)
    leaves = [rand(*shape, generator=generator) for shape in shapes]
    found = []
    for module in (reference, blocked):
        out = module.projected_global_attention(
            *leaves[:3], layout, dropout=dropout, seed=seed, bias=leaves[3]
        )
        found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    assert same(*found)


@pytest.mark.slow
@cases(40)
@given(batches(), dropouts, st.integers(0, 2**31))
def test_global_rows_folded_and_plain_equal_the_definition(batch, dropout, seed):
    layout, generator = batch
    if not len(layout.global_index):
        return
    state = generator.get_state()
    expected = rows(reference.global_attention, layout, generator, dropout=dropout, seed=seed)
    for run in (blocked.folded_rows, blocked.plain_rows, blocked.global_attention):
        ours = rows(run, layout, generator.set_state(state), dropout=dropout, seed=seed)
        assert same(ours, expected)


def test_many_global_rows_in_a_long_document_go_in_pieces(monkeypatch):
    monkeypatch.setattr(blocked, "ROW_ELEMENTS", 1000)
    is_global = torch.ones(150, dtype=torch.bool)
    layout = Layout(torch.tensor([0, 150]), None, is_global)
    settings = {"dropout": 0.0, "seed": 0}
    ours = rows(blocked.plain_rows, layout, torch.Generator().manual_seed(1), **settings)
    expected = rows(reference.global_attention, layout, torch.Generator().manual_seed(1))
    assert same(ours, expected)


@pytest.mark.parametrize(("elements", "most"), [(1000, 1000), (10, 300)])
def test_the_scores_of_global_rows_have_a_bound(elements, most, monkeypatch):
    """Of a document in 2 heads and 150 tokens one row has 300 scores, which are the least."""
    found = []
    monkeypatch.setattr(blocked, "ROW_ELEMENTS", elements)
    monkeypatch.setattr(blocked.Blocked, "apply", lambda q, k, v, blocks, *_: found.extend(blocks))
    layout = Layout(torch.tensor([0, 150]), None, torch.ones(150, dtype=torch.bool))
    x, projection = torch.randn(150, 8), (torch.randn(8, 8), torch.randn(8))
    blocked.plain_rows(x.view(150, 2, 4), x, projection, projection, layout, 0.0, 0)
    assert sum(each.shape[0] for each in found) == 150
    assert max(2 * queries * keys for queries, keys in (each.shape for each in found)) <= most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_about_as_close_as_the_dense_definition(dtype):
    layout = Layout(torch.tensor([0, 300]), None, torch.arange(300) < 3)
    assert as_close(blocked, layout, dtype, dim=16, window=64, dilation=(1, 2)) == []


@pytest.mark.parametrize("is_global", [None, torch.arange(500) % 170 == 0])
@pytest.mark.parametrize("pattern", [{}, {"dilation": (1, 3)}, {"causal": True}])
def test_the_kernel_for_tiles_is_about_as_close_as_the_dense_definition(
    is_global, pattern, monkeypatch
):
    monkeypatch.setattr(block, "has_tiles", lambda: True)
    if pattern.get("causal"):
        is_global = None
    real = torch.arange(500) % 11 > 0
    for keep in (None, real if is_global is None else real | is_global):
        layout = Layout(torch.tensor([0, 400, 500]), keep, is_global)
        assert (
            as_close(blocked, layout, torch.bfloat16, dim=16, window=64, factor=3, **pattern) == []
        )


def test_what_many_blocks_give_a_global_key_is_summed_exactly_in_half_precision():
    """Small steps onto a large sum, which bfloat16 does not take."""
    one = block.Block(slice(0, 1), slice(0, 1), extra=torch.tensor([2, 2]), real=1)
    part = torch.tensor([1.0, 0.0, 0.5]).view(1, 3, 1)
    gradient = block._Sum(torch.zeros(3, 1, 1, dtype=torch.bfloat16))
    for _ in range(1024):
        gradient.add(one, part)
    assert gradient.total()[:, 0, 0].tolist() == [512, 0, 1024]


@pytest.mark.parametrize(
    ("tokens", "window", "expected"),
    [(512, 512, [128] * 4), (520, 512, [96] * 5 + [40]), (1024, 512, [96] * 10 + [64])]
    + [(4096, 256, [128] * 32), (300, 8, [128, 128, 44])],
)
def test_blocks_have_as_many_queries_as_their_scores_allow(tokens, window, expected):
    layout = Layout(torch.tensor([0, tokens]), None, torch.zeros(tokens, dtype=torch.bool))
    reach = block.Reach(window // 2, window // 2)
    shapes = [each.shape for each in blocked._band_blocks(layout, reach, 1)]
    assert [queries for queries, _ in shapes] == expected
    assert all(queries * keys <= 1 << 16 for queries, keys in shapes)


def test_a_row_whose_window_is_all_padding_stays_finite():
    keep = torch.zeros(40, dtype=torch.bool)
    layout = Layout(torch.tensor([0, 40]), keep, None)
    for tensor in band(blocked, layout, torch.Generator().manual_seed(0), window=4):
        assert torch.equal(tensor, torch.zeros_like(tensor))
