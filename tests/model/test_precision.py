import pytest
import torch
from longformers import batch, ldt_model

from ldt.model.layers import Linear
from ldt.model.precision import Int8Linear, lower


@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 32), (1, 32)])
def test_an_int8_layer_rounds_its_factors_and_nothing_else(shape):
    torch.manual_seed(0)
    linear, x = Linear(32, 24), torch.randn(shape)
    x[..., 0, :] *= 100  # a large row does not make the others coarse
    rounded = [
        (rows / (s := rows.abs().amax(-1, keepdim=True) / 127)).round() * s
        for rows in (x.double(), linear.weight.detach().double())
    ]
    expected = rounded[0] @ rounded[1].T + linear.bias.detach().double()
    found = Int8Linear(linear)(x).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    exact = linear(x).detach().double()
    assert (found - exact).norm() / exact.norm() < 0.01


def test_a_row_of_zeros_gives_the_bias():
    linear = Linear(16, 8)
    assert torch.equal(Int8Linear(linear)(torch.zeros(2, 16)), linear.bias.detach().expand(2, 8))


@pytest.mark.parametrize(("precision", "share"), [("bf16", 0.05), ("int8", 0.05)])
def test_a_lowered_model_is_near_the_exact_one(precision, share):
    torch.manual_seed(0)
    model, inputs = ldt_model("ForSequenceClassification"), batch(30, "mixed", "some")
    with torch.inference_mode():
        exact = model(**inputs).logits
        before = sum(p.numel() * p.itemsize for p in model.state_dict().values())
        lower(model, precision)
        found = model(**inputs).logits.float()
    after = sum(p.numel() * p.itemsize for p in model.state_dict().values())
    assert 0 < (found - exact).norm() / exact.norm() < share
    assert after < 0.8 * before


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be fp32, bf16, int8, got 'fp8'"):
        lower(ldt_model("Model"), "fp8")
