"""The heads that score passages at their markers, against hand computations in float64."""

import math

import pytest
import torch
from longformers import ldt_config, ldt_model

from ldt.model import LdtForPassageAnswering
from ldt.model.heads.markers import one_passage_loss

GOLD = {
    "start_positions": [[5, 9], [0, -100]],
    "end_positions": [[6, 9], [0, -100]],
    "labels": [0, 2],
    "passage_labels": [[0, 1, 0], [0, 0, -100]],
}
PLACES = [[4, 6, 10], [4, 7, -100]]
SPANS = ("start_positions", "end_positions")


def batch(head="ForPassageAnswering", **changes):
    """Two rows of 12 and 9 tokens with the golds, as the collator makes them."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    ids = torch.randint(3, 40, (2, 12)).masked_fill(mask == 0, 1)
    is_global = torch.zeros_like(mask)
    is_global[:, :3] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "global_attention_mask": is_global}
    values = GOLD | {"passage_positions": PLACES} | changes
    if head != "ForPassageAnswering":
        values = {name: value for name, value in values.items() if name not in SPANS}
    return inputs | {name: torch.tensor(rows) for name, rows in values.items()}


def model_of(head, **changes):
    torch.manual_seed(0)
    return ldt_model(head, **changes).double()


def unlikely(logits, right):
    """-log of the sum of probabilities at some places."""
    total = math.log(sum(math.exp(x) for x in logits))
    return total - math.log(sum(math.exp(logits[place]) for place in right))


def passages_by_hand(found, how):
    """The loss of the passages of GOLD."""
    rows = [
        [(x, label) for x, label in zip(*pair, strict=True) if label >= 0]
        for pair in zip(found.passage_logits.tolist(), GOLD["passage_labels"], strict=True)
    ]
    if how == "one":
        right = [[n for n, (_, label) in enumerate(row) if label] or [len(row)] for row in rows]
        losses = [
            unlikely([*(x for x, _ in row), 0.0], places)
            for row, places in zip(rows, right, strict=True)
        ]
    else:
        losses = [math.log1p(math.exp(-x if label else x)) for row in rows for x, label in row]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("how", ["each", "one"])
@pytest.mark.parametrize("head", ["ForEvidenceClassification", "ForPassageAnswering"])
def test_the_loss_is_that_of_a_computation_by_hand(head, how):
    model = model_of(head, passage_loss=how)
    inputs = batch(head)
    found = model(**inputs)
    kinds = zip(found.logits.tolist(), GOLD["labels"], strict=True)
    losses = {"class": sum(unlikely(row, [right]) for row, right in kinds) / 2}
    losses["passages"] = passages_by_hand(found, how)
    if head == "ForPassageAnswering":
        sides = []
        for logits, gold in zip((found.start_logits, found.end_logits), SPANS, strict=True):
            rows = zip(logits.tolist(), (12, 9), GOLD[gold], strict=True)
            each = [unlikely(row[:n], [at for at in right if at >= 0]) for row, n, right in rows]
            sides.append(sum(each) / 2)
        losses["span"] = sum(sides) / 2
    assert found.loss.item() == pytest.approx(sum(losses.values()), rel=1e-9)
    model.config.evidence_weights = {"class": 0.1, "span": 3.0}  # 1 where one is not named
    want = losses["passages"] + 0.1 * losses["class"] + 3 * losses.get("span", 0)
    assert model(**inputs).loss.item() == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("how", ["each", "one"])
def test_the_gradient_is_that_of_finite_differences(how):
    model = model_of("ForPassageAnswering", passage_loss=how)
    inputs, step = batch(), 1e-6
    model(**inputs).loss.backward()
    for name in ("qa_outputs.weight", "classifier.dense.weight", "passage_classifier.dense.bias"):
        weight = model.get_parameter(name)
        place = tuple(0 for _ in weight.shape)
        sides = []
        with torch.no_grad():
            for sign in (1, -1):
                weight[place] += sign * step
                sides.append(model(**inputs).loss.item())
                weight[place] -= sign * step
        want = (sides[0] - sides[1]) / (2 * step)
        assert weight.grad[place].item() == pytest.approx(want, rel=1e-5, abs=1e-8)
    assert not [name for name, x in model.named_parameters() if x.grad is None]


@pytest.mark.parametrize("how", ["each", "one"])
@pytest.mark.parametrize("lacking", ["labels", "passage_labels"])
def test_a_loss_of_what_has_no_label_is_zero_and_so_is_its_gradient(lacking, how):
    model = model_of("ForEvidenceClassification", passage_loss=how)
    nothing = torch.full_like(torch.tensor(GOLD[lacking]), -100).tolist()
    own = {"labels": "class", "passage_labels": "passages"}[lacking]
    model.config.evidence_weights = {"class": 0.0, "passages": 0.0} | {own: 1.0}
    loss = model(**batch("ForEvidenceClassification", **{lacking: nothing})).loss
    assert loss.item() == 0
    loss.backward()
    assert all(not parameter.grad.any() for parameter in model.parameters())


def test_where_one_passage_is_right_its_logit_is_how_much_likelier_it_is_than_none():
    logits = torch.tensor([[2.0, -1.0]]).double().requires_grad_()
    one_passage_loss(logits, torch.tensor([[1, 0]]), torch.tensor([[3, 8]])).backward()
    total = math.exp(2) + math.exp(-1) + 1  # of none
    want = [math.exp(2) / total - 1, math.exp(-1) / total]
    assert logits.grad[0].tolist() == pytest.approx(want)


@pytest.mark.parametrize("head", ["ForEvidenceClassification", "ForPassageAnswering"])
def test_a_row_answers_the_same_alone_and_without_golds(head):
    model, inputs = model_of(head), batch(head)
    with torch.no_grad():
        together = model(**inputs)
        alone = {name: values[1:, :9] for name, values in inputs.items() if name not in GOLD}
        row = model(**alone | {"passage_positions": torch.tensor([[4, 7]])})
    assert row.loss is None
    for name, values in row.items():
        torch.testing.assert_close(values, together[name][1:, : values.shape[1]])
    assert together.passage_logits[1, 2] == torch.finfo(torch.float64).min


def test_each_score_is_read_at_its_token():
    model, inputs = model_of("ForPassageAnswering"), batch()
    with torch.no_grad():
        found = model(**inputs)
        given = {name: inputs[name] for name in inputs if name.endswith(("_ids", "_mask"))}
        x = model.longformer(**given).last_hidden_state
        torch.testing.assert_close(found.logits, model.classifier(x[:, 0]))
        torch.testing.assert_close(found.start_logits[0], model.qa_outputs(x[0])[:, 0])
        dense, out = model.passage_classifier.children()
        want = out(torch.nn.functional.gelu(dense(x[0, PLACES[0]]))).flatten()
        torch.testing.assert_close(found.passage_logits[0], want)


@pytest.mark.parametrize("how", ["each", "one"])
def test_inputs_without_any_passage_have_a_finite_loss(how):
    model, inputs = model_of("ForPassageAnswering", passage_loss=how), batch()
    inputs |= dict.fromkeys(("passage_positions", "passage_labels"), torch.empty(2, 0).long())
    found = model(**inputs)
    assert found.passage_logits.shape == (2, 0)
    assert math.isfinite(found.loss.item())


def test_positions_are_needed_and_inside():
    model, inputs = model_of("ForPassageAnswering"), batch()
    with pytest.raises(ValueError, match="positions must be below the input's length 12, got 12"):
        model(**batch(passage_positions=[[4, 6, 12], [7, -100, -100]]))
    del inputs["passage_positions"]
    with pytest.raises(ValueError, match="give passage_positions"):
        model(**inputs)


def test_a_model_comes_back_from_its_folder(tmp_path):
    model = LdtForPassageAnswering(ldt_config(passage_loss="one"))
    model.save_pretrained(tmp_path)
    again = LdtForPassageAnswering.from_pretrained(tmp_path)
    assert again.new_weights == ()
    assert again.config.passage_loss == "one"
