"""What the backward pass computes again, and what autocast casts: less memory, the same numbers."""

from collections import Counter

import pytest
import torch
from live_tensors import LiveTensors
from longformers import batch, checkpoint_layers, gradients, ldt_model


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_is_computed_again_is_not_kept_for_the_backward_pass(checkpointing):
    model = ldt_model("Model", intermediate_size=512).train()
    if checkpointing:
        checkpoint_layers(model)
    inputs = batch(40)
    with LiveTensors() as live:
        out = model(**inputs)
    wide, narrow = (160 * numbers * 4 for numbers in (512, model.config.hidden_size))
    sizes = Counter(live.sizes())
    # Of each layer what goes into the activation, not what comes out; with checkpointing neither.
    assert sizes[wide] == (0 if checkpointing else 2)
    # Of each layer queries, keys, values, what attention gives and both sums, none of their
    # normalised forms, with checkpointing its input; of the embeddings both; and the output.
    assert sizes[narrow] == (1 if checkpointing else 2 * 6) + 2 + 1
    del out


def test_with_checkpointing_a_layer_costs_its_input_alone():
    inputs, peaks = batch(40), []
    for layers in (2, 2, 6):  # the first one warms up
        changes = {"num_hidden_layers": layers, "attention_window": 8, "intermediate_size": 512}
        model = ldt_model("Model", **changes).train()
        checkpoint_layers(model)
        with LiveTensors() as live:
            model(**inputs)
        peaks.append(live.peak - sum(p.nbytes for p in model.parameters()))
    assert peaks[2] - peaks[1] < 4 * 1.5 * 160 * model.config.hidden_size * 4


def test_hooks_for_saved_tensors_around_a_model_see_all_it_keeps():
    model, inputs, seen = ldt_model("Model", intermediate_size=512).train(), batch(40), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.shape) or x, lambda x: x):
        model(**inputs)
    assert seen.count((160, 512)) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_computing_again_changes_no_bit_of_a_gradient(dtype):
    model = ldt_model("ForSequenceClassification").train()
    inputs = batch(21, "mixed", "some")

    def run():
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = model(**inputs, labels=torch.tensor([0, 1, 0, 1])).loss
        model.zero_grad()
        loss.backward()
        return gradients(model)

    ours = run()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        kept = run()
    assert all(torch.equal(ours[name], kept[name]) for name in kept)


@pytest.mark.parametrize("globals_", ["none", "one"])
def test_what_autocast_casts_is_cast_once_and_not_kept(globals_, monkeypatch):
    model = ldt_model("Model", attention_window=8).train()
    inputs, narrow = batch(40, "none", globals_), 160 * model.config.hidden_size * 2

    def run(low=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=low), LiveTensors() as live:
            out = model(**inputs).last_hidden_state
        kept = sum(live.sizes())
        model.zero_grad()
        out.square().sum().backward()
        return kept, torch.cat([x.flatten() for x in gradients(model).values()])

    exact, (kept, ours) = run(low=False)[1], run()
    monkeypatch.setattr("ldt.model.layers.cast_once", lambda x, *_: lambda: x)
    each, theirs = run()
    if globals_ == "none":
        assert torch.equal(ours, theirs)
    assert (ours - exact).norm() < 1.02 * (theirs - exact).norm()
    # Autocast keeps copies for query, key, value and one for the wide half of the feed-forward
    # network. The first layer's input cannot be computed again, and for the other three inputs the
    # weight and bias of a normalisation are kept.
    copies = (2 * 4 - 1) * narrow - 3 * 2 * model.config.hidden_size * 4
    assert each - kept >= copies
    assert globals_ != "none" or each - kept == copies
