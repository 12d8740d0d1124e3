"""The padded form of a model gives what the model gives."""

import pytest
import torch
from longformers import batch, ldt_model
from modernberts import BIASES
from modernberts import ours as modernbert

from ldt.attention import POOLINGS
from ldt.model.padded import PaddedModel, refused

OUTPUTS = {
    "ForSequenceClassification": ("logits",),
    "ForTokenClassification": ("logits",),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
    "ForMultipleChoice": ("logits",),
    "ForCandidateRanking": ("logits",),
}
POOLED = {"pooling_layers": [1], "pooling_window": 24, "pooling_gate": True}


def assert_same(head, inputs, globals_="given", make=ldt_model, **changes):
    """The model and its padded form give the same logits; the inputs have positions as needed."""
    torch.manual_seed(0)
    model = make(head, **changes)
    if make is modernbert:
        inputs.pop("token_type_ids")
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


SHAPES = [(1, "none", "all"), (8, "none", "some"), (21, "mixed", "some"), (40, "left", "one")]
ROTARY = [
    {"classifier_pooling": "mean", **BIASES},
    {"full_attention_window": 8},
    {"full_attention_window": 12, "global_layers": "all", "classifier_pooling": "max"},
    {"global_layers": "none", "full_attention_window": 4},
]
WINDOWS = [{"attention_window": [8, 4]}, {"attention_window": [2, 30]}]


@pytest.mark.parametrize("head", OUTPUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("changes", [*WINDOWS, *ROTARY], ids=str)
def test_a_padded_model_equals_the_model(head, shape, changes):
    make = ldt_model if changes in WINDOWS else modernbert
    assert_same(head, batch(*shape), make=make, **changes)


@pytest.mark.parametrize("head", OUTPUTS)
def test_a_padded_model_may_have_no_global_tokens(head):
    assert_same(head, batch(30, "mixed", "none"), "none")


@pytest.mark.parametrize("padding", ["none", "left", "right", "mixed"])
@pytest.mark.parametrize(
    ("head", "globals_", "make"),
    [
        ("ForSequenceClassification", "first", ldt_model),
        ("ForQuestionAnswering", "question", ldt_model),
        ("ForSequenceClassification", "first", modernbert),
        ("ForSequenceClassification", "none", modernbert),
    ],
)
def test_a_padded_model_finds_its_global_tokens(padding, head, globals_, make):
    inputs, changes = batch(24, padding, "default" if make is ldt_model else "none"), {}
    if make is modernbert:
        changes = {"full_attention_window": 6, "global_layers": "all"}
        if globals_ == "first":
            first = inputs["attention_mask"].argmax(1, keepdim=True)
            inputs["global_attention_mask"].scatter_(1, first, 1)
    assert_same(head, inputs, globals_, make=make, **changes)


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("padding", ["none", "mixed"])
def test_a_padded_model_reads_all_tokens(pooling, padding):
    inputs = batch(24, padding, "default")
    assert_same("ForSequenceClassification", inputs, "first", classifier_pooling=pooling)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("padding", ["none", "left", "mixed"])
@pytest.mark.parametrize(
    "more", [{}, {"pooling_share_weights": True}, {"pooling_input": "embeddings"}]
)
def test_a_padded_model_has_the_second_level(pooling, padding, more):
    inputs = batch(40, padding, "some")
    assert_same("ForTokenClassification", inputs, pooling=pooling, **POOLED, **more)


DILATED = {"attention_dilation": [1, [1, 2]]}
CLIPS = {"global_layers": "all", "clip_global_distances": True}


@pytest.mark.parametrize(
    ("make", "head", "changes", "why"),
    [
        (ldt_model, "ForMaskedLM", {}, "the head LdtForMaskedLM"),
        (ldt_model, "ForTokenClassification", DILATED, "dilated attention"),
        (ldt_model, "ForTokenClassification", {"causal": True}, "causal"),
        (ldt_model, "ForTokenClassification", {}, None),
        (modernbert, "ForTokenClassification", CLIPS, "clip_global_distances"),
        (modernbert, "ForQuestionAnswering", {}, None),
    ],
)
def test_a_model_is_refused_in_words(make, head, changes, why):
    assert refused(make(head, **changes)) == why
