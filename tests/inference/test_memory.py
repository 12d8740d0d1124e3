"""Predictions with less memory than a batch takes, and of weights that change meanwhile."""

import os
import shutil

import pytest
import torch
from classified import lines_of, read, write

from ldt.errors import ModelError, ResourceError
from ldt.inference.predict import predict
from ldt.model import LdtModel


def test_no_room_for_a_single_input_says_what_would_do(fine_tuned, tmp_path, monkeypatch):
    def forward(self, *inputs, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(LdtModel, "forward", forward)
    source = write(tmp_path / "docs.jsonl", lines_of(3))
    with pytest.raises(ResourceError, match=r"cpu with 1 input .* a shorter data.max_length"):
        predict(source, model=str(fine_tuned), device="cpu")


def test_batches_that_memory_does_not_hold_are_parted(fine_tuned, tmp_path, monkeypatch, log):
    source = write(tmp_path / "docs.jsonl", lines_of(60, longest=60))
    options = {"input": source, "model": str(fine_tuned), "device": "cpu", "batch_tokens": 512}
    assert predict(**options, output=str(tmp_path / "whole.jsonl")) == 0
    real = LdtModel.forward

    def forward(self, input_ids, *inputs, **options):
        if input_ids.numel() > 150:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(self, input_ids, *inputs, **options)

    monkeypatch.setattr(LdtModel, "forward", forward)
    assert predict(**options, output=str(tmp_path / "parts.jsonl")) == 0
    assert any("going on with at most" in message for message in log.messages)
    whole, parts = read(tmp_path / "whole.jsonl"), read(tmp_path / "parts.jsonl")
    assert len(parts) == 60
    for one, other in zip(whole, parts, strict=True):
        scores, others = one.pop("scores"), other.pop("scores")
        assert one == other
        assert scores == pytest.approx(others, abs=2e-5)


@pytest.mark.parametrize("replaced", [False, True])
def test_weights_that_another_program_writes_over_end_a_prediction(
    replaced, fine_tuned, tmp_path, monkeypatch
):
    """Where the file is replaced by another, the mapped one stays as it was."""
    run = shutil.copytree(fine_tuned, tmp_path / "run")
    weights, copy = run / "model.safetensors", tmp_path / "copy"
    real = LdtModel.forward

    def forward(self, *inputs, **options):
        place = copy if replaced else weights
        place.write_bytes(weights.read_bytes()[:-4] + bytes(4))
        if replaced:
            os.replace(copy, weights)
        return real(self, *inputs, **options)

    monkeypatch.setattr(LdtModel, "forward", forward)
    source, output = write(tmp_path / "docs.jsonl", lines_of(3)), tmp_path / "answers.jsonl"
    options = {"input": source, "model": str(run), "device": "cpu", "output": str(output)}
    if replaced:
        assert predict(**options) == 0
        return
    with pytest.raises(ModelError, match="another program wrote over it") as error:
        predict(**options)
    assert error.value.exit_code == 5
    assert not output.exists()
