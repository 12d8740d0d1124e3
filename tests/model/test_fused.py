"""`ldt.model.fused` beside the modules that it stands for, which are right."""

import copy
import gc
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from device import DEVICE, HAS_GPU, PLAIN
from live_tensors import LiveTensors
from longformers import batch, checkpoint_layers, gradients, ldt_model, training_pass
from torch import distributed, nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")

from fused_layers import (
    LAYOUTS,
    WIDTH,
    both,
    by_modules,
    counted,
    derived,
    exact,  # noqa: F401
    inputs,
    made,
    pack,
    run_one,
    same,
    some,
)

from ldt.model import fused, gates
from ldt.model.layers import UNUSED_PASSES
from ldt.model.recompute import recomputing

DROPOUT = nn.Dropout.forward


def definition(layer, x, layout):
    """Output and gradients of the definition in float64."""
    layer = copy.deepcopy(layer).double()
    layer.attention.self.backend = "reference"
    with by_modules():
        return derived(layer, x.detach().double().requires_grad_(x.requires_grad), layout)


def as_close(ours, plain, true, rounded=0.0):
    """Each of ``ours`` is as near to the truth as the modules' own are, rounding apart."""
    assert ours.keys() == plain.keys() == true.keys()
    for name, wanted in true.items():
        assert ours[name].shape == wanted.shape
        allowed = 2 * (plain[name].double() - wanted).abs().max()
        allowed += (64 * 2**-23 + rounded) * max(1, wanted.abs().max())
        assert (ours[name].double() - wanted).abs().max() <= allowed, name


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_in_float64_output_and_gradients_are_those_of_the_modules(rows, dropout):
    layout = pack([rows], [0])
    layer, x = made(torch.float64, dropout), inputs(layout, torch.float64)
    ours, expected = both(layer, x, layout, [False])
    same(ours, expected)
    assert len(ours) == 2 + 22


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_output_and_gradients_are_as_close_as_the_modules(name, dropout):
    layer, layout = made(dropout=dropout), pack(*LAYOUTS[name])
    x = inputs(layout)
    ours, plain = both(layer, x, layout)
    as_close(ours, plain, definition(layer, x, layout))
    assert len(ours) == (2 + 22 if layout.is_global is not None else 2 + 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["some, and holes", "none is global"])
def test_in_half_precision_they_are_as_close(name, dtype):
    layer, layout = made(dtype, 0.2), pack(*LAYOUTS[name])
    x = inputs(layout, dtype)
    ours, plain = both(layer, x, layout)
    assert ours["out"].dtype == dtype
    as_close(ours, plain, definition(layer, x, layout), 2 * torch.finfo(dtype).eps)


def autocast():
    return torch.autocast(PLAIN.type, torch.bfloat16)


def test_under_autocast_they_are_as_close_and_the_residual_stream_is_float32():
    layer, layout = made(dropout=0.2), some()
    x = inputs(layout)
    ours, plain = both(layer, x, layout, context=autocast)
    assert ours["out"].dtype == torch.float32
    as_close(ours, plain, definition(layer, x, layout), 2**-8)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_dilation": [[1, 3], 1]},
        {"causal": True, "attention_dilation": 2},
        {"attention_window": 24},
    ],
)
def test_any_windows(changes):
    layout = pack([17, 6]) if "causal" in changes else pack([17, 6], [0, 20], [8])
    layer, x = made(**changes), inputs(layout)
    ours, plain = both(layer, x, layout)
    as_close(ours, plain, definition(layer, x, layout))


def test_under_autocast_the_stream_is_cast_by_its_norm_alone():
    layer, layout = made(), pack([9], [0])
    x = inputs(layout)
    with autocast():
        between = run_one(layer, x, layout)
        low = getattr(between, fused.MADE).copy
        assert low.dtype == torch.bfloat16
        assert torch.equal(low, between.bfloat16())
        with patch.object(torch.Tensor, "to", side_effect=AssertionError("cast")):
            run_one(layer, between, layout)
    assert getattr(between, fused.MADE).copy is None  # it is not held for longer than it takes


def test_under_autocast_a_step_casts_every_weight_of_a_product_once():
    layer, layout = made(), pack([9], [0])
    cast, copy_ = [], torch._foreach_copy_

    def noted(copies, weights):
        cast.extend(map(id, weights))
        copy_(copies, weights)

    with patch.object(torch, "_foreach_copy_", noted):
        with autocast():
            out = run_one(layer, inputs(layout), layout)
        with patch.object(torch.Tensor, "to", side_effect=AssertionError("cast")):
            out.sum().backward()
    # Norms are in float32, and the few global rows are multiplied by weights as they are.
    weights = {name: p for name, p in layer.named_parameters() if "Norm" not in name}
    assert sorted(cast) == sorted(id(p) for name, p in weights.items() if "_global" not in name)


@pytest.mark.parametrize("way", ["data", "fused AdamW"])
def test_a_change_of_weights_that_torch_does_not_count_is_seen_under_autocast(way):
    layer, layout = made(), pack([9], [0])
    x = inputs(layout)
    before = derived(layer, x, layout, context=autocast)
    versions = [p._version for p in layer.parameters()]
    if way == "data":
        for p in layer.parameters():
            p.data.mul_(1.5)
    else:
        for p in layer.parameters():
            p.grad = torch.ones_like(p)
        torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()
    assert versions == [p._version for p in layer.parameters()]
    ours, plain = both(layer, x, layout, context=autocast)
    assert not torch.allclose(before["out"], ours["out"], atol=0.1)
    same(ours, plain, far=0.05)


def test_autocast_around_the_backward_pass_changes_nothing():
    layer, layout = made(), pack([9], [0])
    x = inputs(layout)
    up, grads = torch.randn_like(x), []
    for context in (nullcontext, autocast):
        out = run_one(layer, x, layout)
        with context():
            grads.append(torch.autograd.grad(out, x, up)[0])
    assert torch.equal(*grads)


def test_gradients_that_do_not_lie_in_one_piece_are_taken():
    layer, layout = made(torch.float64), pack([9], [0])
    x, grads = inputs(layout, torch.float64), []
    for context in (nullcontext, by_modules):
        with context():
            out = run_one(layer, x, layout)
        grads.append(torch.autograd.grad((out * torch.arange(WIDTH).to(out)).sum(), x))
        grads.append(torch.autograd.grad(run_one(layer, x, layout).t().contiguous().t().sum(), x))
    for ours, true in zip(grads[:2], grads[2:], strict=True):
        assert all(map(torch.allclose, ours, true))


PARTS = "value.weight", "key.bias", "query_global", "key_global.weight", "output.dense", "LayerNorm"


@pytest.mark.parametrize("part", [*PARTS, "mediate.dense.weight", "mediate.dense.bias", "none"])
@pytest.mark.parametrize("of_input", [True, False])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(part, of_input):
    layer, layout = made(), some()
    for name, p in layer.named_parameters():
        p.requires_grad_(part in name)
    x = inputs(layout).requires_grad_(of_input)
    if part == "none" and not of_input:
        with LiveTensors() as live:
            out = run_one(layer, x, layout)
        kept, size = sizes(live, [x, *layer.parameters()]), out.nbytes
        assert not out.requires_grad
        del out
        tables = sizes(live, [x, *layer.parameters()])  # of the layout
        assert sorted(kept) == sorted([*tables, size])
        return
    ours, plain = both(layer, x, layout)
    as_close(ours, plain, definition(layer, x, layout))


def sizes(live, known):
    """Bytes of what lives but for tensors that are known; what the interpreter holds on to goes."""
    gc.collect()
    return live.sizes(known)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_bits_are_the_same_and_nothing_is_kept(context):
    layer, layout = made(dropout=0.2), some()
    x = inputs(layout)
    expected = derived(layer, x, layout)["out"]
    torch.manual_seed(1)
    with context(), counted() as calls:
        out = run_one(layer, x, layout)
    assert calls == [True]
    assert torch.equal(out, expected)
    assert not hasattr(out, fused.MADE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_first_used_in_inference_mode_serves_training(name):
    layer, layout = made(dropout=0.3), pack(*LAYOUTS[name])
    x = inputs(layout)
    expected = derived(layer, x, pack(*LAYOUTS[name]))
    with torch.inference_mode(), counted() as calls:
        run_one(layer, x, layout)
    assert calls == [True]
    same(derived(layer, x, layout), expected, far=0)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", [nullcontext, autocast])
def test_with_gradient_checkpointing_gradients_are_the_same(reentrant, way):
    layer, layout = made(dropout=0.3), some()
    x = inputs(layout)

    def gradients_of(run):
        torch.manual_seed(1)
        layer.zero_grad()
        leaf = x.detach().clone().requires_grad_()
        with way():
            run(leaf).square().sum().backward()
        return [leaf.grad, *gradients(layer).values()]

    with counted() as calls:
        again = gradients_of(lambda x: checkpoint(layer, x, layout, use_reentrant=reentrant)[0])
    assert calls == [True] * 2
    assert all(map(torch.equal, again, gradients_of(lambda x: run_one(layer, x, layout))))


def test_what_is_saved_on_the_cpu_comes_back():
    layer, layout = made(dropout=0.3), some()
    x = inputs(layout)
    away = derived(layer, x, layout, context=torch.autograd.graph.save_on_cpu)
    same(away, derived(layer, x, layout), far=0)


def test_two_runs_give_the_same_bits():
    layer, layout = made(torch.bfloat16, 0.1), some()
    x = inputs(layout, torch.bfloat16)
    same(derived(layer, x, layout), derived(layer, x, layout), far=0)


@pytest.mark.parametrize("within", [False, True])
def test_a_second_derivative_is_refused(within):
    layer, layout = made(), pack([9])
    x = inputs(layout)
    with recomputing(layer) if within else nullcontext():
        out = run_one(layer, x, layout)
    with pytest.raises(NotImplementedError, match="no second derivatives; .*backend='reference'"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def in_place(x):
    with torch.no_grad():
        x.mul_(1.5)
    return x


CHANGES = [in_place, lambda x: x * 1.5, lambda x: x.mul_(1.5), lambda x: x.view(-1).view(x.shape)]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_was_changed_is_not_computed_again(change, within):
    layer, layout = made(), pack([9], [0])

    def run(layer, x, layout):
        with recomputing(layer) if within else nullcontext():
            return run_one(layer, change(run_one(layer, x, layout)), layout)

    def kept(layer, x, layout):
        return run_one(layer, change(run_one(layer, x, layout).clone()), layout)

    x = inputs(layout)
    ours = derived(layer, x, layout, run=run)
    with by_modules():
        same(ours, derived(layer, x, layout, run=kept), far=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "intermediate.dense.weight",
        "attention.output.LayerNorm.weight",
        "attention.self.key_global.weight",
        "attention.self.query_global.weight",
    ],
)
def test_what_is_changed_after_it_was_saved_is_not_used_for_gradients(name):
    layer, layout = made(), pack([9], [0])
    out = run_one(layer, inputs(layout), layout)
    with torch.no_grad():
        layer.get_parameter(name).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("within", [False, True])
def test_a_graph_that_is_retained_gives_its_gradients_again_and_no_other_does(within):
    layer, layout = made(dropout=0.1), pack([9], [0])
    x = inputs(layout)
    with recomputing(layer) if within else nullcontext():
        out = run_one(layer, x, layout).sum()
    first, second = (torch.autograd.grad(out, x, retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="through the graph a second time"):
        torch.autograd.grad(out, x)


@pytest.mark.slow
@pytest.mark.covering(2)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["none is global", "some, and holes"])
@pytest.mark.parametrize("way", [nullcontext, autocast])
@pytest.mark.parametrize("within", [False, True])
def test_a_training_step_keeps_no_more_than_the_modules(way, name, dropout, within, monkeypatch):
    monkeypatch.setattr(nn.Dropout, "forward", DROPOUT)
    layers = nn.ModuleList(made(dropout=dropout, intermediate_size=64) for _ in range(2))
    layout = pack(*LAYOUTS[name])
    x = inputs(layout)

    def kept(within):
        known = [x, *layers.parameters()]
        with LiveTensors() as live, way(), recomputing(layers) if within else nullcontext():
            between = run_one(layers[0], x, layout)
            out = run_one(layers[1], between, layout)
            del between
        saved = sizes(live, known)
        out.sum().backward()
        known += [leaf.grad for leaf in known if leaf.grad is not None]
        left = sizes(live, [*known, out])
        copies = [out.nbytes // 2] if way is autocast and hasattr(out, fused.MADE) else []
        del out
        tables = sizes(live, known)  # of the layout
        assert sorted(left) == sorted([*tables, *copies])  # a graph that is done with holds nothing
        return sum(saved) - sum(copies) - sum(tables)

    ours = kept(within)
    with by_modules():
        theirs = kept(within=True)
    # Weights in one piece, which autocast's own copies are no smaller than.
    joined = 2 * 3 * WIDTH * WIDTH * 4 if way is nullcontext else 0
    assert ours <= theirs + joined


def test_modules_behind_a_function_have_its_output_computed_again():
    layer, layout = made(), some()
    x, project = inputs(layout), layer.attention.self.query
    known, narrow = (x, *layer.parameters()), layout.total_tokens * WIDTH * 4
    layer.is_last = True

    def run(layer, x, layout):
        run_one(layer, x, layout)  # tables of the layout
        with LiveTensors() as live, recomputing(layer):
            out = project(run_one(layer, x, layout))
        # Both sums, what attention gave, query, key and value, and what is returned.
        assert sizes(live, known).count(narrow) == 4
        return out

    ours = derived(layer, x, layout, run=run)
    same(ours, derived(layer, x, layout, run=lambda *of: project(run_one(*of))), far=0)


@pytest.mark.usefixtures("kernels_device")
def test_all_that_a_function_computes_lies_on_the_device_of_its_input(monkeypatch):
    layer, layout = made(dropout=0.0 if HAS_GPU else 0.1).cpu(), some()  # another generator there
    x = inputs(layout).detach().cpu().requires_grad_()
    layer.attention.self.backend = "blocked"
    with by_modules():
        expected = derived(layer, x, layout.to("cpu"))
    layer.attention.self.backend = "triton"
    layer.to(DEVICE)
    monkeypatch.setattr(gates, "PARAMETERS", {type(p) for p in layer.parameters()})
    with counted() as calls:
        ours = derived(layer, x.detach().to(DEVICE).requires_grad_(), layout.to(DEVICE))
    assert calls == [True]
    same({name: x.cpu() for name, x in ours.items()}, expected, far=1e-4)


@pytest.mark.slow
def test_a_model_gives_what_it_gives_by_modules():
    changes = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = ldt_model("ForSequenceClassification", attention_backend="triton", **changes)
    model = model.train().to(PLAIN)
    given = {name: x.to(PLAIN) for name, x in batch(21, "mixed", "some").items()}
    with counted() as calls:
        ours = training_pass(model, given)
    assert calls == [True] * 2
    with by_modules():
        expected = training_pass(model, given)
    same(ours, expected, far=1e-3)
    checkpoint_layers(model)
    same(training_pass(model, given), ours, far=1e-6)


@pytest.mark.parametrize("wanted", ["output_attentions", "globals_only"])
def test_attentions_and_global_rows_alone_are_those_of_the_modules(wanted):
    layer, layout = made(), some()
    x = inputs(layout)
    with counted() as calls:
        out, *probs = layer(x, layout, **{wanted: True})
    assert calls == [False]
    with by_modules():
        expected, *others = layer(x, layout, **{wanted: True})
    torch.testing.assert_close(out, expected)
    assert all(a is b or torch.equal(a, b) for a, b in zip(probs, others, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_device")
def test_twenty_steps_end_at_the_weights_of_the_modules_from_whose_checkpoint_they_may_start(
    monkeypatch,
):
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
            monkeypatch.setattr(gates, "PARAMETERS", {type(p) for p in model.parameters()})
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


def step_of_rank(rank, model, batches, context, folder):
    """Gradients of a step that two processes share, and how many of a parameter stand for none, in
    a file; at the start of one of them."""
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    shared = DistributedDataParallel(model)
    with context(), counted() as calls:
        shared(**batches[rank]).loss.backward()
    unused = [getattr(p, UNUSED_PASSES, 0) for p in model.parameters()]
    torch.save((calls, gradients(model), unused), folder / f"{rank}.pt")
    del shared  # which would end the group of processes once more, and wait for ever
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="processes are forked")
def test_two_processes_get_the_gradients_of_the_modules_though_one_has_no_global_token(tmp_path):
    model = ldt_model("ForTokenClassification", attention_backend="triton").train()
    batches = []
    for globals_ in ("some", "none"):
        inputs = {name: x[:2] for name, x in batch(14, "mixed", globals_).items()}
        batches.append(inputs | {"labels": torch.zeros(inputs["input_ids"].shape).long()})
    results = []
    for context in (nullcontext, by_modules):
        folder = tmp_path / context.__name__
        folder.mkdir()
        arguments = model, batches, context, folder
        start_processes(step_of_rank, arguments, nprocs=2, start_method="fork")
        results += [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    (ran, first, used), (_, second, unused), (none, expected, _), (*_, by_modules_unused) = results
    layers = model.config.num_hidden_layers
    assert (sum(used), sum(unused), unused) == (0, 6 * layers, by_modules_unused)
    assert (ran, none) == ([True] * layers, [])
    same(first, second, far=0)
    same(first, expected, far=1e-4)
    assert expected["longformer.encoder.layer.0.attention.self.key_global.weight"].any()
