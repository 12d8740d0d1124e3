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
