"""Predictions with less memory than a batch takes."""

import pytest
import torch
from classified import lines_of, read, write

from ldt.errors import ResourceError
from ldt.inference.predict import predict
from ldt.model import LdtModel


def test_no_room_for_a_single_input_says_what_was_asked_for(fine_tuned, tmp_path, monkeypatch):
    def forward(self, *inputs, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(LdtModel, "forward", forward)
    source = write(tmp_path / "docs.jsonl", lines_of(3))
    with pytest.raises(ResourceError, match=r"cpu with 1 input .* GiB; a shorter data.max_length"):
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
