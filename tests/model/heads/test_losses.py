"""Losses and means of 4,096 tokens in half precision, against the same numbers in float64."""

import pytest
import torch
from longformers import ldt_model
from torch.nn import functional as F

from ldt.model.heads.losses import cross_entropy
from ldt.model.heads.questions import evidence_loss, span_loss

TOKENS = 4096
HALF = [torch.bfloat16, torch.float16]
EXACT = 1e-5  # in half precision a sum of so many is 1e-3 off at least


@pytest.fixture(params=HALF, ids=str)
def half(request):
    """Logits [4096, 5] and labels [4096], two of three unlabelled."""
    torch.manual_seed(0)
    logits = torch.randn(TOKENS, 5).to(request.param)
    return logits, torch.randint(5, (TOKENS,)).masked_fill(torch.arange(TOKENS) % 3 > 0, -100)


def test_cross_entropy(half):
    logits, labels = half
    found = cross_entropy(logits, labels)
    assert found.dtype == torch.float32
    wanted = F.cross_entropy(logits.double(), labels)
    assert found.item() == pytest.approx(wanted.item(), rel=EXACT)


def test_spans(half):
    logits = half[0][:, :1].T  # one row
    positions = torch.arange(7, TOKENS, 5)[None]
    found = span_loss(logits, positions, torch.ones(1, TOKENS, dtype=torch.bool))
    assert found.dtype == torch.float32
    exact = logits.double()
    wanted = exact.logsumexp(1) - exact[:, positions[0]].logsumexp(1)
    assert found.item() == pytest.approx(wanted.item(), rel=EXACT)


def test_evidence(half):
    logits, labels = half[0][:, :1], (half[1] > 1).long()[:, None]
    found = evidence_loss(logits, labels, torch.zeros_like(labels), None)
    assert found.dtype == torch.float32
    wanted = F.binary_cross_entropy_with_logits(logits.double(), labels.double())
    assert found.item() == pytest.approx(wanted.item(), rel=EXACT)


@pytest.mark.parametrize("labels", [2, 1])
def test_several_labels_and_regression(half, labels):
    head = ldt_model("ForSequenceClassification", num_labels=labels)
    logits, gold = half[0][:, :labels], half[0][:, -labels:].float().sigmoid()
    found = head._loss(logits, gold, None)
    assert found.dtype == torch.float32
    exact = logits.double(), gold.double()
    loss = F.mse_loss if labels == 1 else F.binary_cross_entropy_with_logits
    assert found.item() == pytest.approx(loss(*exact).item(), rel=EXACT)


@pytest.mark.parametrize("head", ["ForCandidateRanking", "ForMultipleChoice"])
def test_rows_of_a_question(head):
    torch.manual_seed(0)
    model = ldt_model(head).bfloat16()
    rows, candidates = 60, 3
    ids = torch.randint(3, 40, (rows, 8))
    inputs = {"input_ids": ids, "global_attention_mask": torch.ones_like(ids)}
    inputs |= {"example_ids": torch.zeros(rows).long(), "labels": torch.ones(rows).long()}
    if head == "ForMultipleChoice":
        inputs["choices"] = torch.arange(rows) % candidates
        output = model(**inputs)
        means = output.logits.double().view(-1, candidates).mean(0)
    else:
        inputs["positions"] = torch.tensor([[1, 2, 3]]).expand(rows, -1)
        output = model(**inputs)
        means = output.logits.double().mean(0)
    assert output.loss.dtype == torch.float32
    wanted = F.cross_entropy(means, torch.tensor(1))
    assert output.loss.item() == pytest.approx(wanted.item(), rel=EXACT)
