"""Conversions of BARTs with a fault in them, and sources that cannot be used: nothing is left."""

import pytest
import torch
from convertible import edit
from writers import SMALL, rewritten

from ldt import convert as module
from ldt.convert import convert
from ldt.errors import ModelError, UserError
from ldt.model import LdtForConditionalGeneration

ATTENTION = "led.encoder.layers.1.self_attn.longformer_self_attn."
FAULTS = {
    "led.encoder.embed_positions.weight": lambda w: torch.cat([w[:-1], 3 * w[-1:]]),
    "led.decoder.embed_positions.weight": lambda w: torch.cat([w[:-1], w[:1]]),
    "led.shared.weight": lambda w: w * 4,
    "led.encoder.layernorm_embedding.bias": lambda w: w + 0.1,
    f"{ATTENTION}query.bias": lambda w: w.flip(0),
    f"{ATTENTION}value_global.weight": lambda w: w.flip(0),
    "led.encoder.layers.1.self_attn.output.weight": lambda w: w.T,
    "led.encoder.layers.0.final_layer_norm.weight": lambda w: w * 1.01,
    "led.decoder.layers.2.encoder_attn.k_proj.weight": lambda w: w.flip(0),
    "led.decoder.layers.0.self_attn.q_proj.weight": lambda w: w.flip(0),
    "final_logits_bias": lambda w: w + 1e-5 * torch.arange(300),  # no other token is written
}


@pytest.mark.fast("led.shared.weight", "final_logits_bias")
@pytest.mark.parametrize("name", FAULTS)
def test_the_proof_catches_a_wrong_conversion(name, make_writer, tmp_path, monkeypatch):
    right = module.long_weights

    def wrong(*args):
        weights = right(*args)
        return weights | {name: FAULTS[name](weights[name]).contiguous()}

    folder = make_writer()
    monkeypatch.setattr(module, "long_weights", wrong)
    with pytest.raises(ModelError, match="differs from its source by") as caught:
        convert(folder, tmp_path / "long", **SMALL)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["bart"]


@pytest.mark.parametrize(("wrong_runs", "ok"), [(1, True), (9, False)])
def test_other_tokens_are_caught_unless_a_tie_may_explain_them(
    wrong_runs, ok, make_writer, tmp_path, monkeypatch
):
    folder, right, runs = make_writer(), LdtForConditionalGeneration.generate, []

    def wrong(self, *args, **kwargs):
        runs.append(1)
        tokens = right(self, *args, **kwargs)
        return (tokens + 1) % 300 if len(runs) <= wrong_runs else tokens

    monkeypatch.setattr(LdtForConditionalGeneration, "generate", wrong)
    if ok:
        assert convert(folder, tmp_path / "long", **SMALL).ok
        return
    with pytest.raises(
        ModelError, match=r"differs from its source by \d+ tokens \(greedy tokens\)"
    ):
        convert(folder, tmp_path / "long", **SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["bart"]


def _config(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def _weights(change):
    return lambda folder: rewritten(folder, change)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_config(scale_embedding=True), "scale_embedding True is not part of an LED"),
        (_config(normalize_before=True), "normalize_before True is not part of an LED"),
        (_config(model_type="mbart"), "a mbart model .* converted: .* layers that normalize"),
        (_config(model_type="pegasus"), "a pegasus model .*: .* positions that are sinusoids"),
        (_config(model_type="t5"), "a t5 model .*: .* relative positions; .* bart and led"),
        (_config(vocab_size=299), r"final_logits_bias is \[1, 300\], by config.json \[1, 299\]"),
        (_config(max_position_embeddings=20), r"embed_positions.weight is \[18, 16\]"),
        (_config(encoder_layers=1), "weights without a place .*: model.encoder.layers.1.fc1.bias"),
        (_config(decoder_layers=4), "weights are missing: model.decoder.layers.3.encoder_attn"),
        (_config(tie_word_embeddings=False), "weights are missing: lm_head.weight"),
        (
            _weights(lambda w: w | {"lm_head.weight": w["model.shared.weight"] + 1}),
            "lm_head.weight differs from shared.weight, and a LED has one table of words",
        ),
        (_weights(lambda w: {n: x for n, x in w.items() if "shared" not in n}), "shared.weight"),
        (
            _weights(lambda w: w | {"final_logits_bias": torch.full((1, 300), torch.nan)}),
            "not finite",
        ),
    ],
)
def test_a_source_that_cannot_be_used_is_one_line_and_no_target(
    damage, message, make_writer, tmp_path
):
    folder = make_writer()
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        convert(folder, tmp_path / "long", **SMALL)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["bart"]


def test_options_that_a_bart_has_no_use_for_are_refused(make_writer, tmp_path):
    folder = make_writer()
    with pytest.raises(UserError, match="--check needs a masked-LM head; .* has none"):
        convert(folder, tmp_path / "long", **SMALL, check="text.txt")
    with pytest.raises(UserError, match="--max-length 15 would cut the 16 positions"):
        convert(folder, tmp_path / "long", max_length=15)
    assert [p.name for p in tmp_path.iterdir()] == ["bart"]
