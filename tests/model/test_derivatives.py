"""Derivatives beyond those of one backward pass: given, or refused in a line."""

import pytest
import torch
from longformers import batch, ldt_model
from torch import func
from torch.autograd import forward_ad, gradgradcheck
from torch.autograd.functional import hvp

from ldt.attention import Layout, ops, sliding_window_attention
from ldt.attention.matmul import chosen, linear
from ldt.model import recompute

POOLED = {"pooling_layers": [1], "pooling_window": 16}


def loss_of(backend, **changes):
    """A function of embeddings, and embeddings for it."""
    model = ldt_model("Model", attention_backend=backend, **changes).double().train()
    inputs = batch(12, "mixed", "some")
    x = model.embeddings.word_embeddings(inputs.pop("input_ids")).detach()
    # Else an embedding of padding would, a step from it, be a token that counts.
    inputs["position_ids"] = model.position_ids_of(x)
    return lambda x: model(inputs_embeds=x, **inputs).last_hidden_state.tanh().sum(), x


@pytest.mark.fast("one level")
@pytest.mark.parametrize("changes", [{}, POOLED], ids=["one level", "two"])
def test_the_reference_backend_has_all_derivatives(changes):
    loss, x = loss_of("reference", **changes)
    up = torch.randn_like(x)
    step = 1e-5
    sides = [func.grad(loss)(x + sign * step * up) for sign in (1, -1)]
    wanted = (sides[0] - sides[1]) / (2 * step)
    close = {"rtol": 0, "atol": 1e-7 * wanted.abs().max().item()}
    torch.testing.assert_close(hvp(loss, x, up)[1], wanted, **close)
    found = func.jvp(func.grad(loss), (x,), (up,))[1]
    torch.testing.assert_close(found, wanted, **close)
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(loss(forward_ad.make_dual(x, up))).tangent
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(slope, (gradient * up).sum())
    torch.testing.assert_close(func.grad(loss)(x), gradient)
    both = torch.stack([x, x + up])
    torch.testing.assert_close(func.vmap(loss)(both), torch.stack([loss(x), loss(x + up)]))


@pytest.mark.slow
def test_second_derivatives_by_what_is_computed_again_are_right():
    loss, x = loss_of("reference")
    before = recompute.comparisons
    assert gradgradcheck(loss, x.requires_grad_(), fast_mode=True)
    assert recompute.comparisons > before


@pytest.mark.parametrize("changes", [{}, POOLED], ids=["one level", "two"])
def test_blocked_attention_refuses_a_second_derivative(changes):
    loss, x = loss_of("blocked", **changes)
    (gradient,) = torch.autograd.grad(loss(x.requires_grad_()), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives; .*backend='reference'"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_alone_refuses_a_second_derivative(compiled):
    q = torch.randn(20, 2, 4, dtype=torch.float64, requires_grad=True)
    docs = Layout(torch.tensor([0, 20]))
    if compiled:
        out = ops.band(q, q, q, docs, 4, [1, 1], False, 0.0, 0, "blocked")
    else:
        out = sliding_window_attention(q, q, q, docs, window=4)
    # The gradient of a sum: nothing but q, k and v depends on q.
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(gradient.square().sum(), q)


def test_fast_backends_refuse_transforms():
    loss, x = loss_of("blocked", **POOLED)
    line = "backend 'blocked' has no rules for torch.func and forward differentiation"
    for transform in (func.grad(loss), func.vmap(lambda _: loss(x)), func.hessian(loss)):
        with pytest.raises(NotImplementedError, match=line):
            transform(x)
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="config.attention_backend='reference'"),
    ):
        loss(forward_ad.make_dual(x, x))


def test_under_autocast_a_gradient_of_torch_func_is_that_of_autograd():
    model, inputs = ldt_model("Model", attention_backend="reference").train(), batch(12)
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return func.functional_call(model, parameters, kwargs=inputs).last_hidden_state.sum()

    with torch.autocast("cpu", torch.bfloat16):
        found = func.grad(loss)(parameters)
        loss(parameters).backward()
    for name in ("embeddings.LayerNorm.weight", "encoder.layer.0.intermediate.dense.weight"):
        torch.testing.assert_close(found[name], parameters[name].grad, rtol=0.02, atol=0.02)


def test_products_on_the_other_library_have_second_derivatives():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("without oneDNN")
    with chosen({"linear": True}):
        x, weight = torch.randn(5, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        bias = torch.zeros(3, requires_grad=True)
        out = linear(x, weight, bias)
        found = torch.autograd.grad(out.tanh().sum(), (x, weight), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in found), (x, weight))
        plain = torch.nn.functional.linear(x, weight, bias)
        wanted = torch.autograd.grad(plain.tanh().sum(), (x, weight), create_graph=True)
        wanted = torch.autograd.grad(sum(g.square().sum() for g in wanted), (x, weight))
    for ours, theirs in zip(second, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
