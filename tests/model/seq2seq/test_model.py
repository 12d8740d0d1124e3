"""The encoder-decoder where transformers' LED has nothing to compare with, or is wrong."""

import pytest
import torch
from leds import TABLE, documents, led_config, pair, targets
from longformers import gradients
from peers import assert_close

from ldt.model import LdtForConditionalGeneration, LdtSeq2SeqConfig
from ldt.model.base import pack
from ldt.model.pooling import SecondLevel
from ldt.model.seq2seq.decoder import groups_of

LENGTHS = (7, 9, 1, 4)


def model(**changes):
    """A random model in float64; the gates of a second level are open."""
    config = LdtSeq2SeqConfig.from_dict(led_config().to_dict() | changes)
    made = LdtForConditionalGeneration(config).double().eval()
    for module in made.modules():
        if isinstance(module, SecondLevel) and module.gate is not None:
            torch.nn.init.normal_(module.gate, std=0.01)
    return made


def part(inputs, rows):
    return {key: x if x is None else x[rows] for key, x in inputs.items()}


@pytest.mark.parametrize("steps", [1, 4, 8])
def test_batches_of_a_step_have_the_loss_and_gradients_of_one(steps):
    ours = model()
    inputs = {
        key: torch.cat([x, x.flip(0)]) if x is not None else None
        for key, x in documents(21, "right").items()
    }
    labels = targets((7, 9, 1, 4, 2, 2, 8, 5))
    whole = ours(**inputs, labels=labels).loss
    whole.backward()
    expected = gradients(ours)
    expected = {name: gradient.clone() for name, gradient in expected.items()}
    ours.zero_grad()
    count = sum(ours.loss_items(labels=some) for some in labels.chunk(steps))
    assert count == 38
    losses = []
    for rows in torch.arange(8).chunk(steps):
        given = part(inputs, rows) | {"labels": labels[rows]}
        losses.append(ours(**given, num_items_in_batch=count).loss)
        losses[-1].backward()
    assert_close(sum(losses), whole, 1e-12, "loss")
    norms = [
        torch.stack([x.norm() for x in found.values()]).norm()
        for found in (gradients(ours), expected)
    ]
    assert_close(*norms, 1e-12, "norm of the gradient")
    for name, gradient in expected.items():
        assert_close(gradients(ours)[name], gradient, 1e-12, name, scale=1.0)


def test_a_row_of_padding_alone_is_finite_and_changes_no_other():
    ours = model()
    inputs, labels = documents(20, "row"), targets(LENGTHS)
    labels[1] = -100
    out = ours(**inputs, labels=labels)
    assert out.logits.isfinite().all()
    out.loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(ours).values())
    rows = torch.tensor([0, 2, 3])
    others = ours(**part(inputs, rows), labels=labels[rows])
    assert_close(out.logits[rows], others.logits, 1e-12, "logits")


def test_a_document_of_padding_alone_is_one_token_that_can_be_seen():
    mask = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]])
    groups = groups_of(pack((3, 4), mask))
    assert [(group.documents, group.length) for group in groups] == [(1, 3), (1, 1), (1, 4)]
    seen = [group.mask.flatten().tolist() for group in groups]
    assert seen == [[True, False, True], [True], [True, True, False, True]]


def test_left_padding_changes_nothing():
    ours = model()
    inputs, labels = documents(21), targets(LENGTHS)
    padded = {
        "input_ids": torch.nn.functional.pad(inputs["input_ids"], (5, 0), value=1),
        "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (5, 0)),
    }
    found, expected = ours(**padded, labels=labels), ours(**inputs, labels=labels)
    assert_close(found.logits, expected.logits, 1e-12, "logits")
    assert_close(
        found.encoder_last_hidden_state[:, 5:], expected.encoder_last_hidden_state, 1e-12, "states"
    )
    # an input may be as long as the table, whatever the padding before it
    long = {
        "input_ids": torch.full((1, 70), 7).index_fill(1, torch.arange(6), 1),
        "attention_mask": torch.ones(1, 70).index_fill(1, torch.arange(6), 0).long(),
    }
    assert ours(**long, labels=labels[:1]).loss.isfinite()


def test_without_a_mask_the_first_real_token_is_global():
    ours = model()
    for padding in ("none", "left"):
        inputs, labels = documents(33, padding), targets(LENGTHS)
        first = inputs["attention_mask"].argmax(1, keepdim=True)
        chosen = torch.zeros_like(inputs["input_ids"]).scatter(1, first, 1)
        default = ours(**inputs, labels=labels).logits
        for mask, same in ((chosen, True), (torch.zeros_like(chosen), False)):
            found = ours(**inputs | {"global_attention_mask": mask}, labels=labels).logits
            assert torch.equal(found, default) == same


def test_minus_one_at_padding_is_no_global_token_and_elsewhere_an_error():
    ours = model()
    inputs, labels = documents(21, "right", "one"), targets(LENGTHS)
    expected = ours(**inputs, labels=labels).logits
    padding = inputs["attention_mask"] == 0
    marked = inputs["global_attention_mask"].masked_fill(padding, -1)
    assert torch.equal(
        ours(**inputs | {"global_attention_mask": marked}, labels=labels).logits, expected
    )
    with pytest.raises(ValueError, match="must hold 0, 1 or 2, got -1 in row 0"):
        ours(**inputs | {"global_attention_mask": marked - 1}, labels=labels)


def test_a_packing_made_before_stands_for_the_masks():
    ours = model()
    inputs, labels = documents(33, "mixed", "some"), targets(LENGTHS)
    masks = inputs["attention_mask"], inputs["global_attention_mask"]
    packing = pack((4, 33), *masks)
    found = ours(inputs["input_ids"], packing=packing, labels=labels)
    assert torch.equal(found.logits, ours(**inputs, labels=labels).logits)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"n": 65}, "input has 65 tokens, the encoder's position table holds 64"),
        ({"t": TABLE + 1}, "output has 25 tokens, the decoder's position table holds 24"),
        ({"labels": None}, "give decoder_input_ids, or labels"),
        ({"output_attentions": True}, "no output_attentions"),
        ({"decoder_attention_mask": torch.ones(4, 2)}, r"must be \[4, 3\].*got \[4, 2\]"),
        ({"input_ids": torch.full((4, 9), 40)}, "input_ids must be 0 to 39, got 40"),
        ({"decoder_input_ids": torch.full((4, 3), 41)}, "decoder_input_ids must be 0 to 39"),
        ({"labels": None, "decoder_input_ids": torch.ones(6, 3).long()}, "6 rows .* 4 documents"),
        ({"attention_mask": torch.ones(4, 8)}, "attention_mask must have the input's shape"),
        ({"input_ids": None}, "give either input_ids or inputs_embeds"),
        ({"past_key_values": ()}, "past_key_values must be what this model returns"),
    ],
    ids=str,
)
def test_a_wrong_input_is_an_error_that_says_what_is_wrong(inputs, message):
    n, t = inputs.pop("n", 9), inputs.pop("t", 3)
    given = documents(n) | {"labels": torch.ones(4, t, dtype=torch.long)}
    with pytest.raises(ValueError, match=message):
        model()(**given | inputs)


@pytest.mark.parametrize("typo", ["label", "global_attention", "num_items"])
def test_an_unknown_keyword_is_an_error(typo):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{typo}'"):
        model()(**documents(9), labels=targets(LENGTHS), **{typo: torch.ones(4)})


def test_dropout_drops_in_both_halves_and_only_in_training():
    ours = model(dropout=0.5, activation_dropout=0.5, attention_dropout=0.5)
    inputs, labels = documents(21, "right"), targets(LENGTHS)
    expected = ours(**inputs, labels=labels)
    ours.train()
    seeded = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        seeded.append(ours(**inputs, labels=labels))
    assert torch.equal(seeded[0].logits, seeded[1].logits)
    for name in ("logits", "encoder_last_hidden_state"):
        assert not torch.equal(seeded[0][name], seeded[2][name])
        assert not torch.equal(seeded[0][name], expected[name])
    seeded[2].loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(ours).values())


POOLED = {"pooling_layers": [1], "pooling_window": 16, "pooling_size": 3, "pooling_stride": 2}


@pytest.mark.parametrize("gate", [True, False])
def test_a_second_level_equals_its_definition(gate):
    ours = model(**POOLED, pooling_gate=gate)
    other = model(**POOLED, pooling_gate=gate, attention_backend="reference")
    other.load_state_dict(ours.state_dict())
    inputs, labels = documents(33, "mixed"), targets(LENGTHS)
    found, expected = (x(**inputs, labels=labels) for x in (ours, other))
    assert_close(found.logits, expected.logits, 1e-12, "logits")
    found.loss.backward()
    expected.loss.backward()
    assert_gradients(ours, gradients(other))
    assert any("pooled" in name for name in gradients(ours))


def assert_gradients(ours, expected):
    for name, gradient in gradients(ours).items():
        assert_close(gradient, expected[name], 1e-10, name, scale=1.0)


def test_autocast_keeps_close_to_full_precision(tmp_path):
    _, ours = pair(tmp_path, torch.float32)
    inputs, labels = documents(33, "mixed"), targets(LENGTHS)
    expected = ours(**inputs, labels=labels).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = ours(**inputs, labels=labels).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert_close(loss, expected, 0.05, "loss")
    assert all(gradient.isfinite().all() for gradient in gradients(ours).values())
