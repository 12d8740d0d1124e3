"""Where modules run in place of `ldt.model.fused`, as calling one may do more."""

import copy
import pickle

import peft
import pytest
import torch
from device import PLAIN
from longformers import ldt_model
from torch import func, nn
from torch.nn.utils import parametrize, prune

pytest.importorskip("triton")

from fused_layers import (
    WIDTH,
    both,
    counted,
    derived,
    exact,  # noqa: F401
    inputs,
    made,
    pack,
    run_one,
    same,
)

from ldt.attention import Layout
from ldt.model import gates
from ldt.model.precision import lower


def autocast():
    return torch.autocast(PLAIN.type, torch.bfloat16)


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


def adapted(layer, names=("intermediate.dense",)):
    config = peft.LoraConfig(target_modules=[*names], r=2)
    peft.inject_adapter_in_model(config, layer)


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
    "no bias": replaced("output.dense", lambda _: nn.Linear(24, WIDTH, False)),
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
}


BY_MODULES = {
    "a hook": hooked("attention.self.key"),
    "a hook of the whole": hooked("attention.self"),
    "an adapter": lambda layer: adapted(layer, ["query", "value_global"]),
    "no bias": replaced("attention.self.query", lambda _: nn.Linear(WIDTH, WIDTH, bias=False)),
    "many global tokens": lambda _: pack([30], range(20)),
    "another backend": lambda layer: setattr(layer.attention.self, "backend", "blocked"),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("change", [*REFUSED, *BY_MODULES])
@pytest.mark.parametrize("before", [False, True], ids=["from the start", "after a pass"])
def test_modules_run_where_calling_one_may_do_more(change, before):
    layer, layout = made(dropout=0.1), pack([9], [0])
    if before:
        both(layer, inputs(layout), layout)
    changed = (REFUSED | BY_MODULES)[change](layer)
    layout = changed if isinstance(changed, Layout) else layout
    layer.to(PLAIN).float()
    ran = [False] if change in BY_MODULES else []
    same(*both(layer, inputs(layout), layout, ran), far=1e-3)


@pytest.mark.parametrize("every", [False, True])
def test_a_function_runs_again_when_a_hook_is_gone(every):
    layer, layout = made(), pack([9], [0])
    register = layer.intermediate.register_forward_hook
    hook = (nn.modules.module.register_module_forward_hook if every else register)(lambda *_: None)
    for expected in ([], [True]):
        with counted() as calls:
            run_one(layer, inputs(layout), layout)
        assert calls == expected
        hook.remove()


@pytest.mark.parametrize("backend", ["blocked", "auto"])
@pytest.mark.parametrize("chosen", ["triton", "blocked"])
def test_auto_takes_functions_where_it_takes_the_kernels_and_other_backends_never(
    backend, chosen, monkeypatch
):
    monkeypatch.setattr(gates, "_runs", gates._runs.__wrapped__)  # which remembers
    monkeypatch.setattr(gates, "choose", lambda device, dtype: (chosen, "of a test"))
    layer, layout = made(attention_backend=backend), pack([9], [0])
    with counted() as calls:
        run_one(layer, inputs(layout), layout)
    assert calls == []  # on a CPU nobody asks
    taken = (backend, chosen) == ("auto", "triton")
    assert gates.products_dtype(backend, inputs(layout)) == (torch.float32 if taken else None)


@pytest.mark.parametrize(
    ("dtype", "of_one"), [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)]
)
def test_modules_run_under_autocast_unless_all_weights_are_float32(dtype, of_one):
    layer, layout = made(dtype), pack([9], [0])
    layer.output.dense.to(of_one)
    with counted() as calls, autocast():
        run_one(layer, inputs(layout, dtype), layout)
    assert calls == []


def test_modules_run_in_dtypes_that_no_kernel_takes(monkeypatch):
    monkeypatch.setattr(gates, "STREAMS", gates.STREAMS - {torch.float64})
    layer, layout = made(torch.float64), pack([9], [0])
    with counted() as calls:
        run_one(layer, inputs(layout, torch.float64), layout)
    assert calls == []


def test_modules_run_under_transforms_and_with_parameters_of_the_call():
    layer, layout = made(torch.float64), pack([9], [0])
    parameters = {name: p.detach().clone() for name, p in layer.named_parameters()}
    x = inputs(layout, torch.float64).detach()

    def loss(parameters, x):
        return func.functional_call(layer, parameters, (x, layout))[0].square().sum()

    run_one(layer, x, layout)
    with counted() as calls:
        func.grad(loss)(parameters, x)
        loss({name: 2 * p for name, p in parameters.items()}, x)
        func.grad(lambda x: run_one(layer, x, layout).square().sum())(x)
    assert calls == []


def test_modules_run_where_a_layer_is_compiled():
    layer, layout = made(), pack([9], [0])
    layer.attention.self.backend = "reference"
    with counted() as calls:
        torch.compile(layer, backend="eager")(inputs(layout), layout)
    assert calls == []


def test_modules_run_where_products_are_of_integers():
    model = ldt_model("Model", attention_backend="triton")
    lower(model, "int8")
    layout = pack([9], [0]).to("cpu")
    with counted() as calls, torch.no_grad():
        model.encoder.layer[0](inputs(layout, model.dtype).cpu(), layout)
    assert calls == []


def test_a_replica_has_parts_of_its_own():
    layer, layout = made(), pack([9], [0])
    run_one(layer, inputs(layout), layout)
    replica = layer._replicate_for_data_parallel()
    replica._modules["intermediate"] = copy.deepcopy(layer.intermediate)
    replica.intermediate.register_forward_hook(lambda *_: None)
    with counted() as calls:
        run_one(replica, inputs(layout), layout)
    assert calls == []


def test_a_copy_of_a_model_has_parts_of_its_own():
    layer, layout = made(), pack([9], [0])
    x = inputs(layout)
    run_one(layer, x, layout)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        same(*(derived(one, x, layout) for one in (copied, layer)), far=0)
        bound(copied)
        for one, expected in ((copied, []), (layer, [True])):
            with counted() as calls:
                run_one(one, x, layout)
            assert calls == expected
