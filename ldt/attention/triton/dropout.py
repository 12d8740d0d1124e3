"""`ldt.attention.dropout` inside Triton kernels: the same bits of the same hash."""

import torch
import triton
import triton.language as tl

from ldt.attention.triton.devices import OPTIONS
from ldt.attention.triton.launch import launched

_M1, _M2 = tl.constexpr(0x7FEB352D), tl.constexpr(-0x7B935975)  # as in ldt.attention.dropout


def token_codes(layout, heads, seed):
    """Hashes of every token as a query and as a key, from which `kept` decides.

    Args:
        layout: of the packed tokens.
        heads: number of heads.
        seed: int, or int64 tensor []; one on the device of the layout is not read by the host.

    Returns:
        Two [heads, total] int32, of the queries and of the keys.
    """
    place = layout.document_of
    if not isinstance(seed, torch.Tensor) or seed.device != place.device:
        # Filled and not copied: a copy from the host would wait for the device.
        seed = torch.full((), int(seed) % 2**32, dtype=torch.int64, device=place.device)
    codes = torch.empty(2, heads, len(place), dtype=torch.int32, device=place.device)
    grid = triton.cdiv(len(place), 1024), heads, 2
    given = codes, place, layout.cu_seqlens, seed, len(place), heads
    _codes[grid](*given, BLOCK=1024, **OPTIONS)
    return codes.unbind(0)


def least(dropout):
    """The smallest hash that is kept, see `kept`."""
    return int(dropout * 2**32) - 2**31


@triton.jit
def kept(query_codes, key_codes, least):
    """True if a probability is kept, of the codes of its query and key, in any shape."""
    x = (query_codes ^ key_codes) * _M1
    x = x ^ (x >> 15)
    return x * _M2 >= least


@triton.jit
def _mix(x):
    """A bijective hash of int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _M1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _M2
    return x ^ ((x >> 16) & 0xFFFF)


@launched
@triton.jit(do_not_specialize=["total"])
def _codes(
    codes_ptr,  # [2, heads, total] int32
    document_ptr,  # [total] int64
    border_ptr,  # [documents + 1] int64
    seed_ptr,  # [] int64
    total,
    heads,
    BLOCK: tl.constexpr,
):
    """One program hashes BLOCK tokens of one head, as queries or as keys."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1)
    role = tl.program_id(2)
    inside = token < total
    document = tl.load(document_ptr + token, mask=inside, other=0)
    place = token - tl.load(border_ptr + document, mask=inside, other=0).to(tl.int32)
    seed = tl.full((BLOCK,), 0, tl.int32) + tl.load(seed_ptr).to(tl.int32)
    code = _mix(_mix(seed + 1 + role) + document.to(tl.int32))
    code = _mix(_mix(code + head) + place)
    row = (role * heads + head).to(tl.int64) * total
    tl.store(codes_ptr + row + token, code, mask=inside)
