"""ModernBERT as a second encoder: outputs, hidden states, losses and every gradient are those of
transformers' classes, loaded from the same file."""

import pytest
import torch
from longformers import batch, checkpoint_layers, with_labels
from modernberts import BIASES, exact, modernbert, ours, pair, readout
from peers import assert_close, assert_gradients_equal
from torch.nn import functional as F

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
OLD = {  # names of files before transformers 5
    "global_attn_every_n_layers": 2,
    "global_rope_theta": 80.0,
    "local_rope_theta": 12.0,
    "position_embedding_type": "absolute",
    "layer_norm_eps": 0.5,  # means nothing
}
NEW = {
    "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 90.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 15.0},
    },
}
YARN = {
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 90.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 15.0},
    }
}
CASES = [  # length, padding, changes of the config
    (1, "none", {}),
    (9, "none", BIASES),
    (17, "right", {"local_attention": 2}),
    (37, "left", {"local_attention": 9}),
    (33, "mixed", OLD),
    (20, "row", NEW),
    (21, "middle", YARN),
    (24, "none", {"num_attention_heads": 4, "hidden_activation": "silu"}),
]
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
)


@pytest.fixture(autouse=True)
def peer(monkeypatch):
    exact(monkeypatch)


def inputs(n, padding):
    given = batch(n, padding)
    return {name: given[name] for name in ("input_ids", "attention_mask")}


def positions(mask):
    """Places counted from the first real token, which differ from transformers' by rounding."""
    place = torch.arange(mask.shape[1]) - mask.argmax(1, keepdim=True)
    return place.clamp(min=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("n", "padding", "changes"), CASES)
def test_states_and_gradients_are_those_of_transformers(tmp_path, n, padding, changes, dtype):
    theirs, mine = pair("Model", tmp_path, dtype, **changes)
    given = inputs(n, padding)
    real = given["attention_mask"].bool()
    expected = theirs(
        **given, position_ids=positions(given["attention_mask"]), output_hidden_states=True
    )
    found = mine(**given, output_hidden_states=True)
    for a, b in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_close(a[real], b[real], TOLERANCE[dtype], "hidden states")
        assert not a[~real].any()
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
    readout(found.last_hidden_state[real]).backward()
    readout(expected.last_hidden_state[real]).backward()
    assert_gradients_equal(mine, theirs, TOLERANCE[dtype])
    with torch.inference_mode():  # another path: in place, in parts of the rows
        assert_close(mine(**given)[0], found[0], TOLERANCE[dtype], "inference")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("head", HEADS[1:])
def test_logits_losses_and_gradients_are_those_of_transformers(tmp_path, head, pooling, dtype):
    theirs, mine = pair(head, tmp_path, dtype, classifier_pooling=pooling, **BIASES)
    padding = "none" if head == "ForQuestionAnswering" else "right"  # there padding competes
    given = with_labels(head, inputs(17, padding))
    found, expected = mine(**given), theirs(**given)
    if head == "ForMaskedLM":  # transformers takes the loss in float32
        expected.loss = F.cross_entropy(expected.logits.flatten(0, 1), given["labels"].flatten())
    assert_close(found.loss, expected.loss, TOLERANCE[dtype], "loss")
    for name in ("logits", "start_logits", "end_logits"):
        if name in found:
            a, b = found[name], expected[name]
            if a.shape[:2] == given["attention_mask"].shape and head != "ForMultipleChoice":
                a, b = (x[given["attention_mask"].bool()] for x in (a, b))
            assert_close(a, b, TOLERANCE[dtype], name)
    found.loss.backward()
    expected.loss.backward()
    assert_gradients_equal(mine, theirs, TOLERANCE[dtype])


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
def test_padding_on_the_left_changes_no_answer(head, pooling):
    model = ours(head, classifier_pooling=pooling).double()
    n = 12
    ids = torch.randint(3, 40, (2, n))
    shape = (1, 2) if head == "ForMultipleChoice" else (2,)
    padded = F.pad(ids, (5, 0), value=1)
    mask = F.pad(torch.ones_like(ids), (5, 0))
    with torch.no_grad():
        alone = model(input_ids=ids.view(*shape, n)).logits
        found = model(
            input_ids=padded.view(*shape, n + 5), attention_mask=mask.view(*shape, n + 5)
        ).logits
    assert_close(found, alone, 1e-12, "logits")


def test_positions_and_embeddings_may_be_given():
    theirs = modernbert().double()
    mine = ours().double()
    mine.load_state_dict(theirs.state_dict())
    given = inputs(19, "right")
    places = torch.randint(0, 50, (1, 19))
    embeds = torch.randn(4, 19, 16).double()
    real = given["attention_mask"].bool()
    for kwargs in (
        given | {"position_ids": places},
        {"inputs_embeds": embeds, "attention_mask": given["attention_mask"]},
    ):
        a, b = (model(**kwargs).last_hidden_state[real] for model in (mine, theirs))
        assert_close(a, b, 1e-9, "states")
    # What transformers counts from the first column differs by rounding alone.
    given = inputs(19, "left")
    real = given["attention_mask"].bool()
    a, b = (model(**given).last_hidden_state[real] for model in (mine, theirs))
    assert_close(a, b, 1e-5, "states")


def test_dropout_is_that_of_the_config_and_layers_are_computed_again_with_it():
    rates = dict.fromkeys(
        ("attention_dropout", "mlp_dropout", "embedding_dropout", "classifier_dropout"), 0.5
    )
    model = ours("ForTokenClassification", **rates).train()
    given = with_labels("ForTokenClassification", inputs(21, "right"))

    def run():
        torch.manual_seed(3)
        model.zero_grad()
        loss = model(**given).loss
        loss.backward()
        return loss, [p.grad.clone() for p in model.parameters()]

    plain, gradients = run()
    checkpoint_layers(model)
    again, others = run()
    assert torch.equal(plain, again)
    assert all(map(torch.equal, gradients, others))
    assert model.eval()(**given).loss != plain


def test_bfloat16_is_as_near_to_float32_as_transformers():
    theirs = modernbert(num_hidden_layers=2)
    mine = ours(num_hidden_layers=2)
    mine.load_state_dict(theirs.state_dict())
    given = inputs(40, "none")
    exact_states = theirs(**given)[0]

    def error(model):
        with torch.no_grad():
            return (model.bfloat16()(**given)[0].float() - exact_states).square().mean()

    assert error(mine) < 1.5 * error(theirs)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"input_ids": torch.full((1, 65), 5)},
            "65 tokens, the model's longest input holds 64; ldt convert",
        ),
        ({"input_ids": torch.tensor([[40]])}, "must be 0 to 39, got 40"),
        ({"input_ids": torch.tensor([[4]]), "output_attentions": True}, "no output_attentions"),
    ],
)
def test_inputs_that_are_not_computed_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        ours()(**given)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"local_attention": 1}, "local_attention must be at least 2"),
        ({"full_attention_window": 7}, "full_attention_window must be even"),
        ({"hidden_size": 18, "num_attention_heads": 6}, "an even number"),
        ({"head_dim": 4}, "head_dim must be"),
        ({"hidden_activation": "gulu"}, "hidden_activation must be .*gelu"),
        ({"attention_backend": "cuda"}, "attention_backend must be auto"),
        ({"pad_token_id": None}, "pad_token_id must be an id"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type must be default, linear, yarn, llama3, got 'dynamic'",
        ),
    ],
)
def test_configs_that_are_not_computed_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        ours(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("clips", [False, True])
def test_compiled_it_computes_the_same(clips):
    changes = {"full_attention_window": 8, "global_layers": "all", "num_hidden_layers": 2}
    model = ours(clip_global_distances=clips, **changes)
    given = inputs(16, "right")
    given["global_attention_mask"] = torch.zeros_like(given["input_ids"])
    given["global_attention_mask"][:, 3] = 1
    compiled = torch.compile(model, backend="eager", fullgraph=not clips)
    found, expected = compiled(**given)[0], model(**given)[0]
    assert_close(found, expected, 1e-5, "states")
    readout(found).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    readout(expected).backward()
    for gradient, p in zip(gradients, model.parameters(), strict=True):
        assert_close(gradient, p.grad, 1e-4, "gradients")
