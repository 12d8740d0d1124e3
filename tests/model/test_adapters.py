"""Adapters, hooks and other linear layers on the projections: as the dense definition with them."""

import copy

import pytest
import torch
from longformers import batch, ldt_model
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from ldt.attention import Layout, reference
from ldt.attention.matmul import foldable

GLOBAL = ("query_global", "key_global", "value_global")
PROJECTIONS = ("query", "key", "value", *GLOBAL)
POOLED = {"pooling_layers": [1], "pooling_window": 16}


class Adapted(nn.Module):
    """A linear layer and a low-rank product, as LoRA has them."""

    def __init__(self, linear, rank=2):
        super().__init__()
        self.linear = linear
        options = {"dtype": linear.weight.dtype}
        self.down = nn.Parameter(torch.randn(rank, linear.in_features, **options) / 4)
        self.up = nn.Parameter(torch.randn(linear.out_features, rank, **options) / 4)

    def forward(self, x):
        return self.linear(x) + x @ self.down.T @ self.up.T

    def weight(self):
        return self.linear.weight + self.up @ self.down

    def bias(self):
        return self.linear.bias


def attentions(model):
    return [layer.attention.self for layer in model.base_model.encoder.layer]


def adapt(model, names=PROJECTIONS):
    for attention in attentions(model):
        for name in names:
            setattr(attention, name, Adapted(getattr(attention, name)))
    return model


def weights_of(project):
    """(weight, bias) of a projection, whatever hangs on it."""
    if isinstance(project, Adapted):
        return project.weight(), project.bias()
    return project.weight, project.bias


def definition(attention, x, layout):
    """[total, width] of the dense definition with the adapted weights: sliding window and globals,
    then the second level where there is one."""
    heads = [
        (x @ weight.T + bias).unflatten(1, (attention.heads, -1))
        for weight, bias in (weights_of(getattr(attention, name)) for name in PROJECTIONS)
    ]
    q, k, v, q_global, k_global, v_global = heads
    out = reference.sliding_window_attention(q, k, v, layout, **attention.pattern)
    dense = torch.zeros_like(out)
    for token in layout.global_index.tolist():
        document = layout.document_of == layout.document_of[token]
        if layout.key_padding_mask is not None:
            document = document & layout.key_padding_mask
        scores = torch.einsum("hd,nhd->hn", q_global[token], k_global[document])
        share = (scores / q.shape[-1] ** 0.5).softmax(1)
        row = torch.einsum("hn,nhd->hd", share, v_global[document])
        dense = dense.index_put((torch.tensor([token]),), row[None])
    out = torch.where(layout.is_global[:, None, None], dense, out)
    if attention.pooled is not None:
        shared = attention.query, attention.key, attention.value
        options = {"dropout": 0.0, "seed": 0, "backend": "reference"}
        out = attention.pooled(out, x, layout, shared, **options)
    return out.flatten(1)


def layout_of(count):
    """Three documents with padding inside, and ``count`` global tokens in the first two."""
    keep = torch.ones(60, dtype=torch.bool)
    keep[[3, 30, 59]] = False
    is_global = torch.zeros(60, dtype=torch.bool)
    is_global[[0, *range(5, 5 + count), 21, 25][: 2 + count]] = True
    return Layout(torch.tensor([0, 20, 45, 60]), keep, is_global)


def gradients(out, leaves):
    direction = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((out * direction).sum(), leaves, allow_unused=True)


def same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        if theirs is None:
            theirs = torch.zeros_like(ours)
        assert ours is not None
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


SETS = [PROJECTIONS, GLOBAL, *([name] for name in GLOBAL)]


@pytest.mark.parametrize(
    ("backend", "second"),
    [("reference", False), ("blocked", False), ("reference", True), ("blocked", True)],
)
@pytest.mark.parametrize("count", [1, 14], ids=["few", "many"])
@pytest.mark.parametrize("names", SETS, ids=["all", "global", *GLOBAL])
def test_adapted_attention_equals_the_dense_definition(backend, count, names, second):
    model = ldt_model("Model", attention_backend=backend, **POOLED if second else {}).double()
    attention = attentions(adapt(model, names))[-1]
    layout, x = layout_of(count), torch.randn(60, 16, dtype=torch.float64, requires_grad=True)
    expected, found = definition(attention, x, layout), attention(x, layout)[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    leaves = [x, *attention.parameters()]
    same(gradients(found, leaves), gradients(expected, leaves))


@pytest.mark.parametrize("names", SETS, ids=["all", "global", *GLOBAL])
def test_the_last_layer_and_the_probabilities_are_those_of_adapted_projections(names):
    attention = attentions(adapt(ldt_model("Model").double(), names))[-1]
    layout, x = layout_of(3), torch.randn(60, 16, dtype=torch.float64, requires_grad=True)
    expected = definition(attention, x, layout)[layout.global_index]
    found = attention.global_attention(x, layout)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    leaves = [x, *(p for name in GLOBAL for p in getattr(attention, name).parameters())]
    same(gradients(found, leaves), gradients(expected, leaves))
    _, _, probabilities = attention(x, layout, output_attentions=True)
    query, key = (weights_of(getattr(attention, name)) for name in GLOBAL[:2])
    q, k = ((x @ weight.T + bias).unflatten(1, (2, 8)) for weight, bias in (query, key))
    token, keep = layout.global_index[0], layout.key_padding_mask[:20]
    scores = torch.einsum("hd,nhd->hn", q[token], k[:20]).masked_fill(~keep, float("-inf"))
    torch.testing.assert_close(probabilities[0, :, :20], (scores / 8**0.5).softmax(1))


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
        adapt(model)
    else:
        for attention in attentions(model):
            change(attention.value_global)
    torch.compiler.reset()
    fast = torch.compile(model, dynamic=True, backend="aot_eager", fullgraph=change is None)
    inputs = batch(21, "right", "some") | {"labels": torch.tensor([0, 1, 2, 0])}
    parameters = list(model.parameters())

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
