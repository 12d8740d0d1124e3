"""The function of `ldt.model.fused_attention` beside the modules that it stands for."""

import copy
import gc
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import dropped
import peft
import pytest
import torch
from device import DEVICE, PLAIN
from live_tensors import LiveTensors
from longformers import (
    batch,
    checkpoint_layers,
    gradients,
    ldt_config,
    ldt_model,
    shaken,
    training_pass,
)
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")

from ldt.attention import Layout
from ldt.model import fused, fused_attention
from ldt.model.layers import SelfAttention
from ldt.model.recompute import recomputing

WIDTH = 16


def made(dtype=torch.float32, dropout=0.0, **changes):
    """Self-attention in training whose backend is the kernels'."""
    changes = {"attention_backend": "triton", "attention_window": 8, **changes}
    config = ldt_config(attention_probs_dropout_prob=dropout, **changes)
    return shaken(SelfAttention(config, 0)).to(PLAIN, dtype).train()


def pack(lengths, globals=(), holes=()):
    """Documents of these lengths, with global tokens and holes at these packed places."""
    keep, is_global = torch.ones(sum(lengths)).bool(), torch.zeros(sum(lengths)).bool()
    keep[list(holes)], is_global[list(globals)] = False, True
    masks = (keep if holes else None), (is_global if globals else None)
    return Layout(torch.tensor([0, *lengths]).cumsum(0), *masks).to(PLAIN)


LAYOUTS = {
    "one global token a document": ([30, 12], [0, 30], ()),
    "some, and holes": ([33, 9, 20], [0, 5, 42, 61], [3, 17, 40]),
    "none is global": ([25, 8], (), ()),
    "one document has none": ([18, 30], [18, 40], [7]),
}


def inputs(layout, dtype=torch.float32):
    return torch.randn(layout.total_tokens, WIDTH, device=PLAIN).to(dtype).requires_grad_()


@contextmanager
def by_modules():
    with patch.object(fused_attention, "attention", lambda *_: None):
        yield


@contextmanager
def counted():
    """Context that gives a list of the calls of the function in it."""
    run, found = fused_attention.Call.of, []

    def noted(*given):
        call = run(*given)
        if call is not None:
            found.append(call)
        return call

    with patch.object(fused_attention.Call, "of", noted):
        yield found


def derived(module, x, layout, context=nullcontext, run=None):
    """Output and gradients of a module and of its input, of some seed."""
    torch.manual_seed(1)
    run = run or (lambda module, x, layout: module(x, layout)[0])
    with context():
        out = run(module, x, layout)
    leaves = {"x": x, **dict(module.named_parameters())}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    up = torch.linspace(-1, 2, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    found = torch.autograd.grad(out, leaves.values(), up, allow_unused=True)
    used = {name: g for name, g in zip(leaves, found, strict=True) if g is not None}
    assert all(g.dtype == leaves[name].dtype for name, g in used.items())
    return {"out": out.detach(), **used}


def both(module, x, layout, **how):
    """`derived` by the function, which runs, and by modules."""
    with counted() as ran:
        found = derived(module, x, layout, **how)
    assert len(ran) == 1
    with by_modules():
        return found, derived(module, x, layout, **how)


def exact(module, x, layout):
    """What the definition gives in float64."""
    backend, module.backend = module.backend, "reference"
    true = derived(module.double(), x.detach().double().requires_grad_(), layout)
    module.backend = backend
    return true


def as_close(found, plain, true, rounded=0.0):
    """Each of ``found`` is as near to the truth as the modules' own are, rounding apart."""
    assert found.keys() == plain.keys() == true.keys()
    for name, wanted in true.items():
        assert found[name].shape == wanted.shape
        allowed = 2 * (plain[name].double() - wanted).abs().max()
        allowed += (64 * 2**-23 + rounded) * max(1, wanted.abs().max())
        assert (found[name].double() - wanted).abs().max() <= allowed, name


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_output_and_gradients_are_as_close_as_the_modules(name, dropout):
    module, layout = made(dropout=dropout), pack(*LAYOUTS[name])
    x = inputs(layout)
    found, plain = both(module, x, layout)
    as_close(found, plain, exact(module, x, layout))
    assert len(found) == (2 + 12 if layout.is_global is not None else 2 + 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["some, and holes", "none is global"])
def test_in_half_precision_they_are_as_close(name, dtype):
    module, layout = made(dtype, dropout=0.2), pack(*LAYOUTS[name])
    x = inputs(layout, dtype)
    found, plain = both(module, x, layout)
    assert found["out"].dtype == dtype
    as_close(found, plain, exact(module, x, layout), torch.finfo(dtype).eps)


def autocast():
    return torch.autocast(PLAIN.type, torch.bfloat16)


def test_under_autocast_they_are_as_close_and_weights_get_their_own_dtype():
    module, layout = made(dropout=0.2), pack(*LAYOUTS["some, and holes"])
    x = inputs(layout)
    found, plain = both(module, x, layout, context=autocast)
    assert found["out"].dtype == torch.bfloat16
    as_close(found, plain, exact(module, x, layout), 2**-8)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_dilation": [[1, 3], 1]},
        {"causal": True, "attention_dilation": 2},
        {"attention_window": 24},
    ],
)
def test_any_windows(changes):
    layout = pack([30, 12]) if "causal" in changes else pack([30, 12], [0, 33], [8])
    module, x = made(**changes), inputs(layout)
    found, plain = both(module, x, layout)
    as_close(found, plain, exact(module, x, layout))


@pytest.mark.parametrize("part", ["value.weight", "key.bias", "query_global", "key_global.weight"])
@pytest.mark.parametrize("of_input", [True, False])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(part, of_input):
    module, layout = made(), pack(*LAYOUTS["some, and holes"])
    for name, p in module.named_parameters():
        p.requires_grad_(name.startswith(part))
    x = inputs(layout).requires_grad_(of_input)
    found, plain = both(module, x, layout)
    assert found.keys() == plain.keys()
    for name, wanted in plain.items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_bits_are_the_same(context):
    module, layout = made(dropout=0.2), pack(*LAYOUTS["some, and holes"])
    x = inputs(layout)
    expected = derived(module, x, layout)["out"]
    torch.manual_seed(1)
    with context(), counted() as ran:
        out = module(x, layout)[0]
    assert (len(ran), torch.equal(out, expected)) == (1, True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_gradient_checkpointing_gradients_are_the_same(reentrant):
    module, layout = made(dropout=0.3), pack(*LAYOUTS["some, and holes"])
    x = inputs(layout)

    def gradients_of(run):
        torch.manual_seed(1)
        module.zero_grad()
        leaf = x.detach().clone().requires_grad_()
        run(leaf).square().sum().backward()
        return [leaf.grad, *gradients(module).values()]

    with counted() as ran:
        found = gradients_of(lambda x: checkpoint(module, x, layout, use_reentrant=reentrant)[0])
    assert len(ran) == 2
    assert all(map(torch.equal, found, gradients_of(lambda x: module(x, layout)[0])))


def test_two_runs_give_the_same_bits():
    module, layout = made(torch.bfloat16, dropout=0.1), pack(*LAYOUTS["some, and holes"])
    x = inputs(layout, torch.bfloat16)
    first, second = derived(module, x, layout), derived(module, x, layout)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_weights_that_changed_after_they_were_used_are_not_used_for_gradients():
    module, layout = made(), pack(*LAYOUTS["some, and holes"])
    x = inputs(layout)
    for weight in (module.key_global.weight, module.query_global.weight):
        out = module(x, layout)[0]
        with torch.no_grad():
            weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_second_derivative_is_refused():
    module, layout = made(), pack(*LAYOUTS["none is global"])
    x = inputs(layout)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(module(x, layout)[0].sum(), x, create_graph=True)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["none is global", "some, and holes"])
@pytest.mark.parametrize("way", [nullcontext, autocast])
def test_a_training_step_keeps_no_more_than_the_modules(way, name, dropout):
    module, layout = made(dropout=dropout), pack(*LAYOUTS[name])
    x = inputs(layout)

    def kept():
        with LiveTensors() as live, way(), recomputing(module):
            out = module(x, layout)[0]
        gc.collect()  # of the interpreter
        saved = live.sizes([x, *module.parameters()])
        out.sum().backward()
        leaves = [x, *module.parameters(), out]
        leaves += [leaf.grad for leaf in leaves[:-1] if leaf.grad is not None]
        gc.collect()
        left = live.sizes(leaves)  # tables of the layout
        del leaves[len(list(module.parameters())) + 1], out
        gc.collect()
        return sum(saved), left, live.sizes(leaves)

    kept()  # tables of the layout
    ours, left, tables = kept()
    assert left == tables  # a graph that is done with holds nothing
    with by_modules():
        kept()
        theirs = kept()[0]
    # Weights in one piece, which autocast's own copies are no smaller than.
    joined = 3 * WIDTH * WIDTH * 4 if way is nullcontext else 0
    assert ours <= theirs + joined


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_device")
def test_twenty_steps_end_at_the_weights_of_the_modules_from_whose_checkpoint_they_may_start(
    monkeypatch,
):
    dropped.by_hash(monkeypatch)
    inputs = {name: x[:2].to(DEVICE) for name, x in batch(14, "mixed", "some").items()}
    inputs["labels"] = torch.tensor([0, 2]).to(DEVICE)
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.1)
    start = ldt_model("ForSequenceClassification", attention_backend="triton", **dropouts)
    calls = []

    def trained(*ways):
        """Weights and the optimizer's state after ten steps in each of the ways, saved between."""
        torch.manual_seed(1)
        saved = None
        for way in ways:
            model = copy.deepcopy(start).to(DEVICE).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-3)
            monkeypatch.setattr(fused, "PARAMETERS", {type(p) for p in model.parameters()})
            if saved is not None:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
            with way(), counted() as ran:
                for _ in range(10):
                    model(**inputs).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
            calls.append(len(ran))
            states = model.state_dict(), optimizer.state_dict()
            saved = tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, states)
        return saved[0], saved[1]["state"]

    expected = trained(by_modules, by_modules)
    close = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(trained(nullcontext, nullcontext), expected, **close)
    torch.testing.assert_close(trained(by_modules, nullcontext), expected, **close)
    assert calls == [0, 0, 20, 20, 0, 20]
    moved = [(x - start.state_dict()[name]).abs().max() for name, x in expected[0].items()]
    assert max(moved) > 0.02


def hooked(module):
    module.key.register_forward_hook(lambda *_: None)


def adapted(module):
    config = peft.LoraConfig(target_modules=["query", "value_global"], r=2)
    peft.inject_adapter_in_model(config, module)


def many(module):
    return [*range(20)]  # rows of a document of 30 tokens cost more than to project it


FALLS_BACK = {
    "a hook": hooked,
    "an adapter": adapted,
    "a second level": lambda module: setattr(module, "pooled", nn.Identity()),
    "no bias": lambda module: setattr(module, "query", nn.Linear(WIDTH, WIDTH, bias=False)),
    "another dtype": lambda module: module.key.double() and None,
    "many global tokens": many,
    "another backend": lambda module: setattr(module, "backend", "blocked"),
}


@pytest.mark.parametrize("why", FALLS_BACK)
def test_modules_run(why):
    module = made()
    layout = pack([30], FALLS_BACK[why](module) or [0])
    assert fused_attention.attention(module, inputs(layout), layout) is None


def test_a_model_gives_what_it_gives_by_modules():
    given = batch(21, "mixed", "some")
    changes = {"attention_backend": "triton", "attention_probs_dropout_prob": 0.1}
    model = ldt_model("ForSequenceClassification", **changes).train().to(PLAIN)
    given = {name: x.to(PLAIN) for name, x in given.items()}
    with counted() as ran:
        found = training_pass(model, given)
    layers = model.config.num_hidden_layers
    assert len(ran) == layers
    with by_modules():
        expected = training_pass(model, given)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-3, atol=1e-4)
    checkpoint_layers(model)
    for name, wanted in training_pass(model, given).items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-6)
