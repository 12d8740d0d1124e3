"""Dropout of attention probabilities as a function of where they stand: no state, no storage."""

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


def token_hashes(layout):
    """[total] int32, a hash of each token's document and place there; the layout caches it."""

    def make():
        document = layout.document_of
        place = torch.arange(len(document), device=document.device) - layout.cu_seqlens[document]
        return _mix(_mix(document.to(torch.int32)) + place.to(torch.int32))

    return layout.cached("token hashes", make)


def token_codes(layout, heads, index, seed, salt):
    """[heads, len(index)] int32: a hash of head, document, place in the document, and seed.

    ``heads`` is their number, or an int64 tensor of the numbers of some of them.
    """
    if isinstance(heads, int):
        heads = torch.arange(heads, device=index.device)
    head = heads.to(torch.int32)[:, None]
    seed = torch.as_tensor(seed, device=index.device)
    seed = (((seed + 2**31) % 2**32) - 2**31).to(torch.int32)
    return _mix(token_hashes(layout)[index] + _mix(_mix(seed + salt) + head))


def kept(query_codes, key_codes, dropout, scratch=None, out=None):
    """[heads, queries, keys] from `token_codes` of both: 0 with probability ``dropout``, else 1.

    The codes are well mixed, so their exclusive or x needs only one more round: x (2 x + 1), a
    bijection whose upper bits depend on all others (RC6, Rivest et al. 1998).

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
    torch.addcmul(x, x, x, value=2, out=y)
    least = int(dropout * 2**32) - 2**31
    return y >= least if out is None else torch.ge(y, least, out=out)


def dropout_mask(layout, heads, queries, keys, dropout, seed):
    """Mask of the probabilities that are kept, a pure function of seed, head, document and places.

    Args:
        layout: of the packed tokens.
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
    """The probabilities that are dropped; see `dropout_mask`."""

    layout: Any  # `Layout`
    rows: torch.Tensor  # [queries], packed index of each row of q
    keys: torch.Tensor  # [keys], that of each row of k, or of the token that stands for it
    heads: torch.Tensor  # [heads], the numbers of the heads of q
    probability: float
    seed: int | torch.Tensor

    def codes(self):
        """Codes of the queries and of the keys."""
        return (
            token_codes(self.layout, self.heads, self.rows, self.seed, 1),
            token_codes(self.layout, self.heads, self.keys, self.seed, 2),
        )
