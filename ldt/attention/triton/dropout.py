"""`ldt.attention.dropout` inside Triton kernels: the same bits of the same hash."""

import torch
import triton
import triton.language as tl

QUERY, KEY = tl.constexpr(1), tl.constexpr(2)
_M1, _M2 = tl.constexpr(0x7FEB352D), tl.constexpr(-0x7B935975)  # as in ldt.attention.dropout


def on_device(seed, device):
    """A seed, an int or int64 tensor [], where kernels read it; one on the device already is not
    read by the host."""
    if isinstance(seed, torch.Tensor) and seed.device == device:
        return seed
    # Filled and not copied: a copy from the host would wait for the device.
    return torch.full((), int(seed) % 2**32, dtype=torch.int64, device=device)


def least(dropout):
    """The smallest hash that is kept, see `kept`."""
    return int(dropout * 2**32) - 2**31


@triton.jit
def head_code(seed_ptr, head, ROLE: tl.constexpr):
    """The hash of a head, or of [n] heads, whose tokens are `QUERY` or `KEY`."""
    return _mix(_mix(tl.load(seed_ptr).to(tl.int32) + ROLE) + head)


@triton.jit
def token_codes(hashes, head_code):
    """Codes of tokens in heads, from which `kept` decides, of `ldt.attention.dropout.token_hashes`
    and of `head_code`."""
    return _mix(hashes + head_code)


@triton.jit
def kept(query_codes, key_codes, least):
    """True if a probability is kept, of the codes of its query and key, in any shape."""
    x = query_codes ^ key_codes
    return x * (2 * x + 1) >= least


@triton.jit
def _mix(x):
    """A bijective hash of int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _M1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _M2
    return x ^ ((x >> 16) & 0xFFFF)
