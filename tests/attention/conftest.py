from types import SimpleNamespace

import pytest
import torch


@pytest.fixture
def gpu(monkeypatch):
    """A function that makes every CUDA device one of these limits, as its driver would tell."""

    driver = pytest.importorskip("triton").runtime.driver

    from ldt.attention.triton import devices

    def pretend(limits, name="a GPU"):
        asked = {
            "max_shared_mem": limits.shared,
            "max_num_regs": limits.registers,
            "warpSize": limits.warp,
            "multiprocessor_count": 40,
        }
        utils = SimpleNamespace(get_device_properties=lambda index: asked)
        monkeypatch.setattr(driver, "_active", SimpleNamespace(utils=utils))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: limits.capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i=0: name)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        forget()

    def forget():
        devices._ask.cache_clear()

    yield pretend
    forget()
