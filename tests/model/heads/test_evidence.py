"""The head that answers with evidence, against hand computations in float64."""

import math

import pytest
import torch
from longformers import ldt_config, ldt_model

from ldt.model import LdtForEvidenceAnswering

GOLD = {
    "start_positions": [[5, 9], [4, -100]],
    "end_positions": [[6, 9], [5, -100]],
    "labels": [0, 2],
    "paragraph_labels": [[1, 0], [1, -100]],
    "sentence_labels": [[0, 1, 0], [1, -100, -100]],
}
PLACES = {
    "paragraph_positions": [[2, 8], [2, -100]],
    "sentence_positions": [[4, 6, 10], [7, -100, -100]],
}


def batch(**changes):
    """Two rows of 12 and 9 tokens with the golds, as the collator makes them."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    ids = torch.randint(3, 40, (2, 12)).masked_fill(mask == 0, 1)
    is_global = torch.zeros_like(mask)
    is_global[:, :3] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "global_attention_mask": is_global}
    values = {name: torch.tensor(rows) for name, rows in (GOLD | PLACES | changes).items()}
    return inputs | values


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ldt_model("ForEvidenceAnswering").double()


def log_or(logits, places):
    """-log of the sum of probabilities at some places."""
    total = math.log(sum(math.exp(x) for x in logits))
    return total - math.log(sum(math.exp(logits[place]) for place in places))


def binary(logit, label):
    return math.log1p(math.exp(-logit if label else logit))


def test_the_loss_is_that_of_a_computation_by_hand(model):
    inputs = batch()
    found = model(**inputs)
    real = [12, 9]
    sides = []
    for logits, gold in ((found.start_logits, "start"), (found.end_logits, "end")):
        rows = zip(logits.tolist(), real, GOLD[f"{gold}_positions"], strict=True)
        each = [log_or(row[:n], [at for at in right if at >= 0]) for row, n, right in rows]
        sides.append(sum(each) / 2)
    kinds = found.type_logits.tolist()
    kind = sum(log_or(row, [right]) for row, right in zip(kinds, GOLD["labels"], strict=True)) / 2
    evidence = {}
    for name in ("paragraph", "sentence"):
        logits = found[f"{name}_logits"].flatten().tolist()
        labels = sum(GOLD[f"{name}_labels"], [])
        each = [binary(x, y) for x, y in zip(logits, labels, strict=True) if y >= 0]
        evidence[name] = sum(each) / len(each)
    losses = [sum(sides) / 2, kind, evidence["paragraph"], evidence["sentence"]]
    assert found.loss.item() == pytest.approx(sum(losses), rel=1e-9)
    weights = {"span": 0.5, "type": 2.0, "paragraphs": 3.0}
    model.config.evidence_weights = weights  # 1 where one is not named
    want = 0.5 * losses[0] + 2 * losses[1] + 3 * losses[2] + losses[3]
    assert model(**inputs).loss.item() == pytest.approx(want, rel=1e-9)


def test_the_gradient_is_that_of_finite_differences(model):
    inputs = batch()
    model(**inputs).loss.backward()
    step = 1e-6
    for name in (
        "qa_outputs.weight",
        "type_classifier.dense.weight",
        "sentence_classifier.dense.bias",
    ):
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
    unused = [name for name, x in model.named_parameters() if x.grad is None]
    assert not unused


@pytest.mark.parametrize("lacking", list(GOLD))
def test_a_loss_of_what_has_no_label_is_zero_and_so_is_its_gradient(model, lacking):
    nothing = torch.full_like(torch.tensor(GOLD[lacking]), -100).tolist()
    both = ["start_positions", "end_positions"]
    changes = dict.fromkeys(both, nothing) if lacking in both else {lacking: nothing}
    name = {"labels": "type", "paragraph_labels": "paragraphs", "sentence_labels": "sentences"}
    own = name.get(lacking, "span")
    model.config.evidence_weights = dict.fromkeys(["span", "type", "paragraphs", "sentences"], 0.0)
    model.config.evidence_weights[own] = 1.0
    found = model(**batch(**changes))
    assert found.loss.item() == 0
    found.loss.backward()
    assert all(not parameter.grad.any() for parameter in model.parameters())


def test_what_is_not_there_has_the_least_number(model):
    found, least = model(**batch()), torch.finfo(torch.float64).min
    assert (found.paragraph_logits == least).tolist() == [[False, False], [False, True]]
    assert (found.sentence_logits[1] == least).tolist() == [False, True, True]
    assert (found.start_logits[1] == least).tolist() == [False] * 9 + [True] * 3
    assert found.type_logits.shape == (2, 3)


def test_each_answer_is_read_at_its_token(model):
    inputs = batch()
    with torch.no_grad():
        found = model(**inputs)
        given = {name: inputs[name] for name in inputs if name.endswith(("_ids", "_mask"))}
        x = model.longformer(**given).last_hidden_state
        torch.testing.assert_close(found.type_logits, model.type_classifier(x[:, 0]))
        torch.testing.assert_close(found.end_logits[0], model.qa_outputs(x[0])[:, 1])
        for name in ("paragraph", "sentence"):
            dense, out = model.get_submodule(f"{name}_classifier").children()
            for row, places in enumerate(PLACES[f"{name}_positions"]):
                for column, place in enumerate(place for place in places if place >= 0):
                    hidden = torch.nn.functional.gelu(dense(x[row, place]))
                    want = out(hidden).squeeze()
                    torch.testing.assert_close(found[f"{name}_logits"][row, column], want)


def test_a_row_answers_the_same_alone_and_without_golds(model):
    inputs = batch()
    with torch.no_grad():
        together = model(**inputs)
        alone = {name: values[1:] for name, values in inputs.items() if name not in GOLD}
        length = {"input_ids": 9, "attention_mask": 9, "global_attention_mask": 9}
        length |= {"paragraph_positions": 1, "sentence_positions": 1}
        row = model(**{name: values[:, : length[name]] for name, values in alone.items()})
    assert row.loss is None
    for name, values in row.items():
        both = together[name][1:, : values.shape[1]]
        torch.testing.assert_close(both, values, rtol=1e-10, atol=1e-10)


def test_an_input_without_any_sentence_has_no_evidence(model):
    nowhere = {"sentence_positions": [[], []], "sentence_labels": [[], []]}
    inputs = batch()
    inputs |= {name: torch.empty(2, 0, dtype=torch.long) for name in nowhere}
    found = model(**inputs)
    assert found.sentence_logits.shape == (2, 0)
    assert math.isfinite(found.loss.item())


def test_half_precision_gives_a_finite_loss():
    torch.manual_seed(0)
    model = ldt_model("ForEvidenceAnswering").bfloat16()
    loss = model(**batch()).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_positions_are_needed_and_inside(model):
    inputs = batch()
    with pytest.raises(ValueError, match="positions must be below the input's length 12, got 12"):
        model(**batch(sentence_positions=[[4, 6, 12], [7, -100, -100]]))
    del inputs["paragraph_positions"]
    with pytest.raises(ValueError, match="give paragraph_positions and sentence_positions"):
        model(**inputs)


def test_a_model_comes_back_from_its_folder(tmp_path):
    model = LdtForEvidenceAnswering(ldt_config(evidence_weights={"type": 0.5}))
    model.save_pretrained(tmp_path)
    again = LdtForEvidenceAnswering.from_pretrained(tmp_path)
    assert again.new_weights == ()
    assert again.config.evidence_weights == {"type": 0.5}
