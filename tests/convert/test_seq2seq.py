"""Conversions of small random BARTs, held against transformers' own BART and LED."""

import json

import pytest
import torch
from convertible import digests, edit
from transformers import (
    AutoTokenizer,
    BartForConditionalGeneration,
    GenerationConfig,
    LEDForConditionalGeneration,
)
from typer.testing import CliRunner
from writers import ROWS, SMALL, rewritten, weights_of

from ldt.cli import app
from ldt.convert import convert
from ldt.errors import ModelError
from ldt.model import (
    LdtForConditionalGeneration,
    LdtSeq2SeqConfig,
    load,
    load_tokenizer,
)

POSITIONS = "led.encoder.embed_positions.weight"
ATTENTION = "led.encoder.layers.1.self_attn.longformer_self_attn."


def documents(lengths, everywhere=False, seed=0):
    """A padded batch of random tokens with a decoder's, the first or all tokens global."""
    random = torch.Generator().manual_seed(seed)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 250, real.shape, generator=random)
    is_global = real.long()
    if not everywhere:
        is_global[:, 1:] = 0
    inputs = {"input_ids": ids.where(real, torch.tensor(1)), "attention_mask": real.long()}
    inputs["decoder_input_ids"] = torch.randint(5, 250, (len(lengths), 7), generator=random)
    return inputs, is_global


def agree(first, second, lengths, **how):
    """Logits of two models on the same inputs; a BART knows no global tokens."""
    inputs, is_global = documents(lengths, **how)
    outputs = []
    for model in (first, second):
        more = {} if "Bart" in type(model).__name__ else {"global_attention_mask": is_global}
        with torch.no_grad():
            outputs.append(model.eval()(**inputs, **more))
    a, b = outputs
    assert a.logits.abs().max() > 1
    torch.testing.assert_close(a.logits, b.logits, atol=1e-4, rtol=1e-4)
    real = inputs["attention_mask"].bool()
    states = (x.encoder_last_hidden_state[real] for x in outputs)
    torch.testing.assert_close(*states, atol=1e-4, rtol=1e-4)


def test_a_bart_becomes_a_led_that_transformers_and_ldt_load(make_writer, tmp_path):
    folder, target = make_writer(), tmp_path / "long"
    report = convert(folder, target, **SMALL)
    assert report.ok
    assert report.difference < 1e-5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bart", "long"]
    source = BartForConditionalGeneration.from_pretrained(folder)
    peer, info = LEDForConditionalGeneration.from_pretrained(target, output_loading_info=True)
    assert not any(info.values())
    assert json.loads((target / "config.json").read_text())["model_type"] == "led"
    ours = load(target, LdtForConditionalGeneration)
    assert ours.new_weights == ()
    for model in (peer, ours):
        agree(source, model, [5, 3, 1])
        agree(source, model, [16, 9], everywhere=True)
    agree(peer, ours, [40, 30])  # transformers pads to the window, which its table has to hold


@pytest.mark.parametrize("beams", [1, 3])
def test_the_led_writes_what_the_bart_writes(beams, make_writer, tmp_path):
    folder = make_writer()
    convert(folder, tmp_path / "long", **SMALL)
    inputs, is_global = documents([5, 5, 5])
    del inputs["decoder_input_ids"]
    settings = {"num_beams": beams, "max_new_tokens": 12, "no_repeat_ngram_size": 2}
    source = BartForConditionalGeneration.from_pretrained(folder)
    expected = source.generate(**inputs, **settings)
    assert expected.shape[1] > 8
    for cls in (LEDForConditionalGeneration, LdtForConditionalGeneration):
        model = cls.from_pretrained(tmp_path / "long").eval()
        found = model.generate(**inputs, global_attention_mask=is_global, **settings)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("max_length", [16, 17, 32, 100])
def test_positions_repeat_from_the_third_row_on(max_length, make_writer, tmp_path):
    folder = make_writer()
    convert(folder, tmp_path / "long", max_length=max_length, window=8)
    old, new = weights_of(folder), weights_of(tmp_path / "long")
    table = old["model.encoder.embed_positions.weight"]
    assert len(table) == ROWS + 2
    assert new[POSITIONS].shape == (max_length, 16)
    for row in range(max_length):
        assert torch.equal(new[POSITIONS][row], table[2 + row % ROWS]), row
    decoder = "decoder.embed_positions.weight"
    assert torch.equal(new[f"led.{decoder}"], old[f"model.{decoder}"][2:])
    config = LdtSeq2SeqConfig.from_pretrained(tmp_path / "long")
    assert config.max_encoder_position_embeddings == max_length
    assert config.max_decoder_position_embeddings == ROWS


def test_config_tokenizer_and_report_say_what_the_model_is(make_writer, tmp_path):
    report = convert(make_writer(), tmp_path / "long", **SMALL)
    config = LdtSeq2SeqConfig.from_pretrained(tmp_path / "long")
    assert (config.encoder_layers, config.decoder_layers) == (2, 3)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (2, 4)
    assert (config.dropout, config.activation_dropout) == (0.25, 0.125)
    assert (config.bos_token_id, config.decoder_start_token_id) == (0, 2)
    assert config.attention_window == [8, 8]
    saved = AutoTokenizer.from_pretrained(tmp_path / "long")
    assert saved.model_max_length == 44
    assert load_tokenizer(tmp_path / "long", config).model_max_length == 44
    text = report.lines()
    assert text[1].split(maxsplit=1)[1].startswith("bart, 2 layers of width 16, ")
    assert text[2].endswith("16 -> 44 (tile)")
    assert text[4].split(maxsplit=1) == ["decoder", "the source's, 3 layers, 16 positions"]
    assert "masked-LM" not in str(report)
    names = ["window", "global attention", "last positions", "decoder"]
    assert [check.name for check in report.checks] == [*names, "greedy tokens", "tokens, 4 beams"]
    assert [check.tokens for check in report.checks[:4]] == [5, 16, 5, 16]
    assert sum(line.endswith("  equal, up to 16 tokens") for line in text) == 2


def test_defaults_are_those_of_the_published_leds(make_writer, tmp_path, monkeypatch):
    folder = make_writer()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["convert", str(folder)])
    assert result.exit_code == 0
    config = LdtSeq2SeqConfig.from_pretrained(tmp_path / "bart-16384")
    assert config.max_encoder_position_embeddings == 16384
    assert config.attention_window == [1024, 1024]


def test_old_files_give_the_same_model(make_writer, tmp_path):
    folder = make_writer()
    rewritten(folder, lambda w: w | {"final_logits_bias": torch.zeros(1, 300)})
    convert(folder, tmp_path / "long", **SMALL)
    expected = digests(tmp_path / "long")
    old = {name.removeprefix("model."): w for name, w in weights_of(folder).items()}
    del old["final_logits_bias"]
    words = old.pop("shared.weight")
    (folder / "model.safetensors").unlink()
    cases = [
        {"shared.weight": words},
        {"encoder.embed_tokens.weight": words, "decoder.embed_tokens.weight": words},
        {"lm_head.weight": words, "encoder.version": torch.ones(1)},
    ]
    for number, more in enumerate(cases):
        torch.save(old | more, folder / "pytorch_model.bin")
        convert(folder, tmp_path / f"from-{number}", **SMALL)
        assert digests(tmp_path / f"from-{number}") == expected


def test_the_bias_of_the_words_stays_and_parts_without_a_place_are_named(make_writer, tmp_path):
    folder = make_writer()
    rewritten(folder, lambda w: w | {"classification_head.dense.weight": torch.ones(2, 2)})
    report = convert(folder, tmp_path / "long", **SMALL)
    assert report.facts["not converted"] == "classification_head"
    bias = weights_of(tmp_path / "long")["final_logits_bias"]
    assert bias.abs().max() > 0.5
    assert torch.equal(bias, weights_of(folder)["final_logits_bias"])


def test_a_mask_that_the_file_has_no_row_for_gets_one_that_is_never_written(make_writer, tmp_path):
    folder = make_writer(vocab_size=297)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"mask_token": "<hidden>"})
    assert tokenizer.mask_token_id == 297
    tokenizer.save_pretrained(folder)
    report = convert(folder, tmp_path / "long", **SMALL)
    assert report.ok
    assert "297 -> 298, as the tokenizer has" in str(report)
    new = weights_of(tmp_path / "long")
    assert new["led.shared.weight"].shape == (298, 16)
    assert new["final_logits_bias"][0, 297] == -1e4
    agree(
        load(tmp_path / "long", LdtForConditionalGeneration),
        LEDForConditionalGeneration.from_pretrained(tmp_path / "long"),
        [40],
    )
    tokenizer.add_tokens(["word"])  # an ordinary one: tokenizer and model are of different models
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="the tokenizer has 299 tokens, .* 297 rows"):
        convert(folder, tmp_path / "other", **SMALL)


def test_settings_of_generation_move_out_of_an_old_config(make_writer, tmp_path):
    folder = make_writer()
    (folder / "generation_config.json").unlink()
    old = {"max_length": 142, "min_length": 56, "num_beams": 4, "no_repeat_ngram_size": 3}
    edit(folder / "config.json", **old, forced_bos_token_id=0)
    convert(folder, tmp_path / "long", **SMALL)
    settings = GenerationConfig.from_pretrained(tmp_path / "long")
    assert {name: getattr(settings, name) for name in old} == old
    assert (settings.forced_bos_token_id, settings.forced_eos_token_id) == (0, 2)
    assert (settings.decoder_start_token_id, settings.pad_token_id) == (2, 1)
    assert not old.keys() & json.loads((tmp_path / "long" / "config.json").read_text()).keys()
    model = LEDForConditionalGeneration.from_pretrained(tmp_path / "long")
    assert model.generation_config.num_beams == 4
    assert not settings._from_model_config


def test_a_poolingformer_equals_its_source_until_its_gates_open(make_writer, tmp_path):
    folder, target = make_writer(encoder_layers=4), tmp_path / "pooled"
    report = convert(folder, target, **SMALL, architecture="poolingformer")
    assert report.ok
    assert report.facts["second level"].startswith("layers 2 (from 0 on): 512 tokens")
    config = LdtSeq2SeqConfig.from_pretrained(target)
    assert (config.pooling_layers, config.pooling_gate) == ([2], True)
    model = load(target, LdtForConditionalGeneration)
    assert model.new_weights == ()
    agree(BartForConditionalGeneration.from_pretrained(folder), model, [5, 3])
    level = model.led.encoder.layers[2].self_attn.longformer_self_attn.pooled
    assert torch.equal(
        level.query.weight, weights_of(target)[f"{ATTENTION}query.weight".replace(".1.", ".2.")]
    )
    inputs, is_global = documents([40])
    with torch.no_grad():
        before = model(**inputs, global_attention_mask=is_global).logits
        level.gate.fill_(0.5)
        after = model(**inputs, global_attention_mask=is_global).logits
    assert (after - before).abs().max() > 0.01
    with pytest.raises(ModelError, match="a Poolingformer cannot be converted"):
        convert(target, tmp_path / "again", **SMALL)


def test_a_led_becomes_longer_and_keeps_windows_and_global_projections(make_writer, tmp_path):
    folder = make_writer("led")
    report = convert(folder, tmp_path / "long", max_length=60)
    assert report.difference < 1e-5
    assert LdtSeq2SeqConfig.from_pretrained(tmp_path / "long").attention_window == [8, 4]
    old, new = weights_of(folder), weights_of(tmp_path / "long")
    assert torch.equal(new[POSITIONS], old[POSITIONS].repeat(3, 1)[:60])
    assert {
        name for name in old if not torch.equal(old[name], new[name][: len(old[name])])
    } == set()
    assert old.keys() == new.keys()
    ours = load(tmp_path / "long", LdtForConditionalGeneration)
    agree(LEDForConditionalGeneration.from_pretrained(folder), ours, [24, 9])
    convert(folder, tmp_path / "wider", max_length=60, window=64)
    assert LdtSeq2SeqConfig.from_pretrained(tmp_path / "wider").attention_window == [64, 64]


def test_the_authors_files_are_a_source(make_writer, tmp_path):
    folder = make_writer("led")
    convert(folder, tmp_path / "long", max_length=60)

    def theirs(weights):
        named = {name.replace("led.", "model."): w for name, w in weights.items()}
        for part in ("encoder", "decoder"):
            name = f"model.{part}.embed_positions.weight"
            named[name] = torch.cat([torch.full((2, 16), 7.0), named[name]])
        return named

    rewritten(folder, theirs)
    edit(
        folder / "config.json",
        architectures=["LongformerEncoderDecoderForConditionalGeneration"],
        model_type="bart",
        attention_mode="sliding_chunks",
        attention_window=[4, 2],
        attention_dilation=[1, 1],
        autoregressive=False,
        max_position_embeddings=ROWS,
    )
    report = convert(folder, tmp_path / "authors", max_length=60)
    assert report.facts["model"].startswith("led, ")
    assert report.facts["positions"].startswith("24 -> 60 ")
    assert report.facts["window"].startswith("4, 8 tokens")
    old, new = weights_of(tmp_path / "long"), weights_of(tmp_path / "authors")
    assert all(torch.equal(old[name], new[name]) for name in old)
