import json
import math
import shutil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from longformers import ldt_config, longformer_config
from properties import cases
from transformers import AutoConfig, BertConfig

from ldt.convert.kinds import source_config
from ldt.data.tokenization import tokenize
from ldt.errors import ModelError, UserError
from ldt.model import LdtConfig, LdtModel, load_tokenizer, usable_length
from ldt.model.config import layer_dilations, layer_windows


def authors(**changes):
    """A config.json of the authors' downloads: RoBERTa's with windows that count one side."""
    return {
        "model_type": "roberta",
        "vocab_size": 50265,
        "max_position_embeddings": 4098,
        "num_hidden_layers": 2,
        "attention_mode": "sliding_chunks",
        "attention_window": [256, 128],
        "attention_dilation": [1, 1],
        "autoregressive": False,
    } | changes


def test_the_authors_one_sided_windows_are_doubled():
    for mode in ("sliding_chunks", "tvm"):
        config = LdtConfig.from_dict(authors(attention_mode=mode))
        assert config.attention_window == [512, 256]
        assert not hasattr(config, "attention_mode")
        assert LdtConfig.from_dict(config.to_dict()).attention_window == [512, 256]
    no_type = {key: value for key, value in authors().items() if key != "model_type"}
    assert LdtConfig.from_dict(no_type).attention_window == [512, 256]


def test_windows_of_transformers_stay_as_they_are():
    found = longformer_config(attention_window=[8, 4]).to_dict() | {"attention_mode": "longformer"}
    assert LdtConfig.from_dict(found).attention_window == [8, 4]


def test_the_authors_dilation_is_one_gap_a_layer():
    config = LdtConfig.from_dict(authors(attention_dilation=[1, 3], num_attention_heads=2))
    assert layer_dilations(config) == [(1, 1), (3, 3)]
    assert layer_dilations(ldt_config(attention_dilation=[1, [2, 1]])) == [(1, 1), (2, 1)]
    assert LdtConfig.from_dict(authors()).attention_dilation == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_mode": "n2"}, "attention_mode 'n2'"),
        ({"attention_mode": "sliding_chunks_no_overlap"}, "attention_mode 'sliding_chunks_no_"),
        ({"autoregressive": True}, "autoregressive"),
        ({"attention_window": None}, "attention_window must be a number a layer, got None"),
        ({"attention_mode": None}, "is a roberta model; ldt convert SOURCE makes it long"),
        ({"attention_mode": None, "model_type": None}, "has no model_type"),
        ({"model_type": "bert"}, "is a bert model; ldt convert SOURCE makes it long"),
    ],
)
def test_other_kinds_of_model_are_refused_by_name(changes, message):
    with pytest.raises(ModelError, match=message):
        LdtConfig.from_dict(authors(**changes))


def test_a_folder_of_another_model_is_refused_by_name(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is a bert model"):
        LdtConfig.from_pretrained(tmp_path)


def test_a_config_comes_back_from_its_folder_through_autoconfig(tmp_path):
    config = ldt_config(attention_backend="reference", attention_window=[8, 2])
    config.save_pretrained(tmp_path)
    for cls in (AutoConfig, LdtConfig):
        again = cls.from_pretrained(tmp_path)
        assert type(again) is LdtConfig
        assert again.attention_backend == "reference"
        assert again.attention_window == [8, 2]


def test_a_longformer_folder_reads_without_a_warning(tmp_path, caplog):
    longformer_config().save_pretrained(tmp_path)
    config = LdtConfig.from_pretrained(tmp_path)
    assert config.model_type == "ldt"
    assert config.hidden_size == 16
    assert not caplog.records


def test_the_usable_length_leaves_out_the_rows_up_to_padding():
    assert usable_length(ldt_config(max_position_embeddings=4098, pad_token_id=1)) == 4096
    assert usable_length(ldt_config(max_position_embeddings=513, pad_token_id=0)) == 512


def test_one_window_stands_for_all_layers_and_the_config_is_not_changed():
    config = ldt_config(attention_window=6)
    assert layer_windows(config) == [6, 6]
    LdtModel(config)
    assert config.attention_window == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_window": 511}, "attention_window must be even, got 511"),
        ({"attention_window": [8, 7]}, "attention_window must be even, got 7"),
        ({"attention_window": [0, 8]}, "attention_window must be at least 2, got 0"),
        ({"attention_window": -4}, "attention_window must be at least 2, got -4"),
        ({"attention_window": [8]}, "attention_window must be .* each of the 2 layers, got 1"),
        ({"attention_dilation": [1]}, "attention_dilation must be .* each of the 2 layers, got 1"),
        ({"attention_dilation": [1, [1, 2, 3]]}, "one for each of the 2 heads, got 3 numbers"),
        ({"attention_dilation": [1, [0, 2]]}, "attention_dilation must be at least 1, got 0"),
        ({"attention_backend": "cuda"}, "attention_backend must be auto, .*, got 'cuda'"),
        ({"num_attention_heads": 3}, "hidden_size 16 must be a multiple .* got 3"),
        ({"hidden_act": "gelo"}, "hidden_act must be .*gelu.*, got 'gelo'"),
        ({"pad_token_id": None}, "pad_token_id must be an id of the 40 in the vocabulary, got"),
        ({"max_position_embeddings": 2}, "more than pad_token_id .* is 2, got 2"),
    ],
)
def test_numbers_that_do_not_go_together_are_named(changes, message):
    config = ldt_config(**changes)
    for check in (LdtConfig.check, LdtModel):
        with pytest.raises(ValueError, match=message):
            check(config)


def test_a_config_of_transformers_is_a_type_error():
    with pytest.raises(TypeError, match="LdtModel needs an LdtConfig, got LongformerConfig"):
        LdtModel(longformer_config())


KEYS = {  # of each file, beside those that transformers writes
    "config.json": ["model_type", "architectures", "attention_mode", "autoregressive", "num_labels"]
    + ["id2label", "torch_dtype", "is_decoder", "auto_map", "quantization_config"]
    + [*ldt_config(pooling_layers=[0]).to_dict()],
    "tokenizer_config.json": ["pad_token", "cls_token", "extra_special_tokens", "tokenizer_class"]
    + ["model_max_length", "ldt_task_tokens", "added_tokens_decoder", "auto_map", "backend"],
}
VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, -1, 3, 1.5, math.inf, math.nan, 10**30, "", "a", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("0a"), inner),
    max_leaves=3,
)


@pytest.fixture(scope="module")
def folder(tiny_longformer, tmp_path_factory):
    """A model whose files may be spoilt."""
    return shutil.copytree(tiny_longformer, tmp_path_factory.mktemp("spoilt") / "model")


def read_model(folder):
    model = LdtModel.from_pretrained(folder)
    tokenize(load_tokenizer(folder, model.config), "the </s> party")


@pytest.mark.parametrize("read", [read_model, source_config])
@pytest.mark.parametrize("file", KEYS)
@cases(60, shrink=False)
@example(key="model_type", value=[1, 2])
@example(key="attention_window", value=math.inf)
@example(key="id2label", value=True)
@example(key="is_encoder_decoder", value=True)
@example(key="unk_token", value="")
@example(key="ldt_task_tokens", value=[{}])
@given(key=st.data(), value=VALUES)
def test_any_value_of_any_key_is_heeded_or_refused_in_a_line(read, file, key, value, folder):
    if not isinstance(key, str):
        key = key.draw(st.sampled_from(sorted(KEYS[file])))
    kept = (folder / file).read_text()
    (folder / file).write_text(json.dumps(json.loads(kept) | {key: value}))
    line = ""
    try:
        read(folder)
    except UserError as error:
        line = str(error)
    finally:
        (folder / file).write_text(kept)
    assert "\n" not in line
