import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from properties import cases

from ldt.attention import Layout
from ldt.model.base import pack


def mask_of(*rows):
    return torch.tensor([[int(c) for c in row] for row in rows])


def test_a_document_spans_from_the_first_to_the_last_real_token():
    packing = pack((4, 5), mask_of("11110", "01101", "00000", "11111"))
    layout = packing.layout
    assert layout.cu_seqlens_host == [0, 4, 8, 9, 14]
    assert packing.index.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10, 15, 16, 17, 18, 19]
    assert layout.key_padding_mask.tolist() == [1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1]
    assert layout.is_global is None


def test_without_padding_packing_is_a_reshape():
    x = torch.randn(2, 3, 4)
    packing = pack((2, 3), torch.ones(2, 3))
    assert packing.index is None
    assert packing.layout.key_padding_mask is None
    assert packing.pack(x).data_ptr() == x.data_ptr()
    assert packing.unpack(packing.pack(x)).data_ptr() == x.data_ptr()


def test_with_holes_only_packing_moves_nothing_but_keeps_the_holes():
    packing = pack((2, 3), mask_of("101", "111"))
    assert packing.index is None
    assert packing.layout.key_padding_mask.tolist() == [1, 0, 1, 1, 1, 1]
    x = torch.ones(2, 3)
    assert packing.unpack(packing.pack(x), -1).tolist() == [[1, -1, 1], [1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [["1" * 5000, "1" * 5000], ["1" * 4999 + "0", "0" + "1" * 4999]])
def test_a_mean_in_half_precision_is_that_of_float64_rounded_once(rows, dtype):
    """A sum of 5,000 in bfloat16 stands still long before its end."""
    packing = pack((2, 5000), mask_of(*rows))
    x = torch.randn(packing.layout.total_tokens, 3).add(1).to(dtype)
    found = packing.reduce(x, "mean")
    exact = packing.reduce(x.double(), "mean")
    assert found.dtype == dtype
    torch.testing.assert_close(found, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    real = packing.unpack(x)[0].double()[mask_of(rows[0])[0].bool()]
    torch.testing.assert_close(exact[0], real.mean(0))


@cases(60)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**31), st.sampled_from([0.2, 0.8, 1]))
def test_unpacking_gives_back_real_tokens_and_the_fill_elsewhere(b, n, seed, share):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(b, n, generator=generator) < share
    x = torch.randn(b, n, 2, generator=generator)
    packing = pack((b, n), mask, device=x.device)
    packed = packing.pack(x)
    assert len(packed) == packing.layout.total_tokens
    assert torch.equal(packing.unpack(packed, -7), x.masked_fill(~mask[..., None], -7))
    assert torch.equal(packing.real(), mask)
    first = x[torch.arange(b), mask.int().argmax(1)]
    assert torch.equal(packing.first(packed), first)


def test_global_tokens_come_from_either_mask_and_never_from_padding():
    attention = mask_of("1120", "0111")
    packing = pack((2, 4), attention, mask_of("1001", "1020"))
    assert packing.layout.is_global.tolist() == [1, 0, 1, 0, 1, 0]
    hole = pack((1, 4), mask_of("1011"), mask_of("0110"))
    assert hole.layout.is_global.tolist() == [0, 0, 1, 0]
    assert pack((2, 4), attention).layout.is_global.tolist() == [0, 0, 1, 0, 0, 0]
    assert pack((2, 4), None, mask_of("0000", "0000")).layout.is_global is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32, torch.float16])
def test_masks_may_have_any_type(dtype):
    packing = pack((2, 3), mask_of("110", "111").to(dtype), mask_of("100", "000").to(dtype))
    assert packing.layout.cu_seqlens_host == [0, 2, 5]
    assert packing.layout.global_index.tolist() == [0]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ((mask_of("111", "131"), None), "attention_mask must hold 0, 1 or 2, got 3 in row 1"),
        ((None, mask_of("500", "000")), "global_attention_mask must hold .* got 5 in row 0"),
        ((None, torch.tensor([[0.0] * 3, [0.5] * 3])), "got 0.5 in row 1"),
        ((mask_of("11", "11"), None), r"attention_mask must have .* \[2, 3\], got \[2, 2\]"),
        ((None, torch.ones(2, 1, 1, 3)), r"got \[2, 1, 1, 3\]"),
    ],
)
def test_wrong_masks_are_named(masks, message):
    with pytest.raises(ValueError, match=message):
        pack((2, 3), *masks, device=torch.device("cpu"))


def test_probabilities_of_global_tokens_stand_at_their_rows_positions():
    packing = pack((2, 4), mask_of("0110", "1111"), mask_of("0010", "1001"))
    probs = torch.tensor([[[0.1, 0.9, 0, 0]], [[0.1, 0.2, 0.3, 0.4]], [[0.4, 0.3, 0.2, 0.1]]])
    out = packing.unpack_global_probabilities(probs)
    assert out.shape == (2, 1, 4, 2)
    assert out[0, 0, :, 0].tolist() == pytest.approx([0, 0.1, 0.9, 0])
    assert out[0, 0, :, 1].tolist() == [0, 0, 0, 0]
    assert out[1, 0].T.tolist() == [pytest.approx(row) for row in probs[1:, 0].tolist()]


def test_all_tokens_but_padding_become_global_and_are_counted():
    borders, keep = torch.tensor([0, 3, 5]), torch.tensor([True, False, True, True, True])
    for layout, count in ((Layout(borders), 5), (Layout(borders, keep), 4)):
        found = layout.all_global()
        assert found.num_global == count == int(found.is_global.sum())
        assert len(found.global_index) == count
