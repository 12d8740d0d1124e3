"""Attention on padded batches in operators that ONNX and OpenVINO have; for inference.

Memory grows linearly with the length. Sizes stay symbols under torch.export: tokens are fetched by
clamped positions, for padding to whole blocks would tie the length to the block.
"""

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch

from ldt.attention import reference
from ldt.attention.layout import Layout
from ldt.attention.matmul import project

BLOCK = 16, 128  # least and most queries of a block


class Globals(NamedTuple):
    """Positions of the tokens with global attention in padded rows.

    Args:
        is_global: [b, n] bool.
        positions: [b, g] int64, where those of each row are, in rising order.
        present: [b, g] bool, False where a row has fewer.
        single: True if g is 1 for any input.
    """

    is_global: torch.Tensor
    positions: torch.Tensor
    present: torch.Tensor
    single: bool = False


def one_a_row(positions: torch.Tensor, keep: torch.Tensor) -> Globals:
    """Make `Globals` of the token at ``positions`` [b] of each row, if ``keep`` [b, n] is True
    there."""
    positions = positions[:, None]
    is_global = (torch.arange(keep.shape[1], device=keep.device) == positions) & keep
    return Globals(is_global, positions, is_global.gather(1, positions), single=True)


def any_number(is_global):
    """Make `Globals` of a mask [b, n] bool, read to the host; g is the most in a row, at
    least 1."""
    length = is_global.shape[1]
    most = is_global.sum(1).amax(0).clamp(min=1).item()
    torch._check(most >= 1)
    torch._check(most <= length)
    place = torch.arange(length, device=is_global.device)
    # All values differ, so that topk has no ties to break.
    values, positions = torch.where(is_global, length - place, -1 - place).topk(most, dim=1)
    return Globals(is_global, positions, values > 0)


class _Window:
    """A sliding window over padded rows; layers of one window share it."""

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
        flat = self.keys.clamp(0, length - 1).flatten()
        local = local.index_select(1, flat).unflatten(1, (-1, self.keys.shape[1]))
        self.seen = (near & (local & inside)[:, :, None])[:, None]  # [b, 1, blocks, queries, keys]

    def attention(self, q, k, v):
        """`reference.sliding_window_attention` of q, k and v [b, heads, n, dim], of no meaning at
        global tokens."""
        far, size = self.far, self.keys.shape[1]
        queries = _fetch(q * q.shape[-1] ** -0.5, self.rows)
        scores = queries @ _fetch(k, self.keys).transpose(3, 4) + _hidden(self.seen, q)
        if far is None:
            out = scores.softmax(-1) @ _fetch(v, self.keys)
        else:
            at = far.positions[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
            everywhere = queries @ k.gather(2, at)[:, :, None].transpose(3, 4)
            everywhere = everywhere + _hidden(far.present[:, None, None, None], q)
            probs = torch.cat([scores, everywhere], -1).softmax(-1)
            out = probs[..., :size] @ _fetch(v, self.keys)
            out = out + probs[..., size:] @ v.gather(2, at)[:, :, None]
        return torch.where(self.keep[:, None, :, None], _joined(out, q.shape[2]), 0.0)


@dataclass(frozen=True, eq=False)
class PaddedLayout(Layout):
    """`Layout` of padded rows, one behind the other, each a document with its padding in it.

    The functions of `ldt.attention` take it as any other, and compute by the functions below.

    Args:
        keep: [b, n] bool, real tokens.
        far: `Globals`, None where no token is global.
    """

    keep: torch.Tensor = None  # type: ignore[assignment]
    far: Globals | None = None

    @classmethod
    def of(cls, keep: torch.Tensor, far: Globals | None) -> "PaddedLayout":
        """Make the layout of rows whose real tokens are at ``keep`` [b, n], with `Globals`
        or None."""
        b, n = keep.shape
        borders = torch.arange(b + 1, device=keep.device) * n
        is_global = None if far is None else far.is_global.flatten()
        return cls(borders, keep.flatten(), is_global, b * n, keep=keep, far=far)

    @property
    def rows(self):
        """(number of rows b, tokens of a row n)."""
        return tuple(self.keep.shape)

    @property
    def global_index(self):
        """Packed indices of the global tokens, [b * g] int64; of some other token where a row has
        fewer."""
        begin = self.cu_seqlens[:-1, None]
        return (self.far.positions + begin).flatten()

    def global_at(self, index):
        """Return the layout itself; ``index``, packed indices as in `Layout.global_at`, is not read
        and must be those of its global tokens."""
        return self

    def none_global(self):
        return replace(self, is_global=None, far=None)

    def all_global(self):
        """Return the layout itself: `full_attention` looks at no global tokens."""
        return self

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """View x [b * tokens, heads, dim] as [b, heads, tokens, dim]."""
        return x.unflatten(0, (self.rows[0], -1)).transpose(1, 2)


def sliding_window_attention(q, k, v, layout, window: int):
    """Sliding-window attention, [b * n, heads, dim] as q, k and v are, with a `PaddedLayout`; zeros
    at padding, of no meaning at global tokens. ``window`` is the tokens in reach on both sides."""
    make = partial(_Window, layout.keep, layout.far, window)
    shared = layout.cached(("window", window), make)
    return _flat(shared.attention(*map(layout.heads, (q, k, v))))


def global_attention(q, x, key, value, layout):
    """Attention of the global tokens of a `PaddedLayout` to all tokens of their rows.

    With ``layout.far.single``, and no function given, the projections are folded into queries and
    sums: ``x`` goes through neither.

    Args:
        q: [b * g, heads, dim], unscaled queries of the tokens at ``layout.global_index``.
        x: [b * n, width], the layer's input.
        key, value: (weight [heads * dim, width], bias [heads * dim]) or a function [b * n, width]
            -> [b * n, heads * dim].
        layout: its ``far`` is not None.

    Returns:
        [b * g, heads, dim], of no meaning where a row has fewer global tokens.
    """
    heads, queries = q.shape[1], layout.heads(q)
    if callable(key) or callable(value) or not layout.far.single:
        k, v = (project(part, x).unflatten(1, (heads, -1)) for part in (key, value))
        return _flat(_rows(queries, layout.heads(k), layout.heads(v), layout.keep))
    x = x.unflatten(0, layout.rows)[:, None]
    # The bias of the keys adds the same to all scores of a row.
    queries = (queries * q.shape[-1] ** -0.5) @ key[0].unflatten(0, (heads, -1))
    scores = queries @ x.transpose(2, 3)  # [b, heads, g, n]
    sums = (scores + _hidden(layout.keep[:, None, None], q)).softmax(-1) @ x
    weight, bias = (part.unflatten(0, (heads, -1)) for part in value)
    return _flat(sums @ weight.transpose(1, 2) + bias[:, None])


def fill_global_rows(out, x, query, key, value, layout: PaddedLayout):
    """Copy of ``out`` with the rows of global tokens filled, as `ldt.attention.fill_global_rows`
    does without dropout, with a `PaddedLayout`."""
    q = project(query, x.index_select(0, layout.global_index)).unflatten(1, out.shape[1:])
    return _filled(out, global_attention(q, x, key, value, layout), layout)


def fill_projected_rows(out, q, k, v, layout: PaddedLayout):
    """Copy of ``out`` [b * n, heads, dim] with the rows of global tokens filled from q, k and v of
    its shape, with a `PaddedLayout`."""
    q = q.index_select(0, layout.global_index)
    return _filled(out, full_attention(q, k, v, layout), layout)


def full_attention(q, k, v, layout):
    """Attention of q [b * any, heads, dim] to all tokens of its row of a `PaddedLayout`, in memory
    that grows with the square of the length; of no meaning at padding."""
    return _flat(_rows(*map(layout.heads, (q, k, v)), layout.keep))


def _rows(q, k, v, keep):
    """[b, heads, g, dim] of queries that see all tokens of their rows."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    return (scores + _hidden(keep[:, None, None], q)).softmax(-1) @ v


def _filled(out, rows, layout):
    """``out`` [b * n, heads, dim] with ``rows`` [b * g, heads, dim] at the global tokens."""
    far = layout.far
    rank = (far.is_global.to(torch.int64).cumsum(1) - 1).clamp(min=0)
    at = rank[:, :, None, None].expand(-1, -1, *out.shape[1:])
    rows = rows.unflatten(0, far.positions.shape).gather(1, at).flatten(0, 1)
    return torch.where(far.is_global.flatten()[:, None, None], rows, out)


def _flat(x):
    """[b * n, heads, dim] of x [b, heads, n, dim]."""
    return x.transpose(1, 2).flatten(0, 1)


class _Cells:
    """`ldt.attention.cells.Cells` of padded rows, as far as poolings read them; ``number`` in each
    row."""

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


def pooled_attention(q, k, v, weight, layout, *, pooling, size, stride, window):
    """Attention to pooled keys and values, [b * n, heads, dim] as q, k and v are, with a
    `PaddedLayout`; the other arguments are those of `ldt.attention.pooled_attention`."""
    keep, far, length = layout.keep, layout.far, layout.rows[1]
    device, q = q.device, layout.heads(q)
    cells = _Cells(keep, size, stride)
    keys, values = (  # [b, heads, cells, dim]
        x.unflatten(0, (-1, cells.number)).transpose(1, 2)
        for x in reference.pool(pooling, k, v, weight, cells)
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
    seen = (seen & there[:, :, None])[:, None]  # [b, 1, blocks, queries, cells]

    def reached(x):
        taken = x.gather(2, at[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
        return taken.unflatten(2, number.shape[1:])

    scores = _fetch(q * q.shape[-1] ** -0.5, rows) @ reached(keys).transpose(3, 4)
    out = (scores + _hidden(seen, q)).softmax(-1) @ reached(values)
    out = torch.where(seen.any(-1, keepdim=True), out, 0.0)
    asking = keep if far is None else keep & ~far.is_global
    return _flat(torch.where(asking[:, None, :, None], _joined(out, length), 0.0))


def _hidden(seen, like):
    """Bias of scores: 0 where ``seen``, else the least number: finite, so that a row that sees no
    key is; and added, which runtimes do faster than choosing."""
    return (~seen).to(like.dtype) * torch.finfo(like.dtype).min


def _blocks(length, block, device):
    """[blocks, block] int64, the positions of the queries of each; those behind the end as well."""
    # One block or two more than needed: never a single one, a size that export treats apart.
    starts = torch.arange(length // block + 2, device=device)[:, None] * block
    return starts + torch.arange(block, device=device)


def _fetch(x, at):
    """[b, heads, blocks, places, dim] of x [b, heads, n, dim] at clamped positions [blocks,
    places]."""
    flat = at.clamp(0, x.shape[2] - 1).flatten()
    return x.index_select(2, flat).unflatten(2, (-1, at.shape[1]))


def _joined(x, length):
    """[b, heads, length, dim] of blocks [b, heads, blocks, block, dim]."""
    return x.flatten(2, 3).index_select(2, torch.arange(length, device=x.device))
