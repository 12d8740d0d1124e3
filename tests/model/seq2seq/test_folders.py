"""Folders of LEDs: transformers', the authors', ldt's own, and their settings of generation."""

import json
import shutil

import pytest
import torch
import transformers
from leds import documents, first_tokens, led, led_config, pair, targets
from longformers import reconfigured
from safetensors.torch import load_file, save_file

import ldt.model
from ldt.errors import ModelError, ShapeError
from ldt.model import (
    LdtForConditionalGeneration,
    LdtForMaskedLM,
    LdtSeq2SeqConfig,
    LdtSeq2SeqModel,
)

NAMES = ("led.shared", "led.encoder.embed_tokens", "led.decoder.embed_tokens", "lm_head")


@pytest.fixture
def place(tmp_path):
    """An LED of transformers, and its logits."""
    return saved(led(), tmp_path)


def saved(model, folder):
    model.save_pretrained(folder)
    return folder


def logits(model):
    torch.manual_seed(3)
    inputs = first_tokens(documents(21, "right"))
    with torch.no_grad():
        return model.eval()(**inputs, labels=targets((5, 7, 6, 2))).logits


def loaded(folder, **changes):
    return ldt.model.load(folder, LdtForConditionalGeneration, **changes)


def rewritten(folder, change):
    """The folder after ``change`` of its table of weights, in place."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file({name: x.contiguous().clone() for name, x in weights.items()}, file)
    return folder


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def test_transformers_loads_what_ldt_saves(place, tmp_path):
    expected = logits(transformers.LEDForConditionalGeneration.from_pretrained(place))
    folder = saved(loaded(place), tmp_path / "ours")
    values = json.loads((folder / "config.json").read_text())
    assert values["model_type"] == "led"
    assert values["architectures"] == ["LEDForConditionalGeneration"]
    assert not [key for key in values if key.startswith("pooling")]
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(theirs) is transformers.LEDForConditionalGeneration
    assert theirs.final_logits_bias.any()
    assert torch.equal(logits(theirs), expected)
    close(logits(loaded(folder)), expected)
    base = transformers.LEDModel.from_pretrained(
        saved(LdtSeq2SeqModel.from_pretrained(folder), tmp_path / "base")
    )
    assert torch.equal(base.shared.weight, theirs.led.shared.weight)


def test_a_second_level_or_dilation_makes_a_folder_of_ldts_own(tmp_path):
    for changes in ({"pooling_layers": [1], "pooling_gate": True}, {"attention_dilation": [1, 2]}):
        config = LdtSeq2SeqConfig.from_dict(led_config().to_dict() | changes)
        model = LdtForConditionalGeneration(config)
        folder = saved(model, tmp_path / next(iter(changes)))
        values = json.loads((folder / "config.json").read_text())
        assert values["model_type"] == "ldt_seq2seq"
        again = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
        assert type(again) is LdtForConditionalGeneration
        assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("kept", [NAMES, NAMES[1:2], NAMES[2:3], NAMES[3:]], ids=str)
def test_tied_embeddings_may_have_any_of_their_names(kept, place):
    expected = logits(loaded(place))

    def renamed(weights):
        shared = weights.pop("led.shared.weight")
        weights.update({f"{name}.weight": shared for name in kept})

    model = loaded(rewritten(place, renamed))
    assert torch.equal(logits(model), expected)
    assert model.lm_head.weight is model.led.encoder.embed_tokens.weight
    assert model.new_weights == ()


def test_an_old_file_has_no_bias_of_logits(place, caplog):
    model = loaded(rewritten(place, lambda weights: weights.pop("final_logits_bias")))
    assert not model.final_logits_bias.any()
    assert not caplog.records


def test_a_base_models_file_gives_a_model_that_writes(tmp_path):
    model = led()
    model.final_logits_bias.zero_()
    saved(model.led, tmp_path)
    close(logits(loaded(tmp_path)), logits(model))


def test_the_authors_own_files_load_as_they_are(place):
    expected = logits(loaded(place))
    weights = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    (place / "generation_config.json").unlink()
    theirs = {name.replace("led.", "model.", 1): x for name, x in weights.items()}
    for part in ("encoder", "decoder"):
        name = f"model.{part}.embed_positions.weight"
        theirs[name] = torch.cat([torch.full((2, 16), 9.0), theirs[name]])
        theirs[f"model.{part}.embed_tokens.weight"] = theirs["model.shared.weight"]
    torch.save(theirs, place / "pytorch_model.bin")
    reconfigured(
        place,
        architectures=["LongformerEncoderDecoderForConditionalGeneration"],
        model_type="bart",
        attention_mode="sliding_chunks",
        attention_window=[4, 2],
        attention_dilation=[1, 1],
        autoregressive=False,
        attention_probs_dropout_prob=0.3,
        hidden_size=16,
        max_position_embeddings=64,
        scale_embedding=False,
        normalize_before=False,
        num_beams=3,
        max_length=11,
    )
    model = loaded(place)
    assert model.config.attention_window == [8, 4]
    assert model.config.attention_dropout == 0
    assert model.generation_config.num_beams == 3
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bart", "scale_embedding": True}, "scale_embedding True is not part"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop must be 0"),
        ({"decoder_attention_heads": 3}, "must be a multiple of decoder_attention_heads, got 3"),
        ({"attention_window": 7}, "attention_window must be even"),
        ({"pooling_layers": [2]}, "pooling_layers must be different numbers of layers, 0 to 1"),
        ({"pad_token_id": 40}, "pad_token_id must be an id of the 40"),
        ({"d_model": 20}, "weights of another shape"),
        ({"max_encoder_position_embeddings": 63}, "embed_positions.weight is"),
    ],
    ids=str,
)
def test_what_is_no_led_is_refused(changes, message, place):
    if changes.get("model_type") == "bart":
        changes |= {"architectures": ["LongformerEncoderDecoderForConditionalGeneration"]}
    with pytest.raises(ModelError, match=message):
        LdtForConditionalGeneration.from_pretrained(reconfigured(place, **changes))


def test_a_bart_is_not_loaded_but_converted(place):
    with pytest.raises(ModelError, match="is a bart model; ldt convert .* makes it long"):
        LdtSeq2SeqConfig.from_pretrained(reconfigured(place, model_type="bart"))


@pytest.mark.parametrize("read", [LdtSeq2SeqConfig, LdtForConditionalGeneration, LdtForMaskedLM])
@pytest.mark.parametrize(("kind", "why"), [("mbart", "layers that"), ("t5", "relative positions")])
def test_what_cannot_be_converted_is_not_sent_to_the_converter(kind, why, read, place):
    reconfigured(place, model_type=kind, architectures=None)
    with pytest.raises(ModelError, match=f": a {kind} model cannot be used or converted: .* {why}"):
        read.from_pretrained(place)


def test_missing_weights_are_an_error(place):
    rewritten(place, lambda weights: weights.pop("led.decoder.layers.1.fc1.weight"))
    with pytest.raises(ModelError, match="missing: led.decoder.layers.1.fc1.weight"):
        loaded(place)


def test_a_head_of_another_kind_is_an_error(place):
    with pytest.raises(ModelError, match="kind ldt_seq2seq, LdtForMaskedLM is of ldt"):
        ldt.model.load(place, LdtForMaskedLM)


def test_an_encoder_does_not_write(folder):
    with pytest.raises(ModelError, match="LdtForConditionalGeneration is of ldt_seq2seq"):
        loaded(folder)


def test_settings_of_generation_stay_with_the_model(place, tmp_path):
    model = loaded(place)
    model.generation_config.update(num_beams=4, no_repeat_ngram_size=3, max_length=19)
    folder = saved(model, tmp_path / "ours")
    for again in (loaded(folder), LdtForConditionalGeneration.from_pretrained(folder)):
        found = again.generation_config
        assert (found.num_beams, found.no_repeat_ngram_size, found.max_length) == (4, 3, 19)
        assert found.decoder_start_token_id == 2


def test_settings_in_an_old_config_become_those_of_generation(place, tmp_path):
    (place / "generation_config.json").unlink()
    model = loaded(reconfigured(place, num_beams=2, length_penalty=2.0, max_length=17))
    found = model.generation_config
    assert (found.num_beams, found.length_penalty, found.max_length) == (2, 2.0, 17)
    folder = saved(model, tmp_path / "ours")
    assert "num_beams" not in json.loads((folder / "config.json").read_text())
    assert transformers.GenerationConfig.from_pretrained(folder).num_beams == 2


@pytest.mark.parametrize("text", ["[]", "{", '{"max_new_tokens": 0}'])
def test_damaged_settings_of_generation_are_an_error(text, place):
    (place / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match="generation_config.json"):
        loaded(place)


def test_a_config_of_transformers_can_be_given(place):
    config = transformers.LEDConfig.from_pretrained(place)
    model = LdtForConditionalGeneration.from_pretrained(place, config=config)
    assert torch.equal(logits(model), logits(loaded(place)))


def test_the_longest_input_is_the_encoders(place, tokenizer_folder):
    config = ldt.model.LdtSeq2SeqConfig.from_pretrained(place)
    assert ldt.model.usable_length(config) == 64
    for file in tokenizer_folder.iterdir():
        shutil.copy(file, place)
    config.vocab_size = 300
    tokenizer = ldt.model.load_tokenizer(place, config)
    assert tokenizer.model_max_length == 64


def test_shapes_are_checked_before_memory_is_taken(place):
    with pytest.raises(ShapeError, match="decoder_ffn_dim|fc1"):
        loaded(reconfigured(place, decoder_ffn_dim=1 << 20))


def test_new_tokens_have_no_bias(tmp_path):
    theirs, ours = pair(tmp_path)
    bias = ours.final_logits_bias.clone()
    ours.resize_token_embeddings(43, mean_resizing=False)
    assert ours.final_logits_bias.shape == (1, 43)
    assert torch.equal(ours.final_logits_bias[:, :40], bias)
    assert not ours.final_logits_bias[:, 40:].any()
    assert ours.lm_head.weight is ours.led.decoder.embed_tokens.weight
    again = loaded(saved(ours, tmp_path / "more"))
    assert torch.equal(again.final_logits_bias, ours.final_logits_bias.float())
