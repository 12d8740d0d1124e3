"""`ldt.attention.dropout` inside Triton kernels: the same bits of the same hash."""

import torch
import triton
import triton.language as tl

QUERY, KEY = tl.constexpr(1), tl.constexpr(2)
_M1, _M2 = tl.constexpr(0x7FEB352D), tl.constexpr(-0x7B935975)  # as in ldt.attention.dropout


def on_device(seed: int | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a seed as an int64 tensor [] for kernels: itself if it is one on the device, else a
    new one of the seed modulo 2**32."""
    if isinstance(seed, torch.Tensor) and seed.device == device:
        return seed
    # Filled and not copied: a copy from the host would wait for the device.
    return torch.full((), int(seed) % 2**32, dtype=torch.int64, device=device)


def least(dropout: float) -> int:
    """Smallest int32 hash that dropout of this probability keeps, see `kept`."""
    return int(dropout * 2**32) - 2**31


@triton.jit
def token_codes(table_ptr, count, token, inside, seed, head, ROLE: tl.constexpr):
    """Hashes [n] int32 of tokens as `QUERY` or as `KEY` of a head, from which `kept` decides.

    Args:
        table_ptr: [2, count] int32, documents and places.
        token: [n], columns of the table; those not ``inside`` get any hash. None: all are.
        seed: int64.
        head: a number, or [n].
    """
    document = tl.load(table_ptr + token, mask=inside)
    place = tl.load(table_ptr + count + token, mask=inside)
    return in_head(document_code(document, seed, ROLE), place, head)


@triton.jit
def document_code(document, seed, ROLE: tl.constexpr):
    """Hash of a document's number as `QUERY` or `KEY`, from which `in_head` makes those of its
    tokens."""
    return _mix(_mix(seed.to(tl.int32) + ROLE) + document)


@triton.jit
def in_head(code, place, head):
    """Hash of a token in a head, from the `document_code` of its document and its place there."""
    return _mix(_mix(code + head) + place)


@triton.jit
def kept(query_codes, key_codes, least):
    """True if a probability is kept, from the `token_codes` of its query and key, of any shape, and
    the `least` that are."""
    x = (query_codes ^ key_codes) * _M1
    x = x ^ (x >> 15)
    return x * _M2 >= least


@triton.jit
def _mix(x):
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _M1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _M2
    return x ^ ((x >> 16) & 0xFFFF)
