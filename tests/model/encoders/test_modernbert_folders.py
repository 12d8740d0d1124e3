"""Folders of ModernBERTs: read whoever wrote them, and written so that others read them too."""

import json

import pytest
import torch
import transformers
from longformers import batch, reconfigured
from modernberts import modernbert, ours, values
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import ldt.model
from ldt.errors import ModelError
from ldt.model.config import LdtModernBertConfig
from ldt.model.loading import read_config


def ids():
    return {"input_ids": batch(20)["input_ids"]}


@pytest.mark.parametrize(
    "head",
    [
        "Model",
        "ForMaskedLM",
        "ForMultipleChoice",
        "ForQuestionAnswering",
        "ForSequenceClassification",
        "ForTokenClassification",
    ],
)
def test_transformers_loads_what_ldt_saves_without_a_missing_weight(tmp_path, head):
    mine = ours(head, class_weights=[1.0, 2.0, 3.0], classifier_pooling="mean")
    mine.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "modernbert"
    assert config["architectures"] == [f"ModernBert{head}"]
    cls = getattr(transformers, f"ModernBert{head}")
    theirs, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    given = ids()
    if head == "ForMultipleChoice":
        given = {name: x[None] for name, x in given.items()}
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    for a, b in zip(mine(**given).to_tuple(), theirs(**given).to_tuple(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    again = ldt.model.load(tmp_path, type(mine))
    assert again.new_weights == ()
    assert again.config.class_weights == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "changes",
    [{"full_attention_window": 8}, {"global_layers": "all"}, {"classifier_pooling": "max"}],
)
def test_what_only_ldt_computes_is_not_read_as_a_plain_one(tmp_path, changes):
    mine = ours("ForSequenceClassification", **changes)
    mine.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (
        "ldt_modernbert",
        ["LdtForSequenceClassification"],
    )
    assert type(AutoConfig.from_pretrained(tmp_path)) is LdtModernBertConfig
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(again, ldt.model.LdtForSequenceClassification)
    given = ids()
    assert torch.equal(again(**given).logits, mine(**given).logits)
    assert {key: getattr(again.config, key) for key in changes} == changes
    assert type(AutoModel.from_pretrained(tmp_path)) is ldt.model.LdtModernBertModel


def test_the_body_of_a_head_is_that_of_the_folder(tmp_path):
    modernbert("ForMaskedLM").save_pretrained(tmp_path)
    head = ldt.model.LdtForTokenClassification.from_pretrained(tmp_path, num_labels=5)
    assert type(head.base_model) is ldt.model.LdtModernBertModel
    # The head of the masked LM, and nothing else, goes on.
    assert set(head.new_weights) == {"classifier.weight", "classifier.bias"}
    assert head(**ids()).logits.shape == (4, 20, 5)
    words = ldt.model.LdtForMaskedLM.from_pretrained(tmp_path)
    assert words.decoder.weight is words.model.embeddings.tok_embeddings.weight
    assert words.get_output_embeddings() is words.decoder


def test_new_models_are_drawn_as_in_transformers():
    changes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 500}
    mine = ldt.model.LdtForMaskedLM(LdtModernBertConfig.from_dict(values(**changes)))
    theirs = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**values(**changes)))
    expected = dict(theirs.named_parameters())
    for name, weight in mine.named_parameters():
        other = expected.pop(name)
        for measure in (torch.std, lambda x: x.abs().max()):
            found, wanted = (float(measure(x)) for x in (weight, other))
            assert found == pytest.approx(wanted, rel=0.15, abs=1e-9), name
    assert not expected


def test_a_theta_that_older_files_left_out_is_that_of_full_layers(tmp_path):
    modernbert().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters")
    config |= {"global_rope_theta": 7.0, "local_rope_theta": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_config(tmp_path).rope_parameters
    assert [found[kind]["rope_theta"] for kind in sorted(found)] == [7.0, 7.0]


@pytest.mark.parametrize("kind", ["ultrabert", "eurobert", "neobert", "gte", "new", "nomic_bert"])
def test_other_rotary_encoders_are_refused_by_what_is_missing(tmp_path, kind):
    modernbert().save_pretrained(tmp_path)
    reconfigured(tmp_path, model_type=kind)
    with pytest.raises(
        ModelError, match=rf"a {kind} model cannot be used or .*: no model here has"
    ) as got:
        ldt.model.load(tmp_path, ldt.model.LdtForMaskedLM)
    assert "\n" not in str(got.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"local_attention": 0}, "local_attention must be at least 2, got 0"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_hidden_layers": 2, "layer_types": None}, "weights without a place"),
        ({"global_layers": "some"}, "global_layers"),
    ],
)
def test_damaged_configs_are_one_line(tmp_path, changes, says):
    modernbert().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=says) as got:
        ldt.model.load(reconfigured(tmp_path, **changes), ldt.model.LdtModernBertModel)
    assert "\n" not in str(got.value)
