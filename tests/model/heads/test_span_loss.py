import math

import pytest
import torch
from longformers import ldt_model
from torch.nn import functional as F

from ldt.model.heads.questions import span_loss


def by_hand(logits, golds, documents):
    """The OR loss of each document in plain Python, and its mean; golds: [(row, place), ...]."""
    losses = []
    for document in sorted(set(documents)):
        rows = [row for row, mine in enumerate(documents) if mine == document]
        total = sum(math.exp(x) for row in rows for x in logits[row])
        right = sum(math.exp(logits[row][place]) for row, place in set(golds) if row in rows)
        if right:
            losses.append(math.log(total) - math.log(right))
    return sum(losses) / len(losses)


# Rows 1 and 2 are one document, row 3 has no right position, row 4 none but in its padding.
LENGTHS = (5, 6, 3, 6, 2)
DOCUMENTS = (0, 1, 1, 2, 3)
POSITIONS = [[1, 3, 3, -100], [5, 0, 5, 99], [2, 4, -1, -100], [-100] * 4, [3, 4, 5, 2]]
GOLDS = [(0, 1), (0, 3), (1, 5), (1, 0), (2, 2)]  # 3 and 5 count once, 4 is padding of row 2


def test_the_or_loss_is_that_computed_by_hand_with_its_gradient():
    torch.manual_seed(0)
    logits = torch.randn(5, 6, dtype=torch.float64)
    real = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    x = logits.masked_fill(~real, torch.finfo(torch.float64).min).requires_grad_()
    loss = span_loss(x, torch.tensor(POSITIONS), real, torch.tensor(DOCUMENTS))
    rows = [row[:length].tolist() for row, length in zip(logits, LENGTHS, strict=True)]
    assert loss.item() == pytest.approx(by_hand(rows, GOLDS, DOCUMENTS), abs=1e-12)
    loss.backward()
    for row, length in enumerate(LENGTHS):
        for place in range(6):
            want, step = 0.0, 1e-6
            if place < length and row < 3:
                sides = []
                for sign in (1, -1):
                    rows[row][place] += sign * step
                    sides.append(by_hand(rows, GOLDS, DOCUMENTS))
                    rows[row][place] -= sign * step
                want = (sides[0] - sides[1]) / (2 * step)
            assert x.grad[row, place].item() == pytest.approx(want, abs=1e-8), (row, place)
    assert not x.grad[3:].any()  # documents without a right position


def test_documents_without_any_right_position_have_no_loss_and_no_gradient():
    for documents in (None, torch.tensor([0, 0, 1])):
        x = torch.randn(3, 5, requires_grad=True)
        for positions in (torch.full((3, 2), -100), torch.empty(3, 0, dtype=torch.long)):
            loss = span_loss(x, positions, torch.ones(3, 5, dtype=torch.bool), documents)
            (gradient,) = torch.autograd.grad(loss, x)
            assert loss == 0
            assert not gradient.any()


def test_one_right_position_a_row_is_the_cross_entropy():
    x, places = torch.randn(3, 7, dtype=torch.float64), torch.tensor([6, 0, 3])
    real = torch.ones(3, 7, dtype=torch.bool)
    want = F.cross_entropy(x, places)
    for documents in (None, torch.arange(3)):
        for positions in (places, places[:, None], places[:, None].expand(3, 4)):
            torch.testing.assert_close(span_loss(x, positions, real, documents), want)


def batch(windows):
    """``windows`` rows of a document of 24 tokens each, with a right span in every other one."""
    torch.manual_seed(1)
    spans = [[9 + row % 5, -100] if row % 2 == 0 else [-100, -100] for row in range(windows)]
    ids = torch.randint(3, 40, (windows, 24))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "global_attention_mask": (torch.arange(24) < 4).long().expand(windows, 24),
        "start_positions": torch.tensor(spans),
        "end_positions": torch.tensor(spans) + 1,
        "example_ids": torch.zeros(windows, dtype=torch.long),
    }


def gradients(model, inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def test_windows_one_by_one_learn_what_they_learn_together(monkeypatch):
    model, inputs = ldt_model("ForQuestionAnswering").double().train(), batch(3)
    alone = gradients(model, inputs)
    together = "ldt.model.heads.questions.micro_batched"
    monkeypatch.setattr(together, lambda run, **inputs: run(**inputs))
    together = gradients(model, inputs)
    torch.testing.assert_close(alone, together)
    own = gradients(model, inputs | {"example_ids": None})[0]
    assert not torch.allclose(own, together[0])  # each window normalised by itself is another loss


def test_the_memory_of_training_does_not_grow_with_the_windows():
    """Numbers kept for the backward pass, by window: all of one, of several the inputs alone."""
    model, kept = ldt_model("ForQuestionAnswering").train(), []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    sums = {}
    for windows in (1, 4, 16):
        kept.clear()
        inputs = batch(windows)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(**inputs)
        sums[windows] = sum(kept) / windows
    assert sums[4] < sums[1] / 5
    assert sums[16] < sums[1] / 5


def test_a_batch_of_documents_with_a_window_each_is_run_at_once(monkeypatch):
    model, inputs = ldt_model("ForQuestionAnswering").train(), batch(3)
    inputs["example_ids"] = torch.arange(3)
    monkeypatch.setattr("ldt.model.heads.questions.micro_batched", None)
    out = model(**inputs, output_hidden_states=True)
    assert out.start_logits.shape == (3, 24)
    assert len(out.hidden_states) == 3
