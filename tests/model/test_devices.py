"""Models whose layers lie on several devices, or wait on a disk: the layout follows its tensors."""

import accelerate
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from longformers import batch, ldt_model
from torch.fx.experimental import _config as meta

from ldt.attention import Layout

SHAPES = [{}, {"pooling_layers": [0, 1], "pooling_window": 16}]


def test_a_layout_moves_once_with_what_the_host_knows():
    keep = torch.arange(9) > 0
    layout = Layout(torch.tensor([0, 4, 9]), keep, torch.arange(9) == 3)
    assert layout.cu_seqlens_host == [0, 4, 9]
    assert layout.to("cpu") is layout
    moved = layout.to("meta")
    assert moved is layout.to(torch.device("meta"))
    tensors = moved.cu_seqlens, moved.key_padding_mask, moved.is_global
    assert [x.device.type for x in tensors] == ["meta"] * 3
    assert moved.cu_seqlens_host == [0, 4, 9]
    assert moved.total_tokens == 9


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_weights_that_wait_elsewhere_are_there_when_they_are_used(place, changes, tmp_path):
    inputs = batch(21, "mixed", "some")
    model = ldt_model("ForSequenceClassification", **changes)
    expected = model(**inputs).logits
    if place == "memory":
        accelerate.cpu_offload(model, execution_device="cpu")
    else:
        accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    torch.testing.assert_close(model(**inputs).logits, expected)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize("read", ["cls", "mean"])
@meta.patch(meta_nonzero_assume_all_nonzero=True)
def test_layers_of_another_device_have_their_layout_there(head, read):
    """The meta device stands for the second one: it refuses tensors of the first."""
    model = ldt_model(head, attention_backend="reference", classifier_pooling=read)
    there = AlignDevicesHook(execution_device="meta")
    add_hook_to_module(model.longformer.encoder.layer[1].to("meta"), there)
    model.classifier.to("meta")
    found = model(**batch(21, "mixed", "some"), output_hidden_states=True, output_attentions=False)
    assert found.logits.device.type == "meta"
    places = [state.device.type for state in found.hidden_states]
    assert places == ["cpu", "cpu", "meta"]
