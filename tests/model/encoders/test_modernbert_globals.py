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
    model = ours(clip_global_distances=True, global_layers="all", attention_backend="loop")
    with pytest.raises(ValueError, match="'loop' has no biases; auto, reference, blocked have"):
        model(**inputs(9, "none", "one"))


@pytest.mark.parametrize("backend", ["reference", "loop", "blocked"])
def test_each_backend_that_runs_here_has_them(backend):
    model = ours(global_layers="all", full_attention_window=8, attention_backend=backend).double()
    given = inputs(33, "mixed", "some")
    expected = dense(
        model, given["input_ids"], given["attention_mask"], given["global_attention_mask"]
    )
    assert_close(model(**given)[0], expected, 1e-9, "states")


def test_all_tokens_global_are_full_attention():
    windows = ours(global_layers="all", full_attention_window=6).double()
    full = ours(layer_types=["full_attention"] * 4).double()
    full.load_state_dict(windows.state_dict())
    rope = full.config.rope_parameters
    rope["full_attention"] = rope["sliding_attention"] = windows.config.rope_parameters[
        "full_attention"
    ]
    windows.config.rope_parameters["sliding_attention"] = rope["full_attention"]
    given = inputs(41, "right", "all")
    found = windows(**given)[0]
    given.pop("global_attention_mask")
    assert_close(found, full(**given)[0], 1e-9, "states")


def test_a_window_that_covers_the_document_is_full_attention():
    windows, full = ours(full_attention_window=40).double(), ours().double()
    full.load_state_dict(windows.state_dict())
    given = inputs(21, "none", "none")
    assert_close(windows(**given)[0], full(**given)[0], 1e-12, "states")
    given = inputs(22, "none", "none")
    assert (windows(**given)[0] - full(**given)[0]).abs().max() > 1e-6


HEADS = {
    "ForCandidateRanking": {
        "positions": torch.tensor([[1, 2], [3, -100], [2, 4], [1, 5]]),
        "labels": torch.tensor([0, 0, 1, 0]),
        "example_ids": torch.tensor([0, 1, 2, 2]),
    },
    "ForQuestionAnswering": {
        "start_positions": torch.tensor([[1, 3], [2, -100], [20, 21], [1, -100]]),
        "end_positions": torch.tensor([[2, 3], [2, -100], [22, 23], [1, -100]]),
        "example_ids": torch.tensor([0, 0, 1, 2]),
    },
    "ForEvidenceAnswering": {
        "passage_positions": torch.tensor([[1, 3]] * 4),
        "sentence_positions": torch.tensor([[2, 4, 5]] * 4),
        "start_positions": torch.tensor([[1]] * 4),
        "end_positions": torch.tensor([[2]] * 4),
        "labels": torch.tensor([0, 1, 2, 0]),
        "passage_labels": torch.tensor([[0, 1]] * 4),
        "sentence_labels": torch.tensor([[0, 1, 1]] * 4),
    },
    "ForEvidenceClassification": {
        "passage_positions": torch.tensor([[1, 3]] * 4),
        "labels": torch.tensor([0, 1, 2, 0]),
        "passage_labels": torch.tensor([[0, 1]] * 4),
    },
    "ForPassageAnswering": {
        "passage_positions": torch.tensor([[1, 3]] * 4),
        "start_positions": torch.tensor([[1]] * 4),
        "end_positions": torch.tensor([[2]] * 4),
        "labels": torch.tensor([0, 1, 2, 0]),
        "passage_labels": torch.tensor([[0, 1]] * 4),
    },
    "ForMultipleChoice": {
        "choices": torch.tensor([0, 1, 0, 1]),
        "labels": torch.tensor([0, 0, 1, 1]),
        "example_ids": torch.tensor([0, 0, 1, 1]),
    },
}


class Dense(torch.nn.Module):
    """In the place of the encoder: full matrices of scores, packed."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        read="all",
        **kwargs,
    ):
        words = input_ids, attention_mask, global_attention_mask
        _, packing, rest = self.model(*words, packed=True, read=read, **kwargs)
        marks = torch.zeros_like(input_ids) if words[2] is None else words[2]
        x = packing.pack(dense(self.model, *words[:2], marks))
        if read == "all":
            return x, packing, rest
        pooling = "cls" if read == "first" else self.model.config.classifier_pooling
        return packing.first(x) if pooling == "cls" else packing.reduce(x, pooling), packing, rest


@pytest.mark.parametrize("head", HEADS)
def test_each_head_of_ldt_reads_it(head):
    model = ours(head, global_layers="all", classifier_pooling="mean").double()
    given = inputs(29, "right", "some") | HEADS[head]
    found = model(**given)
    assert found.loss > 0
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    encoder = Dense(model.model)
    model.encode = encoder.forward
    expected = model(**given)
    assert_close(found.loss, expected.loss, 1e-9, "loss")
    for name in found:
        assert_close(found[name], expected[name], 1e-9, name)
    expected.loss.backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert_close(gradients[name], p.grad, 1e-9, name, max(p.grad.abs().max(), 1e-6))
    assert len(gradients) == sum(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("head", ["ForQuestionAnswering", "ForMultipleChoice"])
def test_a_head_that_is_called_without_a_mask_marks_no_token(head):
    model = ours(head, global_layers="all", full_attention_window=6).double()
    given = inputs(29, "right", "none")
    if head == "ForMultipleChoice":
        given = {name: x.view(2, 2, -1) for name, x in given.items()}
    expected = model(**given).to_tuple()
    given["global_attention_mask"] = None
    assert all(map(torch.equal, model(**given).to_tuple(), expected))
