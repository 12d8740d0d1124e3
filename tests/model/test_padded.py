"""The padded form of a model gives what the model gives."""

import pytest
import torch
from longformers import batch, ldt_model
from modernberts import BIASES
from modernberts import ours as modernbert

from ldt.model.padded import PaddedModel, refused

OUTPUTS = {
    "ForSequenceClassification": ("logits",),
    "ForTokenClassification": ("logits",),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
    "ForMultipleChoice": ("logits",),
    "ForCandidateRanking": ("logits",),
}
DEFAULT = {"ForSequenceClassification": "first", "ForQuestionAnswering": "question"}
POOLED = {"pooling_layers": [1], "pooling_window": 24, "pooling_gate": True}


def assert_same(head, inputs, globals_="given", make=ldt_model, **changes):
    """The model and its padded form give the same logits; the inputs have positions as needed."""
    torch.manual_seed(0)
    model = make(head, **changes)
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.any():  # gates
            torch.nn.init.normal_(parameter, std=0.01)
    if head == "ForCandidateRanking":
        places = torch.tensor([[3, 1], [2, -100], [5, 0], [1, 4]]).clamp(
            max=inputs["input_ids"].shape[1] - 1
        )
        inputs = inputs | {"positions": places}
    with torch.no_grad():
        expected = model(**inputs)
        kept = {
            key: value
            for key, value in inputs.items()
            if key != "global_attention_mask" or globals_ == "given"
        }
        found = PaddedModel(model, globals_)(**kept)
    for name, (named, value) in zip(OUTPUTS[head], found.items(), strict=True):
        assert named == name
        torch.testing.assert_close(value, expected[name], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("head", OUTPUTS)
@pytest.mark.parametrize(
    ("length", "padding", "globals_"),
    [(1, "none", "all"), (8, "none", "some"), (21, "mixed", "some"), (40, "left", "one")],
)
@pytest.mark.parametrize("windows", [[8, 4], [2, 30]])
def test_a_padded_model_equals_the_model(head, length, padding, globals_, windows):
    inputs = batch(length, padding, globals_)
    assert_same(head, inputs, attention_window=windows)


@pytest.mark.parametrize("head", OUTPUTS)
def test_a_padded_model_may_have_no_global_tokens(head):
    assert_same(head, batch(30, "mixed", "none"), "none")


@pytest.mark.parametrize("head", OUTPUTS)
@pytest.mark.parametrize(
    ("length", "padding", "globals_"),
    [(1, "none", "all"), (8, "none", "some"), (21, "mixed", "some"), (40, "left", "one")],
)
@pytest.mark.parametrize(
    "changes",
    [
        {"classifier_pooling": "mean", **BIASES},
        {"full_attention_window": 8},
        {"full_attention_window": 12, "global_layers": "all", "classifier_pooling": "max"},
        {"global_layers": "none", "full_attention_window": 4},
    ],
)
def test_a_padded_modernbert_equals_the_model(head, length, padding, globals_, changes):
    inputs = batch(length, padding, globals_)
    del inputs["token_type_ids"]
    assert_same(head, inputs, make=modernbert, **changes)


@pytest.mark.parametrize("padding", ["none", "left", "right", "mixed"])
@pytest.mark.parametrize("globals_", ["none", "first"])
def test_a_padded_modernbert_finds_its_global_tokens(padding, globals_):
    inputs = batch(24, padding, "none")
    del inputs["token_type_ids"]
    if globals_ == "first":
        first = inputs["attention_mask"].argmax(1, keepdim=True)
        inputs["global_attention_mask"].scatter_(1, first, 1)
    changes = {"full_attention_window": 6, "global_layers": "all"}
    assert_same("ForSequenceClassification", inputs, globals_, make=modernbert, **changes)


@pytest.mark.parametrize("head", DEFAULT)
@pytest.mark.parametrize("padding", ["none", "left", "right", "mixed"])
def test_a_padded_model_finds_its_global_tokens(head, padding):
    assert_same(head, batch(24, padding, "default"), DEFAULT[head])


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("padding", ["none", "mixed"])
def test_a_padded_model_reads_all_tokens(pooling, padding):
    inputs = batch(24, padding, "default")
    assert_same("ForSequenceClassification", inputs, "first", classifier_pooling=pooling)


@pytest.mark.parametrize("pooling", ["ldconv", "ldconv_separate", "mean", "max", "conv"])
@pytest.mark.parametrize("padding", ["none", "left", "mixed"])
@pytest.mark.parametrize(
    "more", [{}, {"pooling_share_weights": True}, {"pooling_input": "embeddings"}]
)
def test_a_padded_model_has_the_second_level(pooling, padding, more):
    inputs = batch(40, padding, "some")
    assert_same("ForTokenClassification", inputs, pooling=pooling, **POOLED, **more)


@pytest.mark.parametrize(
    ("head", "changes", "why"),
    [
        ("ForMaskedLM", {}, "the head LdtForMaskedLM"),
        ("ForTokenClassification", {"attention_dilation": [1, [1, 2]]}, "dilated attention"),
        ("ForTokenClassification", {"causal": True}, "attention to the left alone"),
        ("ForTokenClassification", {}, None),
    ],
)
def test_a_model_is_refused_in_words(head, changes, why):
    assert refused(ldt_model(head, **changes)) == why


def test_a_modernbert_is_refused_in_words():
    changes = {"global_layers": "all", "clip_global_distances": True}
    assert refused(modernbert("ForTokenClassification", **changes)) == "clipped distances"
    assert refused(modernbert("ForMaskedLM")) == "the head LdtForMaskedLM"
    assert refused(modernbert("ForQuestionAnswering")) is None
