"""ModernBERTs made long: windows for full layers, other angles, and the proof of both."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from convertible import edit
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, ModernBertForMaskedLM, ModernBertModel
from typer.testing import CliRunner

from ldt.cli import app
from ldt.convert import convert, rotary
from ldt.errors import ModelError, UserError
from ldt.model import LdtForMaskedLM, LdtModernBertModel, load


@pytest.fixture
def source(tiny_modernbert):
    return str(tiny_modernbert)


def test_full_layers_get_windows_and_the_result_is_the_source_where_it_must_be(source, tmp_path):
    report = convert(source, tmp_path / "long", max_length=512, window=32)
    assert report.ok
    assert report.difference < 1e-5
    assert [(check.name, check.tokens) for check in report.checks] == [
        ("window", 17),
        ("global attention", 128),
        ("last positions", 17),
    ]
    config = json.loads((tmp_path / "long" / "config.json").read_text())
    assert config["model_type"] == "ldt_modernbert"
    assert (config["full_attention_window"], config["max_position_embeddings"]) == (32, 512)
    theirs = load_file(f"{source}/model.safetensors")
    ours = load_file(tmp_path / "long" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    model = load(tmp_path / "long", LdtForMaskedLM)
    peer = ModernBertForMaskedLM.from_pretrained(source)
    ids = torch.randint(5, peer.config.vocab_size, (2, 400))
    with torch.no_grad():
        exact = peer(ids).logits
        everywhere = model(ids, global_attention_mask=torch.ones_like(ids)).logits
        windows = model(ids).logits
    torch.testing.assert_close(everywhere, exact, rtol=1e-3, atol=1e-4)
    assert (windows - exact).abs().max() > 1e-3


def test_without_a_window_it_is_one_that_transformers_loads(source, tmp_path):
    report = convert(source, tmp_path / "long", max_length=512)
    assert [check.name for check in report.checks] == ["full layers", "last positions"]
    assert report.difference < 1e-5
    peer = AutoModelForMaskedLM.from_pretrained(tmp_path / "long")
    assert type(peer) is ModernBertForMaskedLM
    assert peer.config.max_position_embeddings == 512
    assert "full layers       1, window: none, they see the whole document" in str(report)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"rope_theta": 640.0}, {"rope_theta": 640.0, "rope_type": "default"}),
        (
            {"rope_scaling": "yarn:4"},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        ({"rope_scaling": "linear:2"}, {"rope_type": "linear", "factor": 2.0}),
    ],
)
def test_angles_of_full_layers_are_options(source, tmp_path, options, found):
    report = convert(source, tmp_path / "long", max_length=512, window=16, **options)
    assert report.ok
    rope = json.loads((tmp_path / "long" / "config.json").read_text())["rope_parameters"]
    assert found.items() <= rope["full_attention"].items()
    assert rope["sliding_attention"] == {"rope_theta": 10000.0, "rope_type": "default"}
    assert "angles" in str(report)
    # Other angles give other answers, in transformers too.
    ids = torch.arange(5, 45)[None]
    plain = convert(source, tmp_path / "plain", max_length=512, **options)
    assert plain.ok
    with torch.no_grad():
        first, other = (
            ModernBertModel.from_pretrained(x)(ids)[0] for x in (source, tmp_path / "plain")
        )
    assert (first - other).abs().max() > 1e-4


@pytest.mark.slow
def test_the_proof_finds_a_wrong_window_and_wrong_angles(source, tmp_path):
    convert(source, tmp_path / "long", max_length=512, window=32)
    origin = rotary.read_source(Path(source), "modernbert", source, 512, 32, None, None)
    for changes, name in (
        ({"full_attention_window": 30}, "window"),
        ({"global_layers": "none"}, "global attention"),
        ({"local_attention": 10}, "window"),
    ):
        model = load(tmp_path / "long", LdtForMaskedLM, **changes)
        checks = {check.name: check for check in rotary.prove(origin, model)}
        assert not checks[name].ok, changes
    model = load(tmp_path / "long", LdtForMaskedLM)
    model.config.rope_parameters["full_attention"]["rope_theta"] = 20.0
    assert not any(check.ok for check in rotary.prove(origin, model))


def test_one_with_windows_becomes_longer_and_keeps_what_is_its_own(source, tmp_path):
    changes = {"global_layers": "all", "clip_global_distances": True}
    convert(source, tmp_path / "long", max_length=256, window=32)
    edit(tmp_path / "long" / "config.json", **changes)
    kept = convert(str(tmp_path / "long"), tmp_path / "longer", max_length=512)
    assert [(check.name, check.tokens) for check in kept.checks] == [
        ("windows", 256),
        ("last positions", 256),
    ]
    wider = convert(str(tmp_path / "long"), tmp_path / "wider", max_length=512, window=64)
    assert [(check.name, check.tokens) for check in wider.checks] == [
        ("window", 17),
        ("global attention", 256),
        ("last positions", 17),
    ]
    assert kept.ok
    assert wider.ok
    for name, window in (("longer", 32), ("wider", 64)):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert changes.items() <= config.items()
        assert config["full_attention_window"] == window
        assert config["max_position_embeddings"] == 512
    origin = rotary.read_source(tmp_path / "long", "ldt_modernbert", "long", 512, None, None, None)
    model = load(tmp_path / "wider", LdtForMaskedLM)
    assert not any(check.ok for check in rotary.prove(origin, model))


def test_a_base_model_is_converted_as_one(source, tmp_path):
    ModernBertModel.from_pretrained(source).save_pretrained(tmp_path / "base")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{source}/{name}", tmp_path / "base")
    report = convert(str(tmp_path / "base"), tmp_path / "long", window=8)
    assert report.ok
    assert load(tmp_path / "long", LdtModernBertModel).new_weights == ()
    assert "none in the source" in str(report)


def test_source_and_result_are_scored_on_a_text(source, tmp_path):
    (tmp_path / "text.txt").write_text("the party of the first part agrees that this ends " * 40)
    report = convert(
        source, tmp_path / "long", max_length=256, window=8, check=str(tmp_path / "text.txt")
    )
    names = [name for name, _ in report.scores]
    assert names == ["source at 128 tokens", "converted at 128", "converted at 256"]
    assert all(row.bits_per_token > 0 for _, row in report.scores)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_length": 64}, "--max-length 64 would cut the 128 tokens"),
        ({"architecture": "poolingformer"}, "--architecture poolingformer .* stays one"),
        ({"positions": "random"}, "--positions random: .* no table of positions"),
        ({"rope_scaling": "yarn"}, "--rope-scaling must be linear:FACTOR or yarn:FACTOR"),
        ({"rope_scaling": "ntk:4"}, "--rope-scaling must be"),
        ({"rope_scaling": "yarn:0.5"}, "with a factor of 1 or more"),
        ({"window": 7}, "--window must be even"),
    ],
)
def test_options_that_do_not_fit_are_refused(source, tmp_path, options, says):
    with pytest.raises(UserError, match=says):
        convert(source, tmp_path / "long", **options)
    assert not any(tmp_path.iterdir())


def test_angles_are_of_rotary_positions_alone(tiny_longformer, tmp_path):
    with pytest.raises(UserError, match="are for rotary positions"):
        convert(str(tiny_longformer), tmp_path / "long", max_length=256, rope_theta=1e5)


def test_other_kinds_are_refused(source, tmp_path):
    convert(source, tmp_path / "long", max_length=256, window=8)
    edit(tmp_path / "long" / "config.json", model_type="eurobert")
    with pytest.raises(
        ModelError, match="a eurobert model cannot be used or .* RMSNorm with grouped"
    ):
        convert(str(tmp_path / "long"), tmp_path / "twice", max_length=512)


def test_the_command_says_what_it_made(source, tmp_path):
    options = ["--max-length", "1024", "--window", "16", "--rope-theta", "320000"]
    run = CliRunner().invoke(app, ["convert", source, str(tmp_path / "long"), *options])
    assert run.exit_code == 0, run.output
    assert "longest input     128 -> 1,024 tokens" in run.output
    assert "full layers       1, window: 16 tokens, both sides together" in run.output
    assert "theta 320,000 in full layers" in run.output
