"""Gradients where hooks, views and parts change what recomputation could take for its own."""

import gc
import re
from contextlib import nullcontext
from threading import Thread

import peft
import pytest
import torch
from live_tensors import LiveTensors
from longformers import batch, checkpoint_layers, gradients, ldt_model
from torch import nn
from torch.nn.utils import parametrize

from ldt.model import recompute

NAMES = [name for name, _ in ldt_model("Model").named_modules() if name]


def noise(x):
    return 0.3 * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape).sin()


def in_place(x):
    return x.add_(noise(x))


def without_gradient(x):
    with torch.no_grad():
        x.detach().mul_(1 + noise(x))
    return x


def replaced(x):
    return x * 1.5 + noise(x)


def a_view(x):
    return x.view(-1).view(x.shape)


def turned_in_memory(x):
    return x.t().contiguous().t()


def a_slice(x):
    return torch.cat([noise(x), x])[len(x) :]


CHANGES = [in_place, without_gradient, replaced, a_view, turned_in_memory, a_slice]


def hook_output(module, change):
    def hook(_, __, out):
        if isinstance(out, tuple):
            return change(out[0]), *out[1:]
        return change(out)

    return module.register_forward_hook(hook)


def hook_input(module, change):
    def hook(_, args):
        x = args[0]
        return (change(x) if x.is_floating_point() else x), *args[1:]

    return module.register_forward_pre_hook(hook)


def backward(loss):
    loss.backward()


def run(model, inputs, low=False, backward=backward):
    """Output and gradients; a RuntimeError where autograd raises one."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        out = model(**inputs).last_hidden_state
    try:
        backward(out.square().sum())
    except RuntimeError as err:
        return err
    return {"out": out.detach()} | gradients(model)


def kept(model, inputs, low=False, backward=backward):
    """(`run` with everything kept that autograd keeps, False); where that raises since it was
    changed in place, (`run` with copies kept, True)."""

    def others(context):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ldt.model.layers.recomputing", lambda model: context)
            return run(model, inputs, low, backward)

    found = others(nullcontext())
    if not isinstance(found, RuntimeError):
        return found, False
    assert "modified by an inplace operation" in str(found)
    return others(torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x)), True


def twice(loss):
    loss.backward(retain_graph=True)
    loss.backward()


def assert_same(found, wanted, close=0.0):
    wanted, may_raise = wanted
    if may_raise and "modified by an inplace operation" in str(found):
        return
    assert not isinstance(found, RuntimeError), found
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        far = (found[name] - x).abs().max()
        assert far <= close * max(1, x.abs().max()), name


def halved():
    """Modules in float32 and under autocast. What is in both layers is daily once in each: in the
    one in float32, in the other under autocast."""
    for name in NAMES:
        first = NAMES.index(name.replace("layer.1", "layer.0"))
        for low in (False, True):
            again = "layer." in name and (first + ("layer.1" in name) + low) % 2
            yield pytest.param(name, low, marks=[pytest.mark.nightly] if again else [])


@pytest.mark.fast("embeddings-False", "encoder.layer.0.output-False", "pooler-True")
@pytest.mark.parametrize(("name", "low"), halved())
def test_a_hook_on_any_module_gives_the_gradients_of_what_it_does(name, low):
    model, inputs = ldt_model("Model").train(), batch(20, "mixed", "some")
    for change in CHANGES:
        for register in (hook_output, hook_input):
            hook = register(model.get_submodule(name), change)
            assert_same(run(model, inputs, low), kept(model, inputs, low))
            hook.remove()


@pytest.mark.fast("checkpointing")
@pytest.mark.parametrize("way", ["checkpointing", "saving elsewhere", "a retained graph"])
def test_with_hooks_all_ways_to_train_give_the_same(way):
    inputs = batch(20, "mixed", "some")
    context = torch.autograd.graph.save_on_cpu() if way == "saving elsewhere" else nullcontext()
    how = (inputs, True, twice if way == "a retained graph" else backward)
    plain = ldt_model("Model").train()
    model = ldt_model("Model").train()
    model.load_state_dict(plain.state_dict())
    if way == "checkpointing":
        checkpoint_layers(model)
    for name in NAMES:
        if "layer.1" in name:  # as in the first layer
            continue
        hooks = [hook_output(x.get_submodule(name), in_place) for x in (model, plain)]
        wanted, raises = kept(plain, *how)
        with context:
            found = run(model, *how)
        if not (raises and way == "saving elsewhere"):  # where torch itself does not look
            assert_same(found, (wanted, raises))
        for hook in hooks:
            hook.remove()


def test_what_is_changed_after_it_was_saved_is_not_used_for_gradients():
    model, inputs = ldt_model("Model").train(), batch(20)
    seen = []
    wide = model.encoder.layer[0].intermediate.dense
    wide.register_forward_hook(lambda _, __, out: seen.append(out))
    out = model(**inputs).last_hidden_state
    seen[0].detach().add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: torch.float32 \["):
        out.sum().backward()
    out = model(**inputs).last_hidden_state
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Odd(torch.autograd.Function):
    """Passes the gradient of the numbers whose last bit is set."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.view(torch.int32))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (bits,) = ctx.saved_tensors
        return grad * bits.bitwise_and(1)


def test_what_is_read_as_another_type_is_kept():
    x = torch.randn(50, requires_grad=True)
    with recompute.recomputing(nn.Identity()):
        out = recompute.recomputed(x.exp(), torch.exp, x, of=nn.Identity())
        found = Odd.apply(out)
    found.sum().backward()
    assert 0 < x.grad.count_nonzero() < 50
    torch.testing.assert_close(x.grad, out * out.view(torch.int32).bitwise_and(1))


def test_an_activation_that_is_not_the_same_each_time_is_kept():
    class Noisy(nn.Module):
        def forward(self, x):
            return x.relu() * torch.rand_like(x)

    model, inputs = ldt_model("Model").train(), batch(20)
    for layer in model.encoder.layer:
        layer.intermediate.activation = Noisy()
    found = []
    for way in (run, kept):
        torch.manual_seed(3)
        found.append(way(model, inputs))
    assert_same(*found)


class Shifted(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1


def test_another_kind_of_normalisation_is_kept():
    model, inputs = ldt_model("Model").train(), batch(20)
    for layer in model.encoder.layer:
        layer.output.LayerNorm = nn.RMSNorm(16)
        layer.attention.output.LayerNorm = nn.LayerNorm(16, bias=False)
    model.encoder.layer[1].attention.output.LayerNorm = Shifted(16)
    assert_same(run(model, inputs), kept(model, inputs))


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight.tanh()


@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("way", ["parametrized", "tuned"])
def test_a_normalisation_with_other_weights_than_its_own(way, low):
    model, inputs = ldt_model("Model").train(), batch(20)
    norms = [norm for norm in model.modules() if isinstance(norm, nn.LayerNorm)]
    if way == "parametrized":
        for norm in norms:
            parametrize.register_parametrization(norm, "weight", Doubled())
    else:
        model = peft.get_peft_model(model, peft.LNTuningConfig(target_modules=["LayerNorm"]))
        for x in model.parameters():
            x.data += 0.1 * x.requires_grad * torch.randn_like(x)
    found = run(model, inputs, low)
    assert_same(found, kept(model, inputs, low))
    of_norms = [name for name in found if re.search("original|ln_tuning", name)]
    assert len(of_norms) == (1 if way == "parametrized" else 2) * len(norms)
    assert all(found[name].any() for name in of_norms)


@pytest.mark.parametrize("activation", ["linear", "relu", "gelu_new", "silu", "prelu"])
def test_activations_of_all_kinds(activation):
    model, inputs = ldt_model("Model", hidden_act=activation).train(), batch(20)
    for low in (False, True):
        assert_same(run(model, inputs, low), kept(model, inputs, low))


@pytest.mark.parametrize("low", [False, True])
def test_a_backward_pass_within_autocast_and_in_another_thread_computes_the_same(low):
    model, inputs = ldt_model("Model", hidden_act="gelu_new").train(), batch(20, "mixed", "some")

    def backward(loss):
        def other():
            with torch.autocast("cpu", torch.bfloat16, enabled=not low):
                loss.backward()

        thread = Thread(target=other)
        thread.start()
        thread.join()

    assert_same(run(model, inputs, low, backward), kept(model, inputs, low, backward))


def test_several_passes_and_two_backward_passes_of_one_do_not_mix():
    model, inputs = ldt_model("Model").train(), [batch(20), batch(31, "mixed", "some")]
    wanted = [kept(model, x) for x in inputs]
    losses = [model(**x).last_hidden_state.square().sum() for x in inputs]
    for number in (1, 0, 1):
        model.zero_grad()
        losses[number].backward(retain_graph=True)
        found = gradients(model)
        assert all(torch.equal(found[name], wanted[number][0][name]) for name in found)


def test_nothing_lives_longer_than_the_graph():
    model, inputs = ldt_model("Model").train(), batch(20)
    states = {80 * numbers * 4 for numbers in (model.config.hidden_size, 24)}
    gc.disable()
    try:
        for backward in (False, True):
            with LiveTensors() as live:
                out = model(**inputs).last_hidden_state
            assert states <= set(live.sizes())
            if backward:
                out.sum().backward()
            del out
            assert not states & set(live.sizes())
    finally:
        gc.enable()


def test_the_check_names_the_module_whose_output_is_not_computed_again(monkeypatch):
    model, inputs = ldt_model("Model").train(), batch(20)
    before = recompute.comparisons
    run(model, inputs)
    assert recompute.comparisons > before
    norm = model.encoder.layer[0].attention.output

    def change_unseen(_, __, out):
        out.data.add_(1)

    norm.register_forward_hook(change_unseen)
    err = run(model, inputs)
    assert "encoder.layer.0.attention.output.LayerNorm: computed again" in str(err)
    monkeypatch.setenv("LDT_CHECK_RECOMPUTE", "0")
    before = recompute.comparisons
    run(model, inputs)
    assert recompute.comparisons == before
