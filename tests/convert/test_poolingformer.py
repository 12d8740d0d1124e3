"""Conversions to a Poolingformer: the same model at first, with a second level that can learn."""

import pytest
import torch
from convertible import SMALL
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM
from typer.testing import CliRunner

from ldt.cli import app
from ldt.convert import convert
from ldt.errors import ModelError
from ldt.model import LdtConfig, LdtForMaskedLM, LdtModel, load

POOLED = "encoder.layer.0.attention.self.pooled."
POOLING = SMALL | {"architecture": "poolingformer"}


def state(model, length=40):
    ids = torch.randint(5, 200, (2, length), generator=torch.Generator().manual_seed(0))
    global_ = torch.zeros_like(ids)
    global_[0, 3] = 1
    with torch.no_grad():
        return model.base_model(ids, global_attention_mask=global_).last_hidden_state


@pytest.mark.parametrize("kind", ["roberta", "longformer"])
@pytest.mark.parametrize("pooling", ["ldconv", "ldconv_separate", "mean", "max", "conv"])
def test_it_equals_its_source_and_differs_without_the_gate(kind, pooling, make, tmp_path):
    source = make(kind, "ForMaskedLM")
    plain, target = tmp_path / "plain", tmp_path / "pooled"
    assert "second level" not in convert(source, plain, **SMALL).facts
    report = convert(source, target, **POOLING, second_level={"pooling": pooling})
    assert report.ok
    config = LdtConfig.from_pretrained(target)
    assert (config.pooling_layers, config.pooling, config.pooling_gate) == ([0], pooling, True)
    ours = AutoModelForMaskedLM.from_pretrained(target).eval()
    assert type(ours) is LdtForMaskedLM
    assert ours.new_weights == ()
    expected = state(load(plain, LdtForMaskedLM))
    assert (state(ours) - expected).abs().max() <= 1e-6
    for parameter in (ours.longformer.encoder.layer[0].attention.self.pooled.gate,):
        parameter.data.fill_(0.01)
    assert (state(ours) - expected).abs().max() > 0.01


def test_the_proof_refuses_a_sum_without_a_gate(make, tmp_path):
    with pytest.raises(ModelError, match="differs from its source"):
        convert(make(), tmp_path / "long", **POOLING, second_level={"pooling_gate": False})
    assert [p.name for p in tmp_path.iterdir()] == ["roberta"]


def test_the_second_level_starts_as_copies_that_train_on_their_own(make, tmp_path):
    convert(make(), tmp_path / "long", **POOLING)
    weights = load_file(tmp_path / "long" / "model.safetensors")
    for name in ("query", "key", "value"):
        for part in ("weight", "bias"):
            first = weights[f"{POOLED.removesuffix('pooled.')}{name}.{part}"]
            assert torch.equal(weights[f"{POOLED}{name}.{part}"], first)
    assert weights[POOLED + "weight"].shape == (2, 5, 8)
    assert not weights[POOLED + "weight"].any()
    assert not weights[POOLED + "gate"].any()
    attention = load(tmp_path / "long", LdtModel).encoder.layer[0].attention.self
    assert attention.pooled.query.weight.data_ptr() != attention.query.weight.data_ptr()
    second = {"pooling_share_weights": True, "pooling": "max", "pooling_layers": [0, 1]}
    convert(tmp_path / "roberta", tmp_path / "shared", **POOLING, second_level=second)
    names = load_file(tmp_path / "shared" / "model.safetensors").keys()
    assert [name for name in sorted(names) if ".pooled." in name] == [
        f"encoder.layer.{layer}.attention.self.pooled.gate" for layer in (0, 1)
    ]


def test_a_trained_second_level_is_no_source(make, tmp_path):
    convert(make(), tmp_path / "long", **POOLING)
    with pytest.raises(ModelError, match="a Poolingformer cannot be converted"):
        convert(tmp_path / "long", tmp_path / "again", **SMALL)


def test_the_windows_are_the_papers_unless_one_is_given(make, tmp_path):
    convert(make(), tmp_path / "long", max_length=44, architecture="poolingformer")
    config = LdtConfig.from_pretrained(tmp_path / "long")
    assert (config.attention_window, config.pooling_window) == ([128, 128], 512)
    assert (config.pooling_size, config.pooling_stride) == (5, 4)


def test_the_command_makes_one_and_says_so(make, tmp_path, monkeypatch):
    source = make()
    monkeypatch.chdir(tmp_path)
    options = ["--max-length", "44", "--architecture", "poolingformer"]
    result = CliRunner().invoke(app, ["convert", str(source), *options])
    assert result.exit_code == 0
    line = next(line for line in result.output.splitlines() if "second level" in line)
    assert line.split(maxsplit=2)[2] == (
        "layers 0 (from 0 on): 512 tokens in cells of 5, one every 4 (ldconv)"
    )
    assert (tmp_path / "roberta-poolingformer-44" / "config.json").is_file()
