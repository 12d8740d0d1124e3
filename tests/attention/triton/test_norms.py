"""The kernels of dropout, sum, normalisation and GELU against torch in float64."""

import pytest
import torch
from device import on_device
from dropped import mask
from torch.nn import functional as F

pytest.importorskip("triton")

from ldt.attention.triton import norms

EPS = 1e-5
# Rows and columns: of models, of one program and of many, with a rest and without, and none.
SHAPES = [(3, 768), (2, 1024), (5, 384), (7, 100), (0, 16), (1, 1), (1500, 16), (2600, 3)]


def given(rows, columns, dtype=torch.float64):
    """Two [rows, columns], a gradient of that shape, and two [columns]."""
    wide = torch.randn(3, rows, columns, dtype=torch.float64)
    return *wide.to(dtype), *torch.randn(2, columns, dtype=torch.float64).to(dtype)


def exact(y, x, up, weight, bias, dropout=0.0, seed=0):
    """Output, sum and gradients of the definition, as `kernels` gives them."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, y, weight, bias)]
    x, y, weight, bias = leaves
    keep = mask(*y.shape, dropout, seed).to(y.device)
    total = torch.where(keep, y / (1 - dropout), 0) + x
    out = F.layer_norm(total, weight.shape, weight, bias, EPS)
    found = torch.autograd.grad(out, leaves, up)
    return out, total, *found, found[1].sum(0)


def end_of(stream, products, dropout=0.0, **options):
    """The end of a half of a layer whose GELU has 8 columns."""
    kind = stream.shape, stream.get_device(), stream.dtype, products
    return norms.End(*kind, EPS, dropout, 8, **options)


@on_device
def kernels(y, x, up, weight, bias, dropout=0.0, seed=0):
    """The output, the sum, and the gradients of x, y, weight and bias, and the sum of y's."""
    of_y = bias if y.dtype == torch.float64 else torch.zeros_like(bias)
    seed = torch.full((), seed, device=x.device) if dropout else None
    tensors, first = (y - of_y, of_y, x, weight, bias, seed), end_of(x, y.dtype, dropout)
    out, copy, total = first.forward(*tensors, keep=True)
    assert copy is None
    plain, _, none = first.forward(*tensors)
    assert none is None
    assert torch.equal(plain, out)
    assert torch.equal(norms.again(total, weight, bias, EPS, out.dtype), out)
    found = []
    for second in (False, True):
        end = end_of(x, y.dtype, dropout, second=second)
        parts = norms.sums_of(total, 8).fill_(float("nan"))
        dx, dy, again = end.backward(up, total, weight, bias, seed, parts, want_out=not second)
        if second:
            assert again is None
        else:
            near(again, out)
        *sums, _ = norms.added(parts, *total.shape, weight.dtype)
        found.append((dx, dy, *sums[3 * second :][:3]))
    for ours, same in zip(*found, strict=True):
        assert torch.equal(ours, same)
    return out, total, *found[0]


def near(ours, true):
    """Up to the last digit."""
    eps = torch.finfo(true.dtype).eps
    torch.testing.assert_close(ours, true, rtol=2 * eps, atol=8 * eps)


def gelu_backward(wide, bias, slope, dtype, **options):
    """The output or None, and the sum of the gradients."""
    parts = norms.sums_of(wide.new_empty(len(wide), 4), wide.shape[1]).fill_(float("nan"))
    out = norms.gelu_backward(wide, bias, slope, parts, **options)
    return out, norms.added(parts, len(wide), 4, dtype)[-1]


def close(found, expected):
    for ours, true in zip(found, expected, strict=True):
        far = 1e-11 * max(1, true.abs().max().item() if true.numel() else 0)
        torch.testing.assert_close(ours, true, rtol=0, atol=far)


@pytest.mark.usefixtures("kernels_device")
@pytest.mark.covering(1)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm_in_float64_is_that_of_torch(shape, dropout):
    tensors, seed = given(*shape), 2**33 + 5
    close(kernels(*tensors, dropout, seed), exact(*tensors, dropout, seed))


@pytest.mark.usefixtures("kernels_device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_is_as_close_as_torch_in_its_dtype(dtype):
    tensors = given(40, 96, dtype)
    found, plain = kernels(*tensors, 0.1, 7), exact(*tensors, 0.1, 7)
    true = exact(*(x.double() for x in tensors), 0.1, 7)
    for ours, theirs, wanted in zip(found, plain, true, strict=True):
        allowed = 2 * (theirs.double() - wanted).abs().max()
        allowed += torch.finfo(dtype).eps * wanted.abs().max() + 64 * 2**-23
        assert (ours.double() - wanted).abs().max() <= allowed


@pytest.mark.usefixtures("kernels_device")
def test_dropout_decides_by_seed_row_and_column_and_keeps_its_share():
    ones, zeros = torch.ones(300, 64), torch.zeros(300, 64)
    weight, found = torch.ones(64), {}

    @on_device
    def total(y, x, seed):
        one = weight.to(y.device)
        end = end_of(x, y.dtype, 0.25)
        return end.forward(y, torch.zeros_like(one), x, one, one, seed, keep=True)[2]

    for seed in (1, 2, -1, 2**32 - 1):
        found[seed] = total(ones, zeros, torch.tensor(seed))
        kept = (found[seed] != 0).double()
        assert (kept.mean() - 0.75).abs() < 0.02
        assert (kept.mean(0) - 0.75).abs().max() < 0.15
        assert (kept.mean(1) - 0.75).abs().max() < 0.3
    assert not torch.equal(found[1], found[2])
    assert torch.equal(found[-1], found[2**32 - 1])  # 32 bits of it count


@pytest.mark.usefixtures("kernels_device")
def test_under_autocast_sum_and_output_are_float32_and_the_copy_is_its_rounding():
    y, x, up, weight, bias = given(9, 48, torch.float32)
    y = y.bfloat16()

    @on_device
    def run(y, x, up, weight, bias):
        seed, low = torch.full((), 3, device=x.device), torch.bfloat16
        end, of_y = end_of(x, low, 0.2), torch.zeros_like(bias, dtype=low)
        out, copy, total = end.forward(y, of_y, x, weight, bias, seed, keep=True)
        assert torch.equal(norms.again(total, weight, bias, EPS, low), copy)
        parts = norms.sums_of(total, 8)
        dx, dy, again = end.backward(up, total, weight, bias, seed, parts, want_out=True)
        near(again, copy)
        return out, copy, total, dx, dy, *norms.added(parts, *total.shape, weight.dtype)[:3]

    out, copy, total, *found = run(y, x, up, weight, bias)
    wide = y.double(), *(t.double() for t in (x, up, weight, bias))
    expected = exact(*wide, 0.2, 3)
    assert torch.equal(copy, out.bfloat16())
    kinds = [t.dtype for t in (out, total, *found)]
    assert kinds == [torch.float32] * 3 + [torch.bfloat16] + [torch.float32] * 3
    for ours, true in zip((out, total, *found), expected, strict=True):
        eps = torch.finfo(ours.dtype).eps
        far = 8 * eps * true.abs().max().item()
        torch.testing.assert_close(ours.double(), true, rtol=0, atol=far)


@pytest.mark.usefixtures("kernels_device")
@pytest.mark.parametrize("shape", [(5, 24), (0, 16), (70, 300), (3, 3072), (1500, 40)])
def test_gelu_and_its_gradient_in_float64_are_those_of_torch(shape):
    wide, up, _, bias, _ = given(*shape)
    wide = 4 * wide

    @on_device
    def run(wide, bias, up):
        slope, same = up.clone(), up.clone()
        out, total = gelu_backward(wide, bias, slope, up.dtype)
        none, again = gelu_backward(wide, bias, same, up.dtype, want_out=False)
        assert none is None
        assert torch.equal(again, total)
        assert torch.equal(same, slope)
        assert torch.equal(norms.gelu(wide, bias), out)
        assert norms.gelu(wide, bias, in_place=True) is wide
        assert torch.equal(wide, out)
        return out, slope, total

    leaf = wide.clone().requires_grad_()
    out = F.gelu(leaf + bias)
    (slope,) = torch.autograd.grad(out, leaf, up)
    close(run(wide, bias, up), (out, slope, slope.sum(0)))


@pytest.mark.usefixtures("kernels_device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gradient_of_gelu_is_as_close_as_torch_in_its_dtype(dtype):
    wide, up, _, bias, _ = given(30, 64, dtype)

    @on_device
    def run(wide, bias, up):
        slope = up.clone()
        out, total = gelu_backward(wide, bias, slope, dtype)
        return out, slope, total

    def plain(wide, bias, up):
        leaf = wide.clone().requires_grad_()
        out = F.gelu(leaf + bias)
        (slope,) = torch.autograd.grad(out, leaf, up)
        return out.detach(), slope, slope.sum(0)

    tensors = wide, bias, up
    true = plain(*(x.double() for x in tensors))
    for ours, theirs, wanted in zip(run(*tensors), plain(*tensors), true, strict=True):
        allowed = 2 * (theirs.double() - wanted).abs().max()
        allowed += torch.finfo(dtype).eps * wanted.abs().max() + 64 * 2**-23
        assert (ours.double() - wanted).abs().max() <= allowed
