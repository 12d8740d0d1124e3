"""Answers that are written with evidence: the loss is transformers' LED's and one by hand."""

import pytest
import torch
import transformers
from leds import documents, led, led_config, targets
from longformers import reconfigured

from ldt.errors import ModelError
from ldt.model import LdtForConditionalGeneration, LdtForEvidenceGeneration, LdtSeq2SeqConfig, load

NONE = -100
POSITIONS = torch.tensor(
    [[3, 7, 12, 18], [2, 9, NONE, NONE], [4, 5, 6, NONE], [1, NONE, NONE, NONE]]
)
LABELS = torch.tensor([[0, 1, 0, 0], [1, 0, NONE, NONE], [0, 0, NONE, NONE], [NONE] * 4])


@pytest.fixture
def both(tmp_path):
    """A random LED of transformers, and ours of the same file with random evidence."""
    theirs = led()
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, LdtForEvidenceGeneration, dtype=torch.float64)
    with torch.no_grad():
        ours.evidence_classifier.weight.normal_()
        ours.evidence_classifier.bias.normal_()
    return theirs.double(), ours


def inputs():
    """Four documents, padded, with the separators of their passages global, and labels."""
    torch.manual_seed(3)
    made = documents(21, "right", "one")
    made["global_attention_mask"] = torch.zeros_like(made["input_ids"])
    for row, places in enumerate(POSITIONS.tolist()):
        made["global_attention_mask"][row, [place for place in places if place >= 0]] = 1
    return made | {"labels": targets((5, 7, 6, 2))}


def by_hand(states, layer, rows=range(4)):
    """The mean over rows of a cross entropy of two classes, each weighted by the number of the
    others and one."""
    losses = []
    for row in rows:
        pairs = [
            (place, label)
            for place, label in zip(POSITIONS[row].tolist(), LABELS[row].tolist(), strict=True)
            if place >= 0 and label >= 0
        ]
        if not pairs:
            continue
        places, labels = map(list, zip(*pairs, strict=True))
        ones = sum(labels)
        weight = torch.tensor([ones + 1.0, len(labels) - ones + 1.0], dtype=torch.float64)
        logits = states[row, places] @ layer.weight.T + layer.bias
        losses.append(torch.nn.CrossEntropyLoss(weight)(logits, torch.tensor(labels)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("weights", [{}, {"passages": 0.25, "answer": 2.0}], ids=str)
def test_the_loss_is_that_of_an_led_and_of_a_classifier_at_the_separators(
    both, weights, exact_peer
):
    theirs, ours = both
    ours.config.evidence_weights = weights
    batch = inputs()
    out = theirs(**batch)
    layer = ours.evidence_classifier
    wanted = weights.get("answer", 1) * out.loss
    wanted = wanted + weights.get("passages", 1) * by_hand(out.encoder_last_hidden_state, layer)
    wanted.backward()
    of_layer = [x.grad.clone() for x in layer.parameters()]
    ours.zero_grad()
    found = ours(**batch, passage_positions=POSITIONS, passage_labels=LABELS)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(wanted.item(), rel=1e-9)
    torch.testing.assert_close(found.logits, out.logits, rtol=1e-9, atol=1e-9)
    gradients = dict(ours.named_parameters())
    for name, weight in theirs.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(gradients[name].grad, weight.grad, rtol=1e-7, atol=1e-9)
    for weight, grad in zip(layer.parameters(), of_layer, strict=True):
        torch.testing.assert_close(weight.grad, grad, rtol=1e-7, atol=1e-9)


def test_logits_are_one_class_less_the_other_and_least_where_no_passage_is(both):
    _, ours = both
    found = ours(**inputs(), passage_positions=POSITIONS)
    states = found.encoder_last_hidden_state
    logits = states[0, 7] @ ours.evidence_classifier.weight.T + ours.evidence_classifier.bias
    assert found.passage_logits[0, 1].item() == pytest.approx((logits[1] - logits[0]).item())
    assert found.passage_logits[1, 2] == torch.finfo(torch.float64).min
    assert found.loss.item() == pytest.approx(ours(**inputs()).loss.item())
    assert ours(**inputs()).passage_logits is None


def test_the_items_of_a_step_divide_both_losses(both):
    _, ours = both
    batch = inputs() | {"passage_positions": POSITIONS, "passage_labels": LABELS}
    items = ours.loss_items(**batch)
    assert items.tolist() == [20, 3]  # the last row has no labelled passage
    whole = ours(**batch).loss
    assert ours(**batch, num_items_in_batch=2 * items).loss.item() == pytest.approx(
        whole.item() / 2
    )
    parts = [{name: x[row : row + 1] for name, x in batch.items()} for row in range(4)]
    assert sum(ours.loss_items(**part) for part in parts).tolist() == items.tolist()
    total = sum(ours(**part, num_items_in_batch=items).loss for part in parts)
    assert total.item() == pytest.approx(whole.item())
    nothing = batch | {
        "labels": torch.full((4, 3), -100),
        "passage_labels": torch.full((4, 4), -100),
    }
    assert ours(**nothing).loss == 0


def test_a_folder_has_it_and_transformers_reads_its_led(both, tmp_path, exact_peer):
    _, ours = both
    ours.config.evidence_weights = {"passages": 0.5}
    ours.save_pretrained(tmp_path / "ours")
    again = load(tmp_path / "ours", LdtForEvidenceGeneration, dtype=torch.float64)
    assert again.new_weights == ()
    assert again.config.evidence_weights == {"passages": 0.5}
    weights = again.state_dict()
    assert weights["evidence_classifier.weight"].shape == (2, 16)
    assert weights["evidence_classifier.bias"].shape == (2,)
    batch = inputs() | {"passage_positions": POSITIONS, "passage_labels": LABELS}
    assert torch.equal(again(**batch).loss, ours(**batch).loss)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert type(theirs) is transformers.LEDForConditionalGeneration
    torch.testing.assert_close(theirs.double()(**inputs()).logits, ours(**inputs()).logits)
    plain = load(tmp_path / "ours", LdtForConditionalGeneration)
    assert plain.new_weights == ()


def test_what_an_encoded_document_gives_is_what_the_document_gives(both):
    _, ours = both
    batch = inputs()
    del batch["labels"]
    encoded = ours.get_encoder()(**batch)
    options = {"num_beams": 3, "max_length": 12}
    wanted = ours.generate(**batch, **options)
    assert torch.equal(ours.generate(**batch, encoder_outputs=encoded, **options), wanted)
    logits = ours.passage_logits(encoded.last_hidden_state, POSITIONS)
    ids = torch.full((4, 1), 2)
    assert torch.equal(
        logits, ours(**batch, decoder_input_ids=ids, passage_positions=POSITIONS).passage_logits
    )


def test_wrong_passages_are_refused(both):
    _, ours = both
    with pytest.raises(ValueError, match="give passage_positions, the token in front of each"):
        ours(**inputs(), passage_labels=LABELS)
    with pytest.raises(ValueError, match="below the input's length 21, got 21"):
        ours(**inputs(), passage_positions=POSITIONS + 3)


def test_a_new_classifier_is_drawn_and_announced(tmp_path, caplog):
    led().save_pretrained(tmp_path)
    model = load(tmp_path, LdtForEvidenceGeneration)
    assert model.new_weights == ("evidence_classifier.bias", "evidence_classifier.weight")
    assert "drawn at random: evidence_classifier" in caplog.text
    assert model.evidence_classifier.weight.std() > 0
    assert not model.evidence_classifier.bias.any()
    with_levels = LdtSeq2SeqConfig.from_dict(led_config().to_dict() | {"pooling_layers": [1]})
    LdtForEvidenceGeneration(with_levels).save_pretrained(tmp_path / "pooled")
    assert load(tmp_path / "pooled", LdtForEvidenceGeneration).config.pooling_layers == [1]
    reconfigured(tmp_path, evidence_weights={"passages": "much"})
    with pytest.raises(ModelError, match="config.json: .*evidence_weights"):
        load(tmp_path, LdtForEvidenceGeneration)
