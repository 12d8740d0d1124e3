import os
import subprocess
import sys

import pytest
import torch
from longformers import batch, ldt_model

from ldt.attention.matmul import largest_int8
from ldt.model import precision
from ldt.model.layers import Linear
from ldt.model.precision import Int8Linear, lower


@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 32), (1, 32)])
def test_an_int8_layer_rounds_its_factors_and_nothing_else(shape):
    torch.manual_seed(0)
    linear, x = Linear(32, 24), torch.randn(shape)
    x[..., 0, :] *= 100  # a large row does not make the others coarse
    rounded = [
        (rows / (s := rows.abs().amax(-1, keepdim=True) / largest)).round() * s
        for rows, largest in (
            (x.double(), 127),
            (linear.weight.detach().double(), largest_int8()),
        )
    ]
    expected = rounded[0] @ rounded[1].T + linear.bias.detach().double()
    found = Int8Linear(linear)(x).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    exact = linear(x).detach().double()
    assert (found - exact).norm() / exact.norm() < 0.01


WORST = """
import torch
from ldt.model.layers import Linear
from ldt.model.precision import Int8Linear
linear = Linear(768, 40)
linear.weight.data[:], linear.bias.data[:] = 1, 0
linear.weight.data[:, 512:] = -1
for rows in (1, 7, 1000):
    x = torch.ones(rows, 768)
    torch.testing.assert_close(Int8Linear(linear)(x), x.new_full((rows, 40), 256))
"""


@pytest.mark.parametrize("instructions", ["ALL", "AVX2"])
def test_int8_sums_are_exact_on_a_cpu_without_instructions_for_them(instructions):
    """There the library adds pairs of products in 16 bits."""
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
    subprocess.run([sys.executable, "-c", WORST], env=env, check=True)


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


@pytest.mark.parametrize(("native", "rest"), [(True, torch.bfloat16), (False, torch.float32)])
def test_int8_leaves_the_rest_in_what_the_cpu_is_fast_in(monkeypatch, native, rest):
    monkeypatch.setattr(precision, "has_bfloat16", lambda: native)
    model = ldt_model("ForSequenceClassification")
    weight = model.longformer.encoder.layer[0].output.dense.weight.detach()
    lower(model, "int8")
    layer = model.longformer.encoder.layer[0]
    assert layer.attention.self.key_global.weight.dtype == rest
    assert layer.output.dense.weight.dtype == torch.int8
    scale = layer.output.dense.scale
    assert torch.equal(scale, weight.abs().amax(1) / largest_int8())  # of the exact weights
    assert model(**batch(30, "mixed", "some")).logits.dtype == rest


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be fp32, bf16, int8, got 'fp8'"):
        lower(ldt_model("Model"), "fp8")
