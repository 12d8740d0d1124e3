"""torch.compile without a graph break and torch.export, both for any length and any globals."""

from collections import Counter

import pytest
import torch
from device import PLAIN, there
from longformers import HEADS, batch, ldt_model

from ldt.attention import Layout, blocked, sliding_window_attention
from ldt.attention.triton import attention, pattern

LABELS = {
    "ForMaskedLM": {"labels": torch.randint(0, 40, (4, 21))},
    "ForSequenceClassification": {"labels": torch.tensor([0, 1, 2, 0])},
    "ForQuestionAnswering": {
        "start_positions": torch.tensor([5, 6, 7, 8]),
        "end_positions": torch.tensor([6, 7, 8, 9]),
    },
}

SMALL = {"num_hidden_layers": 1, "attention_window": 8}


def compiled(model):
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_one_graph_serves_every_length_batch_and_set_of_global_tokens():
    model = ldt_model("Model", attention_dilation=[1, [2, 1]]).double()
    fast = compiled(model)
    with torch.no_grad():
        for n, padding, globals_ in (
            (21, "mixed", "some"),
            (33, "left", "one"),
            (12, "row", "all"),
        ):
            inputs = batch(n, padding, globals_)
            close(fast(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


@pytest.mark.fast("ForSequenceClassification")
@pytest.mark.parametrize("head", LABELS)
def test_a_compiled_loss_and_its_gradients_are_those_of_eager(head):
    model = ldt_model(head, **SMALL).double().train()
    inputs = batch(21, "right", "default" if head != "ForMaskedLM" else "some") | LABELS[head]

    def run(model):
        output = model(**inputs)
        return output.loss, torch.autograd.grad(output.loss, parameters, allow_unused=True)

    parameters = list(model.parameters())
    (loss, gradients), (expected, others) = run(compiled(model)), run(model)
    close(loss, expected)
    for ours, theirs in zip(gradients, others, strict=True):
        if ours is None or theirs is None:  # a graph gives zeros to what a batch does not use
            assert not (ours if theirs is None else theirs).any()
        else:
            close(ours, theirs)


@pytest.mark.slow
def test_dropout_is_drawn_anew_in_every_compiled_step():
    model = ldt_model("Model", attention_probs_dropout_prob=0.5, **SMALL).train()
    fast, inputs = compiled(model), batch(21)
    first, second = (fast(**inputs).last_hidden_state for _ in range(2))
    assert not torch.allclose(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_that_of_eager(dtype):
    changes = SMALL if dtype == torch.float16 else {}
    model = ldt_model("ForSequenceClassification", **changes).train()
    inputs = batch(21, "mixed", "some") | LABELS["ForSequenceClassification"]
    parameters = list(model.parameters())

    def run(model, enabled=True):
        with torch.autocast("cpu", dtype, enabled):
            output = model(**inputs)
        gradients = torch.autograd.grad(output.loss, parameters, allow_unused=True)
        return output.logits, *(g for g in gradients if g is not None and g.any())

    # Where a CPU has instructions for the type, each of the two rounds at other places.
    runs = run(compiled(model)), run(model), run(model, enabled=False)
    for ours, eager, exact in zip(*runs, strict=True):
        off = (eager - exact).abs().max()
        assert off > 0
        assert (ours - exact).abs().max() <= 3 * off


@pytest.mark.slow
def test_a_causal_encoder_compiles_and_exports():
    model = ldt_model("Model", causal=True).double()
    inputs = batch(21, "right", "none")
    expected = model(**inputs).last_hidden_state
    fast, program = compiled(model), torch.export.export(model, (), inputs)
    close(fast(**inputs).last_hidden_state, expected)
    close(program.module()(**inputs).last_hidden_state, expected)
    inputs["global_attention_mask"][0, 3] = 1
    for run in (model, fast, program.module()):
        with pytest.raises(ValueError, match="causal attention has no global tokens"):
            run(**inputs)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["blocked", "triton"])
def test_a_compiled_step_attends_once_and_makes_of_the_layout_what_it_needs_once(
    backend, monkeypatch
):
    called = []
    for module, name in (
        (attention, "forward"),
        (pattern, "_next"),
        (blocked, "_band_blocks"),
    ):
        real = getattr(module, name)
        label = f"{module.__name__.rpartition('.')[2]}.{name}"
        monkeypatch.setattr(
            module, name, lambda *a, real=real, label=label: called.append(label) or real(*a)
        )
    changes = {"pooling_layers": [1], "pooling_window": 16, "attention_window": 8}
    model = ldt_model("Model", attention_backend=backend, **changes).train().to(PLAIN)
    inputs, parameters = there(batch(21, "mixed", "some"), PLAIN), list(model.parameters())

    def run(model):
        out = model(**inputs).last_hidden_state.square().sum()
        return out, *torch.autograd.grad(out, parameters, allow_unused=True)

    found = run(compiled(model))
    # Two layers of windows and one of cells, whose tables hide keys.
    levels = {"attention.forward": 3, "pattern._next": 1}
    assert Counter(called) == ({"blocked._band_blocks": 1} if backend == "blocked" else levels)
    for ours, theirs in zip(found, run(model), strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},  # two layers once
        SMALL | {"classifier_pooling": "mean"},
        SMALL | {"classifier_pooling": "max"},
        {"pooling_layers": [1], "pooling_window": 16, "pooling_gate": True},
    ],
    ids=str,
)
def test_an_exported_classifier_answers_at_other_lengths(changes):
    model = ldt_model("ForSequenceClassification", **changes).double()
    rows, length = (
        torch.export.Dim("rows", min=1, max=16),
        torch.export.Dim("length", min=2, max=64),
    )
    inputs = batch(21, "right", "one")
    program = torch.export.export(
        model, (), inputs, dynamic_shapes={name: {0: rows, 1: length} for name in inputs}
    )
    for n, padding, globals_ in ((21, "mixed", "some"), (40, "left", "none"), (9, "none", "all")):
        other = batch(n, padding, globals_)
        with torch.no_grad():
            close(program.module()(**other).logits, model(**other).logits)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_exports(head):
    model = ldt_model(head, **SMALL if head != "Model" else {})
    inputs = batch(21, "none", "one")
    if head == "ForMultipleChoice":
        inputs = {name: x.view(2, 2, 21) for name, x in inputs.items()}
    program = torch.export.export(model, (), inputs)
    with torch.no_grad():
        for ours, theirs in zip(
            program.module()(**inputs).to_tuple(), model(**inputs).to_tuple(), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


def test_a_number_as_the_seed_drops_the_same_compiled_as_eager():
    q, layout = torch.randn(50, 2, 4), Layout(torch.tensor([0, 50]), total=50)

    def run(q, seed):
        return sliding_window_attention(q, q, q, layout, window=8, dropout=0.5, seed=seed)

    fast = torch.compile(run, fullgraph=True, backend="aot_eager")
    for seed in (1, 2**33 + 5):
        assert torch.equal(fast(q, seed), run(q, seed))
