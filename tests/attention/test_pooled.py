"""The pooled level: the definition against loops that a reader can check, blocked against it."""

import gc
import math
import weakref

import pytest
import torch
from cells import cells_by_hand, pool_weight, pooled
from hypothesis import given
from hypothesis import strategies as st
from patterns import batches, dropouts, further, same
from properties import cases

from ldt.attention import POOLINGS, Layout, blocked, pooled_attention, reference
from ldt.attention.cells import Cells

HEADS, DIM = 2, 3
SIZES = [(5, 4), (4, 4), (2, 3), (1, 1), (6, 2)]  # overlap, meet, leave gaps, tokens, much overlap


def layout():
    """Six documents with holes and global tokens: one begins with holes, one has nothing else."""
    lengths = [9, 1, 14, 3, 5, 2]
    keep = torch.rand(sum(lengths), generator=torch.Generator().manual_seed(3)) > 0.2
    keep[10:13] = False  # how the third begins
    keep[24:27] = False  # all of the fourth
    is_global = torch.zeros_like(keep)
    is_global[[2, 15, 16, 28]] = True
    borders = torch.tensor([0, *lengths]).cumsum(0)
    return Layout(borders, keep, is_global & keep)


def pooled_by_hand(pooling, k, v, weight, cell, size, h):
    """Key and value [dim] of head h of one cell."""
    _, start, tokens = cell
    places = [i - start for i in tokens]
    if pooling == "max":
        return tuple(torch.stack([x[i, h] for i in tokens]).amax(0) for x in (k, v))
    if pooling == "conv":
        return tuple(
            sum(w[h, :, p] * x[i, h] for i, p in zip(tokens, places, strict=True))
            for x, w in zip((k, v), weight, strict=True)
        )
    centre, found = start + (size - 1) // 2, []
    for number, x in enumerate((k, v)):
        shares = [1.0] * len(tokens)
        if pooling == "ldconv" and centre in tokens:
            shares = [math.exp(weight[h, p] @ v[centre, h]) for p in places]
        if pooling == "ldconv_separate" and centre in tokens:
            shares = [math.exp(weight[number, h, p] @ x[centre, h]) for p in places]
        pairs = zip(shares, tokens, strict=True)
        found.append(sum(s * x[i, h] for s, i in pairs) / sum(shares))
    return tuple(found)


@pytest.mark.parametrize(("size", "stride"), SIZES)
@pytest.mark.parametrize("pooling", ["ldconv", "ldconv_separate", "mean", "max", "conv"])
def test_pooling_and_attention_are_what_the_docstrings_say(pooling, size, stride):
    docs, window = layout(), 8
    q, k, v = torch.randn(3, docs.total_tokens, HEADS, DIM, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    weight = pool_weight(pooling, size, HEADS, DIM, generator)
    weight = None if weight is None else weight.detach()
    by_hand = cells_by_hand(docs, size, stride)
    cells = Cells(docs, size, stride)
    assert int(cells.valid.sum()) == len(by_hand)
    assert cells.start[cells.valid].tolist() == [start for _, start, _ in by_hand]
    keys, values = reference.pool(pooling, k, v, weight, cells)
    assert not keys[~cells.valid].any()
    out = reference.cell_attention(q, keys, values, cells, window=window)
    for h in range(HEADS):
        table = [pooled_by_hand(pooling, k, v, weight, cell, size, h) for cell in by_hand]
        torch.testing.assert_close(keys[cells.valid, h], torch.stack([key for key, _ in table]))
        torch.testing.assert_close(values[cells.valid, h], torch.stack([x for _, x in table]))
        for i in range(docs.total_tokens):
            expected = torch.zeros(DIM, dtype=torch.float64)
            reached = [
                pair
                for (d, start, _), pair in zip(by_hand, table, strict=True)
                if d == docs.document_of[i] and abs(start + (size - 1) / 2 - i) <= window / 2
            ]
            if docs.key_padding_mask[i] and not docs.is_global[i] and reached:
                weights = [math.exp(float(q[i, h] @ key) / math.sqrt(DIM)) for key, _ in reached]
                pairs = zip(weights, reached, strict=True)
                expected = sum(w / sum(weights) * value for w, (_, value) in pairs)
            torch.testing.assert_close(out[i, h], expected)


@cases(60)
@given(
    batches(longest=400),
    st.sampled_from(list(POOLINGS)),
    st.sampled_from([*SIZES, (7, 3), (9, 16), (1, 4)]),
    st.sampled_from([2, 4, 6, 32, 130, 512]),
    dropouts,
    st.integers(-(2**40), 2**40),
)
def test_blocked_equals_the_definition_with_all_gradients(
    batch, pooling, cell, window, dropout, seed
):
    docs, generator = batch
    state = generator.get_state()
    how = {"window": window, "dropout": dropout, "seed": seed}
    expected, ours = (
        pooled(module, docs, generator.set_state(state), pooling, *cell, **how)
        for module in (reference, blocked)
    )
    assert same(ours, expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_documents_shorter_than_a_cell_and_rows_of_holes_are_exact(pooling):
    borders = torch.tensor([0, 1, 3, 10, 13])
    keep = torch.ones(13, dtype=torch.bool)
    keep[3:10] = False
    docs = Layout(borders, keep)
    found = [
        pooled(module, docs, torch.Generator().manual_seed(0), pooling, 5, 4, window=8)
        for module in (reference, blocked)
    ]
    assert same(*found)
    out = found[0][0]
    assert out[keep].all()
    assert not out[~keep].any()
    short = pooled(blocked, docs, torch.Generator().manual_seed(0), pooling, 5, 4, window=2)
    assert not short[0][:1].any()  # the centre of its only cell is 2 tokens away
    keep = torch.zeros(13, dtype=torch.bool)
    for module in (reference, blocked):
        for x in pooled(module, Layout(borders, keep), torch.Generator(), pooling, 5, 4, window=8):
            assert not x.any()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_document_alone_is_what_it_is_in_a_batch_and_behind_padding(pooling):
    x = torch.randn(3, 60, HEADS, DIM, dtype=torch.float64)
    weight = pool_weight(pooling, 5, HEADS, DIM, torch.Generator().manual_seed(1))
    how = {"pooling": pooling, "size": 5, "stride": 4, "window": 16}

    def run(tokens, docs):
        return pooled_attention(*x[:, tokens], weight, docs, **how)

    alone = run(slice(20, 60), Layout(torch.tensor([0, 40])))
    together = run(slice(0, 60), Layout(torch.tensor([0, 20, 60])))
    padded = run(slice(13, 60), Layout(torch.tensor([0, 47]), torch.arange(47) >= 7))
    torch.testing.assert_close(together[20:], alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(padded[7:], alone, rtol=1e-12, atol=1e-12)
    assert not padded[:7].any()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_about_as_close_as_the_dense_definition(dtype, pooling):
    docs = Layout(torch.tensor([0, 300]), None, torch.arange(300) < 3)

    def run(module, dtype, rounded):
        generator, how = torch.Generator().manual_seed(0), {"dim": 16, "window": 64}
        found = pooled(module, docs, generator, pooling, 5, 4, dtype, rounded=rounded, **how)
        assert all(x.dtype == dtype for x in found)
        return found

    # Keys and values of cells are rounded between the two functions.
    names = "out", "keys", "values", "dq", "dk", "dv", "dw"
    assert not further(names, run, reference, blocked, dtype, factor=4)


def test_memory_for_probabilities_does_not_grow_with_the_length():
    sizes = []
    for length in (1000, 4000):
        docs = Layout(torch.tensor([0, length]))
        blocks = list(blocked._cell_blocks(Cells(docs, 5, 4), 64, torch.float64))
        sizes.append(max(queries * cells for queries, cells in (b.shape for b in blocks)))
    assert sizes[0] == sizes[1] <= 128 * (128 + 64 + 8) / 4


def test_nothing_of_a_batch_outlives_it():
    docs = Layout(torch.tensor([0, 60]), torch.arange(60) > 3)
    x = torch.randn(60, HEADS, DIM)
    gc.disable()
    try:
        alive = weakref.ref(docs)
        pooled_attention(x, x, x, None, docs, pooling="mean", size=5, stride=4, window=8)
        del docs
        assert alive() is None
    finally:
        gc.enable()
