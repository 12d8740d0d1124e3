import json

import pytest
import torch

from ldt.errors import ModelError
from ldt.model import LdtConfig, LdtModel, load, load_tokenizer


def test_the_tokenizer_comes_with_the_usable_length(whole):
    model = load(whole, LdtModel)
    tokenizer = load_tokenizer(whole, model.config)
    assert tokenizer.model_max_length == 128
    model.config.max_position_embeddings = 66
    assert load_tokenizer(whole, model.config).model_max_length == 64
    model.config.max_position_embeddings = 130
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
        (["mask_token"], r"no mask token \(mask_token\)"),
        (["sep_token", "eos_token"], r"no end token \(sep_token or eos_token\)"),
        (["cls_token", "bos_token"], r"no start token \(cls_token or bos_token\)"),
        (["pad_token"], None),  # the model's padding is <pad>
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
