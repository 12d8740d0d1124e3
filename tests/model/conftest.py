"""Folders of models; every test starts from the same random state."""

import shutil

import pytest
import torch
from longformers import longformer
from torch import distributed
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def process_group():
    """Training among several processes, of which this is the only one."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def folder(tmp_path):
    """A base Longformer of transformers."""
    longformer("Model").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def whole(tiny_longformer, tmp_path):
    """A copy of the Longformer with a tokenizer."""
    return shutil.copytree(tiny_longformer, tmp_path / "model")


@pytest.fixture
def exact_peer(monkeypatch):
    """transformers takes both softmaxes in float32 for every dtype, which ends a comparison in
    float64 at 5e-8; here it stays in float64."""
    softmax = F.softmax

    def wide(x, dim=None, dtype=None):
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

    monkeypatch.setattr(F, "softmax", wide)
