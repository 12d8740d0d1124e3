"""Losses that weigh classes, against torch's own and against sums worked by hand."""

import math

import pytest
import torch
from longformers import ldt_model
from torch.nn import functional as F

from ldt.model.heads.losses import binary_cross_entropy, class_items, cross_entropy

WEIGHTS = torch.tensor([0.2, 3.0, 0.5], dtype=torch.float64)


@pytest.fixture
def classes():
    torch.manual_seed(0)
    labels = torch.tensor([0, 1, -100, 2, 2, 0, 1])
    return torch.randn(7, 3, dtype=torch.float64, requires_grad=True), labels


def test_weighted_cross_entropy_is_that_of_torch(classes):
    logits, labels = classes
    assert torch.equal(class_items(labels, WEIGHTS), WEIGHTS[labels[labels >= 0]].sum())
    found = cross_entropy(logits, labels, weights=WEIGHTS)
    wanted = F.cross_entropy(logits, labels, WEIGHTS)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    # Two batches whose weights are counted together make the loss of both.
    total = class_items(labels, WEIGHTS)
    parts = [cross_entropy(logits[s], labels[s], total, WEIGHTS) for s in (slice(3), slice(3, 7))]
    assert sum(parts).item() == pytest.approx(wanted.item(), rel=1e-12)


def test_the_weights_of_a_batch_may_add_up_to_less_than_one(classes):
    logits, labels = classes[0][:1], classes[1][:1]
    found = cross_entropy(logits, labels, weights=WEIGHTS)
    assert found.item() == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-12)


def test_no_label_has_the_loss_0(classes):
    labels = torch.full((7,), -100)
    for gamma in (0, 2):
        assert cross_entropy(classes[0], labels, weights=WEIGHTS, gamma=gamma).item() == 0


def test_the_focal_loss_by_hand(classes):
    logits, labels = classes
    found = cross_entropy(logits, labels, weights=WEIGHTS, gamma=2.0)
    total = weight = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        if label != -100:
            p = math.exp(row[label]) / sum(map(math.exp, row))
            total -= WEIGHTS[label].item() * (1 - p) ** 2 * math.log(p)
            weight += WEIGHTS[label].item()
    assert found.item() == pytest.approx(total / weight, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy(x, labels, weights=WEIGHTS, gamma=2.0), logits
    )


def test_several_labels_weigh_those_that_are_there():
    torch.manual_seed(0)
    logits = torch.randn(5, 3, dtype=torch.float64)
    there = torch.randint(2, (5, 3)).double()
    found = binary_cross_entropy(logits, there, WEIGHTS)
    options = {"pos_weight": WEIGHTS, "reduction": "sum"}
    wanted = F.binary_cross_entropy_with_logits(logits, there, **options)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)


def test_the_focal_loss_of_several_labels_by_hand():
    torch.manual_seed(0)
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    there = torch.randint(2, (5, 3)).double()
    found = binary_cross_entropy(logits, there, WEIGHTS, 1.5)
    total = 0.0
    for row, flags in zip(logits.tolist(), there.tolist(), strict=True):
        for x, flag, weight in zip(row, flags, WEIGHTS.tolist(), strict=True):
            p = 1 / (1 + math.exp(-x if flag else x))
            total -= (weight if flag else 1) * (1 - p) ** 1.5 * math.log(p)
    assert found.item() == pytest.approx(total, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: binary_cross_entropy(x, there, WEIGHTS, 1.5), logits)


@pytest.mark.parametrize("gamma", [0.3, 2.0])
def test_of_a_label_that_is_certain_loss_and_gradient_are_0(gamma):
    logits = torch.tensor([[1e3, 0.0, 0.0]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([0]), gamma=gamma)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.isfinite().all()


def test_the_head_of_classification_weighs_by_its_config():
    model = ldt_model(
        "ForSequenceClassification",
        num_labels=3,
        problem_type="single_label_classification",
        class_weights=WEIGHTS.tolist(),
    ).eval()
    ids, labels = torch.randint(5, 30, (4, 12)), torch.tensor([0, 1, 2, 1])
    found = model(ids, labels=labels)
    wanted = F.cross_entropy(found.logits, labels, WEIGHTS.float())
    assert found.loss.item() == pytest.approx(wanted.item(), rel=1e-6)


def test_the_head_of_tokens_weighs_by_its_config():
    weights = {"num_labels": 3, "class_weights": WEIGHTS.tolist(), "focal_gamma": 2.0}
    model = ldt_model("ForTokenClassification", **weights).eval()
    ids, labels = torch.randint(5, 30, (2, 12)), torch.randint(3, (2, 12))
    found = model(ids, labels=labels)
    p = found.logits.double().softmax(-1).gather(-1, labels[..., None])[..., 0]
    own = WEIGHTS[labels]
    wanted = -(own * (1 - p) ** 2 * p.log()).sum() / own.sum()
    assert found.loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert model.loss_items(labels=labels).item() == pytest.approx(own.sum().item())
