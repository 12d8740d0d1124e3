"""Layers that `ldt.model.fused` computes, and the same by the modules that it stands for."""

from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import dropped
import pytest
import torch
from device import PLAIN
from longformers import ldt_config, shaken

from ldt.attention import Layout
from ldt.model import fused, gates
from ldt.model.layers import LdtLayer

WIDTH = 16


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Behind attention float64 is taken as well; modules drop what the kernels drop."""
    monkeypatch.setattr(gates, "STREAMS", gates.STREAMS | {torch.float64})
    dropped.by_hash(monkeypatch)


def made(dtype=torch.float32, dropout=0.0, **changes):
    """A layer in training whose backend is the kernels'; its attention is in modules in float64."""
    drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    changes = {"attention_backend": "triton", "attention_window": 8, **drops, **changes}
    layer = shaken(LdtLayer(ldt_config(**changes), 0)).to(PLAIN, dtype).train()
    if dtype == torch.float64:
        layer.attention.self.backend = "reference"
    return layer


def pack(lengths, globals=(), holes=()):
    """Documents of these lengths, with global tokens and holes at these packed places."""
    keep, is_global = torch.ones(sum(lengths)).bool(), torch.zeros(sum(lengths)).bool()
    keep[list(holes)], is_global[list(globals)] = False, True
    masks = (keep if holes else None), (is_global if globals else None)
    return Layout(torch.tensor([0, *lengths]).cumsum(0), *masks).to(PLAIN)


LAYOUTS = {
    "one global token a document": ([13, 4], [0, 13], ()),
    "some, and holes": ([11, 5], [0, 4, 11], [3, 8, 14]),
    "none is global": ([13, 4], (), ()),
    "one document has none": ([8, 15], [8, 19], [6]),
}


def some():
    return pack(*LAYOUTS["some, and holes"])


def inputs(layout, dtype=torch.float32):
    """The residual stream before a layer."""
    return torch.randn(layout.total_tokens, WIDTH, device=PLAIN).to(dtype).requires_grad_()


@contextmanager
def by_modules():
    with patch("ldt.model.layers.products_dtype", lambda *_: None):
        yield


@contextmanager
def counted():
    """Context that gives a list of the calls in it: True for those with attention of their own."""
    call, calls = fused._Call, []
    with patch.object(fused, "_Call", lambda *x: calls.append(x[0] is not None) or call(*x)):
        yield calls


def run_one(layer, x, layout):
    return layer(x, layout)[0]


def derived(layer, x, layout, context=nullcontext, run=run_one):
    """Output and gradients of a layer and of its input, of some seed."""
    torch.manual_seed(1)
    with context():
        out = run(layer, x, layout)
    leaves = {"x": x, **dict(layer.named_parameters())}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    up = torch.linspace(-1, 2, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    grads = torch.autograd.grad(out, leaves.values(), up, allow_unused=True)
    used = {name: g for name, g in zip(leaves, grads, strict=True) if g is not None}
    assert all(g.dtype == leaves[name].dtype for name, g in used.items())
    return {"out": out.detach(), **used}


def both(layer, x, layout, ran=(True,), **options):
    """`derived` by the function, which runs, and by modules."""
    with counted() as calls:
        ours = derived(layer, x, layout, **options)
    assert calls == [*ran]
    with by_modules():
        return ours, derived(layer, x, layout, **options)


def same(ours, expected, far=1e-9):
    assert ours.keys() == expected.keys()
    for name, true in expected.items():
        assert ours[name].shape == true.shape
        if true.numel():
            assert (ours[name] - true).abs().max() <= far * max(1, true.abs().max()), name
