"""Gradients of attention by a `Pattern`: probabilities computed anew from the saved log-sum-exp.

Two kernels: a program of the first owns queries and meets the keys that they see, one of the second
owns keys and meets the queries that see them. The gathered keys, which all queries of a document
see, are keys of the second one in a launch of their own, which programs share. What is summed is
summed in one order, without atomics, so two runs give the same bits.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from ldt.attention.triton.blocks import own_block, own_rows, own_tiles, place_tile, seen_by
from ldt.attention.triton.devices import precision
from ldt.attention.triton.dropout import kept, least
from ldt.attention.triton.forward import LOG2E, gathered, sizes
from ldt.attention.triton.launch import launched
from ldt.attention.triton.splits import FEW, combine, splits
from ldt.attention.triton.tiles import cast, dot, load_rows, padded, rows, store_rows


def backward(dout, q, k, v, out, lse, pattern, dropout=0.0, query_codes=None, key_codes=None):
    """Gradients of q [queries, heads, dim], and of k and v [keys, heads, dim].

    Args:
        dout: [queries, heads, dim], of the output.
        q, k, v, pattern, dropout, query_codes, key_codes: as `forward` took them.
        out, lse: as it returned them.
    """
    dout, q, k, v = rows(dout), rows(q), rows(k), rows(v)
    numbers = q.shape[2] ** -0.5, q.shape[2] ** -0.5 * LOG2E, least(dropout), 1 / (1 - dropout)
    dq, delta = _queries(dout, q, k, v, out, lse, pattern, numbers, query_codes, key_codes)
    seen = dout, q, lse, delta, query_codes, numbers
    tile = pattern.tile("dkv", q, dropout)
    shared = pattern.hidden, pattern.classes()
    blocks = pattern.programs(len(k), tile.rows)
    dkv = k.new_empty(2, 1, *k.shape)
    _keys(dkv, k, v, key_codes, *seen, pattern.queries, *shared, tile, blocks)
    found = pattern.gathered
    if found is not None:
        tile = replace(tile, rows=FEW) if found.few else tile
        blocks = triton.cdiv(len(found.place), tile.rows)
        parts = splits(blocks * k.shape[1], len(q))
        sums = k.new_empty(2, parts, len(found.place), *k.shape[1:], dtype=torch.float32)
        keys, values, codes, *_ = gathered(pattern, k, v, key_codes)
        _keys(sums, keys, values, codes, *seen, found.queries, None, None, tile, blocks)
        combine(sums, dkv[:, 0], place=found.place)
    return dq, *dkv[:, 0]


def _queries(dout, q, k, v, out, lse, pattern, numbers, query_codes, key_codes):
    """Gradients of q, and [heads, queries] float32: the sums of dout * out."""
    count, heads, dim = q.shape
    tile = pattern.tile("dq", q, query_codes is not None)
    blocks = pattern.programs(count, tile.rows)
    parts = splits(blocks * heads, pattern.longest)
    dq = q.new_empty(1, parts, *q.shape, dtype=q.dtype if parts == 1 else torch.float32)
    delta = torch.empty_like(lse)
    _bwd_dq[blocks, heads, parts](
        q, k, v, dout, out, dq, lse, delta, pattern.keys.begin, pattern.keys.end, pattern.hidden,
        pattern.next_hidden, pattern.classes(), *gathered(pattern, k, v, key_codes),
        query_codes, key_codes, count, len(k), *numbers,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *dout.stride()[:2], *out.stride()[:2],
        **sizes(pattern, q, tile), **tile.launch,
    )  # fmt: skip
    if parts == 1:
        return dq[0, 0], delta
    found = q.new_empty(1, *q.shape)
    combine(dq, found)
    return found[0], delta


def _keys(
    dkv, k, v, key_codes, dout, q, lse, delta, query_codes, numbers, queries, hidden, classes,
    tile, blocks,
):  # fmt: skip
    """Writes to ``dkv`` [2, splits, keys, heads, dim] the gradients of keys and values."""
    _, parts, count, heads, dim = dkv.shape
    _bwd_dkv[blocks, heads, parts](
        q, k, v, dout, dkv, lse, delta, queries.begin, queries.end, hidden, classes,
        query_codes, key_codes, len(q), count, *numbers,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *dout.stride()[:2],
        DIM=dim, BLOCK_D=padded(dim), PRECISION=precision(q), **tile.launch,
    )  # fmt: skip


@triton.jit
def _slopes(p, a, b, delta, keep, gain, PRECISION: tl.constexpr):
    """Gradients of a tile's scores: [rows, columns] of the rows' dout and the columns' values, or
    of the rows' values and the columns' dout."""
    dp = dot(a, tl.trans(b), None, PRECISION)
    if keep is not None:
        dp = tl.where(keep, dp * gain, 0.0)
    return p * (dp - delta)


@triton.jit
def _add_to_dq(
    dq, q, dout, lse, delta, low, high, query_codes, k_ptr, v_ptr, hidden_ptr, key_codes_ptr,
    k_token, v_token, residue, dilation, begin, end, start, stop, left, skipped, scale, threshold,
    gain, MASKED: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles ``start`` to ``stop - 1`` of keys to the gradients of rows."""
    for i in tl.range(start, stop):
        column = place_tile(i, left, skipped, begin, BLOCK_N)
        key = residue + column * dilation
        there = column < end if MASKED else None
        k = load_rows(k_ptr, key, k_token, there, DIM, BLOCK_D)
        v = load_rows(v_ptr, key, v_token, there, DIM, BLOCK_D)
        scores = dot(q, tl.trans(k), None, PRECISION)
        if MASKED:
            seen = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
            if hidden_ptr is not None:
                hidden = tl.load(hidden_ptr + key, mask=there, other=1)
                seen = seen & (hidden == 0)[None, :]
            scores = tl.where(seen, scores, float("-inf"))
        keep = None
        if query_codes is not None:
            codes = tl.load(key_codes_ptr + key, mask=there)
            keep = kept(query_codes[:, None], codes[None, :], threshold)
        p = tl.exp2(scores * scale - lse[:, None])
        ds = _slopes(p, dout, v, delta[:, None], keep, gain, PRECISION)
        dq = dot(cast(ds, q.dtype), k, dq, PRECISION)
    return dq


@launched
@triton.jit(do_not_specialize=["queries", "keys", "gathered", "threshold"])
def _bwd_dq(
    q_ptr,  # [queries, heads, DIM], strides given
    k_ptr,  # [keys, heads, DIM], strides given
    v_ptr,  # [keys, heads, DIM], strides given
    dout_ptr,  # [queries, heads, DIM], strides given
    out_ptr,  # [queries, heads, DIM], strides given
    dq_ptr,  # [splits, queries, heads, DIM]
    lse_ptr,  # [heads, queries], infinite where the output is zero: no gradient
    delta_ptr,  # [heads, queries], filled here: sums of dout * out
    begin_ptr,  # [classes, queries]; this and the next ones as in Pattern
    end_ptr,  # [classes, queries]
    hidden_ptr,  # [keys] or None
    next_hidden_ptr,  # [keys + 1] or None
    classes_ptr,  # [heads, 2], or None without a dilation
    gathered_k_ptr,  # [gathered, heads, DIM], or None
    gathered_v_ptr,  # [gathered, heads, DIM]
    gathered_codes_ptr,  # [heads, gathered], or None without dropout
    gathered,
    gathered_begin_ptr,  # [queries]
    gathered_end_ptr,  # [queries]
    query_codes_ptr,  # [heads, queries], or None without dropout
    key_codes_ptr,  # [heads, keys], or None without dropout
    queries,
    keys,
    factor,  # of scores
    scale,  # of scores to base 2
    threshold,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    dout_token,
    dout_head,
    out_token,
    out_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program sums the gradients of BLOCK_M queries of one head and residue class."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    residue, dilation, table, first, size = own_block(classes_ptr, queries, head, BLOCK_M)
    if first >= size:
        return
    query, inside, first, last = own_rows(residue, dilation, first, size, BLOCK_M)
    dout = load_rows(dout_ptr + head * dout_head, query, dout_token, inside, DIM, BLOCK_D)
    out = load_rows(out_ptr + head * out_head, query, out_token, inside, DIM, BLOCK_D)
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    at = head * queries + query
    tl.store(delta_ptr + at, delta, mask=inside & (tl.program_id(2) == 0))
    lse = tl.load(lse_ptr + at)
    alive = tl.min(lse, 0) < float("inf")  # else the program has nothing to sum
    q = load_rows(q_ptr + head * q_head, query, q_token, inside, DIM, BLOCK_D)
    query_codes = None
    if query_codes_ptr is not None:
        query_codes = tl.load(query_codes_ptr + at)
        key_codes_ptr += head * keys
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    if gathered_k_ptr is not None:
        low, high, begin, end = seen_by(
            gathered_begin_ptr, gathered_end_ptr, query, first, last, alive
        )
        tiles = tl.cdiv(end - begin, BLOCK_G)
        codes_ptr = gathered_codes_ptr
        if query_codes_ptr is not None:
            codes_ptr += head * gathered
        dq = _add_to_dq(
            dq, q, dout, lse, delta, low, high, query_codes, gathered_k_ptr + head * DIM,
            gathered_v_ptr + head * DIM, None, codes_ptr, heads * DIM, heads * DIM, 0, 1,
            begin, end, 0, tiles, tiles, 0, scale, threshold, gain, True, DIM, BLOCK_D, BLOCK_G,
            PRECISION,
        )  # fmt: skip

    k_ptr += head * k_head
    v_ptr += head * v_head
    low, high, begin, end, left, right, tiles = own_tiles(
        begin_ptr + table, end_ptr + table, query, first, last, alive, next_hidden_ptr, keys,
        residue, dilation, BLOCK_N,
    )  # fmt: skip
    dq = _add_to_dq(
        dq, q, dout, lse, delta, low, high, query_codes, k_ptr, v_ptr, hidden_ptr, key_codes_ptr,
        k_token, v_token, residue, dilation, begin, end, 0, tiles - right + left, left,
        right - left, scale, threshold, gain, True, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip
    dq = _add_to_dq(
        dq, q, dout, lse, delta, low, high, query_codes, k_ptr, v_ptr, None, key_codes_ptr,
        k_token, v_token, residue, dilation, begin, end, left, right, right, 0, scale, threshold,
        gain, False, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip
    place = tl.program_id(2).to(tl.int64) * queries + query
    store_rows(dq_ptr + head * DIM, dq * factor, place, heads * DIM, inside, DIM, BLOCK_D)


@triton.jit
def _add_to_dkv(
    dk, dv, k, v, low, high, key_codes, q_ptr, dout_ptr, lse_ptr, delta_ptr, query_codes_ptr,
    q_token, dout_token, residue, dilation, begin, end, start, stop, left, skipped, scale,
    threshold, gain, MASKED: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles ``start`` to ``stop - 1`` of queries to the gradients of keys and values."""
    for i in tl.range(start, stop):
        column = place_tile(i, left, skipped, begin, BLOCK_N)
        there = None
        if MASKED:
            there = column < end
            seen = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
            column = tl.minimum(column, end - 1)  # in bounds; what is beyond is not seen
        query = residue + column * dilation
        q = load_rows(q_ptr, query, q_token, there, DIM, BLOCK_D)
        dout = load_rows(dout_ptr, query, dout_token, there, DIM, BLOCK_D)
        scores = dot(k, tl.trans(q), None, PRECISION)
        if MASKED:
            scores = tl.where(seen, scores, float("-inf"))
        p = tl.exp2(scores * scale - tl.load(lse_ptr + query)[None, :])
        keep = None
        left_over = p
        if key_codes is not None:
            codes = tl.load(query_codes_ptr + query)
            keep = kept(codes[None, :], key_codes[:, None], threshold)
            left_over = tl.where(keep, p, 0.0)
        dv = dot(cast(left_over, k.dtype), dout, dv, PRECISION)
        delta = tl.load(delta_ptr + query)[None, :]
        ds = _slopes(p, v, dout, delta, keep, gain, PRECISION)
        dk = dot(cast(ds, k.dtype), q, dk, PRECISION)
    return dk, dv


@launched
@triton.jit(do_not_specialize=["queries", "keys", "threshold"])
def _bwd_dkv(
    q_ptr,  # [queries, heads, DIM], strides given
    k_ptr,  # [keys, heads, DIM], strides given
    v_ptr,  # [keys, heads, DIM], strides given
    dout_ptr,  # [queries, heads, DIM], strides given
    dkv_ptr,  # [2, splits, keys, heads, DIM]
    lse_ptr,  # [heads, queries], infinite where the output is zero: no gradient
    delta_ptr,  # [heads, queries], sums of dout * out
    begin_ptr,  # [classes, keys], queries that see a key; this and the next ones as in Pattern
    end_ptr,  # [classes, keys]
    hidden_ptr,  # [keys] or None
    classes_ptr,  # [heads, 2], or None without a dilation
    query_codes_ptr,  # [heads, queries], or None without dropout
    key_codes_ptr,  # [heads, keys], or None without dropout
    queries,
    keys,
    factor,  # of scores
    scale,  # of scores to base 2
    threshold,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    dout_token,
    dout_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program sums the gradients of BLOCK_M keys and values of one head and residue class."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    residue, dilation, table, first, size = own_block(classes_ptr, keys, head, BLOCK_M)
    if first >= size:
        return
    key, inside, first, last = own_rows(residue, dilation, first, size, BLOCK_M)
    k = load_rows(k_ptr + head * k_head, key, k_token, inside, DIM, BLOCK_D)
    v = load_rows(v_ptr + head * v_head, key, v_token, inside, DIM, BLOCK_D)
    key_codes = None
    if key_codes_ptr is not None:
        key_codes = tl.load(key_codes_ptr + head * keys + key)
        query_codes_ptr += head * queries
    alive = True
    if hidden_ptr is not None:
        hidden = tl.load(hidden_ptr + key)
        alive = tl.min(hidden.to(tl.int32), 0) == 0  # else the program has nothing to sum
    q_ptr += head * q_head
    dout_ptr += head * dout_head
    lse_ptr += head * queries
    delta_ptr += head * queries
    dk = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    low, high, begin, end, left, right, tiles = own_tiles(
        begin_ptr + table, end_ptr + table, key, first, last, alive, None, queries,
        residue, dilation, BLOCK_N,
    )  # fmt: skip
    dk, dv = _add_to_dkv(
        dk, dv, k, v, low, high, key_codes, q_ptr, dout_ptr, lse_ptr, delta_ptr, query_codes_ptr,
        q_token, dout_token, residue, dilation, begin, end, 0, tiles - right + left, left,
        right - left, scale, threshold, gain, True, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip
    dk, dv = _add_to_dkv(
        dk, dv, k, v, low, high, key_codes, q_ptr, dout_ptr, lse_ptr, delta_ptr, query_codes_ptr,
        q_token, dout_token, residue, dilation, begin, end, left, right, right, 0, scale,
        threshold, gain, False, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip

    dk *= factor
    dv *= gain
    if hidden_ptr is not None:  # padding; global tokens get theirs where they are gathered
        dk = tl.where((hidden == 0)[:, None], dk, 0.0)
        dv = tl.where((hidden == 0)[:, None], dv, 0.0)
    splits = tl.num_programs(2).to(tl.int64)
    place = tl.program_id(2) * keys.to(tl.int64) + key
    dkv_ptr += head * DIM
    store_rows(dkv_ptr, dk, place, heads * DIM, inside, DIM, BLOCK_D)
    store_rows(dkv_ptr, dv, place + splits * keys, heads * DIM, inside, DIM, BLOCK_D)
