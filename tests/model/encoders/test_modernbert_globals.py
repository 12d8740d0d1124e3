"""Global tokens and windows of full layers on ModernBERT, against full matrices of scores."""

import pytest
import torch
from longformers import batch
from modernberts import dense, ours, readout
from peers import assert_close, assert_gradients_equal

LAYERS = ("full", "all", "none")
CASES = [("none", "one"), ("mixed", "some"), ("row", "some"), ("left", "all"), ("right", "none")]


def inputs(n, padding, globals_):
    given = batch(n, padding, globals_)
    given.pop("token_type_ids")
    return given


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize(("padding", "globals_"), CASES)
def test_it_is_what_full_matrices_give(padding, globals_, where, window):
    changes = {"global_layers": where, "full_attention_window": window}
    mine, other = ours(**changes).double(), ours(**changes).double()
    other.load_state_dict(mine.state_dict())
    given = inputs(37, padding, globals_)
    expected = dense(
        other, given["input_ids"], given["attention_mask"], given["global_attention_mask"]
    )
    found = mine(**given).last_hidden_state
    assert_close(found, expected, 1e-9, "states")
    readout(found).backward()
    readout(expected).backward()
    assert_gradients_equal(mine, other, 1e-9)
    with torch.inference_mode():
        assert_close(mine(**given)[0], expected, 1e-9, "inference")


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize(("padding", "globals_"), CASES)
def test_distances_are_clipped_in_local_layers(padding, globals_, backend):
    changes = {"global_layers": "all", "full_attention_window": 8, "attention_backend": backend}
    mine = ours(clip_global_distances=True, **changes).double()
    other = ours(clip_global_distances=True, **changes).double()
    other.load_state_dict(mine.state_dict())
    given = inputs(37, padding, globals_)
    masks = given["attention_mask"], given["global_attention_mask"]
    expected = dense(other, given["input_ids"], *masks)
    found = mine(**given).last_hidden_state
    assert_close(found, expected, 1e-9, "states")
    readout(found).backward()
    readout(expected).backward()
    assert_gradients_equal(mine, other, 1e-9)
    mine.config.clip_global_distances = False
    for layer in mine.layers:
        layer.attn.clips = False
    same = (mine(**given).last_hidden_state - found).abs().max() < 1e-9
    assert same == (globals_ == "none")


def test_what_clips_no_distance_is_refused():
    with pytest.raises(ValueError, match="clip_global_distances is for global_layers all"):
        ours(clip_global_distances=True)
    model = ours(clip_global_distances=True, global_layers="all", attention_backend="triton")
    with pytest.raises(ValueError, match="auto, reference, blocked for .* biases, got 'triton'"):
        model(**inputs(9, "none", "one"))


def test_a_window_that_covers_the_document_is_full_attention():
    windows, full = ours(full_attention_window=40).double(), ours().double()
    full.load_state_dict(windows.state_dict())
    given = inputs(21, "none", "none")
    assert_close(windows(**given)[0], full(**given)[0], 1e-12, "states")
    given = inputs(22, "none", "none")
    assert (windows(**given)[0] - full(**given)[0]).abs().max() > 1e-6


@pytest.mark.parametrize("head", ["ForQuestionAnswering", "ForMultipleChoice"])
def test_a_head_that_is_called_without_a_mask_marks_no_token(head):
    model = ours(head, global_layers="all", full_attention_window=6).double()
    given = inputs(29, "right", "none")
    if head == "ForMultipleChoice":
        given = {name: x.view(2, 2, -1) for name, x in given.items()}
    expected = model(**given).to_tuple()
    given["global_attention_mask"] = None
    assert all(map(torch.equal, model(**given).to_tuple(), expected))
