"""Folders that cannot be used, and names that are no folders."""

import json
import pickle
import struct

import pytest
import torch
from longformers import reconfigured, to_bin, to_shards
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from ldt.errors import DataError, ModelError
from ldt.io.records import read
from ldt.model import LdtModel, check_folder, load, load_tokenizer
from ldt.model.loading import find_folder


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
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"embeddings": Command()}, protocol=2))
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
        ('{"hidden_size": 16}', "has no model_type"),
        ('{"model_type": "longformer", "hidden_size": "16"}', "hidden_size.*expected int, got str"),
        ('{"model_type": "longformer", "attention_window": 7}', "must be even, got 7"),
        (
            '{"model_type": "longformer", "id2label": {"x": "y"}}',
            "config.json: id2label must name the labels 0, 1",
        ),
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


def test_a_file_is_not_a_model(tmp_path):
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(ModelError, match="recipe.yaml is no folder; a model is a folder"):
        load(tmp_path / "recipe.yaml", LdtModel)


@pytest.mark.parametrize("name", ["roberta-base", "owner/name"])
def test_a_hub_id_that_cannot_be_had_is_one_line(name):
    with pytest.raises(ModelError, match=f"{name}: no such folder, nor on the hub: ") as caught:
        load(name, LdtModel)
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_asked_once_and_one_line(monkeypatch, caplog):
    asked = []

    class NoNetwork:
        def head(self, url, timeout):
            asked.append(url)
            raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_session", NoNetwork)
    with pytest.raises(ModelError) as caught:
        load("owner/name", LdtModel)
    assert str(caught.value) == (
        "owner/name: no such folder, and the hub cannot be reached (https://huggingface.co: Name "
        "or service not known); name a copy on this machine, or set HTTPS_PROXY where a proxy "
        "leads out; HF_HUB_OFFLINE=1 reads what the cache has without asking"
    )
    assert asked == ["https://huggingface.co"]
    assert caplog.messages == []
    with pytest.raises(DataError, match=r"^hf:owner/name: the hub cannot be reached \(https"):
        list(read("hf:owner/name"))
    assert len(asked) == 2


def test_what_the_cache_has_is_read_where_the_hub_cannot_be_reached(whole, monkeypatch):
    options = {}

    def give(name, file, **kwargs):
        options.update(kwargs)
        return str(whole / file) if (whole / file).exists() else None

    monkeypatch.setattr("ldt.model.loading.hub_fault", lambda: "the hub cannot be reached")
    monkeypatch.setattr("ldt.model.loading.cached_file", give)
    assert load("owner/name", LdtModel).new_weights == ()
    assert options["local_files_only"]


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


def test_code_that_a_config_names_is_not_run(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import os\nos.mkdir('executed')\nclass Model: pass\n"
    (whole / "code.py").write_text(code)
    reconfigured(whole, auto_map={"AutoModel": "code.Model", "AutoConfig": "code.Model"})
    load(whole, LdtModel)
    LdtModel.from_pretrained(whole, trust_remote_code=True)
    assert not (tmp_path / "executed").exists()
