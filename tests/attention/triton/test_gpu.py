"""What only a GPU can show: its driver, its launches, and a second one beside it."""

import pytest
import torch
from device import DEVICE, HAS_GPU, there

pytest.importorskip("triton")

from ldt.attention import Layout, pooled_attention, sliding_window_attention
from ldt.attention.triton import devices, rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")]


def levels(dtype, dim, dropout, device):
    """Outputs and gradients of all operators with the default tiles, of many global tokens."""
    generator = torch.Generator().manual_seed(0)
    layout = Layout(torch.tensor([0, 300, 700]), None, torch.arange(700) % 9 == 0).to(device)
    q, k, v = torch.randn(3, 700, 2, dim, generator=generator).to(device, dtype)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    how = {"dropout": dropout, "seed": 1, "backend": "triton"}
    out = sliding_window_attention(*leaves, layout, window=128, dilation=(1, 3), **how)
    cells = {"pooling": "mean", "size": 5, "stride": 4, "window": 256}
    second = pooled_attention(*leaves, None, layout, **cells, **how)
    of_globals = rows.projected_global_attention(
        q[layout.global_index], k, v, layout, dropout=dropout, seed=1
    )
    found = out, second, of_globals
    return *found, *torch.autograd.grad(sum(x.square().sum() for x in found), leaves)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dim", [16, 32, 64, 96, 128])
@pytest.mark.parametrize("dtype", devices.DTYPES)
def test_every_tile_of_the_table_is_launched(dtype, dim, dropout):
    why = devices.lacking(dtype, dim, devices.limits(DEVICE))
    if why:
        pytest.skip(why)
    assert all(x.isfinite().all() for x in levels(dtype, dim, dropout, DEVICE))


def test_the_driver_tells_what_torch_knows():
    limits = devices.limits(DEVICE)
    assert limits.capability == torch.cuda.get_device_capability(DEVICE)
    assert limits.shared == torch.cuda.get_device_properties(DEVICE).shared_memory_per_block_optin
    assert there(torch.ones(2)).device == DEVICE


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_gpu_computes_what_the_first_does():
    ours, other = (levels(torch.float16, 64, 0.1, torch.device("cuda", i)) for i in (0, 1))
    assert {x.device.index for x in other} == {1}
    if devices.limits("cuda:0") == devices.limits("cuda:1"):
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(ours, other, strict=True))
