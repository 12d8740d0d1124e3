"""Dropout of attention probabilities as a pure function of position and seed, without
stored masks."""

from dataclasses import dataclass
from typing import Any

import torch

_M1, _M2 = 0x7FEB352D, -0x7B935975  # Wellons' lowbias32 multipliers as signed 32-bit integers


def _mix(x):
    """A bijective hash of int32, every output bit depending on every input bit."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _M1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _M2
    return x ^ ((x >> 16) & 0xFFFF)


def token_codes(layout, heads, index, seed, salt):
    """Hash of head, document, place in the document, and seed, [heads, len(index)] int32.

    ``heads`` is their number, or an int64 tensor of the numbers of some of them.
    """
    document = layout.document_of[index].to(torch.int32)
    place = (index - layout.cu_seqlens[layout.document_of[index]]).to(torch.int32)
    if isinstance(heads, int):
        heads = torch.arange(heads, device=index.device)
    head = heads.to(torch.int32)[:, None]
    seed = torch.as_tensor(seed, device=index.device)
    seed = (((seed + 2**31) % 2**32) - 2**31).to(torch.int32)
    code = _mix(_mix(seed + salt) + document)
    return _mix(_mix(code + head) + place)


def kept(query_codes, key_codes, dropout, scratch=None, out=None):
    """Dropout mask [heads, queries, keys] from the `token_codes` of both: 0 with probability
    ``dropout``, else 1.

    The codes are well mixed, so their exclusive or needs only one more round.

    Args:
        scratch: two int32 tensors of at least as many elements, to work in.
        out: a tensor of that shape and any dtype for the result; None makes one of bool.
    """
    shape = (len(query_codes), query_codes.shape[1], key_codes.shape[1])
    size = shape[0] * shape[1] * shape[2]
    if scratch is None:
        scratch = query_codes.new_empty(2, size)
    x, y = (part[:size].view(shape) for part in scratch)
    torch.bitwise_xor(query_codes[:, :, None], key_codes[:, None, :], out=x)
    x *= _M1
    torch.bitwise_right_shift(x, 15, out=y)
    x ^= y
    x *= _M2
    least = int(dropout * 2**32) - 2**31
    return x >= least if out is None else torch.ge(x, least, out=out)


def dropout_mask(layout, heads, queries, keys, dropout, seed):
    """Mask of the probabilities that are kept, a pure function of seed, head, document and places.

    Args:
        layout: layout of the packed tokens.
        heads: number of heads.
        queries, keys: [q] and [k] int64, packed indices of the tokens.
        dropout: probability of False.
        seed: any int, or int64 tensor [].

    Returns:
        [heads, q, k] bool. The same whether documents are padded, packed, or alone in order.
    """
    return kept(
        token_codes(layout, heads, queries, seed, 1),
        token_codes(layout, heads, keys, seed, 2),
        dropout,
    )


@dataclass(frozen=True, slots=True)
class Dropout:
    """Settings of the probabilities that a pass drops; see `dropout_mask`."""

    layout: Any  # `Layout`
    rows: torch.Tensor  # [queries], packed index of each row of q
    keys: torch.Tensor  # [keys], that of each row of k, or of the token that stands for it
    heads: torch.Tensor  # [heads], the numbers of the heads of q
    probability: float
    seed: int | torch.Tensor

    def codes(self):
        """`token_codes` of the queries and of the keys."""
        return (
            token_codes(self.layout, self.heads, self.rows, self.seed, 1),
            token_codes(self.layout, self.heads, self.keys, self.seed, 2),
        )
