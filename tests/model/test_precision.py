import os
import pickle
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from longformers import batch, ldt_config, ldt_model

from ldt.model import precision
from ldt.model.layers import Linear
from ldt.model.precision import Int8Linear, lower, lowered


def rounded(linear, x):
    """An int8 layer in float64: factors rounded to whole numbers of steps, exact sums."""
    factors = [
        (rows / (s := rows.abs().amax(-1, keepdim=True) / largest)).round().nan_to_num() * s
        for rows, largest in (
            (x.double(), 127),
            (linear.weight.detach().double(), precision.largest()),
        )
    ]
    return factors[0] @ factors[1].T + linear.bias.detach().double()


@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 32), (1, 32)])
def test_an_int8_layer_rounds_its_factors_and_nothing_else(shape):
    torch.manual_seed(0)
    linear, x = Linear(32, 24), torch.randn(shape)
    x[..., 0, :] *= 100  # a large row does not make the others coarse
    found = Int8Linear(linear)(x).double()
    torch.testing.assert_close(found, rounded(linear, x), rtol=1e-5, atol=1e-5)
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


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["ALL", "AVX2"])
def test_int8_sums_are_exact_on_a_cpu_without_instructions_for_them(instructions):
    """There the library adds pairs of products in 16 bits."""
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
    subprocess.run([sys.executable, "-c", WORST], env=env, check=True)


def test_a_row_of_zeros_gives_the_bias():
    linear = Linear(16, 8)
    assert torch.equal(Int8Linear(linear)(torch.zeros(2, 16)), linear.bias.detach().expand(2, 8))


def size(model):
    return sum(p.numel() * p.itemsize for p in model.state_dict().values())


@torch.inference_mode()
def test_a_model_in_bf16_is_as_near_the_exact_one_as_the_dense_definition():
    model, inputs = ldt_model("ForSequenceClassification"), batch(30, "mixed", "some")
    dense = type(model)(ldt_config(attention_backend="reference")).eval()
    dense.load_state_dict(model.state_dict())
    exact, before = model(**inputs).logits, size(model)
    lower(model, "bf16")
    found, allowed = (m(**inputs).logits for m in (model, dense.bfloat16()))
    assert found.dtype == torch.bfloat16
    assert 0 < (found - exact).norm() <= 2 * (allowed - exact).norm()
    assert size(model) < 0.8 * before


@torch.inference_mode()
def test_a_model_in_int8_rounds_the_factors_of_its_layers_and_nothing_else(monkeypatch):
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    model, inputs = ldt_model("ForSequenceClassification"), batch(30, "mixed", "some")
    by_hand, before = deepcopy(model), size(model)
    lower(model, "int8")
    assert size(model) < 0.8 * before
    changed = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
    assert len(changed) >= 2 * 6  # at least the plain projections and feed-forward networks
    for name in changed:
        linear = by_hand.get_submodule(name)
        linear.forward = lambda x, linear=linear: rounded(linear, x).to(x.dtype)
    found, expected = (m(**inputs).logits for m in (model, by_hand))
    assert (found - expected).norm() < 1e-5 * expected.norm()


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
    assert torch.equal(scale, weight.abs().amax(1) / precision.largest())  # of the exact weights
    assert model(**batch(30, "mixed", "some")).logits.dtype == rest


@torch.inference_mode()
def test_a_lowered_copy_leaves_the_model_as_it_is_and_shares_what_stays(monkeypatch):
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    model, inputs = ldt_model("ForMaskedLM"), batch(30, "mixed", "some")
    exact, there = model(**inputs).logits, {p.data_ptr() for p in model.state_dict().values()}
    copy = lowered(model, "int8")
    assert torch.equal(model(**inputs).logits, exact)
    found = copy(**inputs).logits
    lower(model, "int8")
    assert torch.equal(model(**inputs).logits, found)
    own = [n for n, p in copy.state_dict().items() if p.data_ptr() not in there]
    assert {name.rpartition(".")[0] for name in own} == {
        name for name, module in copy.named_modules() if isinstance(module, Int8Linear)
    }
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight


@torch.inference_mode()
def test_a_lowered_copy_has_its_own_weights_where_the_rest_is_bf16(monkeypatch):
    monkeypatch.setattr(precision, "has_bfloat16", lambda: True)
    model, inputs = ldt_model("ForSequenceClassification"), batch(30, "mixed", "some")
    exact = model(**inputs).logits
    assert lowered(model, "int8")(**inputs).logits.dtype == torch.bfloat16
    assert torch.equal(model(**inputs).logits, exact)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be fp32, bf16, int8, got 'fp8'"):
        lower(ldt_model("Model"), "fp8")


@pytest.mark.parametrize("shape", [(1, 8, 8), (33, 70, 24), (300, 768, 40)])
def test_products_with_packed_weights_are_the_sums_of_whole_numbers(shape):
    count, inputs, outputs = shape
    try:
        precision._pack(torch.ones(8, 8, dtype=torch.int8))
    except (AttributeError, RuntimeError):
        pytest.skip("this torch has no oneDNN")
    generator = torch.Generator().manual_seed(0)
    most = precision.largest()
    if not precision._packing_pays():
        most = 64  # of what is taken nowhere here, it is not known whether it can more
    rows = torch.randint(-127, 128, (count, inputs), generator=generator)
    weight = torch.randint(-most, most + 1, (inputs, outputs), generator=generator)
    given = rows.to(torch.int8), weight.to(torch.int8)
    assert torch.equal(precision.product(*given, precision._pack(given[1])).long(), rows @ weight)
    assert torch.equal(precision.product(*given).long(), rows @ weight)


def test_a_layer_is_copied_and_pickled_without_what_it_packed(monkeypatch):
    layer, x = Int8Linear(Linear(16, 8)), torch.randn(3, 16)
    with monkeypatch.context() as patch:
        patch.setattr(precision, "packed", lambda weight: "a layout")
        patch.setattr(
            precision, "product", lambda rows, weight, layout: torch._int_mm(rows, weight) * 1.0
        )
        wanted = layer(x)
        assert layer._layout == "a layout"
    assert deepcopy(layer)._layout is pickle.loads(pickle.dumps(layer))._layout is None
    assert torch.equal(deepcopy(layer)(x), wanted)


@pytest.fixture
def memory():
    """A file without a name, which only Linux has."""
    if not hasattr(os, "memfd_create"):
        pytest.skip("no memory without a name")
    descriptor = os.memfd_create("ldt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_a_model_is_lowered_once_and_mapped_by_all(memory, kind, monkeypatch):
    model = ldt_model("ForSequenceClassification")
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    expected = precision.lowered(model, kind)
    first = precision.lowered_in(model, kind, memory)
    monkeypatch.setattr(precision, "lowered", lambda *_: pytest.fail("lowered again"))
    again = precision.lowered_in(model, kind, memory)
    mapped = Path("/proc/self/maps").read_text().count("memfd:ldt")
    assert mapped >= 2  # a weight's pages of each
    inputs = {"input_ids": torch.arange(4, 24)[None], "attention_mask": torch.ones(1, 20).long()}
    with torch.inference_mode():
        wanted = expected(**inputs).logits
        for found in (first, again):
            assert torch.equal(found(**inputs).logits, wanted)
            assert [name for name, each in precision._named(found) if each.is_meta] == []
    own = {weight.data_ptr() for weight in model.parameters()}
    layers = [weight for name, weight in precision._named(again) if ".layer.0.output" in name]
    assert not own & {weight.data_ptr() for weight in layers if weight.dim() == 2}


def test_one_that_dies_in_the_middle_leaves_no_half_of_them(memory):
    model = ldt_model("ForSequenceClassification")
    os.write(memory, b"PK half of a file" * 1000)
    code = "import fcntl, os, sys; f = open(f'/proc/self/fd/{sys.argv[1]}', 'r+b')\n"
    code += "fcntl.flock(f, fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", code, str(memory)]
    assert subprocess.run(command, pass_fds=[memory]).returncode == -9
    found = precision.lowered_in(model, "bf16", memory)
    assert {weight.dtype for weight in found.parameters()} == {torch.bfloat16}
    with pytest.raises(OSError, match="not permitted"):
        os.write(memory, b"no more")
