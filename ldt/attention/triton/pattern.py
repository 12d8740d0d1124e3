"""Which keys a query sees: the tables that the kernels of attention read.

Sliding windows, pooled cells and rows of global tokens are one thing to the kernels (`forward`,
`backward`): every query sees an interval of keys, and every key is seen by an interval of queries.
Both stand in tables of int32, made once for a batch. Some keys in an interval may be hidden: those
at padding, and global tokens, which all queries of their document see besides. Their keys are
gathered into one block, of which a query sees an interval again.

    operator             queries         keys                                gathered keys
    sliding windows      tokens          tokens at most window / 2 away      global tokens
    pooled cells         tokens          cells at most window / 2 away       none
    rows of globals      global tokens   tokens of the document              none

Where windows have a dilation, a program takes tokens of one residue class: with a dilation of d,
row m of class r is token ``r + m * d``, intervals count rows of the class, and all else is as
without one. Heads of one dilation share a table.

A program owns a block of queries (of keys in the backward pass of keys) of one head and meets what
they see a tile at a time. Bounds never fall from a row to the next, so those of the first and the
last row of the block tell which tiles all of its rows see whole: these need no mask. Where few
rows see all of a document (global tokens as queries, gathered keys as keys), several programs share
an interval, and `splits.combine` adds up what they found, always in the same order.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton

from ldt.attention.triton import devices
from ldt.attention.triton.splits import FEW


@dataclass(frozen=True, slots=True)
class Intervals:
    """What each row sees: begin to end - 1. [classes, rows] int32 each; neither falls in a class
    of a table, a dilation and a residue."""

    begin: torch.Tensor
    end: torch.Tensor

    @classmethod
    def of(cls, begin, end):
        """The intervals of tensors [rows] of any integers, in one class."""
        return cls(begin.to(torch.int32)[None], end.to(torch.int32)[None])


@dataclass(frozen=True, slots=True)
class Gathered:
    """Keys that are gathered: those of the global tokens.

    Args:
        place: [gathered] int64, their tokens; the number of tokens, or more, where there is none.
        keys: the gathered keys that each query sees.
        queries: the queries that see each of them.
        few: whether a document has `FEW` of them at most, on average.
    """

    place: torch.Tensor
    keys: Intervals
    queries: Intervals
    few: bool

    @classmethod
    def of(cls, layout):
        """The global tokens of a layout, which caches them."""
        return layout.cached("gathered", lambda: cls._make(layout))

    @classmethod
    def _make(cls, layout):
        document, borders = layout.document_of, layout.cu_globals
        keys = Intervals.of(borders[document], borders[document + 1])
        place, borders = layout.global_index, layout.cu_seqlens
        # Of places beyond the last global token: the number of documents.
        slot = torch.arange(len(place), device=place.device)
        document = torch.searchsorted(layout.cu_globals, slot, right=True) - 1
        last = len(borders) - 1
        queries = Intervals.of(borders[document], borders[(document + 1).clamp(max=last)])
        return cls(place, keys, queries, len(place) <= FEW * last)

    def of_tokens(self, x, dim=0):
        """The gathered ones of ``x``, which has a row a token; any row where there is no token."""
        return x.index_select(dim, self.place.clamp(max=x.shape[dim] - 1))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The tables of one call, on its device.

    Args:
        keys: that each query sees.
        queries: that see each key.
        masked: [queries] uint8, 1 where a query gets zeros; None: nowhere.
        hidden: [keys] uint8, 1 at keys in an interval that nobody sees there; None: there are none.
        next_hidden: [keys + 1] int32, the first such key at or after one; the number of keys where
            none is. None with ``hidden``.
        gathered: keys that are seen besides; None: there are none.
        dilations: one a head.
        longest: keys that a query may see, if they are so many that programs share them; else 0.
        few: whether a document has `FEW` queries at most, on average.
        query_places, key_places: [queries] and [keys] int64, the tokens whose dropout they have;
            None: each its own.
    """

    keys: Intervals
    queries: Intervals
    masked: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    next_hidden: torch.Tensor | None = None
    gathered: Gathered | None = None
    dilations: tuple[int, ...] = (1,)
    longest: int = 0
    few: bool = False
    query_places: torch.Tensor | None = None
    key_places: torch.Tensor | None = None

    def classes(self):
        """[heads, 2] int32, dilation and row in a table of each head; None without a dilation."""
        if set(self.dilations) == {1}:
            return None
        return _classes(self.dilations, self.keys.begin.device)

    def programs(self, count, rows):
        """Number of programs of ``rows`` rows that the head with most of them needs."""
        return max(d * triton.cdiv(triton.cdiv(count, d), rows) for d in set(self.dilations))

    def tile(self, kernel, q, dropout):
        """The `Tile` of a kernel of this pattern."""
        found = devices.tile(kernel, q, dropout > 0)
        if not self.few:
            return found
        if kernel == "dkv":  # which meets them in a step or two: nothing to load ahead
            return replace(found, columns=FEW, stages=1, maxnreg=None)
        return found if found.rows == FEW else replace(found, rows=FEW, warps=4, maxnreg=None)


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
        masked, hidden = layout.masked_queries, (None, None)
        if masked is not None:
            masked = masked.view(torch.uint8)
            hidden = layout.cached("hidden", lambda: (masked, _next(masked)))
        return Pattern(
            _windows(layout, dilations, back, ahead),
            _windows(layout, dilations, ahead, back),
            masked,
            *hidden,
            Gathered.of(layout) if len(layout.global_index) else None,
            dilations,
        )

    return layout.cached(("windows", window, dilations, causal), make)


def _windows(layout, dilations, back, ahead):
    """`Intervals` of windows of ``back`` rows before each and ``ahead`` rows after it."""

    def make():
        document = layout.document_of
        start, stop = layout.cu_seqlens[document], layout.cu_seqlens[document + 1]
        token = torch.arange(layout.total_tokens, device=start.device)
        begin, end = [], []
        for d in sorted(set(dilations)):
            row, residue = token // d, token % d
            first, last = ((border - residue + d - 1) // d for border in (start, stop))
            begin.append(first.maximum(row - back))
            end.append(last.minimum(row + ahead + 1))
        return Intervals(*(torch.stack(x).to(torch.int32) for x in (begin, end)))

    return layout.cached(("windows", dilations, back, ahead), make)


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
        masked, hidden = layout.masked_queries, None
        if layout.key_padding_mask is not None:
            hidden = (~cells.valid).view(torch.uint8)
        return Pattern(
            Intervals.of(*cells.reach(window)),
            Intervals.of(first, last),
            None if masked is None else masked.view(torch.uint8),
            hidden,
            None if hidden is None else _next(hidden),
            key_places=cells.tokens(0)[0],  # the first token of a cell
        )

    key = "cells", cells.size, cells.stride, window
    return cells.layout.cached(key, make)


def of_globals(layout):
    """The `Pattern` of the global tokens of a layout, which see all of their document."""

    def make():
        found, hidden = Gathered.of(layout), None
        if layout.key_padding_mask is not None:
            hidden = (~layout.key_padding_mask).view(torch.uint8)
        return Pattern(
            found.queries,
            found.keys,
            None,
            hidden,
            None if hidden is None else _next(hidden),
            longest=layout.total_tokens,
            few=found.few,
            query_places=found.place.clamp(max=layout.total_tokens - 1),
        )

    return layout.cached("globals", make)


def _next(hidden):
    """[n + 1] int32, the first hidden place at or after each, n where there is none."""
    place = torch.arange(len(hidden) + 1, dtype=torch.int32, device=hidden.device)
    place[:-1].masked_fill_(hidden == 0, len(hidden))
    return place.flip(0).cummin(0).values.flip(0)
