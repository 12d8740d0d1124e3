"""The definition on padded batches, in operators that ONNX and OpenVINO have; for inference.

Memory grows linearly with the length. Sizes stay symbols under torch.export: tokens are fetched by
clamped positions, for padding to whole blocks would tie the length to the block.
"""

from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.nn import functional as F

from ldt.attention.pooled import reference as pooled

BLOCK = 16, 128  # least and most queries of a block


class Globals(NamedTuple):
    """The tokens with global attention.

    Args:
        is_global: [b, n] bool.
        positions: [b, g] int64, where those of each row are, in rising order.
        present: [b, g] bool, False where a row has fewer.
    """

    is_global: torch.Tensor
    positions: torch.Tensor
    present: torch.Tensor


def one_a_row(positions, keep):
    """`Globals` with the token at ``positions`` [b] of each row, where ``keep`` [b, n] has it."""
    positions = positions[:, None]
    is_global = (torch.arange(keep.shape[1], device=keep.device) == positions) & keep
    return Globals(is_global, positions, is_global.gather(1, positions))


def any_number(is_global):
    """`Globals` of a mask [b, n] bool; as wide as the row that has the most, at least 1."""
    length = is_global.shape[1]
    most = is_global.sum(1).amax(0).clamp(min=1).item()
    torch._check(most >= 1)
    torch._check(most <= length)
    place = torch.arange(length, device=is_global.device)
    # All values differ, so that topk has no ties to break.
    found, positions = torch.where(is_global, length - place, -1 - place).topk(most, dim=1)
    return Globals(is_global, positions, found > 0)


class Window:
    """A sliding window over padded rows; layers of one window share it.

    Args:
        keep: [b, n] bool, real tokens.
        far: `Globals`, None where no token is global.
        window: tokens in reach on both sides together, even, >= 2.
    """

    def __init__(self, keep, far, window):
        reach, length, device = window // 2, keep.shape[1], keep.device
        block = min(max(reach, BLOCK[0]), BLOCK[1])
        self.keep, self.far = keep, far
        self.rows = _blocks(length, block, device)
        self.keys = self.rows[:, :1] - reach + torch.arange(block + 2 * reach, device=device)
        inside = (self.keys >= 0) & (self.keys < length)
        offset = self.keys[:1] + reach - self.rows[0][:, None]  # from the first that a query sees
        near = (offset >= 0) & (offset <= 2 * reach)
        local = keep if far is None else keep & ~far.is_global
        self.seen = near & (_fetch(local, self.keys) & inside)[:, :, None, None]

    def attention(self, q, k, v):
        """`ldt.attention.reference.sliding_window_attention` of padded rows, each a document.

        Args:
            q, k, v: [b, n, heads, dim], the local projections.

        Returns:
            [b, n, heads, dim]; zeros at padding, of no meaning at global tokens.
        """
        # The least number, not -inf: a row that sees no key stays finite.
        far, size, least = self.far, self.keys.shape[1], torch.finfo(q.dtype).min
        queries = _fetch(q * q.shape[-1] ** -0.5, self.rows)
        scores = torch.einsum("bcqhd,bckhd->bchqk", queries, _fetch(k, self.keys))
        scores = torch.where(self.seen, scores, least)
        if far is None:
            out = torch.einsum("bchqk,bckhd->bcqhd", scores.softmax(-1), _fetch(v, self.keys))
        else:
            at = far.positions[:, :, None, None].expand(-1, -1, *q.shape[2:])
            everywhere = torch.einsum("bcqhd,bghd->bchqg", queries, k.gather(1, at))
            everywhere = torch.where(far.present[:, None, None, None], everywhere, least)
            probs = torch.cat([scores, everywhere], -1).softmax(-1)
            beside, beyond = probs[..., :size], probs[..., size:]
            out = torch.einsum("bchqk,bckhd->bcqhd", beside, _fetch(v, self.keys))
            out = out + torch.einsum("bchqg,bghd->bcqhd", beyond, v.gather(1, at))
        return torch.where(self.keep[:, :, None, None], _joined(out, q.shape[1]), 0.0)


def global_attention(q, x, key, value, keep):
    """`ldt.attention.reference.global_attention` of padded rows.

    Args:
        q: [b, g, heads, dim], query_global of the tokens at `Globals.positions`.
        x: [b, n, width], the layer's input.
        key, value: (weight [heads * dim, width], bias [heads * dim]) of the global projections.
        keep: [b, n] bool, real tokens.

    Returns:
        [b, g, heads, dim]; of no meaning where a row has fewer global tokens.
    """
    k, v = (F.linear(x, *project).unflatten(2, (q.shape[2], -1)) for project in (key, value))
    scores = torch.einsum("bghd,bnhd->bhgn", q * q.shape[-1] ** -0.5, k)
    least = torch.finfo(q.dtype).min
    probs = torch.where(keep[:, None, None], scores, least).softmax(-1)
    return torch.einsum("bhgn,bnhd->bghd", probs, v)


def fill_global_rows(out, rows, far):
    """``out`` [b, n, heads, dim] with ``rows`` [b, g, heads, dim] at the global tokens."""
    rank = (far.is_global.to(torch.int64).cumsum(1) - 1).clamp(min=0)
    spread = rows.gather(1, rank[:, :, None, None].expand(-1, -1, *rows.shape[2:]))
    return torch.where(far.is_global[:, :, None, None], spread, out)


class _Cells:
    """The cells of padded rows, with the names of `ldt.attention.pooled.cells.Cells` that poolings
    read; each row has ``number`` of them, some without a token."""

    def __init__(self, keep, size, stride):
        length, device = keep.shape[1], keep.device
        self.size, self.layout = size, SimpleNamespace(key_padding_mask=keep.flatten())
        self.first = keep.int().argmax(1)
        self.number = length // stride + 1
        self.start = self.first[:, None] + torch.arange(self.number, device=device) * stride
        self.end = length
        self.row = torch.arange(keep.shape[0], device=device)[:, None] * length
        self.inside = self.tokens(torch.arange(size, device=device))[1]
        self.valid = self.inside.any(1)

    def tokens(self, offset):
        token, row = self.start, self.row
        if isinstance(offset, torch.Tensor):
            token, row = token[:, :, None], row[:, :, None]
        token = token + offset
        place = (token.clamp(max=self.end - 1) + row).flatten(0, 1)
        return place, (token < self.end).flatten(0, 1) & self.layout.key_padding_mask[place]


def pooled_attention(q, k, v, weight, keep, far, *, pooling, size, stride, window):
    """`ldt.attention.pooled_attention` of padded rows; ``keep`` and ``far`` as above.

    Returns:
        [b, n, heads, dim]; zeros at padding and at global tokens.
    """
    length, device = q.shape[1], q.device
    cells = _Cells(keep, size, stride)
    flat = k.flatten(0, 1), v.flatten(0, 1)
    keys, values = (
        x.unflatten(0, (-1, cells.number)) for x in pooled.pool(pooling, *flat, weight, cells)
    )
    block = min(max(window // 2, BLOCK[0]), BLOCK[1])
    rows = _blocks(length, block, device)
    # The first cell that the first query of a block may see, as `Cells.lowest` has it, and as many
    # more as the last query may see.
    begin = rows[:, 0] - cells.first[:, None]
    lowest = -torch.div(window + size - 1 - 2 * begin, 2 * stride, rounding_mode="floor")
    number = lowest[:, :, None] + torch.arange((window + block - 1) // stride + 2, device=device)
    at = number.clamp(min=0, max=cells.number - 1).flatten(1)
    start = cells.first[:, None, None] + number * stride
    seen = (2 * (start[:, :, None] - rows[:, :, None]) + size - 1).abs() <= window
    there = cells.valid.unflatten(0, (-1, cells.number)).gather(1, at).view(number.shape)
    there = there & (number >= 0) & (number < cells.number)
    seen = (seen & there[:, :, None])[:, :, None]  # [b, blocks, 1, queries, cells]

    def reached(x):
        taken = x.gather(1, at[:, :, None, None].expand(-1, -1, *x.shape[2:]))
        return taken.unflatten(1, number.shape[1:])

    scores = torch.einsum(
        "bcqhd,bckhd->bchqk", _fetch(q * q.shape[-1] ** -0.5, rows), reached(keys)
    )
    probs = torch.where(seen, scores, torch.finfo(q.dtype).min).softmax(-1)
    out = torch.einsum("bchqk,bckhd->bcqhd", probs, reached(values))
    out = torch.where(seen.any(-1).transpose(2, 3)[..., None], out, 0.0)
    asking = keep if far is None else keep & ~far.is_global
    return torch.where(asking[:, :, None, None], _joined(out, length), 0.0)


def _blocks(length, block, device):
    """[blocks, block] int64, the positions of the queries of each; those behind the end as well."""
    # One block or two more than needed: never a single one, a size that export treats apart.
    starts = torch.arange(length // block + 2, device=device)[:, None] * block
    return starts + torch.arange(block, device=device)


def _fetch(x, at):
    """[b, blocks, places, ...] of x [b, n, ...] at positions [blocks, places], clamped."""
    flat = at.clamp(0, x.shape[1] - 1).flatten()
    return x.index_select(1, flat).unflatten(1, (-1, at.shape[1]))


def _joined(x, length):
    """[b, length, heads, dim] of blocks [b, blocks, block, heads, dim]."""
    return x.flatten(1, 2).index_select(1, torch.arange(length, device=x.device))
