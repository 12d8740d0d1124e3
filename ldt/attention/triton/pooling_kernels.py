"""The kernels of the pooling: tokens to cells, gradients of cells to tokens, those of a weight."""

import triton
import triton.language as tl

from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import cast, dot, load_rows, store_rows


@triton.jit
def _load_table(ptr, row, inside, place, SIZE: tl.constexpr):
    """[rows, places] of a table [.., SIZE], float32; zeros where there are none."""
    mask = inside[:, None] & (place < SIZE)[None, :]
    return tl.load(ptr + row.to(tl.int64)[:, None] * SIZE + place[None, :], mask=mask, other=0.0)


@triton.jit
def _load_places(weight_ptr, place, dtype: tl.constexpr, SIZE: tl.constexpr, DIM, BLOCK_D):
    """[places, BLOCK_D] of the weight of one head, in the dtype that it is multiplied in."""
    weight = load_rows(weight_ptr, place, DIM, place < SIZE, DIM, BLOCK_D)
    return cast(weight.to(tl.float32), dtype)


@launched
@triton.jit(do_not_specialize=["count"])
def collect(
    k_ptr,  # [total, heads, DIM], strides given
    v_ptr,  # [total, heads, DIM], strides given
    weight_ptr,  # [heads, SIZE, DIM] of ldconv, [2, heads, SIZE, DIM] of conv, or None
    start_ptr,  # [count]; this and the next one as in Tables
    share_ptr,  # [count, SIZE]
    keys_ptr,  # [count, heads, DIM]
    values_ptr,  # [count, heads, DIM]
    shares_ptr,  # [heads, count, SIZE] float32, of ldconv, or None
    winners_ptr,  # [2, count, heads, DIM] int16, of max, or None
    count,
    k_token,
    k_head,
    v_token,
    v_head,
    POOLING: tl.constexpr,
    SIZE: tl.constexpr,
    PLACES: tl.constexpr,
    CENTRE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One program pools the keys and values of BLOCK_M cells of one head: it writes ``keys_ptr``
    and ``values_ptr``, and for a backward pass ``shares_ptr`` (ldconv) or ``winners_ptr`` (max)."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    k_ptr += head * k_head
    v_ptr += head * v_head
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = row < count
    start = tl.load(start_ptr + row, mask=there, other=0)
    place = tl.arange(0, PLACES)
    shares = _load_table(share_ptr, row, there, place, SIZE)

    if POOLING == "ldconv":
        has_centre = tl.load(share_ptr + row.to(tl.int64) * SIZE + CENTRE, mask=there, other=0.0)
        centre = load_rows(v_ptr, start + CENTRE, v_token, has_centre > 0, DIM, BLOCK_D)
        weight_ptr += head * SIZE * DIM
        weight = _load_places(weight_ptr, place, centre.dtype, SIZE, DIM, BLOCK_D)
        scores = tl.where(shares > 0, dot(centre, tl.trans(weight)), float("-inf"))
        top = tl.max(scores, 1)[:, None]
        powers = tl.exp(scores - tl.where(top == float("-inf"), 0.0, top))
        shares = powers / tl.maximum(tl.sum(powers, 1), 1.0)[:, None]  # a cell's sum is 1 or more
        if shares_ptr is not None:
            at = (head * count + row)[:, None] * SIZE + place[None, :]
            tl.store(shares_ptr + at, shares, mask=there[:, None] & (place < SIZE)[None, :])

    keys = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    values = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    if POOLING == "max":
        keys += float("-inf")
        values += float("-inf")
        key_winner = tl.zeros((BLOCK_M, BLOCK_D), tl.int16)
        value_winner = tl.zeros((BLOCK_M, BLOCK_D), tl.int16)
    for offset in tl.range(SIZE):
        share = tl.sum(tl.where((place == offset)[None, :], shares, 0.0), 1)
        here = share > 0
        k = load_rows(k_ptr, start + offset, k_token, here, DIM, BLOCK_D).to(tl.float32)
        v = load_rows(v_ptr, start + offset, v_token, here, DIM, BLOCK_D).to(tl.float32)
        if POOLING == "max":
            more = here[:, None] & ((k > keys) | (k != k))
            keys = tl.where(more, k, keys)
            key_winner = tl.where(more, offset, key_winner).to(tl.int16)
            more = here[:, None] & ((v > values) | (v != v))
            values = tl.where(more, v, values)
            value_winner = tl.where(more, offset, value_winner).to(tl.int16)
        elif POOLING == "conv":
            at = head * SIZE + offset + tl.zeros((1,), tl.int64)
            one = tl.full((1,), 1, tl.int1)
            keys += k * load_rows(weight_ptr, at, DIM, one, DIM, BLOCK_D).to(tl.float32)
            at += heads * SIZE
            values += v * load_rows(weight_ptr, at, DIM, one, DIM, BLOCK_D).to(tl.float32)
        else:
            keys += k * share[:, None]
            values += v * share[:, None]

    at = row.to(tl.int64) * heads + head
    if POOLING == "max":
        any_token = (tl.max(shares, 1) > 0)[:, None]
        keys = tl.where(any_token, keys, 0.0)
        values = tl.where(any_token, values, 0.0)
        if winners_ptr is not None:
            store_rows(winners_ptr, key_winner, at, DIM, there, DIM, BLOCK_D)
            behind = count.to(tl.int64) * heads
            store_rows(winners_ptr, value_winner, at + behind, DIM, there, DIM, BLOCK_D)
    store_rows(keys_ptr, keys, at, DIM, there, DIM, BLOCK_D)
    store_rows(values_ptr, values, at, DIM, there, DIM, BLOCK_D)


@launched
@triton.jit(do_not_specialize=["count", "part"])
def scores(
    k_ptr,  # [total, heads, DIM], strides given
    v_ptr,  # [total, heads, DIM], strides given
    up_k_ptr,  # [count, heads, DIM], gradients of the cells' keys
    up_v_ptr,  # [count, heads, DIM], of their values
    start_ptr,  # [count]; this and the next one as in Tables
    share_ptr,  # [count, SIZE]
    shares_ptr,  # [heads, count, SIZE] float32, as `collect` stores them
    slopes_ptr,  # [heads, count, SIZE] float32
    sums_ptr,  # [parts, heads, SIZE, DIM] float32
    count,
    part,  # cells of a program
    k_token,
    k_head,
    v_token,
    v_head,
    SIZE: tl.constexpr,
    PLACES: tl.constexpr,
    CENTRE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One program finds the gradients of ldconv's scores in ``part`` cells of a head,
    ``slopes_ptr``, and its part of the weight's, ``sums_ptr``."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    k_ptr += head * k_head
    v_ptr += head * v_head
    begin = tl.program_id(0) * part
    end = tl.minimum(begin + part, count)
    place = tl.arange(0, PLACES)
    total = tl.zeros((PLACES, BLOCK_D), tl.float32)
    for first in tl.range(begin, end, BLOCK_M, num_stages=1):
        row = first + tl.arange(0, BLOCK_M)
        there = row < end
        start = tl.load(start_ptr + row, mask=there, other=0)
        shares = _load_table(shares_ptr, head * count + row, there, place, SIZE)
        at = row.to(tl.int64) * heads + head
        up_k = load_rows(up_k_ptr, at, DIM, there, DIM, BLOCK_D).to(tl.float32)
        up_v = load_rows(up_v_ptr, at, DIM, there, DIM, BLOCK_D).to(tl.float32)
        up = tl.zeros((BLOCK_M, PLACES), tl.float32)
        for offset in tl.range(SIZE):
            is_cell = (place == offset)[None, :]
            here = tl.max(tl.where(is_cell, shares, 0.0), 1) > 0
            k = load_rows(k_ptr, start + offset, k_token, here, DIM, BLOCK_D).to(tl.float32)
            v = load_rows(v_ptr, start + offset, v_token, here, DIM, BLOCK_D).to(tl.float32)
            up = tl.where(is_cell, tl.sum(k * up_k + v * up_v, 1)[:, None], up)
        slopes = shares * (up - tl.sum(shares * up, 1)[:, None])
        table = (head * count + row)[:, None] * SIZE + place[None, :]
        tl.store(slopes_ptr + table, slopes, mask=there[:, None] & (place < SIZE)[None, :])
        has_centre = tl.load(share_ptr + row.to(tl.int64) * SIZE + CENTRE, mask=there, other=0.0)
        centre = load_rows(v_ptr, start + CENTRE, v_token, has_centre > 0, DIM, BLOCK_D)
        total = dot(tl.trans(cast(slopes, centre.dtype)), centre, total)
    at = (tl.program_id(0) * heads + head) * SIZE + place
    store_rows(sums_ptr, total, at, DIM, place < SIZE, DIM, BLOCK_D)


@launched
@triton.jit(do_not_specialize=["count", "part"])
def filters(
    k_ptr,  # [total, heads, DIM], strides given
    v_ptr,  # [total, heads, DIM], strides given
    up_k_ptr,  # [count, heads, DIM], gradients of the cells' keys
    up_v_ptr,  # [count, heads, DIM], of their values
    start_ptr,  # [count]; this and the next one as in Tables
    share_ptr,  # [count, SIZE]
    sums_ptr,  # [parts, 2, heads, SIZE, DIM] float32
    count,
    part,  # cells of a program
    k_token,
    k_head,
    v_token,
    v_head,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One program sums the gradients of conv's weights for one place and head over ``part`` cells,
    to ``sums_ptr``."""
    head, heads, offset = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    k_ptr += head * k_head
    v_ptr += head * v_head
    begin = tl.program_id(0) * part
    end = tl.minimum(begin + part, count)
    dk = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for first in tl.range(begin, end, BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        there = row < end
        token = tl.load(start_ptr + row, mask=there, other=0) + offset
        share = tl.load(share_ptr + row.to(tl.int64) * SIZE + offset, mask=there, other=0.0)
        here = share > 0
        at = row.to(tl.int64) * heads + head
        up_k = load_rows(up_k_ptr, at, DIM, there, DIM, BLOCK_D).to(tl.float32)
        up_v = load_rows(up_v_ptr, at, DIM, there, DIM, BLOCK_D).to(tl.float32)
        dk += up_k * load_rows(k_ptr, token, k_token, here, DIM, BLOCK_D).to(tl.float32)
        dv += up_v * load_rows(v_ptr, token, v_token, here, DIM, BLOCK_D).to(tl.float32)
    one = tl.full((1,), 1, tl.int1)
    at = (tl.program_id(0) * 2 * heads + head) * SIZE + offset + tl.zeros((1,), tl.int64)
    store_rows(sums_ptr, tl.sum(dk, 0)[None, :], at, DIM, one, DIM, BLOCK_D)
    store_rows(sums_ptr, tl.sum(dv, 0)[None, :], at + heads * SIZE, DIM, one, DIM, BLOCK_D)


@launched
@triton.jit(do_not_specialize=["total", "count"])
def spread(
    up_k_ptr,  # [count, heads, DIM], gradients of the cells' keys
    up_v_ptr,  # [count, heads, DIM], of their values
    weight_ptr,  # as `collect` takes it
    place_ptr,  # [total]; this and the next one as in Tables
    row_ptr,  # [total]
    share_ptr,  # [heads, count, SIZE] float32, of ldconv; [count, SIZE] of all heads else
    slopes_ptr,  # [heads, count, SIZE] float32, of ldconv's scores, or None
    winners_ptr,  # [2, count, heads, DIM] int16, of max, or None
    dk_ptr,  # [total, heads, DIM]
    dv_ptr,  # [total, heads, DIM]
    total,
    count,
    POOLING: tl.constexpr,
    STRIDE: tl.constexpr,
    CELLS: tl.constexpr,
    SIZE: tl.constexpr,
    PLACES: tl.constexpr,
    CENTRE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One program gathers the gradients ``dk_ptr`` and ``dv_ptr`` of BLOCK_M tokens of a head from
    the cells they are in."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    token = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = token < total
    place = tl.load(place_ptr + token, mask=there, other=-1)
    row = tl.load(row_ptr + token, mask=there, other=0)
    dk = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for back in tl.range(CELLS):  # from the last cell that starts at the token or before it
        cell = place // STRIDE - back
        offset = place - cell * STRIDE
        here = (place >= 0) & (cell >= 0) & (offset < SIZE)
        cell_row = (row + cell).to(tl.int64)
        at = cell_row * heads + head
        up_k = load_rows(up_k_ptr, at, DIM, here, DIM, BLOCK_D).to(tl.float32)
        up_v = load_rows(up_v_ptr, at, DIM, here, DIM, BLOCK_D).to(tl.float32)
        if POOLING == "max":
            winner = load_rows(winners_ptr, at, DIM, here, DIM, BLOCK_D)
            dk += tl.where(winner == offset[:, None], up_k, 0.0)
            at += count.to(tl.int64) * heads
            winner = load_rows(winners_ptr, at, DIM, here, DIM, BLOCK_D)
            dv += tl.where(winner == offset[:, None], up_v, 0.0)
        elif POOLING == "conv":
            at = head * SIZE + offset
            dk += up_k * load_rows(weight_ptr, at, DIM, here, DIM, BLOCK_D).to(tl.float32)
            at += heads * SIZE
            dv += up_v * load_rows(weight_ptr, at, DIM, here, DIM, BLOCK_D).to(tl.float32)
        else:
            if POOLING == "ldconv":
                cell_row += head * count
            share = tl.load(share_ptr + cell_row * SIZE + offset, mask=here, other=0.0)[:, None]
            dk += up_k * share
            dv += up_v * share
    if POOLING == "ldconv":
        ahead = place - CENTRE
        here = (place >= 0) & (ahead >= 0) & (ahead % STRIDE == 0)  # it is the centre of a cell
        index = tl.arange(0, PLACES)
        cell_row = head * count + row + ahead // STRIDE
        slopes = _load_table(slopes_ptr, cell_row, here, index, SIZE)
        dtype = dv_ptr.dtype.element_ty
        weight = _load_places(weight_ptr + head * SIZE * DIM, index, dtype, SIZE, DIM, BLOCK_D)
        dv = dot(cast(slopes, dtype), weight, dv)
    at = token.to(tl.int64) * heads + head
    store_rows(dk_ptr, dk, at, DIM, there, DIM, BLOCK_D)
    store_rows(dv_ptr, dv, at, DIM, there, DIM, BLOCK_D)
