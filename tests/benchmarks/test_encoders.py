"""What the scripts compare: encoders of equal size, the same attention, times in turn."""

from dataclasses import replace

import pytest
import torch

from ldt.attention import Layout, reference


@pytest.fixture
def tiny(script):
    return script("setting").Setting(window=16, heads=2, dim=8, layers=3, vocabulary=50)


def test_encoders_have_equal_width_and_depth(script, tiny):
    encoders = script("encoders")
    for name in ("ldt", "blocked", "longformer", "roberta", "modernbert"):
        config = encoders.build(name, 20, tiny).config
        assert (config.hidden_size, config.num_hidden_layers) == (16, 3)
        assert getattr(config, "attention_window", 16) in (16, [16, 16, 16])
    assert encoders.build("blocked", 20, tiny).config.attention_backend == "blocked"


def test_the_two_modernberts_have_equal_weights_and_the_second_windows(script, tiny):
    encoders, setting = script("encoders"), replace(tiny, layers=4, window=8)
    names = (*encoders.OWN_MODERNBERT, "modernbert")
    models = [encoders.build(name, 20, setting) for name in names]
    shapes = [{name: x.shape for name, x in model.state_dict().items()} for model in models]
    assert shapes[0] == shapes[1] == shapes[2]
    assert [model.config.model_type for model in models[:2]] == ["ldt_modernbert"] * 2
    assert models[0].config.attention_window == [40, 128, 128, 40]
    assert models[1].config.attention_window == [8, 128, 128, 8]


def test_the_poolingformer_beside_a_longformer_of_512_is_the_papers(script, tiny):
    setting = replace(tiny, layers=12, window=512)
    config = script("encoders").build("poolingformer", 20, setting).config
    assert (config.attention_window, config.pooling_window) == (128, 512)
    assert (config.pooling_layers, config.pooling) == ([7, 8, 9], "ldconv")
    assert not config.pooling_gate


@pytest.mark.parametrize(("name", "window"), [("flex", 16), ("sdpa", 160)])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_peer_computes_windows_and_the_global_token(name, window, script, tiny, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    operations = script("operations")
    given = operations.Given(replace(tiny, window=window), 70, False)
    found = operations.PEERS[name](given).run("forward")[0].transpose(0, 1)
    q, k, v = given.packed()
    layout = Layout(torch.tensor([0, 70]), None, torch.arange(70) == 0)
    expected = reference.sliding_window_attention(q, k, v, layout, window=window)
    expected[:1] = reference.projected_global_attention(q[:1], k, v, layout)
    torch.testing.assert_close(found, expected)


def test_all_run_in_turn_after_a_round_to_warm_up(script, monkeypatch):
    measure, calls = script("measure"), []
    monkeypatch.setattr(measure, "seconds_of", lambda run: (run(), 1.0)[1])
    runs = {name: lambda n=name: calls.append(n) for name in "ab"}
    assert measure.medians(runs, 2) == {"a": 1.0, "b": 1.0}
    assert "".join(calls) == "ababab"
