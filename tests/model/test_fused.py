"""The functions of `ldt.model.fused` beside the modules that they stand for, which are right."""

import copy
import gc
import pickle
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import dropped
import peft
import pytest
import torch
from device import DEVICE, HAS_GPU, PLAIN
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
from torch import func, nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")

from ldt.model import fused
from ldt.model.layers import LdtLayer
from ldt.model.precision import lower
from ldt.model.recompute import recomputing

WIDTH = 16
DROPOUT = nn.Dropout.forward


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Functions take float64 as well; modules drop what the kernels drop."""
    monkeypatch.setattr(fused, "STREAMS", fused.STREAMS | {torch.float64})
    dropped.by_hash(monkeypatch)


def made(dtype=torch.float64, **changes):
    """A layer in training whose attention's backend is the kernels'."""
    config = ldt_config(attention_backend="triton", **changes)
    return shaken(LdtLayer(config, 0)).to(PLAIN, dtype).train()


def inputs(rows=9, dtype=torch.float64):
    """What attention gave, and the layer's input."""
    return [torch.randn(rows, WIDTH, device=PLAIN).to(dtype).requires_grad_() for _ in range(2)]


def halves(layer, given, x):
    """A layer behind its attention."""
    return layer._feed_forward(layer.attention.output(given, x))


@contextmanager
def by_modules():
    with patch.object(fused, "products_dtype", lambda *_: None):
        yield


@contextmanager
def counted():
    """Context that gives a list of the functions that run in it."""
    run, found = fused._run, []
    with patch.object(fused, "_run", lambda f, *rest: found.append(f.__name__) or run(f, *rest)):
        yield found


def sizes(live, known):
    """Bytes of what lives but for tensors that are known; what the interpreter holds on to goes."""
    gc.collect()
    return live.sizes(known)


BOTH = ["_Residual", "_FeedForward"]


def derived(layer, given, x, run=halves, context=nullcontext):
    """Output and gradients of a layer's halves and of what goes in; of some seed."""
    torch.manual_seed(1)
    with context():
        out = run(layer, given, x)
    weights = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    leaves = {"given": given, "x": x, **weights}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    up = torch.linspace(-1, 2, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    found = torch.autograd.grad(out, leaves.values(), up, allow_unused=True)
    used = {name: g for name, g in zip(leaves, found, strict=True) if g is not None}
    assert all(g.dtype == leaves[name].dtype for name, g in used.items())
    return {"out": out.detach(), **used}


def both(layer, given, x, **how):
    """`derived` by functions, which run, and by modules."""
    with counted() as ran:
        found = derived(layer, given, x, **how)
    assert set(ran) == set(BOTH)
    with by_modules():
        return found, derived(layer, given, x, **how)


def same(found, expected, far=1e-9):
    assert found.keys() == expected.keys()
    for name, true in expected.items():
        assert found[name].shape == true.shape
        if true.numel():
            assert (found[name] - true).abs().max() <= far * max(1, true.abs().max()), name


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("rows", [1, 9, 70, 0])
def test_in_float64_output_and_gradients_are_those_of_the_modules(rows, dropout):
    layer = made(hidden_dropout_prob=dropout)
    found, expected = both(layer, *inputs(rows))
    same(found, expected)
    assert len(found) == 3 + 10


def test_gradients_that_do_not_lie_in_one_piece_are_taken():
    layer, given = made(), inputs()
    found = []
    for context in (nullcontext, by_modules):
        with context():
            out = halves(layer, *given)
        found.append(torch.autograd.grad((out * torch.arange(WIDTH).to(out)).sum(), given))
        found.append(torch.autograd.grad(halves(layer, *given).t().contiguous().t().sum(), given))
    for ours, true in zip(found[:2], found[2:], strict=True):
        assert all(map(torch.allclose, ours, true))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_other_dtypes_they_are_as_close_as_those_of_the_modules(dtype):
    layer, given = made(dtype, hidden_dropout_prob=0.1), inputs(40, dtype)
    found, plain = both(layer, *given)
    true = both(layer.double(), *(x.detach().double().requires_grad_() for x in given))[1]
    assert found["out"].dtype == dtype
    for name, wanted in true.items():
        allowed = 2 * (plain[name].double() - wanted).abs().max()
        allowed += torch.finfo(dtype).eps * wanted.abs().max() + 64 * 2**-23
        assert (found[name].double() - wanted).abs().max() <= allowed, name


def autocast():
    return torch.autocast(PLAIN.type, torch.bfloat16)


def test_under_autocast_they_are_as_close_and_the_residual_stream_is_float32():
    layer, given = made(torch.float32, hidden_dropout_prob=0.1), inputs(40, torch.float32)
    given[0] = given[0].detach().bfloat16().requires_grad_()
    found, plain = both(layer, *given, context=autocast)
    true = both(layer.double(), *(x.detach().double().requires_grad_() for x in given))[1]
    assert found["out"].dtype == torch.float32
    for name, wanted in true.items():
        allowed = 2 * (plain[name].double() - wanted).abs().max()
        allowed += torch.finfo(torch.bfloat16).eps * wanted.abs().max() / 4
        assert (found[name].double() - wanted).abs().max() <= allowed, name


def test_under_autocast_the_stream_is_cast_by_its_norm_alone():
    layer, given = made(torch.float32), inputs(9, torch.float32)
    with autocast(), counted() as ran:
        x = layer.attention.output(*given)
        low = getattr(x, fused.MADE).copy
        assert low.dtype == torch.bfloat16
        assert torch.equal(low, x.bfloat16())
        with patch.object(torch.Tensor, "to", side_effect=AssertionError("cast")):
            layer._feed_forward(x)
    assert ran == BOTH
    assert getattr(x, fused.MADE).copy is None  # it is not held for longer than it takes


@pytest.mark.parametrize("way", ["data", "fused AdamW"])
def test_a_change_of_weights_that_torch_does_not_count_is_seen_under_autocast(way):
    layer, given = made(torch.float32), inputs(9, torch.float32)
    before = derived(layer, *given, context=autocast)
    versions = [p._version for p in layer.parameters()]
    if way == "data":
        for p in layer.parameters():
            p.data.mul_(1.5)
    else:
        for p in layer.parameters():
            p.grad = torch.ones_like(p)
        torch.optim.AdamW(layer.parameters(), lr=0.5, fused=True).step()
    assert versions == [p._version for p in layer.parameters()]
    found, plain = both(layer, *given, context=autocast)
    assert not torch.allclose(before["out"], found["out"], atol=0.1)
    same(found, plain, far=0.05)


def test_autocast_around_the_backward_pass_changes_nothing():
    layer, given = made(torch.float32), inputs(9, torch.float32)
    up = torch.randn(9, WIDTH, device=PLAIN)
    found = []
    for context in (nullcontext, autocast):
        out = halves(layer, *given)
        with context():
            found.append(torch.autograd.grad(out, given, up))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(
    "part",
    ["intermediate.dense.weight", "intermediate.dense.bias", "output.dense", "LayerNorm", "none"],
)
@pytest.mark.parametrize("of_input", [True, False])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(part, of_input):
    layer, given = made(hidden_dropout_prob=0.2), inputs()
    for name, p in layer.named_parameters():
        p.requires_grad_(part in name)
    for x in given:
        x.requires_grad_(of_input)
    if part == "none" and not of_input:
        with counted() as ran, LiveTensors() as live:
            out = halves(layer, *given)
        assert (ran, out.requires_grad) == (BOTH, False)
        assert sizes(live, [*given, *layer.parameters()]) == [out.nbytes]
        return
    found, expected = both(layer, *given)
    same(found, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_bits_are_the_same_and_nothing_is_kept(context, dropout):
    layer, given = made(hidden_dropout_prob=dropout), inputs()
    expected = derived(layer, *given)["out"]
    torch.manual_seed(1)
    with context(), counted() as ran:
        out = halves(layer, *given)
    assert ran == BOTH
    assert torch.equal(out, expected)
    assert not hasattr(out, fused.MADE)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", [nullcontext, autocast])
def test_with_gradient_checkpointing_gradients_are_the_same(reentrant, way):
    kind = torch.float64 if way is nullcontext else torch.float32
    layer, given = made(kind, hidden_dropout_prob=0.3), inputs(dtype=kind)

    def again(layer, *given):
        return checkpoint(halves, layer, *given, use_reentrant=reentrant)

    def gradients_of(run):
        torch.manual_seed(1)
        layer.zero_grad()
        leaves = [x.detach().clone().requires_grad_() for x in given]
        with way():
            run(layer, *leaves).square().sum().backward()
        return [x.grad for x in leaves] + list(gradients(layer).values())

    with counted() as ran:
        found = gradients_of(again)
    assert ran == BOTH * 2
    assert all(map(torch.equal, found, gradients_of(halves)))


def test_what_is_saved_on_the_cpu_comes_back():
    layer, given = made(hidden_dropout_prob=0.3), inputs()
    found = derived(layer, *given, context=torch.autograd.graph.save_on_cpu)
    same(found, derived(layer, *given))


@pytest.mark.parametrize("within", [False, True])
def test_a_second_derivative_is_refused(within):
    layer, given = made(), inputs()
    with recomputing(layer) if within else nullcontext():
        out = halves(layer, *given)
    with pytest.raises(NotImplementedError, match="no second derivatives; .*backend='reference'"):
        torch.autograd.grad(out.sum(), given[1], create_graph=True)


def in_place(x):
    with torch.no_grad():
        x.mul_(1.5)
    return x


CHANGES = [in_place, lambda x: x * 1.5, lambda x: x.mul_(1.5), lambda x: x.view(-1).view(x.shape)]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_was_changed_is_not_computed_again(change, within):
    layer, given = made(), inputs()

    def run(layer, *given):
        with recomputing(layer) if within else nullcontext():
            return layer._feed_forward(change(layer.attention.output(*given)))

    def kept(layer, *given):
        return layer._feed_forward(change(layer.attention.output(*given).clone()))

    found = derived(layer, *given, run=run)
    with by_modules():
        same(found, derived(layer, *given, run=kept))


def test_what_is_changed_after_it_was_saved_is_not_used_for_gradients():
    layer, given = made(), inputs()
    for weight in (layer.intermediate.dense.weight, layer.attention.output.LayerNorm.weight):
        out = halves(layer, *given)
        with torch.no_grad():
            weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("within", [False, True])
def test_a_graph_that_is_retained_gives_its_gradients_again_and_no_other_does(within):
    layer, given = made(hidden_dropout_prob=0.1), inputs()
    with recomputing(layer) if within else nullcontext():
        out = halves(layer, *given).sum()
    first, second = (torch.autograd.grad(out, given, retain_graph=keep) for keep in (True, False))
    assert all(map(torch.equal, first, second))
    with pytest.raises(RuntimeError, match="through the graph a second time"):
        torch.autograd.grad(out, given)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_training_step_keeps_no_more_than_the_modules(dtype, within, dropout, monkeypatch):
    """Of float32, and under autocast."""
    monkeypatch.setattr(nn.Dropout, "forward", DROPOUT)
    layer = made(torch.float32, hidden_dropout_prob=dropout, intermediate_size=64)
    given, way = inputs(200, torch.float32), autocast if dtype != torch.float32 else nullcontext

    known = *given, *layer.parameters()

    def kept(within):
        with LiveTensors() as live, way(), recomputing(layer) if within else nullcontext():
            out = halves(layer, *given)
        found = sizes(live, known)
        out.sum().backward()
        leaves = *known, *(x.grad for x in known if x.grad is not None)
        assert sizes(live, leaves) == [out.nbytes, *copies]
        return found

    narrow, wide = 200 * WIDTH * 4, 200 * 64 * dtype.itemsize
    # Of the output, in the dtype of products: the next layer takes it, or makes it of a module's.
    copies = [narrow // 2] if dtype != torch.float32 else []
    found = kept(within)
    # Both sums and the output; what goes into the activation; what attention gave, cast.
    assert (found.count(narrow), found.count(wide)) == (3, 1)
    assert found.count(narrow // 2) == 2 * len(copies)
    ours, copies = sum(found) - sum(copies), []
    with by_modules():
        theirs = kept(within=True)
    assert ours <= sum(theirs)


def test_modules_behind_a_function_have_its_output_computed_again():
    layer, given = made(torch.float32), inputs(200, torch.float32)
    known, narrow = (*given, *layer.parameters()), 200 * WIDTH * 4
    project = layer.attention.self.query

    def run(layer, *given):
        with LiveTensors() as live, recomputing(layer):
            found = project(halves(layer, *given))
        assert sizes(live, known).count(narrow) == 3  # both sums and what is returned
        return found

    found = derived(layer, *given, run=run)
    same(found, derived(layer, *given, run=lambda *x: project(halves(*x))), far=0)


@pytest.mark.usefixtures("kernels_device")
def test_all_that_a_function_computes_lies_on_the_device_of_its_input(monkeypatch):
    layer = made(hidden_dropout_prob=0.0 if HAS_GPU else 0.1).cpu()  # of another generator there
    given = [x.detach().cpu().requires_grad_() for x in inputs()]
    with by_modules():
        expected = derived(layer, *given)
    layer.to(DEVICE)
    monkeypatch.setattr(fused, "PARAMETERS", {type(p) for p in layer.parameters()})
    with counted() as ran:
        found = derived(layer, *(x.detach().to(DEVICE).requires_grad_() for x in given))
    assert ran == BOTH
    same({name: x.cpu() for name, x in found.items()}, expected)


@pytest.mark.slow
def test_a_model_gives_what_it_gives_by_modules():
    inputs = batch(21, "mixed", "some")
    changes = {"attention_backend": "triton", "hidden_dropout_prob": 0.1}
    model = ldt_model("ForSequenceClassification", **changes).train().to(PLAIN)
    inputs = {name: x.to(PLAIN) for name, x in inputs.items()}
    with counted() as ran:
        found = training_pass(model, inputs)
    assert ran == BOTH * 2
    with by_modules():
        expected = training_pass(model, inputs)
    same(found, expected, far=1e-4)
    checkpoint_layers(model)
    same(training_pass(model, inputs), found, far=1e-6)


def test_twenty_steps_of_an_optimizer_end_at_the_same_weights():
    layer, given = made(hidden_dropout_prob=0.1), inputs()
    start, found = copy.deepcopy(layer.state_dict()), []
    for context in (nullcontext, by_modules):
        layer.load_state_dict(start)
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
        with context():
            for _ in range(20):
                optimizer.zero_grad()
                halves(layer, *given).square().mean().backward()
                optimizer.step()
        found.append({name: x.clone() for name, x in layer.state_dict().items()})
    same(*found, far=1e-8)


# What has modules run: what is done to a layer, and how often a function runs all the same.


def hooked(path, register="register_forward_hook"):
    def change(layer):
        getattr(layer.get_submodule(path), register)(lambda *_: None)

    return change


def replaced(path, new):
    def change(layer):
        above, _, name = path.rpartition(".")
        setattr(layer.get_submodule(above), name, new(layer.get_submodule(path)))

    return change


class Norm(nn.LayerNorm):
    """A class of its own."""


def another_norm(norm):
    return Norm(WIDTH).to(norm.weight)


def bound(layer):
    dense = layer.output.dense
    dense.forward = dense.forward


def wrapped(path):
    """As torch's sharding changes a module."""

    def change(layer):
        module = layer.get_submodule(path)
        module.__class__ = type(f"FSDP{type(module).__name__}", (type(module),), {})

    return change


def adapted(layer):
    config = peft.LoraConfig(target_modules=["intermediate.dense"], r=2)
    peft.inject_adapter_in_model(config, layer)


def in_half(layer):
    layer.output.dense.bfloat16()


def another_activation(layer):
    layer.intermediate.activation.act = nn.functional.relu


def all_dropped(layer):
    layer.output.dropout.p = 1.0


class Halved(nn.Module):
    def forward(self, x):
        return x / 2


REFUSED = {
    "hook": hooked("intermediate"),
    "hook of a product": hooked("intermediate.dense"),
    "hook before": hooked("output", "register_forward_pre_hook"),
    "hook of a gradient": hooked("output.LayerNorm", "register_full_backward_hook"),
    "hook before a gradient": hooked("output.dense", "register_full_backward_pre_hook"),
    "hook of the activation": hooked("intermediate.activation"),
    "hook of dropout": hooked("output.dropout"),
    "forward of the instance": bound,
    "class of its own": replaced("output.LayerNorm", another_norm),
    "no bias": replaced("output.dense", lambda _: nn.Linear(24, WIDTH, False).double()),
    "no dropout": replaced("output.dropout", lambda _: nn.Identity()),
    "another activation": replaced("intermediate.activation", lambda _: nn.SiLU()),
    "another function": another_activation,
    "adapter": adapted,
    "parametrization": lambda x: parametrize.register_parametrization(
        x.output.dense, "weight", Halved()
    ),
    "pruning": lambda x: prune.l1_unstructured(x.output.dense, "weight", 0.5),
    "sharding": wrapped("output"),
    "sharding of the whole": wrapped(""),
    "all dropped": all_dropped,
    "parts": lambda x: setattr(x, "chunk", 4),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("before", [False, True], ids=["from the start", "after a pass"])
def test_modules_run_where_calling_one_may_do_more(change, before):
    layer, given = made(hidden_dropout_prob=0.1), inputs()
    if before:
        both(layer, *given)
    change(layer)
    layer.to(PLAIN).double()
    with counted() as ran:
        found = derived(layer, *given)
    # A part that is called may still use its own parts so.
    assert ran.count("_FeedForward") == 0
    with by_modules():
        same(found, derived(layer, *given))


def test_a_function_runs_again_when_a_hook_is_gone():
    layer, given = made(), inputs()
    hook = layer.intermediate.register_forward_hook(lambda *_: None)
    for expected in (["_Residual", "_Residual"], BOTH):
        with counted() as ran:
            halves(layer, *given)
        assert ran == expected
        hook.remove()


def test_modules_run_with_a_hook_of_all_modules():
    layer, given = made(), inputs()
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    with counted() as ran:
        halves(layer, *given)
    hook.remove()
    assert ran == []


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
@pytest.mark.parametrize("chosen", ["triton", "blocked"])
def test_auto_takes_functions_where_it_takes_the_kernels_and_other_backends_never(
    backend, chosen, monkeypatch
):
    monkeypatch.setattr(fused, "_runs", fused._runs.__wrapped__)  # which remembers
    monkeypatch.setattr(fused, "choose", lambda device, dtype: (chosen, "of a test"))
    layer, given = made(), inputs()
    for part in (layer, layer.output, layer.attention.output):
        part.backend = backend
    with counted() as ran:
        halves(layer, *given)
    assert ran == []  # on a CPU nobody asks
    monkeypatch.setattr("ldt.model.layers._fusible", lambda *_: True)
    with counted() as ran:
        halves(layer, *given)
    assert ran == (BOTH if (backend, chosen) == ("auto", "triton") else [])


def test_modules_run_under_autocast_for_a_residual_stream_in_half_precision():
    layer, given = made(torch.bfloat16), inputs(dtype=torch.bfloat16)
    with counted() as ran, autocast():
        halves(layer, *given)
    assert "_Residual" not in ran


def test_modules_run_for_weights_of_several_dtypes():
    layer, given = made(torch.float32), inputs(dtype=torch.float32)
    layer.output.dense.bfloat16()
    with counted() as ran, autocast():
        layer._feed_forward(given[1])
    assert ran == []


def test_modules_run_in_dtypes_that_no_kernel_takes(monkeypatch):
    monkeypatch.setattr(fused, "STREAMS", fused.STREAMS - {torch.float64})
    layer, given = made(), inputs()
    with counted() as ran:
        halves(layer, *given)
    assert ran == []


def test_modules_run_under_transforms_and_with_parameters_of_the_call():
    layer, given = made(), inputs()
    parameters = {name: p.detach().clone() for name, p in layer.output.named_parameters()}

    def loss(parameters, x):
        return func.functional_call(layer.output, parameters, (x, given[1])).square().sum()

    wide = torch.randn(9, 24, device=PLAIN, dtype=torch.float64)
    layer.output(wide, given[1])
    with counted() as ran:
        func.grad(loss)(parameters, wide)
        loss({name: 2 * p for name, p in parameters.items()}, wide)
        func.grad(lambda x: layer.output(x, given[1]).square().sum())(wide)
        func.vmap(lambda x: layer.output(x, given[1]).sum())(wide[None])
    assert ran == []


def test_modules_run_where_a_layer_is_compiled():
    layer, given = made(torch.float32), inputs(dtype=torch.float32)
    with counted() as ran:
        torch.compile(layer._feed_forward, backend="eager")(given[1])
    assert ran == []


def test_modules_run_where_products_are_of_integers():
    model = ldt_model("Model", attention_backend="triton")
    lower(model, "int8")
    with counted() as ran, torch.no_grad():
        halves(model.encoder.layer[0], *(x.cpu() for x in inputs(dtype=model.dtype)))
    assert ran == []


def test_a_replica_has_parts_of_its_own():
    layer, given = made(), inputs()
    halves(layer, *given)
    replica = layer._replicate_for_data_parallel()
    replica._modules["intermediate"] = copy.deepcopy(layer.intermediate)
    replica.intermediate.register_forward_hook(lambda *_: None)
    with counted() as ran:
        replica._feed_forward(given[1])
    assert "_FeedForward" not in ran


def test_a_copy_of_a_model_has_parts_of_its_own():
    layer, given = made(), inputs()
    halves(layer, *given)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        same(*(derived(one, *given) for one in (copied, layer)), far=0)
        bound(copied)
        with counted() as ran:
            halves(copied, *given)
        assert "_FeedForward" not in ran
        with counted() as ran:
            halves(layer, *given)
        assert ran == BOTH
