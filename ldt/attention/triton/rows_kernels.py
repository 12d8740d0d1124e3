"""Softmax attention of a few rows over all tokens of their document, in pieces of the document.

Rows and tokens may be wide: products run over CHUNK columns at a time, and tuples hold one tile for
each chunk. The rows of one global token are its PER heads where all heads share their keys, else
every head is a program of its own and PER is 1. Scores are kept in units of log2.
"""

# mypy: disable-error-code="assignment"
# (tuples of tiles grow where Triton unrolls a loop, and change their type)

import triton
import triton.language as tl

from ldt.attention.triton.dropout import kept
from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import cast, dot, load_rows, store_rows

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(ptr, row, stride, inside, c: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """[rows, CHUNK], chunk c of the columns of rows."""
    LEFT: tl.constexpr = WIDTH - c * CHUNK
    return load_rows(ptr + c * CHUNK, row, stride, inside, CHUNK if LEFT > CHUNK else LEFT, CHUNK)


@triton.jit
def _store(ptr, x, row, stride, inside, c: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """Stores x [rows, CHUNK] as chunk c of the columns of rows."""
    LEFT: tl.constexpr = WIDTH - c * CHUNK
    store_rows(ptr + c * CHUNK, x, row, stride, inside, CHUNK if LEFT > CHUNK else LEFT, CHUNK)


@triton.jit
def _zeros(CHUNKS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """CHUNKS tiles [SIZE, CHUNK]."""
    tiles = ()
    for _ in tl.static_range(CHUNKS):
        tiles = tiles + (tl.zeros((SIZE, CHUNK), tl.float32),)
    return tiles


@triton.jit
def _seen(keep_ptr, key, end):
    """True of tokens that lie before the end and are no holes."""
    seen = key < end
    if keep_ptr is not None:
        seen = seen & (tl.load(keep_ptr + key, mask=seen, other=0) != 0)
    return seen


@triton.jit
def _kept(
    query_ptr, key_ptr, index_ptr, row, in_rows, key, in_keys, head, total, least, PER: tl.constexpr
):
    """[rows, keys], which probabilities dropout leaves."""
    token = tl.load(index_ptr + row // PER, mask=in_rows, other=0)
    place = (head + row % PER).to(tl.int64) * total
    queries = tl.load(query_ptr + place + token, mask=in_rows, other=0)
    if PER == 1:
        keys = tl.load(key_ptr + head.to(tl.int64) * total + key, mask=in_keys, other=0)[None, :]
    else:
        inside = in_rows[:, None] & in_keys[None, :]
        keys = tl.load(key_ptr + place[:, None] + key[None, :], mask=inside, other=0)
    return kept(queries[:, None], keys, least)


@launched
@triton.jit(do_not_specialize=["total", "least"])
def attend(
    q_ptr,  # [rows, heads, WIDTH]
    low_ptr,  # [rows, heads, WIDTH], to be added to q, strides of q; None: nothing
    k_ptr,  # [total, heads, WIDTH]
    v_ptr,  # [total, heads, WIDTH]; None: the keys
    keep_ptr,  # [total] uint8, 0 at holes; None: no holes
    query_code_ptr,  # [heads * PER, total] int32 of dropout; None: no dropout
    key_code_ptr,  # [heads * PER, total] int32
    index_ptr,  # [globals] int64, tokens of the rows
    item_ptr,  # [items, 4] int32, see Plan
    part_ptr,  # [items, heads, ROWS, WIDTH] float32, sums of values before division
    stats_ptr,  # [3, items, heads, ROWS] float32: largest score, sum, sum of what dropout leaves
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    total,
    scale,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program attends from a tile of rows to a piece of their document, in one head."""
    item, head = tl.program_id(0), tl.program_id(1)
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    row = tl.load(item_ptr + item * 4) + tl.arange(0, ROWS)
    in_rows = row < tl.load(item_ptr + item * 4 + 1)
    begin, end = tl.load(item_ptr + item * 4 + 2), tl.load(item_ptr + item * 4 + 3)
    if tl.load(item_ptr + item * 4) >= tl.load(item_ptr + item * 4 + 1):
        return
    q_ptr += head.to(tl.int64) * q_head
    if low_ptr is not None:
        low_ptr += head.to(tl.int64) * q_head
    k_ptr += head.to(tl.int64) * k_head
    if v_ptr is not None:
        v_ptr += head.to(tl.int64) * v_head
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total_weight = tl.zeros((ROWS,), tl.float32)
    kept_weight = tl.zeros((ROWS,), tl.float32)
    sums = _zeros(CHUNKS, ROWS, CHUNK)
    for start in tl.range(begin, end, COLUMNS):
        key = start + tl.arange(0, COLUMNS)
        in_keys = key < end
        scores = tl.zeros((ROWS, COLUMNS), tl.float32)
        values = ()
        for c in tl.static_range(CHUNKS):
            q = _load(q_ptr, row, q_row, in_rows, c, WIDTH, CHUNK)
            k = _load(k_ptr, key, k_row, in_keys, c, WIDTH, CHUNK)
            scores = dot(q, tl.trans(k), scores)
            if low_ptr is not None:
                low = _load(low_ptr, row, q_row, in_rows, c, WIDTH, CHUNK)
                scores = dot(low, tl.trans(k), scores)
            if v_ptr is None:
                values = values + (k,)
            else:
                values = values + (_load(v_ptr, key, v_row, in_keys, c, WIDTH, CHUNK),)
        seen = _seen(keep_ptr, key, end)
        scores = tl.where(seen[None, :], scores * (scale * LOG2E), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        probs = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(top - shift)
        total_weight = total_weight * shrink + tl.sum(probs, 1)
        if query_code_ptr is not None:
            left = _kept(
                query_code_ptr, key_code_ptr, index_ptr, row, in_rows, key, in_keys, head, total,
                least, PER,
            )  # fmt: skip
            probs = tl.where(left, probs, 0.0)
            kept_weight = kept_weight * shrink + tl.sum(probs, 1)
        probs = cast(probs, k_ptr.dtype.element_ty)
        new = ()
        for c in tl.static_range(CHUNKS):
            new = new + (dot(probs, values[c], sums[c] * shrink[:, None]),)
        sums = new
        top = new_top
    items, heads = tl.num_programs(0).to(tl.int64), tl.num_programs(1)
    place = (item.to(tl.int64) * heads + head) * ROWS + tl.arange(0, ROWS)
    for c in tl.static_range(CHUNKS):
        _store(part_ptr, sums[c], place, WIDTH, in_rows, c, WIDTH, CHUNK)
    tl.store(stats_ptr + place, top)
    tl.store(stats_ptr + items * heads * ROWS + place, total_weight)
    if query_code_ptr is not None:
        tl.store(stats_ptr + 2 * items * heads * ROWS + place, kept_weight)


@launched
@triton.jit(do_not_specialize=["items", "rows"])
def merge(
    part_ptr,  # [items, heads, ROWS, WIDTH] float32
    stats_ptr,  # [3, items, heads, ROWS] float32 of `attend`; None: a plain sum
    tile_ptr,  # [tiles, 4] int32, see Plan
    out_ptr,  # [rows, heads, WIDTH]
    lse_ptr,  # [heads, rows] float32, logarithm to base 2 of the sum of exponentials
    weight_ptr,  # [heads, rows] float32, sum of a row's probabilities after dropout; None: one
    items,
    rows,
    factor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """One program sums a chunk of a row over the pieces of its document, times ``factor``."""
    lane = tl.program_id(0) % ROWS
    tile_ptr += tl.program_id(0) // ROWS * 4
    head, heads = tl.program_id(1), tl.num_programs(1)
    row = tl.load(tile_ptr) + lane
    if row >= tl.load(tile_ptr + 1):
        return
    begin, end = tl.load(tile_ptr + 2), tl.load(tile_ptr + 3)
    column = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    count = items.to(tl.int64) * heads * ROWS
    top = float("-inf")
    total_weight = 0.0
    kept_weight = 0.0
    total = tl.zeros((CHUNK,), tl.float32)
    for start in tl.range(begin, end, ITEMS):
        item = start + tl.arange(0, ITEMS)
        inside = item < end
        place = (item.to(tl.int64) * heads + head) * ROWS + lane
        mask = inside[:, None] & (column < WIDTH)[None, :]
        part = tl.load(part_ptr + place[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        if stats_ptr is not None:
            tops = tl.load(stats_ptr + place, mask=inside, other=float("-inf"))
            new_top = tl.maximum(top, tl.max(tops, 0))
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            grown, shrink = tl.exp2(tops - shift), tl.exp2(top - shift)
            sums = tl.load(stats_ptr + count + place, mask=inside, other=0.0)
            total_weight = total_weight * shrink + tl.sum(sums * grown, 0)
            if weight_ptr is not None:
                sums = tl.load(stats_ptr + 2 * count + place, mask=inside, other=0.0)
                kept_weight = kept_weight * shrink + tl.sum(sums * grown, 0)
            part = part * grown[:, None]
            total = total * shrink
            top = new_top
        total += tl.sum(part, 0)
    if stats_ptr is not None:
        factor = factor / total_weight
        tl.store(lse_ptr + head * rows + row, top + tl.log2(total_weight))
        if weight_ptr is not None:
            tl.store(weight_ptr + head * rows + row, kept_weight * factor)
    out = cast(total * factor, out_ptr.dtype.element_ty)
    place = (row.to(tl.int64) * heads + head) * WIDTH + column
    tl.store(out_ptr + place, out, mask=column < WIDTH)
