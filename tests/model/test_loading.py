import json
import logging
import pickle
import shutil
import struct

import pytest
import torch
import transformers
from longformers import HEADS, batch, ldt_model, longformer
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

import ldt.model
from ldt.errors import ModelError
from ldt.model import (
    LdtConfig,
    LdtForMaskedLM,
    LdtForMultipleChoice,
    LdtForQuestionAnswering,
    LdtForSequenceClassification,
    LdtForTokenClassification,
    LdtModel,
    check_folder,
    load,
    load_tokenizer,
)
from ldt.model.loading import find_folder


def cls_of(head):
    return getattr(ldt.model, "Ldt" + head)


@pytest.fixture
def folder(tmp_path):
    """A base Longformer of transformers."""
    longformer("Model").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def whole(tiny_longformer, tmp_path):
    """A copy of the Longformer with a tokenizer."""
    return shutil.copytree(tiny_longformer, tmp_path / "model")


def rewritten(folder, change):
    """The weights of ``folder`` after ``change`` (a function of the dict, in place)."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def reconfigured(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def to_bin(folder, prefix=""):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({prefix + name: x for name, x in weights.items()}, folder / "pytorch_model.bin")


def to_prefix(folder, prefix):
    def change(weights):
        for name in list(weights):
            weights[prefix + name] = weights.pop(name)
        weights[prefix + "embeddings.position_ids"] = torch.arange(66)[None]

    rewritten(folder, change)


def to_shards(folder):
    model = transformers.LongformerModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    assert len(list(folder.glob("*.safetensors"))) > 2


def to_bin_shards(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    where = {}
    for shard, part in (("a.bin", names[::2]), ("b.bin", names[1::2])):
        torch.save({name: weights[name] for name in part}, folder / shard)
        where |= dict.fromkeys(part, shard)
    index = {"metadata": {}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "form",
    [
        lambda folder: None,
        to_shards,
        to_bin,
        to_bin_shards,
        lambda folder: to_prefix(folder, "longformer."),
        lambda folder: to_prefix(folder, "roberta."),
        lambda folder: to_bin(folder, "roberta."),
    ],
    ids=["plain", "shards", "bin", "bin shards", "longformer.", "roberta.", "bin roberta."],
)
def test_every_format_and_prefix_gives_the_same_model(form, folder):
    inputs = batch(21, "right", "some")
    expected = transformers.LongformerModel.from_pretrained(folder).eval()(**inputs)
    form(folder)
    real = inputs["attention_mask"].bool()
    for cls in (LdtModel, LdtForMaskedLM):
        model = load(folder, cls)
        found = model.base_model(**inputs).last_hidden_state
        assert torch.allclose(found[real], expected.last_hidden_state[real], atol=1e-5)
        assert not model.training
    saved = folder / "again"
    load(folder, LdtModel).save_pretrained(saved)
    assert set(load_file(saved / "model.safetensors")) == set(LdtModel(model.config).state_dict())


@pytest.mark.parametrize("head", HEADS)
def test_a_model_saved_by_ldt_is_the_same_in_transformers_and_back(head, tmp_path):
    model = ldt_model(head)
    model.save_pretrained(tmp_path)
    peer, info = getattr(transformers, "Longformer" + head).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    again = load(tmp_path, cls_of(head))
    for other in (peer, again):
        state = other.state_dict()
        for name, tensor in model.state_dict().items():
            assert torch.equal(state[name], tensor), name
    assert again.config.to_dict() == model.config.to_dict() | {
        "architectures": ["Ldt" + head],
        "_name_or_path": str(tmp_path),
        "dtype": "float32",
        "transformers_version": again.config.transformers_version,
    }


@pytest.mark.parametrize("head", HEADS)
def test_the_auto_classes_give_ldts_models(head, tmp_path):
    model = ldt_model(head)
    model.save_pretrained(tmp_path)
    auto = getattr(transformers, "AutoModel" + head.replace("Model", ""))
    again = auto.from_pretrained(tmp_path)
    assert type(again) is cls_of(head)
    assert again.new_weights == ()
    assert type(auto.from_config(model.config)) is cls_of(head)


OWN = {  # what a head has besides the encoder
    "Model": {"pooler"},
    "ForMaskedLM": {"lm_head"},
    "ForSequenceClassification": {"classifier"},
    "ForMultipleChoice": {"pooler", "classifier"},
    "ForTokenClassification": {"classifier"},
    "ForQuestionAnswering": {"qa_outputs"},
}


@pytest.mark.parametrize("source", HEADS)
def test_every_head_loads_the_encoder_of_every_other(source, tmp_path, caplog):
    theirs = longformer(source)
    theirs.save_pretrained(tmp_path)
    encoder = theirs.base_model.encoder.state_dict()
    for target in HEADS:
        caplog.clear()
        model = load(tmp_path, cls_of(target))
        state = model.base_model.encoder.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in encoder.items())
        new = {name.removeprefix("longformer.").split(".")[0] for name in model.new_weights}
        alike = OWN[source] & OWN[target]  # the same name for other shapes
        again = {"classifier"} & alike if source != target else set()
        assert new == OWN[target] - OWN[source] | again
        assert bool(new) == ("new and to be trained" in caplog.text)


def test_a_new_head_is_announced_and_its_weights_are_listed(folder, caplog):
    model = load(folder, LdtForSequenceClassification, num_labels=5)
    assert "new and to be trained: classifier.dense.bias, classifier.dense.weight" in caplog.text
    assert model.new_weights == (
        "classifier.dense.bias",
        "classifier.dense.weight",
        "classifier.out_proj.bias",
        "classifier.out_proj.weight",
    )
    assert model.classifier.out_proj.weight.shape == (5, 16)
    assert not model.classifier.out_proj.bias.any()
    assert model.classifier.dense.weight.std() > 0.1


def test_a_masked_language_model_gives_the_base_model_a_new_pooler(tmp_path, caplog):
    longformer("ForMaskedLM").save_pretrained(tmp_path)
    model = load(tmp_path, LdtModel)
    assert model.new_weights == ("pooler.dense.bias", "pooler.dense.weight")
    assert "pooler.dense.weight" in caplog.text
    assert load(tmp_path, LdtForMaskedLM).new_weights == ()


def test_transformers_loading_report_stays_away(folder, capfd, caplog):
    load(folder, LdtForQuestionAnswering)
    assert capfd.readouterr() == ("", "")
    assert [record.name for record in caplog.records] == ["ldt"]


def test_from_pretrained_takes_what_transformers_takes(folder):
    model, info = LdtForMaskedLM.from_pretrained(
        folder, output_loading_info=True, attention_window=4, attention_backend="reference"
    )
    assert {"lm_head.dense.weight", "lm_head.bias"} <= info["missing_keys"]
    assert model.config.attention_window == 4
    assert model.config.attention_backend == "reference"
    assert LdtModel.from_pretrained(str(folder), add_pooling_layer=False).pooler is None
    assert LdtModel.from_pretrained(folder, dtype=torch.bfloat16).dtype == torch.bfloat16
    config = transformers.LongformerConfig.from_pretrained(folder)
    assert type(LdtModel.from_pretrained(folder, config=config).config) is LdtConfig
    given = LdtModel.from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert torch.equal(
        given.encoder.layer[1].output.dense.weight,
        model.longformer.encoder.layer[1].output.dense.weight,
    )


def test_weights_are_float32_unless_asked_otherwise(tmp_path):
    longformer("Model").half().save_pretrained(tmp_path)
    assert load(tmp_path, LdtModel).dtype == torch.float32
    assert load(tmp_path, LdtModel, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert LdtModel.from_pretrained(tmp_path).dtype == torch.float16


def test_a_loaded_model_does_not_live_in_its_file(folder):
    model = load(folder, LdtModel)
    before = model.encoder.layer[0].output.dense.weight.clone()
    file = folder / "model.safetensors"
    with file.open("r+b") as f:
        f.seek(4096)
        f.write(b"\0" * (file.stat().st_size - 4096))
    assert torch.equal(model.encoder.layer[0].output.dense.weight, before)


def test_config_changes_must_be_fields_of_the_config(folder):
    assert load(folder, LdtModel, attention_window=[2, 12]).config.attention_window == [2, 12]
    with pytest.raises(TypeError, match="LdtConfig has no field 'windows'"):
        load(folder, LdtModel, windows=4)
    with pytest.raises(ModelError, match="attention_window must be even, got 511"):
        load(folder, LdtModel, attention_window=511)
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = load(folder, LdtForSequenceClassification, **labels)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert model.num_labels == 2


def test_other_labels_make_a_new_head_and_the_rest_is_kept(tmp_path, caplog):
    source = longformer("ForSequenceClassification")
    source.save_pretrained(tmp_path)
    model = load(tmp_path, LdtForSequenceClassification, num_labels=7)
    assert model.new_weights == ("classifier.out_proj.bias", "classifier.out_proj.weight")
    assert torch.equal(model.classifier.dense.weight, source.classifier.dense.weight)
    assert len(model.config.id2label) == 7
    # Without being asked to, a head that does not fit its config is an error.
    reconfigured(tmp_path, id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1})
    with pytest.raises(ModelError, match=r"another shape: classifier.out_proj.bias is \[3\], by "):
        load(tmp_path, LdtForSequenceClassification)


def test_a_head_of_another_kind_with_the_same_name_is_new(tmp_path):
    longformer("ForTokenClassification").save_pretrained(tmp_path)
    model = load(tmp_path, LdtForMultipleChoice)
    assert "classifier.weight" in model.new_weights
    assert load(tmp_path, LdtForTokenClassification).new_weights == ()


def drop_layer(weights):
    for name in [name for name in weights if "layer.1." in name]:
        del weights[name]


def drop_globals(weights):
    for name in [name for name in weights if "_global" in name]:
        del weights[name]


def add_layer(weights):
    for name in [name for name in weights if "layer.1." in name]:
        weights[name.replace("layer.1.", "layer.2.")] = weights[name].clone()


def reshape(weights):
    weights["embeddings.position_embeddings.weight"] = torch.zeros(130, 16)


@pytest.mark.parametrize("cls", [LdtModel, LdtForSequenceClassification])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_layer, r"missing: .*encoder.layer.1.* and 18 more; there are "),
        (drop_globals, r"short model; ldt convert .* makes it long"),
        (add_layer, r"without a place .*: .*encoder.layer.2.* and 18 more"),
        (reshape, r"another shape: .*position_embeddings.weight is \[130, 16\], by .* \[66, 16\]"),
        (dict.clear, r"encoder weights are missing: .* there are none"),
    ],
)
def test_encoder_weights_that_do_not_fit_are_listed(change, message, cls, folder):
    rewritten(folder, change)
    for attempt in (load, lambda folder, cls: cls.from_pretrained(folder)):
        with pytest.raises(ModelError, match=message):
            attempt(folder, cls)


def test_output_weights_of_their_own_stay_apart_and_are_announced(tmp_path, caplog):
    longformer("ForMaskedLM", tie_word_embeddings=False).save_pretrained(tmp_path)
    reconfigured(tmp_path, tie_word_embeddings=True)
    model = load(tmp_path, LdtForMaskedLM)
    assert model.lm_head.decoder.weight is not model.get_input_embeddings().weight
    assert "lm_head.decoder.weight differs from longformer.embeddings" in caplog.text


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def bomb(file):
    file.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def pointer(file):
    file.write_text("version https://git-lfs.github.com/spec/v1\n")


@pytest.mark.parametrize("damage", [truncate, bomb, pointer, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("form", [None, to_bin])
def test_a_damaged_file_is_named(form, damage, folder):
    file = folder / "model.safetensors"
    if form:
        form(folder)
        file = folder / "pytorch_model.bin"
    damage(file)
    with pytest.raises(ModelError, match=f"{file.name}: (damaged|holds more)") as caught:
        load(folder, LdtModel)
    assert "\n" not in str(caught.value)


class Command:
    def __reduce__(self):
        return (eval, ("__import__('os').mkdir('executed')",))


def test_code_in_a_weight_file_is_refused_and_not_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"embeddings": Command()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="holds more than tensors") as caught:
        load(folder, LdtModel)
    assert "\n" not in str(caught.value)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"embeddings": Command()}))
    with pytest.raises(ModelError, match=r"pytorch_model.bin"):
        load(folder, LdtModel)
    assert not (tmp_path / "executed").exists()
    torch.save({"model": {"x": torch.ones(1)}}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="not a table of names and tensors"):
        load(folder, LdtModel)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../../secret.safetensors"}}, "is not a file of this folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "'/etc/passwd' is not a file of this folder"),
        ({"weight_map": {"a": "sub/x.safetensors"}}, "is not a file of this folder"),
        ({"weight_map": {"a": "..\\x.safetensors"}}, "is not a file of this folder"),
        ({"weight_map": {"a": ".."}}, ".. is missing"),
        ({"weight_map": {"a": 7}}, "7 is not a file of this folder"),
        ({"weight_map": {"a": "b.safetensors"}}, "b.safetensors is missing, which model.safet"),
        ({"weight_map": ["a"]}, "no weight_map of names to files"),
        ({"weight_map": {"a": []}}, "no weight_map of names to files"),
        ({}, "no weight_map of names to files"),
        ([], "no weight_map of names to files"),
    ],
)
def test_an_index_names_files_of_its_own_folder_only(index, message, whole):
    (whole / "model.safetensors").unlink()
    (whole / "model.safetensors.index.json").write_text(json.dumps(index))
    for attempt in (check_folder, lambda folder: load(folder, LdtModel)):
        with pytest.raises(ModelError, match=message):
            attempt(whole)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("config.json", "no config.json; ldt convert SOURCE .* makes a model there"),
        ("model.safetensors", r"no weights \(model.safetensors or .*; ldt convert SOURCE"),
        ("tokenizer.json", r"no tokenizer \(tokenizer.json, .*; ldt convert SOURCE"),
    ],
)
def test_what_a_folder_lacks_is_named_with_the_command_that_makes_it(lost, message, whole):
    assert check_folder(whole) == whole
    (whole / lost).unlink()
    with pytest.raises(ModelError, match=message):
        check_folder(whole)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(whole, load(whole, LdtModel).config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json: not JSON: "),
        ("[" * 100000, "config.json: not JSON: "),
        ("[]", "config.json: not a table"),
        ('{"hidden_size": 16}', "names no model_type"),
        ('{"model_type": "longformer", "hidden_size": "16"}', "hidden_size.*expected int, got str"),
        ('{"model_type": "longformer", "attention_window": 7}', "must be even, got 7"),
        ('{"model_type": "longformer", "id2label": {"x": "y"}}', "config.json: .*'x'"),
        ('{"model_type": "longformer", "max_position_embeddings": 2}', "more than pad_token_id"),
    ],
)
def test_a_broken_config_is_named_in_one_line(text, message, whole):
    (whole / "config.json").write_text(text)
    for attempt in (
        lambda: load(whole, LdtModel),
        lambda: LdtModel.from_pretrained(whole),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            attempt()
        assert str(whole) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "model"), [(BertConfig, BertModel), (RobertaConfig, RobertaModel)]
)
def test_a_short_model_is_sent_to_convert(config, model, tmp_path):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model(config(**small, vocab_size=30, intermediate_size=16)).save_pretrained(tmp_path)
    kind = config.model_type
    with pytest.raises(ModelError, match=f"is a {kind} model; ldt convert {tmp_path} makes it"):
        load(tmp_path, LdtModel)


@pytest.mark.parametrize(
    "name", ["./no/such", "/no/such", "~/no-such", "a/b/c", "with space", "", "models/tiny"]
)
def test_a_path_is_never_looked_up_on_the_hub(name, tmp_path, monkeypatch):
    def looked_up(*args, **kwargs):
        raise AssertionError("a path was looked up")

    monkeypatch.setattr("ldt.model.loading.cached_file", looked_up)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    if name == "":
        assert find_folder(name) == find_folder(".")
        return
    with pytest.raises(ModelError, match="no such folder; ldt convert SOURCE .* makes a model"):
        load(name, LdtModel)


def test_a_file_is_not_a_model(folder):
    with pytest.raises(ModelError, match="is a file; a model is a folder"):
        load(folder / "config.json", LdtModel)


@pytest.mark.parametrize("name", ["roberta-base", "owner/name"])
def test_a_hub_id_that_cannot_be_had_is_one_line(name):
    with pytest.raises(ModelError, match=f"{name}: no such folder, nor on the hub: ") as caught:
        load(name, LdtModel)
    assert "\n" not in str(caught.value)


def test_a_hub_id_loads_from_the_files_that_the_hub_gives(whole, monkeypatch):
    asked = []

    def give(name, file, **options):
        asked.append((name, file, options.get("revision")))
        return str(whole / file) if (whole / file).exists() else None

    monkeypatch.setattr("ldt.model.loading.cached_file", give)
    to_shards(whole)
    model = LdtModel.from_pretrained("owner/name", revision="v2")
    assert model.new_weights == ()
    assert ("owner/name", "config.json", "v2") in asked
    assert {file for _, file, _ in asked} >= {path.name for path in whole.glob("*.safetensors")}
    assert load_tokenizer("owner/name", model.config).pad_token_id == 1


def test_the_tokenizer_comes_with_the_usable_length(whole):
    model = load(whole, LdtModel)
    tokenizer = load_tokenizer(whole, model.config)
    assert tokenizer.model_max_length == 128
    ids = tokenizer("the party agrees")["input_ids"]
    assert model(torch.tensor([ids])).last_hidden_state.shape[1] == len(ids)
    model.save_pretrained(whole)
    again = load_tokenizer(whole, model.config)
    assert again("the party agrees")["input_ids"] == ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 290}, r"tokenizer has 297 tokens, the model's embedding 290 rows"),
        ({"pad_token_id": 0}, "pads with id 1, the model with 0"),
    ],
)
def test_a_tokenizer_that_does_not_fit_the_model_is_refused(changes, message, whole):
    config = LdtConfig.from_pretrained(whole)
    for key, value in changes.items():
        setattr(config, key, value)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(whole, config)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (["pad_token"], r"no padding token \(pad_token\)"),
        (["mask_token"], r"no mask token \(mask_token\)"),
        (["sep_token", "eos_token"], r"no end token \(sep_token or eos_token\)"),
        (["cls_token", "bos_token"], r"no start token \(cls_token or bos_token\)"),
        (["cls_token"], None),
        (["sep_token"], None),
    ],
)
def test_a_tokenizer_without_its_special_tokens_is_refused(lost, message, whole):
    file = whole / "tokenizer_config.json"
    found = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps({key: x for key, x in found.items() if key not in lost}))
    config = LdtConfig.from_pretrained(whole)
    if message is None:
        assert load_tokenizer(whole, config).is_fast
    else:
        with pytest.raises(ModelError, match=message):
            load_tokenizer(whole, config)


def test_a_broken_tokenizer_is_named_in_one_line(whole):
    (whole / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="the tokenizer cannot be read: ") as caught:
        load_tokenizer(whole, LdtConfig.from_pretrained(whole))
    assert "\n" not in str(caught.value)


def test_code_that_a_config_names_is_not_run(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import os\nos.mkdir('executed')\nclass Model: pass\n"
    (whole / "code.py").write_text(code)
    reconfigured(whole, auto_map={"AutoModel": "code.Model", "AutoConfig": "code.Model"})
    load(whole, LdtModel)
    LdtModel.from_pretrained(whole, trust_remote_code=True)
    assert not (tmp_path / "executed").exists()
