"""Lowered weights that processes share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ldt.model import LdtForSequenceClassification, load, precision

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="only Linux has memory without a name"
)


@pytest.fixture
def memory():
    descriptor = os.memfd_create("ldt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def model(tiny_longformer):
    torch.manual_seed(0)
    return load(tiny_longformer, LdtForSequenceClassification, num_labels=3).eval()


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_a_model_is_lowered_once_and_mapped_by_all(model, memory, kind, monkeypatch):
    from ldt.model import shared

    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    expected = precision.lowered(model, kind)
    first = shared.lowered_in(model, kind, memory)
    monkeypatch.setattr(shared, "lowered", lambda *_: pytest.fail("lowered again"))
    again = shared.lowered_in(model, kind, memory)
    mapped = Path("/proc/self/maps").read_text().count("memfd:ldt")
    assert mapped >= 2  # a weight's pages of each
    inputs = {"input_ids": torch.arange(4, 24)[None], "attention_mask": torch.ones(1, 20).long()}
    with torch.inference_mode():
        wanted = expected(**inputs).logits
        for found in (first, again):
            assert torch.equal(found(**inputs).logits, wanted)
            assert [name for name, each in shared._named(found) if each.is_meta] == []
    own = {weight.data_ptr() for weight in model.parameters()}
    layers = [weight for name, weight in shared._named(again) if ".layer.0.output" in name]
    assert not own & {weight.data_ptr() for weight in layers if weight.dim() == 2}


def test_one_that_dies_in_the_middle_leaves_no_half_of_them(model, memory):
    from ldt.model import shared

    os.write(memory, b"PK half of a file" * 1000)
    code = "import fcntl, os, sys; f = open(f'/proc/self/fd/{sys.argv[1]}', 'r+b')\n"
    code += "fcntl.flock(f, fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", code, str(memory)]
    assert subprocess.run(command, pass_fds=[memory]).returncode == -9
    found = shared.lowered_in(model, "bf16", memory)
    assert {weight.dtype for weight in found.parameters()} == {torch.bfloat16}
    with pytest.raises(OSError, match="not permitted"):
        os.write(memory, b"no more")
