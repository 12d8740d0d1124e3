"""Conversions with a fault in them: the proof fails and nothing is left behind."""

import pytest
import torch
from convertible import SMALL

from ldt import convert as module
from ldt.convert import convert
from ldt.errors import ModelError

POSITIONS = "embeddings.position_embeddings.weight"


def _swap(weights, name):
    name = next(n for n in weights if n.endswith(name))
    weights[name] = weights[name].flip(0)


def _shift(weights, by):
    name = next(n for n in weights if n.endswith(POSITIONS))
    weights[name] = weights[name].roll(by, 0)


def _late(weights):
    name = next(n for n in weights if n.endswith(POSITIONS))
    weights[name] = torch.cat([weights[name][:18], weights[name][18:].roll(1, 0)])


@pytest.mark.parametrize(
    ("kind", "cls", "fault"),
    [
        ("roberta", "Model", lambda w: _shift(w, 1)),
        ("bert", "Model", lambda w: _shift(w, -1)),
        ("roberta", "Model", _late),
        ("roberta", "Model", lambda w: _swap(w, "layer.1.attention.self.value_global.weight")),
        ("longformer", "Model", lambda w: _swap(w, "layer.0.attention.self.query_global.weight")),
        ("roberta", "Model", lambda w: _swap(w, "layer.0.attention.self.key.weight")),
        ("roberta", "Model", lambda w: _swap(w, "pooler.dense.weight")),
        ("bert", "Model", lambda w: w["embeddings.token_type_embeddings.weight"][1].neg_()),
        ("bert", "ForMaskedLM", lambda w: _swap(w, "lm_head.bias")),
        ("bert", "ForMaskedLM", lambda w: w.pop("lm_head.dense.weight")),
        ("roberta", "Model", lambda w: w["embeddings.LayerNorm.bias"].fill_(float("nan"))),
    ],
)
def test_the_proof_catches_a_wrong_conversion(kind, cls, fault, make, tmp_path, monkeypatch):
    right = module.long_weights

    def wrong(*args):
        weights = {name: tensor.clone() for name, tensor in right(*args).items()}
        fault(weights)
        return weights

    folder = make(kind, cls)
    monkeypatch.setattr(module, "long_weights", wrong)
    with pytest.raises(ModelError, match="differs from its source|not finite") as caught:
        convert(folder, tmp_path / "long", **SMALL)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == [kind]

    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="differs from its source|not finite"):
        convert(folder, tmp_path / "long", **SMALL, overwrite=True)
    assert [p.name for p in (tmp_path / "long").iterdir()] == ["config.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([kind, "long"])


def test_a_wrong_layer_norm_epsilon_is_caught(make, tmp_path, monkeypatch):
    right = module.long_config

    def wrong(*args):
        config = right(*args)
        config.layer_norm_eps = 1e-1
        return config

    monkeypatch.setattr(module, "long_config", wrong)
    with pytest.raises(ModelError, match="differs from its source|not finite"):
        convert(make(), tmp_path / "long", **SMALL)
