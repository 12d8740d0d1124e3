"""Gradients of the band: probabilities computed anew from the saved log-sum-exp, no atomics.

Four kernels: the queries' gradients, a block of queries a program; the keys' and values', a block
of keys over the queries that reach it; those of the global keys, which all queries of a document
reach, in pieces of the document; and the sum of the pieces. What a program sums it sums in one
order, so two runs give the same bits.
"""

import torch
import triton
import triton.language as tl

from ldt.attention.triton.band_pattern import LOG2E, reach, silent_from, take
from ldt.attention.triton.devices import GLOBALS, OPTIONS, tile
from ldt.attention.triton.dropout import kept, least
from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import cast, dot, load_rows, padded, rows, store_rows

PIECE = 256  # tokens, at least, of a piece of a document that global keys meet
PROGRAMS = 4096  # enough of them to fill any GPU: no more pieces than that needs
PIECES = 256  # at most


def backward(grad, q, k, v, out, lse, tables, band, query_codes=None, key_codes=None):
    """Gradients of q, k and v.

    Args:
        grad: [total, heads, dim], of the output.
        q, k, v, tables, band, query_codes, key_codes: as `band.forward` took them.
        out, lse: as it returned them.
    """
    grad, q, k, v = rows(grad), rows(q), rows(k), rows(v)
    total, heads, dim = q.shape
    dq, dk, dv = (torch.empty_like(out) for _ in range(3))
    delta = torch.empty_like(lse)
    dropout = band.dropout > 0
    gaps = band.gaps_on(q.device)
    near, far = 0 if band.causal else band.radius, band.radius
    numbers = dim**-0.5, dim**-0.5 * LOG2E, least(band.dropout), 1 / (1 - band.dropout)
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *grad.stride()[:2])
    strides = (*strides, *out.stride()[:2])
    of_globals = tables.global_start, tables.global_stop, tables.global_index
    dims = {"DIM": dim, "BLOCK_D": padded(dim)}

    cut = tile("band queries", q, dropout)
    _queries[band.programs(total, cut.rows), heads](
        q, k, v, grad, out, dq, lse, delta,
        tables.start, tables.stop, tables.silent, tables.next_silent, *of_globals,
        gaps, query_codes, key_codes, total, far, near, *numbers, *strides,
        **dims, FEW=GLOBALS, **cut.launch,
    )  # fmt: skip
    cut = tile("band keys", q, dropout)
    _keys[band.programs(total, cut.rows), heads](
        q, k, v, grad, dk, dv, lse, delta, tables.start, tables.stop, tables.silent,
        gaps, query_codes, key_codes, total, near, far, *numbers, *strides, **dims, **cut.launch,
    )  # fmt: skip
    if tables.global_index is None:
        return dq, dk, dv
    cut = tile("band globals", q, dropout)
    count = len(tables.global_index)
    programs = triton.cdiv(count, cut.rows) * heads
    pieces = min(triton.cdiv(total, PIECE), triton.cdiv(PROGRAMS, programs), PIECES)
    parts = lse.new_empty(2, pieces, count, heads, dim)
    last = tables.global_stop[-1:]  # how many global tokens there are
    _globals[triton.cdiv(count, cut.rows), heads, pieces](
        q, k, v, grad, parts, lse, delta, tables.start, tables.stop, tables.global_index, last,
        query_codes, key_codes, total, count, *numbers, *strides, **dims, **cut.launch,
    )  # fmt: skip
    _pieces[count, heads](
        parts, dk, dv, tables.global_index, last, count, pieces, *out.stride()[:2],
        **dims, PIECES=triton.next_power_of_2(pieces), num_warps=8, **OPTIONS,
    )  # fmt: skip
    return dq, dk, dv


@triton.jit
def _slopes(probs, up, values, delta, keep, gain):
    """Gradients of a tile's scores: [rows, columns] of the rows' up and the columns' values, or of
    the rows' values and the columns' up."""
    up = dot(up, tl.trans(values))
    if keep is not None:
        up = tl.where(keep, up * gain, 0.0)
    return probs * (up - delta)


@triton.jit
def _add_values(probs, up, dv, keep):
    """Adds to the values' gradients what a tile of up [columns, dims] gives to them."""
    if keep is not None:
        probs = tl.where(keep, probs, 0.0)
    return dot(cast(probs, up.dtype), up, dv)


@launched
@triton.jit(do_not_specialize=["total", "back", "ahead", "least"])
def _queries(
    q_ptr,  # [total, heads, DIM], strides given, as the next five
    k_ptr,  # [total, heads, DIM]
    v_ptr,  # [total, heads, DIM]
    grad_ptr,  # [total, heads, DIM], gradients of the output
    out_ptr,  # [total, heads, DIM]
    dq_ptr,  # [total, heads, DIM], strides of out
    lse_ptr,  # [heads, total]
    delta_ptr,  # [heads, total], filled here: sums of grad * out
    start_ptr,  # [total]; this and the next six as in Tables
    stop_ptr,  # [total]
    silent_ptr,  # [total] or None
    next_silent_ptr,  # [total + 1] or None
    global_start_ptr,  # [total] or None
    global_stop_ptr,  # [total] or None
    global_index_ptr,  # [globals] or None
    gaps_ptr,  # [heads], or None where every gap is 1
    query_codes_ptr,  # [heads, total], or None without dropout
    key_codes_ptr,  # [heads, total], or None without dropout
    total,
    back,  # indices in reach before a query
    ahead,  # and after it
    factor,  # of scores
    scale,  # of scores to base 2
    least,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    grad_token,
    grad_head,
    out_token,
    out_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FEW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program sums the gradients of ROWS queries of one head and residue class."""
    head = tl.program_id(1).to(tl.int64)
    residue, gap, count, first = take(gaps_ptr, total, head, ROWS)
    if first >= count:
        return
    k_ptr += head * k_head
    v_ptr += head * v_head
    dtype = q_ptr.dtype.element_ty

    index = first + tl.arange(0, ROWS)
    inside = index < count
    index = tl.minimum(index, count - 1)
    token = residue + index * gap
    low, high = reach(start_ptr, stop_ptr, index, residue, gap, back, ahead)
    final = tl.minimum(first + ROWS, count) - 1
    begin, inner_end = reach(start_ptr, stop_ptr, first, residue, gap, back, ahead)
    inner_begin, end = reach(start_ptr, stop_ptr, final, residue, gap, back, ahead)
    up = load_rows(grad_ptr + head * grad_head, token, grad_token, inside, DIM, BLOCK_D)
    out = load_rows(out_ptr + head * out_head, token, out_token, inside, DIM, BLOCK_D)
    delta = tl.sum(up.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_ptr + head * total + token, delta, mask=inside)
    delta = delta[:, None]
    lse = tl.load(lse_ptr + head * total + token)[:, None]  # infinite at silent rows: no gradient
    q = load_rows(q_ptr + head * q_head, token, q_token, inside, DIM, BLOCK_D)
    dq = tl.zeros((ROWS, BLOCK_D), tl.float32)
    if query_codes_ptr is not None:
        key_codes_ptr += head * total
        query_codes = tl.load(query_codes_ptr + head * total + token)[:, None]

    if global_index_ptr is not None:
        low_slot = tl.load(global_start_ptr + token)[:, None]
        high_slot = tl.load(global_stop_ptr + token)[:, None]
        until = tl.load(global_stop_ptr + residue + final * gap)
        first_slot = tl.load(global_start_ptr + residue + first * gap)
        for some in tl.range(first_slot, until, FEW, num_stages=1):
            slot = some + tl.arange(0, FEW)
            there = slot < until
            key = tl.load(global_index_ptr + slot, mask=there, other=0)
            k = load_rows(k_ptr, key, k_token, there, DIM, BLOCK_D)
            v = load_rows(v_ptr, key, v_token, there, DIM, BLOCK_D)
            keep = None
            if query_codes_ptr is not None:
                key_codes = tl.load(key_codes_ptr + key, mask=there, other=0)
                keep = kept(query_codes, key_codes[None, :], least)
            own = (slot[None, :] >= low_slot) & (slot[None, :] < high_slot)
            scores = tl.where(own, dot(q, tl.trans(k)) * scale, float("-inf"))
            ds = _slopes(tl.exp2(scores - lse), up, v, delta, keep, gain)
            dq = dot(cast(ds, dtype), k, dq)

    if silent_ptr is not None:
        nearest = silent_from(next_silent_ptr, begin, residue, gap, total)
    for at in tl.range(begin, end + 1, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        there = column <= end
        key = residue + column * gap
        k = load_rows(k_ptr, key, k_token, there, DIM, BLOCK_D)
        v = load_rows(v_ptr, key, v_token, there, DIM, BLOCK_D)
        keep = None
        if query_codes_ptr is not None:
            key_codes = tl.load(key_codes_ptr + key, mask=there, other=0)
            keep = kept(query_codes, key_codes[None, :], least)
        scores = dot(q, tl.trans(k))
        if (at < inner_begin) | (at + COLUMNS - 1 > inner_end):
            near = (column[None, :] >= low[:, None]) & (column[None, :] <= high[:, None])
            scores = tl.where(near, scores, float("-inf"))
        if silent_ptr is not None:
            if nearest < residue + (at + COLUMNS) * gap:
                silent = tl.load(silent_ptr + key, mask=there, other=1) != 0
                scores = tl.where(silent[None, :], float("-inf"), scores)
            # Loaded a tile ahead of its use.
            nearest = silent_from(next_silent_ptr, at + COLUMNS, residue, gap, total)
        ds = _slopes(tl.exp2(scores * scale - lse), up, v, delta, keep, gain)
        dq = dot(cast(ds, dtype), k, dq)

    store_rows(dq_ptr + head * out_head, dq * factor, token, out_token, inside, DIM, BLOCK_D)


@launched
@triton.jit(do_not_specialize=["total", "back", "ahead", "least"])
def _keys(
    q_ptr,  # [total, heads, DIM], strides given, as the next three
    k_ptr,  # [total, heads, DIM]
    v_ptr,  # [total, heads, DIM]
    grad_ptr,  # [total, heads, DIM], gradients of the output
    dk_ptr,  # [total, heads, DIM], strides of out
    dv_ptr,  # [total, heads, DIM], strides of out
    lse_ptr,  # [heads, total]
    delta_ptr,  # [heads, total]
    start_ptr,  # [total]; this and the next two as in Tables
    stop_ptr,  # [total]
    silent_ptr,  # [total] or None
    gaps_ptr,  # [heads], or None where every gap is 1
    query_codes_ptr,  # [heads, total], or None without dropout
    key_codes_ptr,  # [heads, total], or None without dropout
    total,
    back,  # indices before a key whose queries reach it
    ahead,  # and after it
    factor,  # of scores
    scale,  # of scores to base 2
    least,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    grad_token,
    grad_head,
    out_token,
    out_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program sums the gradients of ROWS keys and values of one head and residue class."""
    head = tl.program_id(1).to(tl.int64)
    residue, gap, count, first = take(gaps_ptr, total, head, ROWS)
    if first >= count:
        return
    q_ptr += head * q_head
    grad_ptr += head * grad_head
    lse_ptr += head * total
    delta_ptr += head * total
    dtype = q_ptr.dtype.element_ty

    index = first + tl.arange(0, ROWS)
    inside = index < count
    index = tl.minimum(index, count - 1)
    token = residue + index * gap
    low, high = reach(start_ptr, stop_ptr, index, residue, gap, back, ahead)
    final = tl.minimum(first + ROWS, count) - 1
    begin, inner_end = reach(start_ptr, stop_ptr, first, residue, gap, back, ahead)
    inner_begin, end = reach(start_ptr, stop_ptr, final, residue, gap, back, ahead)
    k = load_rows(k_ptr + head * k_head, token, k_token, inside, DIM, BLOCK_D)
    v = load_rows(v_ptr + head * v_head, token, v_token, inside, DIM, BLOCK_D)
    dk = tl.zeros((ROWS, BLOCK_D), tl.float32)
    dv = tl.zeros((ROWS, BLOCK_D), tl.float32)
    if query_codes_ptr is not None:
        query_codes_ptr += head * total
        key_codes = tl.load(key_codes_ptr + head * total + token)[:, None]

    for at in tl.range(begin, end + 1, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        there = column <= end
        query = residue + column * gap
        q = load_rows(q_ptr, query, q_token, there, DIM, BLOCK_D)
        up = load_rows(grad_ptr, query, grad_token, there, DIM, BLOCK_D)
        # In bounds without a mask, which costs a sixth of the loop; near hides what is beyond.
        query = tl.minimum(query, residue + end * gap)
        lse = tl.load(lse_ptr + query)[None, :]
        delta = tl.load(delta_ptr + query)[None, :]
        keep = None
        if query_codes_ptr is not None:
            query_codes = tl.load(query_codes_ptr + query)[None, :]
            keep = kept(query_codes, key_codes, least)
        scores = dot(k, tl.trans(q))
        if (at < inner_begin) | (at + COLUMNS - 1 > inner_end):
            near = (column[None, :] >= low[:, None]) & (column[None, :] <= high[:, None])
            scores = tl.where(near, scores, float("-inf"))
        probs = tl.exp2(scores * scale - lse)
        dv = _add_values(probs, up, dv, keep)
        ds = _slopes(probs, v, up, delta, keep, gain)
        dk = dot(cast(ds, dtype), q, dk)

    dk *= factor
    dv *= gain
    if silent_ptr is not None:  # holes; global tokens get theirs from _pieces
        seen = (tl.load(silent_ptr + token) == 0)[:, None]
        dk = tl.where(seen, dk, 0.0)
        dv = tl.where(seen, dv, 0.0)
    store_rows(dk_ptr + head * out_head, dk, token, out_token, inside, DIM, BLOCK_D)
    store_rows(dv_ptr + head * out_head, dv, token, out_token, inside, DIM, BLOCK_D)


@launched
@triton.jit(do_not_specialize=["total", "count", "least"])
def _globals(
    q_ptr,  # [total, heads, DIM], strides given, as the next three
    k_ptr,  # [total, heads, DIM]
    v_ptr,  # [total, heads, DIM]
    grad_ptr,  # [total, heads, DIM], gradients of the output
    parts_ptr,  # [2, pieces, count, heads, DIM] float32, of dk and dv
    lse_ptr,  # [heads, total]
    delta_ptr,  # [heads, total]
    start_ptr,  # [total]; this and the next two as in Tables
    stop_ptr,  # [total]
    global_index_ptr,  # [count]
    last_ptr,  # [1], how many of them are valid
    query_codes_ptr,  # [heads, total], or None without dropout
    key_codes_ptr,  # [heads, total], or None without dropout
    total,
    count,
    factor,  # of scores
    scale,  # of scores to base 2
    least,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    grad_token,
    grad_head,
    out_token,
    out_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program sums the gradients of ROWS global keys over one piece of their documents."""
    head = tl.program_id(1).to(tl.int64)
    valid = tl.load(last_ptr)
    first = tl.program_id(0) * ROWS
    if first >= valid:
        return
    q_ptr += head * q_head
    grad_ptr += head * grad_head
    lse_ptr += head * total
    delta_ptr += head * total
    dtype = q_ptr.dtype.element_ty

    slot = first + tl.arange(0, ROWS)
    inside = slot < valid
    token = tl.load(global_index_ptr + slot, mask=inside, other=0)
    low = tl.load(start_ptr + token)[:, None]
    high = tl.where(inside, tl.load(stop_ptr + token), 0)[:, None]
    begin = tl.load(start_ptr + tl.load(global_index_ptr + first))
    end = tl.load(stop_ptr + tl.load(global_index_ptr + tl.minimum(first + ROWS, valid) - 1))
    piece = tl.cdiv(tl.cdiv(end - begin, tl.num_programs(2)), COLUMNS) * COLUMNS
    begin += tl.program_id(2) * piece
    end = tl.minimum(begin + piece, end)
    k = load_rows(k_ptr + head * k_head, token, k_token, inside, DIM, BLOCK_D)
    v = load_rows(v_ptr + head * v_head, token, v_token, inside, DIM, BLOCK_D)
    dk = tl.zeros((ROWS, BLOCK_D), tl.float32)
    dv = tl.zeros((ROWS, BLOCK_D), tl.float32)
    if query_codes_ptr is not None:
        query_codes_ptr += head * total
        key_codes = tl.load(key_codes_ptr + head * total + token)[:, None]

    for at in tl.range(begin, end, COLUMNS):
        query = at + tl.arange(0, COLUMNS)
        there = query < end
        q = load_rows(q_ptr, query, q_token, there, DIM, BLOCK_D)
        up = load_rows(grad_ptr, query, grad_token, there, DIM, BLOCK_D)
        lse = tl.load(lse_ptr + query, mask=there, other=float("inf"))[None, :]
        delta = tl.load(delta_ptr + query, mask=there, other=0.0)[None, :]
        keep = None
        if query_codes_ptr is not None:
            query_codes = tl.load(query_codes_ptr + query, mask=there, other=0)[None, :]
            keep = kept(query_codes, key_codes, least)
        near = (query[None, :] >= low) & (query[None, :] < high)
        scores = tl.where(near, dot(k, tl.trans(q)) * scale, float("-inf"))
        probs = tl.exp2(scores - lse)
        dv = _add_values(probs, up, dv, keep)
        ds = _slopes(probs, v, up, delta, keep, gain)
        dk = dot(cast(ds, dtype), q, dk)

    heads = tl.num_programs(1)
    row = (tl.program_id(2).to(tl.int64) * count + slot) * heads + head
    store_rows(parts_ptr, dk * factor, row, DIM, inside, DIM, BLOCK_D)
    row += tl.num_programs(2).to(tl.int64) * count * heads
    store_rows(parts_ptr, dv * gain, row, DIM, inside, DIM, BLOCK_D)


@launched
@triton.jit(do_not_specialize=["count", "pieces"])
def _pieces(
    parts_ptr,  # [2, pieces, count, heads, DIM] float32
    dk_ptr,  # [total, heads, DIM], strides given
    dv_ptr,  # [total, heads, DIM], the same strides
    global_index_ptr,  # [count]
    last_ptr,  # [1], how many of them are valid
    count,
    pieces,
    out_token,
    out_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PIECES: tl.constexpr,
):
    """One program sums the pieces of one global key, which is in no window, and of its value."""
    slot = tl.program_id(0)
    if slot >= tl.load(last_ptr):
        return
    head = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1)
    piece = tl.arange(0, PIECES)
    row = (piece.to(tl.int64) * count + slot) * heads + head
    token = tl.load(global_index_ptr + slot) + tl.zeros((1,), tl.int64)
    one = tl.full((1,), 1, tl.int1)
    dk = tl.sum(load_rows(parts_ptr, row, DIM, piece < pieces, DIM, BLOCK_D), 0)[None, :]
    store_rows(dk_ptr + head * out_head, dk, token, out_token, one, DIM, BLOCK_D)
    row += pieces.to(tl.int64) * count * heads
    dv = tl.sum(load_rows(parts_ptr, row, DIM, piece < pieces, DIM, BLOCK_D), 0)[None, :]
    store_rows(dv_ptr + head * out_head, dv, token, out_token, one, DIM, BLOCK_D)
