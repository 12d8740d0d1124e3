"""Tables of the keys that each query sees, as the attention kernels read them.

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

A program owns a block of queries (of keys in the backward pass of keys) of one head and reads what
they see a tile at a time. Bounds never fall from a row to the next, so those of the first and the
last row of the block tell which tiles all of its rows see whole: these need no mask. Where few rows
see all of a document (global tokens as queries, gathered keys as keys), several programs share an
interval, and `splits.combined` adds up their results, always in the same order.
"""

from dataclasses import dataclass, replace
from functools import cache, partial

import torch
import triton
import triton.language as tl

from ldt.attention.cells import Cells
from ldt.attention.layout import Layout
from ldt.attention.triton import devices
from ldt.attention.triton.launch import launched
from ldt.attention.triton.splits import FEW
from ldt.attention.triton.tiles import cdiv

TOKENS = 256  # of a program that fills tables


@dataclass(frozen=True, slots=True)
class Pattern:
    """Tables of one call, on its device, [rows, queries] and [rows, keys] int32.

    Args:
        queries: the begin of the keys that each query sees, for each class of heads, that is for
            each dilation; in as many rows their end; document and place of the token whose dropout
            it has; if ``masked``, 1 where a query gets zeros; with gathered keys, the begin and the
            end of those that it sees.
        keys: the same of the queries that see each key, document and place; if some are hidden, the
            first such key at or after each one, else their number. Bounds never fall in a row.
        hidden: [keys] uint8, 1 at keys in an interval that nobody sees there; None: there are none.
        masked: True if some queries get zeros.
        gathered: table of `tokens`, keys that are seen besides; None: there are none.
        few_gathered: True if a document has at most `FEW` of them, on average.
        dilations: one a head.
        longest: keys that a query may see, if they are so many that programs share them; else 0.
        few: True if a document has at most `FEW` queries, on average.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    hidden: torch.Tensor | None = None
    masked: bool = False
    gathered: torch.Tensor | None = None
    few_gathered: bool = True
    dilations: tuple[int, ...] = (1,)
    longest: int = 0
    few: bool = False

    def classes(self):
        """Dilation of each head and its place among all in order, [heads, 2] int32; None if all are
        1."""
        if set(self.dilations) == {1}:
            return None
        kinds = sorted(set(self.dilations))
        rows = tuple((d, kinds.index(d)) for d in self.dilations)
        return _on_device(rows, self.keys.device)

    def programs(self, count: int, rows: int) -> int:
        """Number of programs, of ``rows`` rows each, that the head with most of them needs for
        ``count`` rows."""
        return max(d * cdiv(cdiv(count, d), rows) for d in set(self.dilations))

    def tile(self, kernel: str, q: torch.Tensor, dropout: float) -> devices.Tile:
        """Choose the `Tile` of a kernel, a name in `devices.TILES`, for this pattern and tensors
        like q; ``dropout`` is a probability."""
        choice = devices.tile(kernel, q, dropout > 0)
        if not self.few:
            return choice
        if kernel == "dkv":  # which meets them in a step or two: nothing to load ahead
            return replace(choice, columns=FEW, stages=1, maxnreg=None)
        return choice if choice.rows == FEW else replace(choice, rows=FEW, warps=4, maxnreg=None)


@cache  # and never freed: CUDA graphs read them
def _on_device(rows, device):
    return torch.tensor(rows, dtype=torch.int32).to(device)


def windows(layout: Layout, window: int, dilations: tuple[int, ...], causal=False) -> Pattern:
    """The `Pattern` of sliding windows over a layout, which caches it.

    Args:
        layout: layout of the packed tokens.
        window: tokens, at most ``window / 2`` before a query and, unless ``causal``, after it.
        dilations: tuple of one int a head, see `reference.sliding_window_attention`.
        causal: True if no query sees a key after it.
    """

    def make():
        back, hidden, count = window // 2, layout.masked_queries, layout.global_count
        sides = back, 0 if causal else back
        queries, keys, *others = _tables(layout, tuple(sorted(set(dilations))), sides)
        _, gathered = layout.cached("tokens", lambda: others)
        return Pattern(
            queries,
            keys,
            None if hidden is None else hidden.view(torch.uint8),
            hidden is not None,
            gathered if count else None,
            _few(layout),
            dilations,
        )

    return layout.cached(("windows", window, dilations, causal), make)


def tokens(layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables ([2, total], [3, gathered]) int32, cached by the layout: the document of each token
    and its place there; and the global tokens, the number of tokens where there is none, with
    the begin and the end of the queries that see each of them."""
    return layout.cached("tokens", lambda: _tables(layout)[2:])


def counts(layout: Layout, mask: torch.Tensor | None) -> torch.Tensor:
    """[total] int32, how many are True up to and with each token of a mask, the layout's
    ``is_global`` or ``masked_queries``, cached by the layout; zeros if the mask is None."""

    def make():
        if mask is None:
            return layout.cu_seqlens.new_zeros(layout.total_tokens, dtype=torch.int32)
        return mask.cumsum(0, dtype=torch.int32)

    return layout.cached(("counts", mask is layout.is_global), make)


def _few(layout):
    """True if a document has `FEW` global tokens at most, on average."""
    return layout.global_count <= FEW * (len(layout.cu_seqlens) - 1)


def _tables(layout, dilations=(), sides=(0, 0)):
    """``queries`` and ``keys`` of a `Pattern` of windows with rising ``dilations``, ``sides`` rows
    before a query and after it, None without a dilation; and both of `tokens`, in one launch."""
    borders, total, gathered = layout.cu_seqlens, layout.total_tokens, layout.global_count
    masks = layout.masked_queries, layout.is_global
    hidden, globals_ = (None if mask is None else counts(layout, mask) for mask in masks)
    new = partial(borders.new_empty, dtype=torch.int32)
    queries = keys = classes = None
    if dilations:
        rows = 2 * len(dilations) + 2 + (hidden is not None)
        queries, keys = new((rows + 2 * (globals_ is not None), total)), new((rows, total))
        classes = None if dilations == (1,) else _on_device(dilations, borders.device)
    places, table, steps = new((2, total)), new((3, gathered)), max(len(borders), total)
    _fill[(cdiv(total, TOKENS),)](
        *(borders, hidden, globals_, classes, queries, keys, places, table),
        *(len(borders) - 1, total, gathered, steps.bit_length(), *sides),
        **{"CLASSES": len(dilations), "BLOCK": TOKENS, "num_warps": 4, **devices.OPTIONS},
    )
    return queries, keys, places, table


def of_cells(cells: Cells, window: int) -> Pattern:
    """The `Pattern` of tokens that see `Cells`, whose layout caches it.

    Args:
        cells: of a layout.
        window: tokens, at most ``window / 2`` from a query to the centre of a cell that it sees.
    """

    def make():
        layout, (places, _) = cells.layout, tokens(cells.layout)
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
            _table(*cells.reach(window), *places, *masked),
            _table(first, last, *places[:, token], *following),
            None if hidden is None else hidden.view(torch.uint8),
            bool(masked),
        )

    key = "cells", cells.size, cells.stride, window
    return cells.layout.cached(key, make)


def of_globals(layout: Layout) -> Pattern:
    """The `Pattern` of the global tokens of a layout, which see all of their document."""

    def make():
        places, gathered = tokens(layout)
        token = layout.global_index.clamp(max=layout.total_tokens - 1)
        hidden = None if layout.key_padding_mask is None else ~layout.key_padding_mask
        following = [] if hidden is None else [_next(hidden)]
        borders = layout.cu_globals[:-1], layout.cu_globals[1:]
        borders = (border.index_select(0, layout.document_of) for border in borders)
        of_tokens = *borders, *places, *following
        return Pattern(
            _table(*gathered[1:], *places[:, token]),
            _table(*of_tokens),
            None if hidden is None else hidden.view(torch.uint8),
            longest=layout.total_tokens,
            few=_few(layout),
        )

    return layout.cached("globals", make)


def _table(*rows):
    return torch.stack(rows).to(torch.int32)


def _next(hidden):
    """[n] int32, the first True place at or after each of a mask, n where there is none."""
    place = torch.arange(len(hidden), dtype=torch.int32, device=hidden.device)
    return place.masked_fill(~hidden, len(hidden)).flip(0).cummin(0).values.flip(0)


@triton.jit
def _at_most(ptr, size, x, steps):
    """Numbers of a rising table [size] that are at most x."""
    low, high = tl.zeros_like(x), tl.zeros_like(x) + size
    for _ in tl.range(0, steps):
        middle, inside = (low + high) // 2, low < high
        less = tl.load(ptr + middle, mask=inside, other=0) <= x
        low, high = tl.where(inside & less, middle + 1, low), tl.where(less, high, middle)
    return low


@triton.jit
def counted_before(count_ptr, token, inside):
    """Number of True places of a mask before each token, [n], from its `counts`; 0 where not
    ``inside``."""
    return tl.load(count_ptr + token - 1, mask=inside & (token > 0), other=0)


@triton.jit
def _gather(ptr, gathered, place, start, stop, mask):
    tl.store(ptr, place, mask=mask)
    tl.store(ptr + gathered, start, mask=mask)
    tl.store(ptr + 2 * gathered, stop, mask=mask)


@launched
@triton.jit(do_not_specialize=["documents", "tokens", "gathered", "steps", "back", "ahead"])
def _fill(
    border_ptr,  # [documents + 1] int64
    hidden_ptr,  # [tokens], see `counts`; None: no key is hidden
    global_ptr,  # [tokens], the same; None: no token is global
    dilation_ptr,  # [CLASSES] int32, or None without a dilation
    query_ptr,  # [.., tokens] int32, this and the next as in `Pattern`, or None
    key_ptr,  # [.., tokens] int32, or None
    place_ptr,  # [2, tokens] int32, of `tokens`
    gathered_ptr,  # [3, gathered] int32, of `tokens`
    documents,
    tokens,
    gathered,
    steps,  # that find a number in a table
    back,
    ahead,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < tokens
    document = _at_most(border_ptr, documents + 1, token, steps) - 1
    start = tl.load(border_ptr + document, mask=inside, other=0).to(tl.int32)
    stop = tl.load(border_ptr + document + 1, mask=inside, other=0).to(tl.int32)
    row, place = tokens.to(tl.int64), token - start  # numbers of a row, of a table
    tl.store(place_ptr + token, document, mask=inside)
    tl.store(place_ptr + row + token, place, mask=inside)
    if global_ptr is not None:
        before = counted_before(global_ptr, token, inside)
        here = inside & (tl.load(global_ptr + token, mask=inside, other=0) > before)
        count = tl.load(global_ptr + tokens - 1)
        here &= before < gathered
        _gather(gathered_ptr + before, gathered, token, start, stop, here)
        # Behind the last global token stand those that are nowhere.
        last = tl.load(border_ptr + documents).to(tl.int32)
        nowhere = (token >= count) & (token < gathered)
        _gather(gathered_ptr + token, gathered, tokens, last, last, nowhere)
    if query_ptr is not None:
        query_ptr += token
        key_ptr += token
        for of_class in tl.static_range(CLASSES):
            d = 1 if dilation_ptr is None else tl.load(dilation_ptr + of_class)
            step, residue = token // d, token % d
            first, last = (start - residue + d - 1) // d, (stop - residue + d - 1) // d
            ends = (CLASSES + of_class) * row
            begins = of_class * row
            tl.store(query_ptr + begins, tl.maximum(first, step - back), mask=inside)
            tl.store(query_ptr + ends, tl.minimum(last, step + ahead + 1), mask=inside)
            tl.store(key_ptr + begins, tl.maximum(first, step - ahead), mask=inside)
            tl.store(key_ptr + ends, tl.minimum(last, step + back + 1), mask=inside)
        query_ptr += 2 * CLASSES * row
        key_ptr += 2 * CLASSES * row
        tl.store(query_ptr, document, mask=inside)
        tl.store(query_ptr + row, place, mask=inside)
        tl.store(key_ptr, document, mask=inside)
        tl.store(key_ptr + row, place, mask=inside)
        query_ptr += 2 * row
        if hidden_ptr is not None:
            before = counted_before(hidden_ptr, token, inside)
            here = tl.load(hidden_ptr + token, mask=inside, other=0) - before
            tl.store(query_ptr, here, mask=inside)
            following = _at_most(hidden_ptr, tokens, before, steps)
            tl.store(key_ptr + 2 * row, following, mask=inside)
            query_ptr += row
        if global_ptr is not None:
            tl.store(query_ptr, counted_before(global_ptr, start, inside), mask=inside)
            tl.store(query_ptr + row, counted_before(global_ptr, stop, inside), mask=inside)
