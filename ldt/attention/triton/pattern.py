"""Which keys a query sees: the tables that the kernels of attention read.

Sliding windows, pooled cells and rows of global tokens are one thing to the kernels (`forward`,
`backward`): every query sees an interval of keys, and every key is seen by an interval of queries.
Both stand in tables of int32, made once for a batch. Some keys in an interval may be hidden: those
at padding, and global tokens, which all queries of their document see besides. These are gathered
keys: a query sees an interval of them again, and kernels read them where they lie.

    operator             queries         keys                                gathered keys
    sliding windows      tokens          tokens at most window / 2 away      global tokens
    pooled cells         tokens          cells at most window / 2 away       none
    rows of globals      global tokens   tokens of the document              none

Where windows have a dilation, a program takes tokens of one residue class: with a dilation of d,
row m of class r is token ``r + m * d``, intervals count rows of the class, and all else is as
without one. Heads of one dilation share intervals.

A program owns a block of queries (of keys in the backward pass of keys) of one head and meets what
they see a tile at a time. Bounds never fall from a row to the next, so those of the first and the
last row of the block tell which tiles all of its rows see whole: these need no mask. Where few
rows see all of a document (global tokens as queries, gathered keys as keys), several programs share
an interval, and `splits.combine` adds up what they found, always in the same order.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch

from ldt.attention.triton import devices
from ldt.attention.triton.splits import FEW
from ldt.attention.triton.tiles import cdiv


@dataclass(frozen=True, slots=True)
class Gathered:
    """Keys that are gathered: those of the global tokens.

    Args:
        table: [3, gathered] int32: their tokens, the number of tokens where there is none; the
            begin and the end of the queries that see each of them.
        few: whether a document has `FEW` of them at most, on average.
    """

    table: torch.Tensor
    few: bool

    @classmethod
    def of(cls, layout):
        """The global tokens of a layout, which caches them."""
        return layout.cached("gathered", lambda: cls._make(layout))

    @classmethod
    def _make(cls, layout):
        place, borders = layout.global_index, layout.cu_seqlens
        # Of places beyond the last global token: the number of documents.
        slot = torch.arange(len(place), device=place.device)
        document = torch.searchsorted(layout.cu_globals, slot, right=True) - 1
        last = len(borders) - 1
        begin, end = borders[document], borders[(document + 1).clamp(max=last)]
        table = torch.stack([place.clamp(max=layout.total_tokens), begin, end])
        return cls(table.to(torch.int32), len(place) <= FEW * last)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The tables of one call, on its device, [rows, queries] and [rows, keys] int32.

    Args:
        queries: the begin of the keys that each query sees, for each class of heads, that is for
            each dilation; in as many rows their end; document and place of the token whose dropout
            it has; if ``masked``, 1 where a query gets zeros; with gathered keys, the begin and the
            end of those that it sees.
        keys: the same of the queries that see each key, document and place; if some are hidden,
            the first such key at or after each one, else their number. Bounds never fall in a row.
        hidden: [keys] uint8, 1 at keys in an interval that nobody sees there; None: there are none.
        masked: whether some queries are.
        gathered: keys that are seen besides; None: there are none.
        dilations: one a head.
        longest: keys that a query may see, if they are so many that programs share them; else 0.
        few: whether a document has `FEW` queries at most, on average.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    hidden: torch.Tensor | None = None
    masked: bool = False
    gathered: Gathered | None = None
    dilations: tuple[int, ...] = (1,)
    longest: int = 0
    few: bool = False

    def classes(self):
        """[heads, 2] int32, dilation and class of each head; None without a dilation."""
        if set(self.dilations) == {1}:
            return None
        return _classes(self.dilations, self.keys.device)

    def programs(self, count, rows):
        """Number of programs of ``rows`` rows that the head with most of them needs."""
        return max(d * cdiv(cdiv(count, d), rows) for d in set(self.dilations))

    def tile(self, kernel, q, dropout):
        """The `Tile` of a kernel of this pattern."""
        choice = devices.tile(kernel, q, dropout > 0)
        if not self.few:
            return choice
        if kernel == "dkv":  # which meets them in a step or two: nothing to load ahead
            return replace(choice, columns=FEW, stages=1, maxnreg=None)
        return choice if choice.rows == FEW else replace(choice, rows=FEW, warps=4, maxnreg=None)


@cache  # and never freed: CUDA graphs read them
def _classes(dilations, device):
    kinds = sorted(set(dilations))
    table = torch.tensor([[d, kinds.index(d)] for d in dilations], dtype=torch.int32)
    return table.to(device)


def windows(layout, window, dilations, causal=False):
    """The `Pattern` of sliding windows over a layout, which caches it.

    Args:
        layout: of the packed tokens.
        window: tokens, at most ``window / 2`` before a query and, unless ``causal``, after it.
        dilations: one a head, see `reference.sliding_window_attention`.
    """

    def make():
        back, ahead = window // 2, 0 if causal else window // 2
        hidden = layout.masked_queries
        masked, following, of_gathered, gathered = [], [], [], None
        if hidden is not None:
            masked = [hidden]
            following = [layout.cached("next masked", lambda: _next(hidden))]
        if len(layout.global_index):
            gathered = Gathered.of(layout)
            of_gathered = _spans(layout, "cu_globals")
        before = _windows(layout, dilations, back, ahead)
        after = before if back == ahead else _windows(layout, dilations, ahead, back)
        of_tokens = places(layout)
        return Pattern(
            _table(*before, *of_tokens, *masked, *of_gathered),
            _table(*after, *of_tokens, *following),
            None if hidden is None else hidden.view(torch.uint8),
            hidden is not None,
            gathered,
            dilations,
        )

    return layout.cached(("windows", window, dilations, causal), make)


def _windows(layout, dilations, back, ahead):
    """Bounds of windows of ``back`` rows before each and ``ahead`` rows after it."""
    token, (start, stop) = _tokens(layout), _spans(layout, "cu_seqlens")
    begin, end = [], []
    for d in sorted(set(dilations)):
        row, first, last = token, start, stop
        if d > 1:
            row, residue = token // d, token % d
            first, last = ((border - residue + d - 1) // d for border in (start, stop))
        begin.append(first.maximum(row - back))
        end.append(last.minimum(row + (ahead + 1)))
    return *begin, *end


def places(layout):
    """[2, total] int32, the document of each token and its place there."""

    def make():
        start, _ = _spans(layout, "cu_seqlens")
        return _table(layout.document_of, _tokens(layout) - start)

    return layout.cached("places", make)


def _tokens(layout):
    """[total] int64, the number of each token."""
    device = layout.cu_seqlens.device
    return layout.cached("tokens", lambda: torch.arange(layout.total_tokens, device=device))


def _spans(layout, name):
    """[2, total] int64, the borders of each token's document, an attribute of the layout."""

    def make():
        borders = getattr(layout, name)
        return torch.stack([borders[:-1], borders[1:]]).index_select(1, layout.document_of)

    return layout.cached(("spans", name), make)


def _table(*rows):
    return torch.stack(rows).to(torch.int32)


def of_cells(cells, window):
    """The `Pattern` of tokens that see `Cells`, whose layout caches it.

    Args:
        cells: of a layout.
        window: tokens, at most ``window / 2`` from a query to the centre of a cell that it sees.
    """

    def make():
        layout = cells.layout
        start, stop = layout.cu_seqlens[:-1], layout.cu_seqlens[1:]
        start, stop = start[cells.document_of], stop[cells.document_of]
        # Whole numbers of the places that are at most window / 2 from start + (size - 1) / 2.
        first = cells.start + (cells.size - window) // 2
        last = cells.start + (cells.size - 1 + window) // 2 + 1
        between = cells.start >= stop  # rows behind the last cell of a document
        first, last = (
            place.maximum(start).minimum(stop).where(~between, stop) for place in (first, last)
        )
        masked = [] if layout.masked_queries is None else [layout.masked_queries]
        hidden = None if layout.key_padding_mask is None else ~cells.valid
        following = [] if hidden is None else [_next(hidden)]
        token = cells.tokens(0)[0]  # the first one of a cell
        return Pattern(
            _table(*cells.reach(window), *places(layout), *masked),
            _table(first, last, *places(layout)[:, token], *following),
            None if hidden is None else hidden.view(torch.uint8),
            bool(masked),
        )

    key = "cells", cells.size, cells.stride, window
    return cells.layout.cached(key, make)


def of_globals(layout):
    """The `Pattern` of the global tokens of a layout, which see all of their document."""

    def make():
        gathered = Gathered.of(layout)
        token = layout.global_index.clamp(max=layout.total_tokens - 1)
        hidden = None if layout.key_padding_mask is None else ~layout.key_padding_mask
        following = [] if hidden is None else [_next(hidden)]
        of_tokens = *_spans(layout, "cu_globals"), *places(layout), *following
        return Pattern(
            _table(*gathered.table[1:], *places(layout)[:, token]),
            _table(*of_tokens),
            None if hidden is None else hidden.view(torch.uint8),
            longest=layout.total_tokens,
            few=gathered.few,
        )

    return layout.cached("globals", make)


def _next(hidden):
    """[n] int32, the first True place at or after each of a mask, n where there is none."""
    place = torch.arange(len(hidden), dtype=torch.int32, device=hidden.device)
    return place.masked_fill(~hidden, len(hidden)).flip(0).cummin(0).values.flip(0)
