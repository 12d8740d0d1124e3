"""Sources in all their file formats, with and without a head, whole and damaged."""

import json
import shutil

import pytest
import torch
from convertible import ROWS, SMALL, digests, edit
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from ldt.convert import convert
from ldt.errors import ModelError
from ldt.inference.engine import Engine
from ldt.model import LdtConfig, load_tokenizer


def test_the_authors_files_are_a_source(make, tmp_path):
    folder = make("longformer")
    weights = load_file(folder / "model.safetensors")
    torch.save({f"roberta.{n}": w for n, w in weights.items()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    edit(
        folder / "config.json",
        model_type="roberta",
        attention_mode="sliding_chunks",
        attention_window=[4, 2],
        attention_dilation=[1, 1],
        autoregressive=False,
    )
    report = convert(folder, tmp_path / "long", **SMALL)
    assert report.facts["model"].startswith("longformer, ")
    assert report.facts["window"].endswith("(source: 4, 8)")
    assert report.difference < 1e-5


def test_parts_without_a_place_are_named(make, tmp_path):
    report = convert(make("bert", "ForPreTraining"), tmp_path / "long", **SMALL)
    assert report.facts["masked-LM head"] == "kept"
    assert report.facts["not converted"] == "cls.seq_relationship, pooler"
    report = convert(make("roberta", "ForTokenClassification"), tmp_path / "other", **SMALL)
    assert report.facts["not converted"] == "classifier"
    assert LdtConfig.from_pretrained(tmp_path / "other").architectures == ["LdtModel"]
    assert not any(n.startswith("pooler") for n in load_file(tmp_path / "other/model.safetensors"))


@pytest.mark.parametrize("kind", ["bert", "roberta", "longformer"])
def test_the_head_of_a_cross_encoder_is_kept(kind, make, tmp_path):
    report = convert(make(kind, "ForSequenceClassification", num_labels=1), tmp_path / "l", **SMALL)
    assert report.facts["cross-encoder"] == "its head is kept"
    assert "not converted" not in report.facts
    assert report.difference < 1e-5
    config = LdtConfig.from_pretrained(tmp_path / "l")
    assert (config.architectures, config.num_labels) == (["LdtForSequenceClassification"], 1)
    answer = Engine.open(str(tmp_path / "l"))({"query": "a", "documents": ["the party", "b"]})
    assert answer["scores"][0] != answer["scores"][1]
    shutil.rmtree(tmp_path / kind)
    two = convert(make(kind, "ForSequenceClassification"), tmp_path / "two", **SMALL)
    assert "classifier" in two.facts["not converted"]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_head_with_a_decoder_of_its_own_is_left_out(kind, make, tmp_path):
    folder = make(kind, "ForMaskedLM", tie_word_embeddings=False)
    report = convert(folder, tmp_path / "long", **SMALL)
    assert (
        report.facts["masked-LM head"] == "left out, its decoder is not tied to the word embeddings"
    )
    assert "not converted" not in report.facts
    assert LdtConfig.from_pretrained(tmp_path / "long").architectures == ["LdtModel"]


def test_a_head_with_another_activation_is_left_out(make, tmp_path):
    report = convert(make("bert", "ForMaskedLM", hidden_act="relu"), tmp_path / "long", **SMALL)
    assert report.facts["masked-LM head"] == "left out, its activation is relu and not gelu"
    assert LdtConfig.from_pretrained(tmp_path / "long").hidden_act == "relu"
    report = convert(make("roberta", "ForMaskedLM", hidden_act="relu"), tmp_path / "2", **SMALL)
    assert (
        report.facts["masked-LM head"] == "kept"
    )  # RoBERTa's head is exact gelu whatever the layers are


def _rename(folder, change):
    file = folder / "model.safetensors"
    weights = {change(name): tensor for name, tensor in load_file(file).items()}
    file.unlink()
    return weights


def test_old_and_sharded_files_give_the_same_model(make, tmp_path):
    folder = make("bert", "ForMaskedLM")
    convert(folder, tmp_path / "long", **SMALL)
    expected = digests(tmp_path / "long")

    def old(name):
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return name.replace("LayerNorm.bias", "LayerNorm.beta")

    weights = _rename(folder, old)
    assert any("gamma" in name for name in weights)
    weights["bert.embeddings.position_ids"] = torch.arange(ROWS)[None]
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    convert(folder, tmp_path / "from-bin", **SMALL)
    assert digests(tmp_path / "from-bin") == expected

    (folder / "pytorch_model.bin").unlink()
    del weights["cls.predictions.decoder.weight"]
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({name: weights[name] for name in part}, folder / shard)
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    convert(folder, tmp_path / "from-shards", **SMALL)
    assert digests(tmp_path / "from-shards") == expected


def test_half_precision_is_saved_and_proved_in_float32(make, tmp_path):
    folder = make("roberta")
    file = folder / "model.safetensors"
    save_file({n: w.bfloat16() for n, w in load_file(file).items()}, file)
    edit(folder / "config.json", dtype="bfloat16")
    report = convert(folder, tmp_path / "long", **SMALL)
    assert report.difference < 1e-5
    new = load_file(tmp_path / "long" / "model.safetensors")
    assert {tensor.dtype for tensor in new.values()} == {torch.float32}


def _remove(name):
    return lambda folder: (folder / name).unlink()


def _drop(part):
    def drop(folder):
        file = folder / "model.safetensors"
        save_file({n: w for n, w in load_file(file).items() if part not in n}, file)

    return drop


def _config(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def _spoil(folder):
    file = folder / "model.safetensors"
    save_file({n: w * float("nan") for n, w in load_file(file).items()}, file)


def _no_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove("config.json"), r"roberta: no config \(config.json\)"),
        (_remove("model.safetensors"), "roberta: no weights .*model.safetensors"),
        (_no_tokenizer, "roberta: no tokenizer .*tokenizer.json"),
        (_drop("layer.1.output.dense.bias"), "missing: encoder.layer.1.output.dense.bias"),
        (_drop("layer.1."), "missing: encoder.layer.1.attention.* and 12 more"),
        (
            _config(num_hidden_layers=1),
            "roberta: weights without a place .*: encoder.layer.1.attention",
        ),
        (
            _config(intermediate_size=30),
            r"intermediate.dense.bias is \[32\], by config.json \[30\]",
        ),
        (_config(max_position_embeddings=20), r"position_embeddings.weight is \[18, 16\]"),
        (_config(num_attention_heads=3), "config.json: .*16.*heads"),
        (_config(hidden_act="sine"), "config.json: .*sine"),
        (_config(hidden_size="wide"), "config.json: .*hidden_size|config.json: .*int.*wide"),
        (_config(pad_token_id=None), "pad_token_id must be an id .* got None"),
        (_config(pad_token_id=0), "tokenizer pads with id 1, the model with 0"),
        (_config(is_decoder=True), "is_decoder must be False for a conversion, got True"),
        (_config(add_cross_attention=True), "add_cross_attention must be False"),
        (_config(position_embedding_type="relative_key"), "must be absolute .* got relative_key"),
        (_config(model_type="deberta-v2"), "a deberta-v2 model cannot be converted, only bert, "),
        (_config(model_type=[1, 2]), "model_type must be a valid string, got a list"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "config.json: not a table"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json: not JSON"),
        (_spoil, "not finite"),
    ],
)
def test_a_source_that_cannot_be_used_is_one_line_and_no_target(damage, message, make, tmp_path):
    folder = make()
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        convert(folder, tmp_path / "long", **SMALL)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["roberta"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("./missing", "^./missing: no such folder$"),
        ("no-such-owner/no-such-model", "no-such-owner/no-such-model: no such folder"),
    ],
)
def test_a_source_that_is_not_there_is_one_line(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        convert(source, **SMALL)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changes", [{"causal": True}, {"attention_dilation": [1, 2]}])
def test_other_windows_than_plain_ones_are_no_source(changes, make, tmp_path):
    convert(make(), tmp_path / "long", **SMALL)
    edit(tmp_path / "long" / "config.json", **changes)
    with pytest.raises(ModelError, match="causal or dilated windows cannot be converted"):
        convert(tmp_path / "long", tmp_path / "again", **SMALL)


@pytest.mark.parametrize("architecture", [True, False])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_model_without_a_model_type_is_told_by_its_names(
    kind, architecture, make, tmp_path, caplog
):
    folder = make(kind, "ForMaskedLM")
    values = json.loads((folder / "config.json").read_text())
    values.pop("model_type")
    if not architecture:
        values.pop("architectures")
    (folder / "config.json").write_text(json.dumps(values))
    report = convert(folder, tmp_path / "long", **SMALL)
    assert report.facts["model"].startswith(f"{kind}, ")
    assert f"config.json: no model_type; read as {kind}, by the name " in caplog.text


def test_a_model_that_no_name_tells_asks_for_its_model_type(make, tmp_path):
    folder = make("roberta", "ForTokenClassification")
    edit(folder / "config.json", model_type=None, architectures=None)
    with pytest.raises(ModelError, match='config.json: no model_type; a line "model_type": "bert"'):
        convert(folder, tmp_path / "long", **SMALL)


def test_a_bert_takes_over_the_padding_of_its_tokenizer(make, tokenizer_folder, tmp_path):
    """As multilingual E5 has it: XLM-R's tokenizer pads with 1, config.json says 0."""
    folder = make("bert", vocab_size=300, pad_token_id=0)
    for file in tokenizer_folder.iterdir():
        shutil.copy(file, folder)
    (folder / "vocab.txt").unlink(missing_ok=True)
    report = convert(folder, tmp_path / "long", **SMALL)
    assert report.difference < 1e-5
    config = LdtConfig.from_pretrained(tmp_path / "long")
    assert config.pad_token_id == load_tokenizer(tmp_path / "long", config).pad_token_id == 1


@pytest.mark.parametrize("pad", [None, "<mask>"])
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "camembert", "bert"])
def test_the_padding_of_the_model_stays_where_the_tokenizer_has_none_or_another(
    kind, pad, make, tmp_path
):
    folder = make(kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    right = tokenizer.pad_token_id
    edit(folder / "tokenizer_config.json", pad_token=pad and tokenizer.mask_token)
    report = convert(folder, tmp_path / "long", **SMALL)
    assert report.difference < 1e-5
    config = LdtConfig.from_pretrained(tmp_path / "long")
    assert config.pad_token_id == load_tokenizer(tmp_path / "long", config).pad_token_id == right
