"""The heads that answer questions, against hand computations in float64."""

import math

import pytest
import torch
from longformers import ldt_config, ldt_model

from ldt import model as models
from ldt.model.heads.questions import LABELS, POSITIONS

REAL = [12, 9]  # tokens of the two rows
GOLD = {
    "start_positions": [[5, 9], [0, -100]],
    "end_positions": [[6, 9], [0, -100]],
    "labels": [0, 2],
    "passage_labels": [[0, 1, 0], [0, 0, -100]],
    "sentence_labels": [[1, 0], [-100, -100]],
}
PLACES = {
    "passage_positions": [[4, 6, 10], [4, 7, -100]],
    "sentence_positions": [[2, 8], [2, -100]],
}
MARKED = {"passages": "passage", "sentences": "sentence"}
HEADS = ("ForEvidenceClassification", "ForPassageAnswering", "ForEvidenceAnswering")
of_each_head = pytest.mark.parametrize("head", HEADS)
by_each_loss = pytest.mark.parametrize("how", ["each", "one"])


def batch(head, **changes):
    """Two rows with the labels of a head's parts, as the collator makes them."""
    mask = (torch.arange(12) < torch.tensor(REAL)[:, None]).long()
    ids = torch.randint(3, 40, (2, 12)).masked_fill(mask == 0, 1)
    is_global = (torch.arange(12) < 3).long().expand(2, 12)
    inputs = {"input_ids": ids, "attention_mask": mask, "global_attention_mask": is_global}
    values = GOLD | PLACES | changes
    parts = getattr(models, f"Ldt{head}").parts
    names = [name for part in parts for name in (*LABELS[part], POSITIONS.get(part)) if name]
    return inputs | {name: torch.tensor(values[name]) for name in names}


def model_of(head, **changes):
    torch.manual_seed(0)
    return ldt_model(head, **changes).double()


def unlikely(logits, right):
    """-log of the sum of probabilities at some places."""
    total = math.log(sum(math.exp(x) for x in logits))
    return total - math.log(sum(math.exp(logits[place]) for place in right))


def marked_by_hand(logits, labels, how):
    """The loss of the labels at markers: ``each`` by itself, or ``one`` of a row is right."""
    rows = [
        [(x, label) for x, label in zip(*pair, strict=True) if label >= 0]
        for pair in zip(logits.tolist(), labels, strict=True)
    ]
    losses = [math.log1p(math.exp(-x if label else x)) for row in rows for x, label in row]
    if how == "one":
        right = [[n for n, (_, label) in enumerate(row) if label] or [len(row)] for row in rows]
        pairs = zip(rows, right, strict=True)
        losses = [unlikely([*(x for x, _ in row), 0.0], places) for row, places in pairs]
    return sum(losses) / len(losses)


def by_hand(found, parts, how):
    """The losses of GOLD by the names of the parts."""
    losses = {}
    if "span" in parts:
        sides = []
        for side in ("start", "end"):
            golds = GOLD[f"{side}_positions"]
            rows = zip(found[f"{side}_logits"].tolist(), REAL, golds, strict=True)
            sides += [unlikely(row[:n], [at for at in right if at >= 0]) for row, n, right in rows]
        losses["span"] = sum(sides) / 4
    if "class" in parts:
        rows = zip(found.logits.tolist(), GOLD["labels"], strict=True)
        losses["class"] = sum(unlikely(row, [right]) for row, right in rows) / 2
    for part, one in MARKED.items():
        if part in parts:
            labels, rule = GOLD[f"{one}_labels"], how if part == "passages" else "each"
            losses[part] = marked_by_hand(found[f"{one}_logits"], labels, rule)
    return losses


@by_each_loss
@of_each_head
def test_the_loss_is_that_of_a_computation_by_hand(head, how):
    model = model_of(head, passage_loss=how)
    inputs = batch(head)
    found = model(**inputs)
    losses = by_hand(found, model.parts, how)
    assert found.loss.item() == pytest.approx(sum(losses.values()), rel=1e-9)
    model.config.evidence_weights = {"class": 0.1, "span": 3.0}  # 1 where one is not named
    want = sum(model.config.evidence_weights.get(part, 1) * x for part, x in losses.items())
    assert model(**inputs).loss.item() == pytest.approx(want, rel=1e-9)


@by_each_loss
@of_each_head
def test_the_gradient_is_that_of_finite_differences(head, how):
    model, step = model_of(head, passage_loss=how), 1e-6
    inputs = batch(head)
    model(**inputs).loss.backward()
    names = {name for name, x in model.named_parameters() if x.grad is not None}
    assert names == {name for name, _ in model.named_parameters()}
    tried = ("qa_outputs.weight", "classifier.dense.weight", "passage_classifier.dense.bias")
    for name in names.intersection((*tried, "sentence_classifier.dense.bias")):
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


@by_each_loss
@pytest.mark.parametrize("part", LABELS)
def test_a_loss_of_what_has_no_label_is_zero_and_so_is_its_gradient(part, how):
    head = "ForEvidenceAnswering"
    model = model_of(head, passage_loss=how)
    model.config.evidence_weights = dict.fromkeys(LABELS, 0.0) | {part: 1.0}
    nothing = {name: torch.tensor(GOLD[name]).fill_(-100).tolist() for name in LABELS[part]}
    loss = model(**batch(head, **nothing)).loss
    assert loss.item() == 0
    loss.backward()
    assert all(not parameter.grad.any() for parameter in model.parameters())


@of_each_head
def test_a_row_answers_the_same_alone_and_without_golds(head):
    model, inputs = model_of(head), batch(head)
    with torch.no_grad():
        together = model(**inputs)
        alone = {name: x[1:, : REAL[1]] for name, x in inputs.items() if name not in GOLD}
        places = {name: x[x >= 0][None] for name, x in alone.items() if name in PLACES}
        row = model(**alone | places)
    assert row.loss is None
    for name, values in row.items():
        both = together[name][1:, : values.shape[1]]
        torch.testing.assert_close(both, values, rtol=1e-10, atol=1e-10)
        assert (together[name][1:, values.shape[1] :] == torch.finfo(torch.float64).min).all()


def test_each_score_is_read_at_its_token():
    model, inputs = model_of("ForEvidenceAnswering"), batch("ForEvidenceAnswering")
    with torch.no_grad():
        found = model(**inputs)
        given = {name: inputs[name] for name in inputs if name.endswith(("_ids", "_mask"))}
        x = model.longformer(**given).last_hidden_state
        torch.testing.assert_close(found.logits, model.classifier(x[:, 0]))
        torch.testing.assert_close(found.end_logits[0], model.qa_outputs(x[0])[:, 1])
        for name in MARKED.values():
            dense, out = model.get_submodule(f"{name}_classifier").children()
            places = PLACES[f"{name}_positions"][0]
            want = out(torch.nn.functional.gelu(dense(x[0, places]))).flatten()
            torch.testing.assert_close(found[f"{name}_logits"][0], want)


@by_each_loss
def test_inputs_without_any_passage_have_a_finite_loss(how):
    model, inputs = model_of(HEADS[2], passage_loss=how), batch(HEADS[2])
    inputs |= {name: x[:, :0] for name, x in inputs.items() if name.startswith(("pass", "sent"))}
    found = model(**inputs)
    assert found.passage_logits.shape == found.sentence_logits.shape == (2, 0)
    assert math.isfinite(found.loss.item())


def test_half_precision_gives_a_finite_loss():
    model = model_of("ForEvidenceAnswering").bfloat16()
    loss = model(**batch("ForEvidenceAnswering")).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@of_each_head
def test_positions_are_needed_and_inside(head):
    model, inputs = model_of(head), batch(head)
    with pytest.raises(ValueError, match="positions must be below the input's length 12, got 12"):
        model(**batch(head, passage_positions=[[4, 6, 12], [7, -100, -100]]))
    del inputs["passage_positions"]
    with pytest.raises(ValueError, match="give passage_positions, the marker of each"):
        model(**inputs)


def test_without_a_mask_the_question_is_global():
    model, inputs = model_of(HEADS[1]), batch(HEADS[1])
    inputs["input_ids"][:, 3] = model.config.sep_token_id
    with torch.no_grad():
        marked = model(**inputs).logits
        del inputs["global_attention_mask"]
        torch.testing.assert_close(model(**inputs).logits, marked)


@of_each_head
def test_a_model_comes_back_from_its_folder(head, tmp_path):
    cls = getattr(models, f"Ldt{head}")
    model = cls(ldt_config(passage_loss="one", evidence_weights={"class": 0.5}))
    model.save_pretrained(tmp_path)
    again = cls.from_pretrained(tmp_path)
    assert again.new_weights == ()
    assert (again.config.passage_loss, again.config.evidence_weights) == ("one", {"class": 0.5})
