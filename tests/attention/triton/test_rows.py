"""The Triton kernels of the global rows against the dense definition, on a GPU or interpreted."""

from dataclasses import replace

import pytest
import torch
from device import PLAIN, on_device, there
from hypothesis import example, given
from hypothesis import strategies as st
from patterns import batches, dropouts, rows, rows_as_close
from properties import cases
from torch.nn import functional as F

pytest.importorskip("triton")

from ldt.attention import Layout, reference
from ldt.attention.dropout import dropout_mask
from ldt.attention.triton import rows as kernels
from ldt.attention.triton import rows_plan, splits

FORMS = [on_device(kernels.folded_rows), on_device(kernels.plain_rows)]
FOLDED = FORMS[0]


# Of a case that was once further off than the definition, which was nearly exact there.
FEW_OF_127 = [
    *(1, 4, 6, 7, 12, 13, 18, 22, 25, 27, 28, 36, 41, 54, 56, 60, 63, 65),
    *(70, 71, 76, 79, 81, 82, 85, 89, 90, 96, 100, 104, 110, 111, 113, 114, 120, 125),
]


def pack(lengths, globals, holes=()):
    """Documents of these lengths, with global tokens and holes at these packed places."""
    keep, is_global = torch.ones(sum(lengths)).bool(), torch.zeros(sum(lengths)).bool()
    keep[list(holes)], is_global[list(globals)] = False, True
    return Layout(torch.tensor([0, *lengths]).cumsum(0), keep if holes else None, is_global)


@cases(5, shrink=False)
@example((pack([127], FEW_OF_127), None), (2, 4), 0.0, torch.float32, 788968692)
@given(
    batches().filter(lambda b: b[0].total_tokens <= 200 and 0 < len(b[0].global_index) <= 40),
    st.sampled_from([(2, 4), (1, 24)]),
    dropouts,
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(-(2**40), 2**40),
)
@pytest.mark.parametrize("run", FORMS)
def test_any_batch_is_as_close_as_the_definition(run, batch, shape, dropout, dtype, seed):
    layout, _ = batch
    sizes = dict(zip(("heads", "dim"), shape, strict=True))
    # In half precision keys, values, probabilities and gradients between products are rounded.
    assert not rows_as_close(run, layout, dtype, seed, factor=8, dropout=dropout, **sizes)


SHAPES = {
    "many documents, most without a global token": ([3, 1, 5, 2, 70, 1, 1, 9], [11, 81]),
    "every token is global": ([40, 1], range(41)),
    "the only kept token is the global one": ([30, 5], [12, 31], [*range(12), *range(13, 30)]),
    "a document in several pieces, its first one all holes": ([200, 3], [130], range(70)),
    "none is global": ([20, 5], []),
    "more documents than the plan looks at together": ([2, 3] * 35, [0, 60, 85, 86, 120, 174]),
}


@pytest.mark.fast(
    "many documents, most without a global token-folded_rows",
    "the only kept token is the global one-plain_rows",
)
@pytest.mark.parametrize("run", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_where_kernels_break(run, shape):
    layout = pack(*SHAPES[shape])
    if not len(layout.global_index):
        out, *gradients = rows(run, layout, torch.Generator().manual_seed(0), torch.float32)
        assert out.shape == (0, 2, 4)
        assert all(torch.equal(x, torch.zeros_like(x)) for x in gradients)
        return
    assert not rows_as_close(run, layout, torch.float32, dropout=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_wider_than_a_tile_go_in_chunks(dtype):
    layout = pack([70, 20], [5, 80], holes=[33])
    sizes = {"heads": 3, "dim": 48}
    assert not rows_as_close(FOLDED, layout, dtype, factor=3, dropout=0.2, **sizes)


@pytest.mark.fast("dtype0")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_folded_is_not_rounded(dtype):
    wrong = rows_as_close(FOLDED, pack([1500], [0]), dtype, factor=1.5, heads=4, dim=16)
    # Gradients of probabilities are products of a gradient that kernels do round, that of what a
    # row gathers, and go into these three: seeds 0 to 3 have them up to 4 times as far off as the
    # rounding of a result is. All else is off by that alone.
    assert {name for name, *_ in wrong} <= {"dq", "dx", "dwk"}
    assert all(error < 3 * allowed for _, error, allowed in wrong)


def test_long_pieces_meet_their_tokens_in_several_steps(monkeypatch):
    monkeypatch.setattr(rows_plan, "PROGRAMS", 2)
    monkeypatch.setattr(splits, "PROGRAMS", 5)
    layout = pack([180, 60, 1], [3, 50, 190])
    for run in FORMS:
        assert not rows_as_close(run, layout, torch.float32)


def many_documents():
    """100 documents of 1 to 7 tokens, every third without a global token."""
    lengths = torch.arange(100) % 7 + 1
    first = lengths.cumsum(0) - lengths
    return pack(lengths.tolist(), first[torch.arange(100) % 3 > 0].tolist())


@pytest.mark.slow
@cases(6, shrink=False)
@example((many_documents(), None), 3, 3)
@example((pack([2] * 40 + [500] + [2] * 30, range(0, 90, 8)), None), 1, 2)
@example((pack([400] + [2] * 70, [3, 9, 399, 420, 500]), None), 1, 3)
@given(batches(), st.integers(1, 3), st.sampled_from([1, 3, 40]))
def test_a_plan_pairs_every_row_with_every_token_of_its_document_once(batch, per, programs):
    layout, _ = batch
    size, step = 16, 32
    before, rows_plan.PROGRAMS = rows_plan.PROGRAMS, programs
    try:
        plan = rows_plan.plan(there(layout), per=per, rows=size, columns=step)
    finally:
        rows_plan.PROGRAMS = before
    count = len(layout.global_index) * per
    assert len(plan.items) <= len(plan.tiles) + programs
    own = layout.document_of[layout.global_index].repeat_interleave(per)
    expected = (own[:, None] == layout.document_of).int()
    found = torch.zeros_like(expected)
    for first, last, begin, end in plan.items.tolist():
        found[first:last, begin:end] += 1
        assert last - first <= size
    assert torch.equal(found, expected)
    blocks = torch.zeros_like(expected)
    for begin, end, first, last in plan.blocks.tolist():
        blocks[first:last, begin:end] += 1
        assert end - begin <= step
    assert torch.equal(blocks, expected)
    tiles = torch.zeros(count, dtype=torch.int32)
    for first, last, item, end in plan.tiles.tolist():
        tiles[first:last] += 1
        if first < last:
            assert {(first, last)} == {tuple(x[:2]) for x in plan.items[item:end].tolist()}
    assert torch.equal(tiles, torch.ones_like(tiles))


def test_keys_and_values_that_are_given_are_attended_to_as_the_definition_does():
    def projected(q, x, key, value, layout, **arguments):
        k, v = (F.linear(x, *part).view(-1, *q.shape[1:]) for part in (key, value))
        return on_device(kernels.projected_global_attention)(q, k, v, layout, **arguments)

    layout = pack([30, 1, 20], [2, 11, 30, 49], [5, 40])
    assert not rows_as_close(projected, layout, torch.float32, dropout=0.3)


@pytest.mark.parametrize("run", FORMS)
def test_dropout_takes_what_the_definition_takes(run):
    layout, heads, size, seed = pack([7, 16], [2, 9, 20]), 2, 23, -(2**35) + 3
    x = torch.eye(size)
    eye = torch.eye(size).repeat(heads, 1)  # values of token j: the j-th unit vector
    nothing = torch.zeros(heads * size)
    q = torch.randn(3, heads, size)
    out = run(q, x, (eye, nothing), (eye, nothing), layout, dropout=0.5, seed=torch.tensor(seed))
    tokens = torch.arange(size)
    index = layout.global_index
    mask = dropout_mask(layout, heads, index, tokens, 0.5, seed).transpose(0, 1)
    own = layout.document_of[index][:, None] == layout.document_of
    assert torch.equal(out != 0, mask & own[:, None])


@pytest.mark.slow
@pytest.mark.parametrize("run", FORMS)
def test_two_runs_give_the_same_bits(run):
    layout = pack([150, 40], [0, 7, 160])
    first, second = (
        rows(run, layout, torch.Generator().manual_seed(3), torch.float32, dropout=0.1)
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("lengths", "globals", "dtype", "width", "folded"),
    [
        ([9], 4, torch.float32, 8, True),  # 2 heads: 8 rows of width 8
        ([9], 5, torch.float32, 8, False),
        ([5, 4], 8, torch.float32, 8, True),  # on average
        ([9], 1, torch.float32, 832, False),  # too wide for the registers of a program
        ([9], 1, torch.bfloat16, 1024, True),
    ],
)
def test_few_rows_are_folded_and_many_are_projected(lengths, globals, dtype, width, folded):
    layout = pack(lengths, range(globals))
    q, x = there((torch.empty(globals, 2, 4, dtype=dtype), torch.empty(9, width, dtype=dtype)))
    assert kernels.folds(q.shape, x, layout, q.dtype) == folded


def test_global_rows_takes_the_form_that_costs_less(monkeypatch):
    called = []
    for name in ("folded_rows", "plain_rows"):
        run = getattr(kernels, name)
        monkeypatch.setattr(
            kernels, name, lambda *a, n=name, f=run, **k: called.append(n) or f(*a, **k)
        )
    run = on_device(kernels.global_attention)
    for globals in (4, 5):
        assert not rows_as_close(run, pack([9], range(globals)), torch.float32)
    assert called == ["folded_rows", "plain_rows"]


@pytest.mark.parametrize("run", FORMS)
def test_rows_past_the_last_global_token_gather_nothing(run):
    layout = pack([20, 6], [3, 22])
    longer = there(replace(layout, num_global=5))
    q, x = torch.randn(5, 2, 8, requires_grad=True), torch.randn(26, 16)
    key, value = ((torch.randn(16, 16), torch.zeros(16)) for _ in range(2))
    settings = {"dropout": 0.2, "seed": 1}
    out = run(q, x, key, value, longer, **settings)
    expected = reference.global_attention(q[:2], x, key, value, layout, **settings)
    torch.testing.assert_close(out[:2], expected)
    assert not out[2:].any()
    assert not torch.autograd.grad(out.sum(), q)[0][2:].any()


@pytest.mark.parametrize("run", FORMS)
def test_views_into_larger_tensors_are_read_by_their_strides(run):
    layout = pack([30], [4, 20])
    q, x = torch.randn(2, 2, 24)[..., 3:19], torch.randn(30, 40)[:, 5:37]
    key, value = ((torch.randn(32, 32) * 0.2, torch.randn(32)) for _ in range(2))
    expected = reference.global_attention(q, x, key, value, layout)
    torch.testing.assert_close(run(q, x, key, value, layout), expected)


@pytest.mark.plain
@pytest.mark.parametrize("run", [kernels.folded_rows, kernels.plain_rows])
def test_autocast_computes_in_the_lower_precision(run):
    layout, x = there((pack([30], [4, 20]), torch.randn(30, 32)), PLAIN)
    query, key, value = (torch.nn.Linear(32, 32).to(PLAIN) for _ in range(3))

    def rows_of(x, run):
        q = query(x[layout.global_index]).view(-1, 2, 16)
        return run(q, x, (key.weight, key.bias), (value.weight, value.bias), layout)

    with torch.autocast(PLAIN.type, torch.bfloat16):
        out, dense = rows_of(x, run), rows_of(x, reference.global_attention)
    assert out.dtype == torch.bfloat16
    exact = rows_of(x, reference.global_attention)
    assert (out - exact).norm() <= 1.5 * (dense - exact).norm()


@pytest.mark.parametrize("run", [on_device(kernels.global_attention), *FORMS])
def test_float64_is_refused(run):
    with pytest.raises(ValueError, match="backend 'blocked' takes float64"):
        rows(run, pack([4], [0]), torch.Generator().manual_seed(0))
