"""The work of the global rows in equal shares, computed on the device in one launch."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ldt.attention.layout import Layout
from ldt.attention.triton.devices import OPTIONS
from ldt.attention.triton.launch import launched
from ldt.attention.triton.pattern import counted_before, counts
from ldt.attention.triton.tiles import cdiv

PROGRAMS = 512  # programs, at least, that a long document is split into: four a multiprocessor
PIECE = 64  # tokens, at least, of a piece; a multiple of every tile's columns


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Tables of the work of the row kernels' programs. Lines without rows or tokens are fillers.

    Rows are numbered ``global token * per + i``. A tile is up to ``rows`` rows of one document; an
    item is a tile and a piece of its document; a block is up to ``columns`` tokens of one document.

    Args:
        items: [i, 4] int32, first row, last row, first token, last token (last ones excluded).
        tiles: [t, 4] int32, first row, last row, first item, last item.
        blocks: [b, 4] int32, first token, last token, first row, last row.
    """

    items: torch.Tensor
    tiles: torch.Tensor
    blocks: torch.Tensor


def plan(layout: Layout, *, per: int, rows: int, columns: int) -> Plan:
    """The `Plan` of a packed batch. The host knows upper bounds; the counts stay on the device.

    Args:
        layout: layout of the packed tokens.
        per: rows that a global token stands for, one a head.
        rows, columns: rows of a tile, tokens of a block.
    """
    count, globals = len(layout.cu_seqlens) - 1, layout.global_count
    tiles = globals * per // rows + min(count, globals)
    items = tiles + min(PROGRAMS, tiles * (layout.total_tokens // PIECE))
    sizes = items, tiles, layout.total_tokens // columns + count
    tables = layout.cu_seqlens.new_empty(sum(sizes), 4, dtype=torch.int32).split(sizes)
    _fill[cdiv(max(sizes), 32), 3](
        *(layout.cu_seqlens, counts(layout, layout.is_global), *tables, count, *sizes, PROGRAMS),
        **{"PER": per, "BLOCK_M": rows, "BLOCK_N": columns, "LENGTH": PIECE, "BLOCK": 32},
        **OPTIONS,
    )
    return Plan(*tables)


@triton.jit
def _documents(border_ptr, global_ptr, first, count, PER: tl.constexpr, BLOCK: tl.constexpr):
    """First and last token, first and last row of BLOCK documents; zeros past the last one."""
    document = first + tl.arange(0, BLOCK)
    there = document < count
    begin = tl.load(border_ptr + document, mask=there, other=0).to(tl.int32)
    end = tl.load(border_ptr + document + 1, mask=there, other=0).to(tl.int32)
    row = counted_before(global_ptr, begin, there) * PER
    last = counted_before(global_ptr, end, there) * PER
    return begin, end, row, last


@triton.jit
def _choose(hit, x):
    return tl.sum(tl.where(hit, x, 0), 1)


@launched
@triton.jit(do_not_specialize=["count", "items", "tiles", "blocks", "programs"])
def _fill(
    border_ptr,  # [documents + 1] int64
    global_ptr,  # [tokens] int32, see `counts`
    item_ptr,  # [items, 4] int32; this and the next two as in Plan
    tile_ptr,  # [tiles, 4] int32
    block_ptr,  # [blocks, 4] int32
    count,  # documents
    items,
    tiles,
    blocks,
    programs,
    PER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LENGTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program fills BLOCK lines of one table, looking at BLOCK documents at a time."""
    line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    table = tl.program_id(1)
    # Pieces are equally long, so that there are at most ``programs`` of them and one a tile more.
    work = tl.zeros((BLOCK,), tl.int64)
    for at in range(0, count, BLOCK):
        begin, end, row, last = _documents(border_ptr, global_ptr, at, count, PER, BLOCK)
        work += tl.cdiv(last - row, BLOCK_M).to(tl.int64) * (end - begin)
    length = tl.cdiv(tl.sum(work, 0), programs)
    length = tl.maximum(tl.cdiv(length, LENGTH), 1).to(tl.int32) * LENGTH

    a = tl.zeros((BLOCK,), tl.int32)
    b = tl.zeros((BLOCK,), tl.int32)
    c = tl.zeros((BLOCK,), tl.int32)
    d = tl.zeros((BLOCK,), tl.int32)
    lines_before, items_before = 0, 0
    for at in range(0, count, BLOCK):
        begin, end, row, last = _documents(border_ptr, global_ptr, at, count, PER, BLOCK)
        own_tiles = tl.cdiv(last - row, BLOCK_M)
        pieces = tl.maximum(tl.cdiv(end - begin, length), 1)
        own_items = own_tiles * pieces
        own_lines = tl.where(table == 0, own_items, own_tiles)
        own_lines = tl.where(table == 2, tl.cdiv(end - begin, BLOCK_N), own_lines)
        first_line = lines_before + tl.cumsum(own_lines, 0) - own_lines
        first_item = items_before + tl.cumsum(own_items, 0) - own_items
        lines_before += tl.sum(own_lines, 0)
        items_before += tl.sum(own_items, 0)

        place = line[:, None] - first_line[None, :]
        hit = (place >= 0) & (place < own_lines[None, :])
        pieces, first_item = pieces[None, :], first_item[None, :]
        begin, end, row, last = begin[None, :], end[None, :], row[None, :], last[None, :]
        if table == 2:
            token = begin + place * BLOCK_N
            a += _choose(hit, token)
            b += _choose(hit, tl.minimum(token + BLOCK_N, end))
            c += _choose(hit, row)
            d += _choose(hit, last)
        else:
            tile = place
            if table == 0:
                tile = place // pieces
                token = begin + place % pieces * length
                c += _choose(hit, token)
                d += _choose(hit, tl.minimum(token + length, end))
            else:
                c += _choose(hit, first_item + place * pieces)
                d += _choose(hit, first_item + place * pieces + pieces)
            first = row + tile * BLOCK_M
            a += _choose(hit, first)
            b += _choose(hit, tl.minimum(first + BLOCK_M, last))

    out_ptr, size = item_ptr, items
    if table == 1:
        out_ptr, size = tile_ptr, tiles
    if table == 2:
        out_ptr, size = block_ptr, blocks
    inside = line < size
    tl.store(out_ptr + line * 4, a, mask=inside)
    tl.store(out_ptr + line * 4 + 1, b, mask=inside)
    tl.store(out_ptr + line * 4 + 2, c, mask=inside)
    tl.store(out_ptr + line * 4 + 3, d, mask=inside)
