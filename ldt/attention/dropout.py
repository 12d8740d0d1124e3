"""Dropout of attention probabilities as a pure function of position and seed, without
stored masks."""

from dataclasses import dataclass
from typing import Any

import torch

_M1, _M2 = 0x7FEB352D, -0x7B935975  # Wellons' lowbias32 multipliers as signed 32-bit integers


def _mix(x):
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _M1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _M2
    return x ^ ((x >> 16) & 0xFFFF)


def _token_codes(layout, heads, index, seed, salt):
    """Hash of seed, document, head (their number, or a tensor of numbers) and place in the document
    of tokens ``index``, [heads, len(index)] int32."""
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
    """Dropout mask [heads, queries, keys] from hashes of the queries [heads, queries] and of the
    keys [heads, keys], int32: False or 0 with probability ``dropout``, else True or 1.

    The hashes are well mixed, so their exclusive or needs only one more round.

    Args:
        scratch: two int32 tensors of at least as many elements, to work in, or None.
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


def dropout_mask(layout, heads: int, queries, keys, dropout: float, seed):
    """Mask [heads, q, k] bool of the probabilities that are kept, a pure function of seed, head,
    document and places: the same whether documents are padded, packed, or alone in order.

    Args:
        layout: layout of the packed tokens.
        heads: number of heads.
        queries, keys: [q] and [k] int64, packed indices of the tokens.
        dropout: probability of False.
        seed: any int, or int64 tensor [].
    """
    return kept(
        _token_codes(layout, heads, queries, seed, 1),
        _token_codes(layout, heads, keys, seed, 2),
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
        """Hashes int32 of the queries [heads, queries] and of the keys [heads, keys], for
        `kept`."""
        return (
            _token_codes(self.layout, self.heads, self.rows, self.seed, 1),
            _token_codes(self.layout, self.heads, self.keys, self.seed, 2),
        )
