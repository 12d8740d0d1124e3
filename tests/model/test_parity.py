"""Outputs, losses and every gradient equal those of transformers' Longformer.

Where ldt differs on purpose (pooling under left padding, padding in the span softmax), the peer is
transformers on each row alone, cut to its real tokens.
"""

import pytest
import torch
from longformers import HEADS, batch, longformer, with_labels
from peers import assert_close, assert_gradients_equal
from torch.nn import functional as F

import ldt.model

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
CASES = [  # windows that transformers can run, length, padding, global tokens
    ([8, 8], 1, "none", "all"),
    ([8, 4], 7, "none", "none"),
    ([8, 4], 8, "none", "all"),
    ([8, 8], 9, "right", "one"),
    ([4, 8], 17, "right", "some"),
    ([16, 4], 37, "left", "some"),
    ([8, 8], 21, "middle", "some"),
    ([8, 4], 20, "row", "some"),
    ([4, 4], 33, "mixed", "one"),
    ([64, 4], 30, "mixed", "none"),
    ([8, 4], 24, "right", "default"),
    ([8, 4], 24, "none", "default"),
]


def pair(head, folder, dtype, **changes):
    """A random model of transformers and the same file loaded in ldt."""
    theirs = longformer(head, **changes)
    theirs.save_pretrained(folder)
    ours = ldt.model.load(folder, getattr(ldt.model, "Ldt" + head), dtype=dtype)
    return theirs.to(dtype), ours


def answers(head, model, inputs):
    """The model's answer tensors, for the base model those at real tokens, and a loss."""
    out = model(**inputs, output_hidden_states=True, output_attentions=True)
    if head == "Model":
        out.last_hidden_state = out.last_hidden_state[inputs["attention_mask"].bool()]
        out.loss = readout(out.last_hidden_state) + readout(out.pooler_output)
    return out


def readout(x):
    """A loss in which each element has a target of its own."""
    target = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    return F.mse_loss(x, target)


def peer_answers(head, model, inputs):
    """`answers` of transformers, from each row alone where padding makes its answer another."""
    out = answers(head, model, inputs)
    mask = inputs["attention_mask"].flatten(0, -2)
    if head in ("Model", "ForSequenceClassification", "ForMultipleChoice") and not mask[:, 0].all():
        rows = [row for _, row in alone(model, inputs)]
        if head == "Model":
            out.pooler_output = torch.cat([row.pooler_output for row in rows])
            out.loss = readout(out.last_hidden_state) + readout(out.pooler_output)
        else:
            out.logits = torch.cat([row.logits for row in rows]).view_as(out.logits)
            out.loss = F.cross_entropy(out.logits, inputs["labels"])
    if head == "ForQuestionAnswering" and not mask.all():
        losses = {"start": [], "end": []}
        for cut, row in alone(model, inputs):
            real = cut["attention_mask"].bool()
            for side, found in losses.items():
                logits = row[f"{side}_logits"].masked_fill(~real, float("-inf"))
                if real.any():
                    found.append(F.cross_entropy(logits, cut[f"{side}_positions"]))
        out.loss = (torch.stack(losses["start"]).mean() + torch.stack(losses["end"]).mean()) / 2
    return out


def alone(model, inputs):
    """For each row, the inputs cut to its real tokens and the output for them, without labels."""
    flat = {
        key: x if x.dim() == 1 else x.flatten(0, -2) for key, x in inputs.items() if x is not None
    }
    folded = inputs["attention_mask"].dim() == 3
    for row, mask in enumerate(flat["attention_mask"]):
        real = mask.nonzero().squeeze(1)
        first, last = (int(real[0]), int(real[-1])) if len(real) else (0, 0)
        cut = {}
        for key, x in flat.items():
            if key.endswith("_positions"):
                cut[key] = x[row : row + 1] - first
            elif x.shape == flat["attention_mask"].shape and key != "labels":
                cut[key] = x[row : row + 1, first : last + 1]
        given = {key: x[:, None] if folded else x for key, x in cut.items() if x.dim() == 2}
        yield cut, model(**given)


def assert_outputs_equal(found, expected, mask, tolerance):
    """All fields, at real tokens where they have a length."""
    real = mask.flatten(0, -2).bool()
    n = real.shape[1]
    assert_close(found.loss, expected.loss, tolerance, "loss")
    for name in ("last_hidden_state", "pooler_output"):
        if name in found:
            assert_close(found[name], expected[name], tolerance, name)
    for name in ("logits", "start_logits", "end_logits"):
        if name in found:
            a, b = found[name], expected[name]
            if a.shape[:2] == mask.shape:
                a, b = a[real], b[real]
            assert_close(a, b, tolerance, name)
    for a, b in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_close(a[real], b[real], tolerance, "hidden states")
        assert not a[~real].any()
    for a, b in zip(found.attentions, expected.attentions, strict=True):
        assert_close(a.transpose(1, 2)[real], b.transpose(1, 2)[real], tolerance, "attentions")
        assert not a.transpose(1, 2)[~real].any()
    assert (found.global_attentions is None) == (expected.global_attentions is None)
    for a, b in zip(found.global_attentions or (), expected.global_attentions or (), strict=True):
        b = b[:, :, :n]  # transformers leaves the padding to the window in
        used = (a.sum(2, keepdim=True) > 0.5).expand_as(a)  # it fills up other columns
        assert_close(a[used], b[used], tolerance, "global attentions")
        assert not a[~used].any()


def compare(head, folder, dtype, case, **changes):
    windows, n, padding, globals_ = case
    theirs, ours = pair(head, folder, dtype, attention_window=windows)
    for key, value in changes.items():
        for layer in ours.base_model.encoder.layer:
            setattr(layer.attention.self, key, value)
    inputs = with_labels(head, batch(n, padding, globals_))
    found, expected = answers(head, ours, inputs), peer_answers(head, theirs, inputs)
    found.loss.backward()
    expected.loss.backward()
    mask = inputs["attention_mask"]
    assert_outputs_equal(found, expected, mask, TOLERANCE[dtype])
    assert_gradients_equal(ours, theirs, TOLERANCE[dtype])


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    ("dtype", "case"),
    [(torch.float64, case) for case in CASES] + [(torch.float32, case) for case in CASES[1::4]],
    ids=str,
)
@pytest.mark.parametrize("head", HEADS)
def test_outputs_loss_and_gradients_equal_transformers(head, dtype, case, tmp_path, exact_peer):
    compare(head, tmp_path, dtype, case)


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_the_other_losses_of_sequence_classification_equal_transformers(problem, tmp_path):
    theirs, ours = pair("ForSequenceClassification", tmp_path, torch.float32, problem_type=problem)
    inputs = batch(21, "right", "default") | {"labels": torch.rand(4, 3)}
    found, expected = ours(**inputs), theirs(**inputs)
    found.loss.backward()
    expected.loss.backward()
    assert_close(found.loss, expected.loss, 1e-5, "loss")
    assert_gradients_equal(ours, theirs, 1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_embeddings_and_position_ids_give_what_they_give_in_transformers(head, tmp_path):
    theirs, ours = pair(head, tmp_path, torch.float32)
    n = 16
    inputs = with_labels(head, batch(n, "none", "some"))
    ids = inputs.pop("input_ids")
    inputs["position_ids"] = torch.randint(2, 66, ids.shape)
    inputs["inputs_embeds"] = theirs.get_input_embeddings()(ids).detach()
    name = "start_logits" if head == "ForQuestionAnswering" else "logits"
    name = "last_hidden_state" if head == "Model" else name
    for left_out in (None, "position_ids"):
        inputs.pop(left_out, None)
        assert_close(ours(**inputs)[name], theirs(**inputs)[name], 1e-5, name)


def test_a_tuple_has_the_fields_in_the_order_of_transformers(tmp_path):
    for head in HEADS:
        theirs, ours = pair(head, tmp_path, torch.float32)
        inputs = with_labels(head, batch(16, "none", "one"))
        for asked in ({}, {"output_hidden_states": True, "output_attentions": True}):
            found = ours(**inputs, **asked, return_dict=False)
            expected = theirs(**inputs, **asked, return_dict=False)
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                if isinstance(a, tuple):
                    assert len(a) == len(b)
                else:
                    assert_close(a, b, 1e-5, head)
