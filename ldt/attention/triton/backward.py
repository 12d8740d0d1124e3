"""Gradients of attention by a `Pattern`: probabilities computed anew from the saved log-sum-exp.

Two kernels: a program of the first owns queries and meets the keys that they see, one of the second
owns keys and meets the queries that see them. The gathered keys, which all queries of a document
see, are keys of the second one as well, in programs of their own that share the queries. What is
summed is summed in one order, without atomics, so two runs give the same bits.
"""

import torch
import triton
import triton.language as tl

from ldt.attention.triton.blocks import meet, own_block, own_rows, own_tiles, seen_by, seen_only
from ldt.attention.triton.dropout import KEY, QUERY, kept, least, token_codes
from ldt.attention.triton.forward import LOG2E, firsts, sizes, tables
from ldt.attention.triton.launch import Launch, launched
from ldt.attention.triton.splits import FEW, combined, splits
from ldt.attention.triton.tiles import (
    cast,
    cdiv,
    dot,
    load_columns,
    load_rows,
    rows,
    store_rows,
)


class Backward:
    """Compiled backward pass to a `Forward`: writes the gradients of q, k and v into tensors.

    Called with dq, dkv, dout, q, k, v, out, lse and the seed, see `__init__`; ``out`` and ``lse``
    are what `Forward` returned.

    Args:
        dq: [queries, heads, dim], to write to; in all of these the numbers of a token are
            contiguous.
        dkv: [2, keys, heads, dim], to write to.
        dout: [queries, heads, dim], gradient of the output.
        q, k, v, pattern, dropout: as `Forward` took them.
        out: output of `Forward`.
        joined: as `Forward` took it; then dq and dkv are one tensor of the same shape.
    """

    def __init__(self, dq, dkv, dout, q, k, v, out, pattern, dropout=0.0, joined=False):
        (count, heads, dim), keys, globals_ = q.shape, len(k), pattern.gathered
        self.shape, (k_first, v_first) = q.shape, firsts(q, joined)
        # The sums of dout * out beside each lse: the second kernel reads both in one load.
        self.stats = q.new_empty((heads, count, 2), dtype=torch.float32)
        # Factor of scores, that to base 2, threshold and gain of dropout.
        numbers = dim**-0.5, dim**-0.5 * LOG2E, least(dropout), 1 / (1 - dropout)
        strides, of_pattern = [x.stride(0) for x in (q, k, v, dout)], tables(pattern)
        tile = pattern.tile("dq", q, dropout)
        blocks = pattern.programs(count, tile.rows)
        parts = splits(blocks * heads, pattern.longest)
        self.parts = parts if parts > 1 else None  # of the sums of q's gradients
        fixed = *of_pattern, count, keys, *numbers, *strides, out.stride(0)
        fixed = *fixed, dq.stride(0) if parts == 1 else heads * dim, k_first, v_first
        options = sizes(pattern, q, tile) | tile.launch
        self.of_queries = Launch(_bwd_dq, (blocks, heads, parts), fixed, options)

        tile = pattern.tile("dkv", q, dropout)
        options = sizes(pattern, q, tile) | tile.launch
        extra, parts, self.gathered, gathered = 0, 1, None, 0
        if globals_ is not None:
            gathered = globals_.shape[1]
            options["BLOCK_G"] = FEW if pattern.few_gathered else tile.rows
            extra = cdiv(gathered, options["BLOCK_G"])
            parts = splits(extra * heads, count)
            shape = 2, parts, gathered, heads, dim
            self.gathered = q.new_empty(shape, dtype=torch.float32)
            self.combined = combined(self.gathered, dkv, globals_[0], k_first)
        blocks = extra * parts + pattern.programs(keys, tile.rows)
        fixed = *of_pattern, count, keys, gathered, extra, parts, *numbers, *strides
        fixed = *fixed, *dkv.stride()[:2], k_first, v_first
        self.of_keys = Launch(_bwd_dkv, (blocks, heads), fixed, options)

    def __call__(self, dq, dkv, dout, q, k, v, out, lse, seed):
        sums = dq if self.parts is None else lse.new_empty((self.parts, *self.shape))
        self.of_queries(q, k, v, dout, out, sums, lse, self.stats, seed)
        if self.parts is not None:
            combined(sums[None], dq[None])(sums, None, dq, None)
        self.of_keys(q, k, v, dout, dkv, self.gathered, self.stats, seed)
        if self.gathered is not None:
            self.combined(self.gathered, None, dkv, None)


def backward(dout, q, k, v, out, lse, pattern, dropout=0.0, seed=None):
    """Gradients (dq, dk, dv), of the shapes of q, k and v, by `Backward`.

    Where queries and keys are equally many, they are parts of one tensor [tokens, 3, heads, dim].
    ``dout`` is the gradient of ``out``, which `forward` gave with ``lse`` from the other arguments.
    """
    if len(q) == len(k):
        gradients = q.new_empty(len(q), 3, *q.shape[1:])
        dq, dkv = gradients[:, 0], gradients[:, 1:].transpose(0, 1)
    else:
        dq, dkv = q.new_empty(q.shape), k.new_empty(2, *k.shape)
    tensors = dq, dkv, *map(rows, (dout, q, k, v, out))
    Backward(*tensors, pattern, dropout)(*tensors, lse, seed)
    return dq, *dkv


@triton.jit
def _slopes(p, a, b, delta, keep, gain, PRECISION: tl.constexpr):
    """Gradients of a tile's scores: [rows, columns] of the rows' dout and the columns' values, or
    of the rows' values and the columns' dout."""
    dp = dot(a, b, None, PRECISION)
    if keep is not None:
        dp = tl.where(keep, dp * gain, 0.0)
    return p * (dp - delta)


@triton.jit
def _add_to_dq(
    dq, q, dout, lse, delta, low, high, query_codes, k_ptr, v_ptr, place_ptr, hidden_ptr,
    next_hidden_ptr, token_ptr, keys, seed, head, k_token, v_token, residue, dilation, begin, end,
    left, right, tiles, scale, threshold, gain, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles of keys to the gradients of rows; see `seen_only`."""
    STAGES: tl.constexpr = None if place_ptr is None else 1
    for i in tl.range(0, tiles, num_stages=STAGES):
        column, key = meet(i, begin, end, place_ptr, residue, dilation, BLOCK_N)
        k = load_columns(k_ptr, key, k_token, DIM, BLOCK_D)
        v = load_columns(v_ptr, key, v_token, DIM, BLOCK_D)
        scores = seen_only(
            dot(q, k, None, PRECISION), i, left, right, column, low, high, key, begin, hidden_ptr,
            next_hidden_ptr, residue, dilation,
        )  # fmt: skip
        keep = None
        if query_codes is not None:
            codes = token_codes(token_ptr, keys, key, None, seed, head, KEY)
            keep = kept(query_codes[:, None], codes[None, :], threshold)
        p = tl.exp2(scores * scale - lse[:, None])
        ds = _slopes(p, dout, v, delta[:, None], keep, gain, PRECISION)
        dq = dot(cast(ds, q.dtype), tl.trans(k), dq, PRECISION)
    return dq


@launched
@triton.jit(do_not_specialize=["queries", "keys", "threshold"])
def _bwd_dq(
    q_ptr,  # [queries, heads, DIM], stride given
    k_ptr,  # [keys, heads, DIM] from k_first on, stride given
    v_ptr,  # [keys, heads, DIM] from v_first on, stride given
    dout_ptr,  # [queries, heads, DIM], stride given
    out_ptr,  # [queries, heads, DIM], stride given
    dq_ptr,  # [splits, queries, heads, DIM], stride given
    lse_ptr,  # [heads, queries], infinite where the output is zero: no gradient
    stats_ptr,  # [heads, queries, 2], filled here: lse, and sums of dout * out
    seed_ptr,  # [] int64, or None without dropout
    query_ptr,  # [.., queries]; this and the next four as of `_forward`
    key_ptr,
    hidden_ptr,
    gathered_ptr,
    classes_ptr,
    queries,
    keys,
    factor,  # of scores
    scale,  # of scores to base 2
    threshold,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    k_token,
    v_token,
    dout_token,
    out_token,
    dq_token,
    k_first,
    v_first,
    CLASSES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program sums the gradients of BLOCK_M queries of one head and residue class."""
    head = tl.program_id(1).to(tl.int64)
    residue, dilation, table, first, size = own_block(
        classes_ptr, tl.program_id(0), queries, head, BLOCK_M
    )
    if first >= size:
        return
    query, inside, first, last = own_rows(residue, dilation, first, size, BLOCK_M)
    dout = load_rows(dout_ptr + head * DIM, query, dout_token, inside, DIM, BLOCK_D)
    out = load_rows(out_ptr + head * DIM, query, out_token, inside, DIM, BLOCK_D)
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    at = head * queries + query
    lse = tl.load(lse_ptr + at)
    ours = inside & (tl.program_id(2) == 0)
    tl.store(stats_ptr + 2 * at, lse, mask=ours)
    tl.store(stats_ptr + 2 * at + 1, delta, mask=ours)
    alive = tl.min(lse, 0) < float("inf")  # else the program has nothing to sum
    q = load_rows(q_ptr + head * DIM, query, q_token, inside, DIM, BLOCK_D)
    behind = 2 * CLASSES * queries.to(tl.int64)  # the rows of bounds
    seed, query_codes = None, None
    if seed_ptr is not None:
        seed = tl.load(seed_ptr)
        query_codes = token_codes(
            query_ptr + behind, queries, query, None, seed, tl.program_id(1), QUERY
        )
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    k_ptr += head * DIM + k_first
    v_ptr += head * DIM + v_first
    token_ptr = key_ptr + 2 * CLASSES * keys.to(tl.int64)
    next_hidden_ptr = None if hidden_ptr is None else token_ptr + 2 * keys.to(tl.int64)

    if gathered_ptr is not None:
        begin_ptr = query_ptr + behind + 3 * queries.to(tl.int64)
        low, high, begin, end = seen_by(begin_ptr, begin_ptr + queries, query, first, last, alive)
        tiles = tl.cdiv(end - begin, BLOCK_G)
        dq = _add_to_dq(
            dq, q, dout, lse, delta, low, high, query_codes, k_ptr, v_ptr, gathered_ptr, None, None,
            token_ptr, keys, seed, tl.program_id(1), k_token, v_token, 0, 1, begin, end, tiles,
            tiles, tiles, scale, threshold, gain, DIM, BLOCK_D, BLOCK_G, PRECISION,
        )  # fmt: skip

    begin_ptr = query_ptr + table
    low, high, begin, end, left, right, tiles = own_tiles(
        begin_ptr, begin_ptr + CLASSES * queries.to(tl.int64), query, first, last, alive,
        next_hidden_ptr, keys, residue, dilation, tl.program_id(2), tl.num_programs(2), BLOCK_N,
    )  # fmt: skip
    dq = _add_to_dq(
        dq, q, dout, lse, delta, low, high, query_codes, k_ptr, v_ptr, None, hidden_ptr,
        next_hidden_ptr, token_ptr, keys, seed, tl.program_id(1), k_token, v_token, residue,
        dilation, begin, end, left, right, tiles, scale, threshold, gain, DIM, BLOCK_D, BLOCK_N,
        PRECISION,
    )  # fmt: skip
    place = tl.program_id(2).to(tl.int64) * queries + query
    store_rows(dq_ptr + head * DIM, dq * factor, place, dq_token, inside, DIM, BLOCK_D)


@triton.jit
def _add_to_dkv(
    dk, dv, k, v, low, high, key_codes, q_ptr, dout_ptr, stats_ptr, token_ptr, queries,
    seed, head, q_token, dout_token, residue, dilation, begin, end, left, right, tiles,
    scale, threshold, gain, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles of queries to the gradients of keys and values."""
    for i in tl.range(0, tiles):
        column, query = meet(i, begin, end, None, residue, dilation, BLOCK_N)
        q = load_columns(q_ptr, query, q_token, DIM, BLOCK_D)
        dout = load_columns(dout_ptr, query, dout_token, DIM, BLOCK_D)
        scores = seen_only(
            dot(k, q, None, PRECISION), i, left, right, column, low, high, query, begin, None, None,
            residue, dilation,
        )  # fmt: skip
        lse, delta = tl.split(tl.load(stats_ptr + query[:, None] * 2 + tl.arange(0, 2)[None, :]))
        p = tl.exp2(scores * scale - lse[None, :])
        keep = None
        left_over = p
        if key_codes is not None:
            codes = token_codes(token_ptr, queries, query, None, seed, head, QUERY)
            keep = kept(codes[None, :], key_codes[:, None], threshold)
            left_over = tl.where(keep, p, 0.0)
        dv = dot(cast(left_over, k.dtype), tl.trans(dout), dv, PRECISION)
        ds = _slopes(p, v, dout, delta[None, :], keep, gain, PRECISION)
        dk = dot(cast(ds, k.dtype), tl.trans(q), dk, PRECISION)
    return dk, dv


@triton.jit
def _dkv(
    k_ptr, v_ptr, key, inside, low, high, begin, end, left, right, tiles, key_ptr, keys, q_ptr,
    dout_ptr, stats_ptr, query_ptr, queries, seed_ptr, head, q_token, k_token, v_token,
    dout_token, residue, dilation, factor, scale, threshold, gain, DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values at tokens ``key``, [BLOCK_M, BLOCK_D] each."""
    k = load_rows(k_ptr, key, k_token, inside, DIM, BLOCK_D)
    v = load_rows(v_ptr, key, v_token, inside, DIM, BLOCK_D)
    seed, codes = None, None
    if seed_ptr is not None:
        seed = tl.load(seed_ptr)
        codes = token_codes(key_ptr, keys, key, inside, seed, head, KEY)
    dk = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dk, dv = _add_to_dkv(
        dk, dv, k, v, low, high, codes, q_ptr, dout_ptr, stats_ptr, query_ptr, queries,
        seed, head, q_token, dout_token, residue, dilation, begin, end, left, right, tiles, scale,
        threshold, gain, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip
    return dk * factor, dv * gain


@launched
@triton.jit(do_not_specialize=["queries", "keys", "gathered", "extra", "parts", "threshold"])
def _bwd_dkv(
    q_ptr,  # [queries, heads, DIM], stride given
    k_ptr,  # [keys, heads, DIM] from k_first on, stride given
    v_ptr,  # [keys, heads, DIM] from v_first on, stride given
    dout_ptr,  # [queries, heads, DIM], stride given
    dkv_ptr,  # [2, keys, heads, DIM], strides given
    sums_ptr,  # [2, parts, gathered, heads, DIM] float32, or None
    stats_ptr,  # [heads, queries, 2], as `_bwd_dq` left them
    seed_ptr,  # [] int64, or None without dropout
    query_ptr,  # [.., queries]; this and the next four as of `_forward`
    key_ptr,
    hidden_ptr,
    gathered_ptr,
    classes_ptr,
    queries,
    keys,
    gathered,
    extra,  # blocks of gathered keys, whose programs come first
    parts,  # programs that share each of these
    factor,  # of scores
    scale,  # of scores to base 2
    threshold,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    k_token,
    v_token,
    dout_token,
    to_v,
    dkv_token,
    k_first,  # of dkv as well
    v_first,
    CLASSES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program sums the gradients of BLOCK_M keys and values of one head and residue class, or
    of BLOCK_G gathered ones from a part of the queries."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    k_ptr += head * DIM + k_first
    v_ptr += head * DIM + v_first
    q_ptr += head * DIM
    dout_ptr += head * DIM
    stats_ptr += head * queries * 2
    program = tl.program_id(0)
    begin_ptr = key_ptr
    key_ptr += 2 * CLASSES * keys.to(tl.int64)
    query_ptr += 2 * CLASSES * queries.to(tl.int64)
    if gathered_ptr is not None:
        if program < extra * parts:
            split, first = program % parts, program // parts * BLOCK_G
            slot, inside, first, last = own_rows(0, 1, first, gathered, BLOCK_G)
            place = tl.load(gathered_ptr + slot)
            low, high, begin, end, left, right, tiles = own_tiles(
                gathered_ptr + gathered, gathered_ptr + 2 * gathered, slot, first, last, True, None,
                queries, 0, 1, split, parts, BLOCK_N,
            )  # fmt: skip
            dk, dv = _dkv(
                k_ptr, v_ptr, place, inside & (place < keys), low, high, begin, end, left, right,
                tiles, key_ptr, keys, q_ptr, dout_ptr, stats_ptr, query_ptr, queries,
                seed_ptr, tl.program_id(1), q_token, k_token, v_token, dout_token, 0, 1, factor,
                scale, threshold, gain, DIM, BLOCK_D, BLOCK_G, BLOCK_N, PRECISION,
            )  # fmt: skip
            sums_ptr += head * DIM
            at = split.to(tl.int64) * gathered + slot
            store_rows(sums_ptr, dk, at, heads * DIM, inside, DIM, BLOCK_D)
            at += parts.to(tl.int64) * gathered
            store_rows(sums_ptr, dv, at, heads * DIM, inside, DIM, BLOCK_D)
            return
        program -= extra * parts

    residue, dilation, table, first, size = own_block(classes_ptr, program, keys, head, BLOCK_M)
    if first >= size:
        return
    key, inside, first, last = own_rows(residue, dilation, first, size, BLOCK_M)
    alive = True
    if hidden_ptr is not None:
        hidden = tl.load(hidden_ptr + key)
        alive = tl.min(hidden.to(tl.int32), 0) == 0  # else the program has nothing to sum
    begin_ptr += table
    low, high, begin, end, left, right, tiles = own_tiles(
        begin_ptr, begin_ptr + CLASSES * keys.to(tl.int64), key, first, last, alive, None, queries,
        residue, dilation, 0, 1, BLOCK_N,
    )  # fmt: skip
    dk, dv = _dkv(
        k_ptr, v_ptr, key, inside, low, high, begin, end, left, right, tiles, key_ptr, keys, q_ptr,
        dout_ptr, stats_ptr, query_ptr, queries, seed_ptr, tl.program_id(1), q_token,
        k_token, v_token, dout_token, residue, dilation, factor, scale, threshold, gain, DIM,
        BLOCK_D, BLOCK_M, BLOCK_N, PRECISION,
    )  # fmt: skip
    if hidden_ptr is not None:  # padding; global tokens get theirs where they are gathered
        dk = tl.where((hidden == 0)[:, None], dk, 0.0)
        dv = tl.where((hidden == 0)[:, None], dv, 0.0)
    dkv_ptr += head * DIM + k_first
    store_rows(dkv_ptr, dk, key, dkv_token, inside, DIM, BLOCK_D)
    store_rows(dkv_ptr + to_v.to(tl.int64), dv, key, dkv_token, inside, DIM, BLOCK_D)
