"""Adapters, hooks and other linear layers on the projections: as the dense definition with them."""

import copy

import peft
import pytest
import torch
from longformers import batch, ldt_model
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from ldt.attention.matmul import foldable

GLOBAL = ("query_global", "key_global", "value_global")


def attentions(model):
    return [layer.attention.self for layer in model.base_model.encoder.layer]


def doubled(module, inputs, output):
    return 2 * output


def hook(module):
    module.register_forward_hook(doubled)


def pre_hook(module):
    module.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))


def weight_norm(module):
    parametrizations.weight_norm(module)
    module.parametrizations.weight.original0.data *= 2


def parametrization(module):
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    parametrize.register_parametrization(module, "weight", Double())


def forward_of_the_instance(module):
    forward = module.forward
    module.forward = lambda x: 2 * forward(x)


def another_kind(module):
    """A layer with a forward of its own, as 4- and 8-bit layers have."""

    class Other(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    module.__class__ = Other


CHANGES = [another_kind, hook, pre_hook, weight_norm, parametrization, forward_of_the_instance]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", GLOBAL)
def test_whatever_hangs_on_a_global_projection_acts(change, name):
    """Twice the output of a map, or twice its weight, in the middle and in the last layer."""
    plain = ldt_model("ForSequenceClassification").double()
    with torch.no_grad():  # without biases all the changes are the same
        for attention in attentions(plain):
            getattr(attention, name).bias.zero_()
    changed, expected = copy.deepcopy(plain), copy.deepcopy(plain)
    for ours, theirs in zip(attentions(changed), attentions(expected), strict=True):
        change(getattr(ours, name))
        getattr(theirs, name).weight.data *= 2
    inputs = batch(30, "right", "default")
    found = changed(**inputs).logits
    torch.testing.assert_close(found, expected(**inputs).logits)
    assert (found - plain(**inputs).logits).abs().max() > 1e-3
    found.sum().backward()
    parameters = [p for a in attentions(changed) for p in getattr(a, name).parameters()]
    assert all(p.grad is not None for p in parameters)
    assert any(p.grad.abs().max() > 1e-6 for p in parameters)


def test_a_hook_on_all_modules_acts_on_the_global_projections_too():
    model, seen = ldt_model("ForSequenceClassification"), set()
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.add(m))
    try:
        model(**batch(20, "right", "default"))
    finally:
        handle.remove()
    assert all(getattr(a, name) in seen for a in attentions(model) for name in GLOBAL)


def test_a_backward_hook_on_a_global_projection_runs():
    model, seen = ldt_model("ForSequenceClassification"), []
    for attention in attentions(model):
        for name in GLOBAL:
            getattr(attention, name).register_full_backward_hook(lambda *_: seen.append(1))
    model(**batch(20, "right", "default")).logits.sum().backward()
    assert len(seen) == 6


def test_plain_layers_are_folded_and_none_other():
    linear = nn.Linear(4, 4)
    assert foldable(linear) == (linear.weight, linear.bias)
    for change in CHANGES:
        other = nn.Linear(4, 4)
        change(other)
        assert foldable(other) is other
    without = nn.Linear(4, 4, bias=False)
    assert foldable(without) is without


def test_quantised_weights_are_not_folded():
    from torch.testing._internal.two_tensor import TwoTensor

    linear = nn.Linear(4, 4)
    linear.weight = nn.Parameter(TwoTensor(linear.weight.data, linear.weight.data))
    assert foldable(linear) is linear


@pytest.mark.slow
@pytest.mark.parametrize("change", [None, hook, parametrization])
def test_a_compiled_model_with_adapters_or_hooks_is_the_eager_one(change):
    small = {"num_hidden_layers": 1, "attention_window": 8}
    model = ldt_model("ForSequenceClassification", **small).double().train()
    if change is None:
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=[*GLOBAL, "query"]), model)
    else:
        for attention in attentions(model):
            change(attention.value_global)
    torch.compiler.reset()
    fast = torch.compile(model, dynamic=True, backend="aot_eager", fullgraph=change is None)
    inputs = batch(21, "right", "some") | {"labels": torch.tensor([0, 1, 2, 0])}
    parameters = [x for x in model.parameters() if x.requires_grad]

    def run(model):
        loss = model(**inputs).loss
        return loss, torch.autograd.grad(loss, parameters, allow_unused=True)

    (loss, found), (expected, others) = run(fast), run(model)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(found, others, strict=True):
        if ours is None or theirs is None:  # eager gives zeros to what a batch does not use
            assert not (ours if theirs is None else theirs).any()
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
