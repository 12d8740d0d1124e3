"""Outputs, losses, gradients and generated tokens equal those of transformers' LED.

The peer reads each document alone, cut to its real tokens: under left padding its positions, and
the token that is global, are others.
"""

import pytest
import torch
from leds import alone, documents, first_tokens, led, pair, targets
from longformers import checkpoint_layers, gradients
from peers import assert_close, assert_gradients_equal
from torch.nn import functional as F
from transformers.trainer_pt_utils import LabelSmoother

import ldt.model

OUTPUTS = {torch.float32: 1e-5, torch.float64: 1e-9}
GRADIENTS = {torch.float32: 4e-5, torch.float64: 1e-9}
CASES = [  # windows that transformers can run, length, padding, global tokens
    ([8, 8], 1, "none", "all"),
    ([8, 4], 7, "none", "none"),
    ([8, 4], 8, "none", "default"),
    ([8, 8], 9, "right", "one"),
    ([4, 8], 17, "right", "default"),
    ([16, 4], 37, "left", "some"),
    ([8, 8], 21, "middle", "some"),
    ([8, 4], 20, "row", "default"),
    ([4, 4], 33, "mixed", "one"),
    ([64, 4], 30, "mixed", "default"),
    ([8, 8], 24, "right", "all"),
]
LENGTHS = (7, 9, 1, 4)  # of the targets


def peer(model, inputs, labels):
    """Rows of transformers' outputs (None for a row of padding), and the loss of all."""
    rows = [
        model(**alone(inputs, row), labels=labels[row : row + 1], output_hidden_states=True)
        if inputs["attention_mask"][row].any()
        else None
        for row in range(len(labels))
    ]
    there = [row for row, out in enumerate(rows) if out is not None]
    logits = torch.cat([rows[row].logits for row in there])
    return rows, F.cross_entropy(logits.flatten(0, 1), labels[there].flatten())


def compare(folder, dtype, case):
    windows, n, padding, globals_ = case
    theirs, ours = pair(folder, dtype, attention_window=windows)
    inputs, labels = documents(n, padding, globals_), targets(LENGTHS)
    real = inputs["attention_mask"].bool()
    labels[~real.any(1)] = -100
    found = ours(**inputs, labels=labels, output_hidden_states=True)
    rows, loss = peer(theirs, inputs, labels)
    assert_close(found.loss, loss, OUTPUTS[dtype], "loss")
    for row, out in enumerate(rows):
        if out is None:
            continue
        assert_close(found.logits[row], out.logits[0], OUTPUTS[dtype], "logits")
        at = real[row]
        inside = at[at.nonzero()[0, 0] : at.nonzero()[-1, 0] + 1]
        states = found.encoder_hidden_states + (found.encoder_last_hidden_state,)
        expected = out.encoder_hidden_states + (out.encoder_last_hidden_state,)
        for a, b in zip(states, expected, strict=True):
            assert_close(a[row, at], b[0, inside], OUTPUTS[dtype], "encoder states")
        for a, b in zip(found.decoder_hidden_states, out.decoder_hidden_states, strict=True):
            assert_close(a[row], b[0], OUTPUTS[dtype], "decoder states")
    assert not found.encoder_last_hidden_state[~real].any()
    found.loss.backward()
    loss.backward()
    assert_gradients_equal(ours, theirs, GRADIENTS[dtype])


@pytest.mark.parametrize(
    ("dtype", "case"),
    [(torch.float64, case) for case in CASES] + [(torch.float32, case) for case in CASES[1::4]],
    ids=str,
)
def test_outputs_loss_and_gradients_equal_transformers(dtype, case, tmp_path, exact_peer):
    compare(tmp_path, dtype, case)


def test_a_padded_batch_equals_that_of_transformers(tmp_path, exact_peer):
    theirs, ours = pair(tmp_path)
    inputs, labels = first_tokens(documents(21, "right")), targets(LENGTHS)
    found, expected = ours(**inputs, labels=labels), theirs(**inputs, labels=labels)
    assert_close(found.loss, expected.loss, 1e-9, "loss")
    assert_close(found.logits, expected.logits, 1e-9, "logits")


def test_a_two_in_the_attention_mask_is_a_global_token_and_the_only_one(tmp_path, exact_peer):
    theirs, ours = pair(tmp_path)
    inputs, labels = documents(21, "right"), targets(LENGTHS)
    inputs["attention_mask"][:, 3] = 2
    del inputs["global_attention_mask"]
    inputs["input_ids"] = inputs["input_ids"].clamp(min=3)
    found, expected = ours(**inputs, labels=labels), theirs(**inputs, labels=labels)
    assert_close(found.logits, expected.logits, 1e-9, "logits")


def test_embeddings_in_place_of_ids_give_what_they_give_in_transformers(tmp_path, exact_peer):
    theirs, ours = pair(tmp_path)
    inputs, labels = first_tokens(documents(16)), targets(LENGTHS)
    table = theirs.get_input_embeddings()
    given = {
        "inputs_embeds": table(inputs.pop("input_ids")).detach(),
        "decoder_inputs_embeds": table(labels.clamp(min=0)).detach(),
    }
    found, expected = ours(**inputs, **given), theirs(**inputs, **given)
    assert_close(found.logits, expected.logits, 1e-9, "logits")


def test_the_base_model_equals_that_of_transformers(tmp_path, exact_peer):
    theirs = led("Model")
    theirs.save_pretrained(tmp_path)
    ours = ldt.model.LdtSeq2SeqModel.from_pretrained(tmp_path).double()
    inputs = first_tokens(documents(21, "right"))
    inputs["decoder_input_ids"] = targets(LENGTHS).clamp(min=1)
    found, expected = ours(**inputs), theirs.double()(**inputs)
    assert_close(found.last_hidden_state, expected.last_hidden_state, 1e-9, "states")


def test_label_smoothing_of_the_trainer_equals_that_of_transformers(tmp_path, exact_peer):
    theirs, ours = pair(tmp_path)
    inputs, labels = first_tokens(documents(21, "right")), targets(LENGTHS)
    smooth = LabelSmoother(epsilon=0.1)
    losses = []
    for model in (ours, theirs):
        ids = model.prepare_decoder_input_ids_from_labels(labels)
        out = model(**inputs, decoder_input_ids=ids)
        losses.append(smooth(out, labels))
        losses[-1].backward()
    assert_close(*losses, 1e-9, "loss")
    assert_gradients_equal(ours, theirs, 1e-9)


def test_checkpointed_layers_give_the_same_gradients(tmp_path):
    _, ours = pair(tmp_path)
    inputs, labels = documents(21, "mixed"), targets(LENGTHS)
    found = []
    for checkpointed in (False, True):
        ours.train()
        ours.zero_grad()
        if checkpointed:
            checkpoint_layers(ours)
            layers = [*ours.led.encoder.layers, *ours.led.decoder.layers]
            assert all(layer.gradient_checkpointing for layer in layers)
        ours(**inputs, labels=labels).loss.backward()
        found.append(gradients(ours))
    for name, gradient in found[0].items():
        assert_close(found[1][name], gradient, 1e-12, name, scale=1.0)
