"""Queries, keys and values by one product, as on CUDA: numbers, gradients, and what undoes it."""

import pytest
import torch
from longformers import batch, ldt_model
from torch import nn

from ldt.attention import matmul
from ldt.attention.matmul import Linear
from ldt.model.precision import lower


@pytest.fixture
def joined(monkeypatch):
    """Has products joined on this device from now on; the widths of all that are run."""
    widths, real = [], matmul.linear

    def noted(x, weight, bias):
        widths.append(len(weight))
        return real(x, weight, bias)

    monkeypatch.setattr(matmul, "linear", noted)
    monkeypatch.setattr(matmul, "_joins", lambda weight: True)
    return widths


def run(model, inputs):
    out = model(**inputs).last_hidden_state
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(out.square().sum(), parameters.values(), allow_unused=True)
    return {"out": out} | dict(zip(parameters, found, strict=True))


def close(ours, theirs, **tolerance):
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert (ours[name] is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(ours[name], expected, msg=lambda m: m, **tolerance)


CHANGES = [{}, {"pooling_layers": [0, 1], "pooling_window": 16}, {"causal": True}]


@pytest.mark.parametrize("changes", CHANGES, ids=["plain", "pooled", "causal"])
def test_one_product_gives_the_outputs_and_gradients_of_three(changes, request):
    model = ldt_model("Model", **changes).double().train()
    inputs = batch(21, "mixed", "none" if "causal" in changes else "some")
    expected = run(model, inputs)
    names = list(model.state_dict())
    widths = request.getfixturevalue("joined")
    close(run(model, inputs), expected, rtol=1e-12, atol=1e-12)
    assert widths.count(3 * 16) == 2  # one a layer
    assert list(model.state_dict()) == names


def adapted(model):
    peft = pytest.importorskip("peft")
    return peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["value"]), model)


def parametrized(model):
    for layer in model.encoder.layer:
        nn.utils.parametrizations.weight_norm(layer.attention.self.key)


def without_bias(model):
    for layer in model.encoder.layer:
        layer.attention.self.query.bias = None


UNDONE = {
    "a hook": lambda model: [
        layer.attention.self.query.register_forward_hook(lambda module, x, out: 2 * out)
        for layer in model.encoder.layer
    ],
    "an adapter": adapted,
    "8 bits": lambda model: lower(model, "int8"),
    "a parametrization": parametrized,
    "no bias": without_bias,
}


@pytest.mark.parametrize("change", UNDONE)
def test_what_does_more_than_a_product_is_called(change, joined):
    model = ldt_model("Model", hidden_size=32)  # a size that products of 8 bits take
    UNDONE[change](model)
    inputs = batch(21)
    with torch.no_grad():
        found = model(**inputs).last_hidden_state
        assert 3 * 32 not in joined
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(matmul, "_joins", lambda weight: False)
            assert torch.equal(found, model(**inputs).last_hidden_state)


def test_products_are_joined_on_cuda_alone():
    assert not matmul._joins(Linear(2, 2).weight)
    with torch.device("meta"):
        assert not matmul._joins(Linear(2, 2).weight)
