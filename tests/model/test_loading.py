import pytest
import torch
import transformers
from longformers import (
    HEADS,
    batch,
    ldt_model,
    longformer,
    reconfigured,
    to_bin,
    to_bin_shards,
    to_shards,
)
from safetensors.torch import load_file, save_file

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
    load,
)


def cls_of(head):
    return getattr(ldt.model, "Ldt" + head)


def rewritten(folder, change):
    """The weights of ``folder`` after ``change`` (a function of the dict, in place)."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def to_prefix(folder, prefix):
    def change(weights):
        for name in list(weights):
            weights[prefix + name] = weights.pop(name)
        weights[prefix + "embeddings.position_ids"] = torch.arange(66)[None]

    rewritten(folder, change)


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


def test_old_names_of_norms_load_and_are_saved_under_the_new_ones(folder):
    def old(weights):
        for name in [name for name in weights if "LayerNorm" in name]:
            new = name.replace("weight", "gamma").replace("bias", "beta")
            weights[new] = weights.pop(name)

    expected = load(folder, LdtModel).state_dict()
    model = load(rewritten(folder, old), LdtModel)
    model.save_pretrained(folder / "again")
    saved = load_file(folder / "again" / "model.safetensors")
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], expected[name]) for name in saved)


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
        assert bool(new) == ("weights that start anew" in caplog.text)


def test_a_new_head_is_announced_and_its_weights_are_listed(folder, caplog):
    model = load(folder, LdtForSequenceClassification, num_labels=5)
    said = "weights that start anew, drawn at random: classifier"
    assert said in caplog.text
    assert model.new_weights == (
        "classifier.dense.bias",
        "classifier.dense.weight",
        "classifier.out_proj.bias",
        "classifier.out_proj.weight",
    )
    assert model.classifier.out_proj.weight.shape == (5, 16)
    assert not model.classifier.out_proj.bias.any()
    assert model.classifier.dense.weight.std() > 0.1


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


def named(*names):
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


ROWS = {
    "ForSequenceClassification": "classifier.out_proj",
    "ForTokenClassification": "classifier",
    "ForEvidenceClassification": "classifier.out_proj",
    "ForEvidenceAnswering": "classifier.out_proj",
}


@pytest.mark.parametrize("head", ROWS)
def test_rows_of_a_head_go_by_the_names_of_the_labels(head, tmp_path, caplog):
    source = ldt_model(head, num_labels=3, **named("pos", "neg", "neu"))
    source.save_pretrained(tmp_path)
    cls, layer = cls_of(head), source.get_submodule(ROWS[head])

    def rows(*names):
        caplog.clear()
        found = load(tmp_path, cls, **named(*names)).get_submodule(ROWS[head])
        return found.weight, found.bias

    for weight, old in zip(rows("neu", "pos", "neg"), (layer.weight, layer.bias), strict=True):
        assert torch.equal(weight, old[[2, 0, 1]])
    assert "anew" not in caplog.text
    weight, bias = rows("mixed", "neg", "poor", "pos")
    assert torch.equal(weight[[1, 3]], layer.weight[[1, 0]])
    assert torch.equal(
        bias, torch.stack([torch.tensor(0.0), *layer.bias[:2].flip(0)])[[0, 1, 0, 2]]
    )
    assert weight[0].abs().sum() > 0
    assert "rows of its head that start anew, drawn at random: 'mixed', 'poor'" in caplog.text
    assert not (rows("good", "poor", "so-so")[0] == layer.weight).any()
    assert "drawn at random: 'good', 'poor', 'so-so'" in caplog.text


def test_rows_without_names_are_numbers_or_taken_in_order(tmp_path, caplog):
    source = ldt_model("ForSequenceClassification", num_labels=12)
    source.save_pretrained(tmp_path)
    layer = source.classifier.out_proj

    def rows(names):
        found = load(tmp_path, LdtForSequenceClassification, **named(*names))
        return found.classifier.out_proj.bias

    as_text = sorted(map(str, range(12)))
    assert torch.equal(rows(as_text), layer.bias[[int(name) for name in as_text]])
    assert "its head" not in caplog.text
    assert torch.equal(rows("abcdefghijkl"), layer.bias)
    assert "in their order row 0 is a, 1 is b, 2 is c, 3 is d, 4 is e and 7 more" in caplog.text


def test_other_labels_make_a_new_head_and_the_rest_is_kept(tmp_path, caplog):
    source = longformer("ForSequenceClassification")
    source.save_pretrained(tmp_path)
    model = load(tmp_path, LdtForSequenceClassification, num_labels=7)
    assert model.new_weights == ("classifier.out_proj.bias", "classifier.out_proj.weight")
    assert torch.equal(model.classifier.dense.weight, source.classifier.dense.weight)
    assert len(model.config.id2label) == 7
    assert "incompatible" not in caplog.text  # as transformers says of labels of two minds
    # Without being asked to, a head that does not fit its config is an error.
    reconfigured(tmp_path, id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1})
    with pytest.raises(ModelError, match=r"another shape: classifier.out_proj.bias is \[3\], by "):
        load(tmp_path, LdtForSequenceClassification)


def test_shapes_that_differ_are_an_error_of_transformers_kind_unless_they_are_to_be_new(tmp_path):
    longformer("ForSequenceClassification").save_pretrained(tmp_path)
    cls = LdtForSequenceClassification
    with pytest.raises(RuntimeError, match="another shape: classifier.out_proj"):
        cls.from_pretrained(tmp_path, num_labels=7)
    model, info = cls.from_pretrained(
        tmp_path, num_labels=7, ignore_mismatched_sizes=True, output_loading_info=True
    )
    names = {name for name, *_ in info["mismatched_keys"]}
    assert names == {"classifier.out_proj.bias", "classifier.out_proj.weight"}
    assert model(torch.ones(1, 2).long()).logits.shape == (1, 7)

    reconfigured(tmp_path, vocab_size=9)
    with pytest.raises(RuntimeError, match="another shape: .*word_embeddings"):
        cls.from_pretrained(tmp_path)
    model = cls.from_pretrained(tmp_path, ignore_mismatched_sizes=True)
    assert model.new_weights == ("longformer.embeddings.word_embeddings.weight",)
    assert model.get_input_embeddings().weight.shape == (9, 16)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_an_automatic_type_is_that_of_the_config_or_else_of_the_weights(name, folder):
    for kind in (torch.bfloat16, torch.float32):
        LdtModel.from_pretrained(folder, dtype=kind).save_pretrained(folder)
        assert LdtModel.from_pretrained(folder, **{name: "auto"}).dtype == kind
        reconfigured(folder, dtype=None)
        assert LdtModel.from_pretrained(folder, **{name: "auto"}).dtype == kind
        assert load(folder, LdtModel).dtype == torch.float32


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
        (drop_globals, r"weights of a short one; with its own config.json ldt convert"),
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


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_transformers_names_of_attention_leave_the_backend_to_the_config(name, whole):
    ids = torch.arange(3, 20)[None]
    expected = LdtModel.from_pretrained(whole)(ids)[0]
    model = LdtModel.from_pretrained(whole, attn_implementation=name, attention_backend="blocked")
    assert model.config.attention_backend == "blocked"
    torch.testing.assert_close(model(ids)[0], expected, rtol=0, atol=1e-5)
    assert len(model(ids, output_attentions=True).attentions) == 2
    made = LdtModel(LdtConfig(num_hidden_layers=1, attn_implementation=name))
    assert made.config.attention_backend == "auto"
    assert made.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "nonsense"])
def test_other_names_of_attention_are_refused_in_one_line(name, whole):
    said = rf"^attn_implementation must be eager or sdpa, which .*blocked.*, got '{name}'$"
    with pytest.raises(ValueError, match=said):
        LdtModel.from_pretrained(whole, attn_implementation=name)
    with pytest.raises(ValueError, match=said):
        LdtModel(LdtConfig(num_hidden_layers=1, attn_implementation=name))
