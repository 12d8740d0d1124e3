"""Attention by a `Pattern` in one pass of online softmax (FlashAttention-2, Dao 2023).

Scores live in base 2. Sums are kept in float32, and no score is in memory.
"""

import math

import torch
import triton
import triton.language as tl

from ldt.attention.triton.blocks import own_block, own_rows, own_tiles, place_tile, seen_by
from ldt.attention.triton.devices import precision
from ldt.attention.triton.dropout import kept, least
from ldt.attention.triton.launch import launched
from ldt.attention.triton.splits import FEW, combine, splits
from ldt.attention.triton.tiles import cast, dot, load_rows, padded, rows, store_rows

LOG2E = math.log2(math.e)


def forward(q, k, v, pattern, dropout=0.0, query_codes=None, key_codes=None):
    """Output and log-sum-exp.

    Args:
        q: [queries, heads, dim].
        k, v: [keys, heads, dim].
        pattern: which keys each query sees.
        dropout: probability that dropout takes a probability.
        query_codes, key_codes: [heads, queries] and [heads, keys] int32 of `token_codes`; None
            without dropout.

    Returns:
        [queries, heads, dim], float32 where programs share intervals; and [heads, queries] float32:
        the logarithm to base 2 of the sum of the exponentials of a row; infinity where the output
        is zero: at masked queries, and where no key is in reach.
    """
    q, k, v = rows(q), rows(k), rows(v)
    count, heads, dim = q.shape
    tile = pattern.tile("forward", q, dropout)
    blocks = pattern.programs(count, tile.rows)
    parts = splits(blocks * heads, pattern.longest)
    dtype = torch.float32 if pattern.longest else q.dtype  # few rows: their output is not rounded
    out = q.new_empty(parts, count, heads, dim, dtype=dtype)
    lse = q.new_empty(parts, heads, count, dtype=torch.float32)
    _forward[blocks, heads, parts](
        q, k, v, out, lse, pattern.keys.begin, pattern.keys.end, pattern.masked, pattern.hidden,
        pattern.next_hidden, pattern.classes(), *gathered(pattern, k, v, key_codes),
        query_codes, key_codes, count, len(k), dim**-0.5 * LOG2E, least(dropout), 1 / (1 - dropout),
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        **sizes(pattern, q, tile), **tile.launch,
    )  # fmt: skip
    if parts == 1:
        return out[0], lse[0]
    found = out.new_empty(1, count, heads, dim)
    return found[0], combine(out[None], found, lse)


def gathered(pattern, k, v, key_codes):
    """What kernels read of the gathered keys: keys, values, codes, their number, and the begin and
    end of those that each query sees; Nones without any."""
    found = pattern.gathered
    if found is None:
        return None, None, None, 0, None, None
    codes = None if key_codes is None else found.of_tokens(key_codes, 1)
    keys = found.of_tokens(k), found.of_tokens(v), codes, len(found.place)
    return *keys, found.keys.begin, found.keys.end


def sizes(pattern, q, tile):
    """The constants of a kernel that meets keys."""
    few = pattern.gathered is None or pattern.gathered.few
    block = FEW if few else tile.columns  # of gathered keys at a time
    dim = q.shape[2]
    return {"DIM": dim, "BLOCK_D": padded(dim), "BLOCK_G": block, "PRECISION": precision(q)}


@triton.jit
def _attend(
    m_i, l_i, acc, q, low, high, query_codes, k_ptr, v_ptr, hidden_ptr, key_codes_ptr,
    k_token, v_token, residue, dilation, begin, end, start, stop, left, skipped, scale, threshold,
    MASKED: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles ``start`` to ``stop - 1`` of keys to the largest score, sum and output of rows."""
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
        new = tl.maximum(m_i, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new[:, None])
        alpha = tl.exp2(m_i - new)
        l_i = l_i * alpha + tl.sum(p, 1)
        if query_codes is not None:
            codes = tl.load(key_codes_ptr + key, mask=there)
            p = tl.where(kept(query_codes[:, None], codes[None, :], threshold), p, 0.0)
        acc = dot(cast(p, q.dtype), v, acc * alpha[:, None], PRECISION)
        m_i = new
    return m_i, l_i, acc


@launched
@triton.jit(do_not_specialize=["queries", "keys", "gathered", "threshold"])
def _forward(
    q_ptr,  # [queries, heads, DIM], strides given
    k_ptr,  # [keys, heads, DIM], strides given
    v_ptr,  # [keys, heads, DIM], strides given
    out_ptr,  # [splits, queries, heads, DIM]
    lse_ptr,  # [splits, heads, queries] float32
    begin_ptr,  # [classes, queries]; this and the next ones as in Pattern
    end_ptr,  # [classes, queries]
    masked_ptr,  # [queries] or None
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
    scale,  # of scores to base 2
    threshold,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program attends for BLOCK_M queries of one head and residue class."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    residue, dilation, table, first, size = own_block(classes_ptr, queries, head, BLOCK_M)
    if first >= size:
        return
    query, inside, first, last = own_rows(residue, dilation, first, size, BLOCK_M)
    q = load_rows(q_ptr + head * q_head, query, q_token, inside, DIM, BLOCK_D)
    query_codes = None
    if query_codes_ptr is not None:
        query_codes = tl.load(query_codes_ptr + head * queries + query)
        key_codes_ptr += head * keys
    alive = True
    if masked_ptr is not None:  # where all are, the program has nothing to sum
        alive = tl.min(tl.load(masked_ptr + query).to(tl.int32), 0) == 0
    m_i = tl.full((BLOCK_M,), -1e30, tl.float32)  # finite: a row may meet hidden keys alone
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    if gathered_k_ptr is not None:
        low, high, begin, end = seen_by(
            gathered_begin_ptr, gathered_end_ptr, query, first, last, alive
        )
        tiles = tl.cdiv(end - begin, BLOCK_G)
        codes_ptr = gathered_codes_ptr
        if query_codes_ptr is not None:
            codes_ptr += head * gathered
        m_i, l_i, acc = _attend(
            m_i, l_i, acc, q, low, high, query_codes, gathered_k_ptr + head * DIM,
            gathered_v_ptr + head * DIM, None, codes_ptr, heads * DIM, heads * DIM, 0, 1,
            begin, end, 0, tiles, tiles, 0, scale, threshold, True, DIM, BLOCK_D, BLOCK_G,
            PRECISION,
        )  # fmt: skip

    k_ptr += head * k_head
    v_ptr += head * v_head
    low, high, begin, end, left, right, tiles = own_tiles(
        begin_ptr + table, end_ptr + table, query, first, last, alive, next_hidden_ptr, keys,
        residue, dilation, BLOCK_N,
    )  # fmt: skip
    m_i, l_i, acc = _attend(
        m_i, l_i, acc, q, low, high, query_codes, k_ptr, v_ptr, hidden_ptr, key_codes_ptr,
        k_token, v_token, residue, dilation, begin, end, 0, tiles - right + left, left,
        right - left, scale, threshold, True, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip
    m_i, l_i, acc = _attend(
        m_i, l_i, acc, q, low, high, query_codes, k_ptr, v_ptr, None, key_codes_ptr,
        k_token, v_token, residue, dilation, begin, end, left, right, right, 0, scale, threshold,
        False, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip

    full = l_i > 0
    if masked_ptr is not None:
        full = full & (tl.load(masked_ptr + query) == 0)
    l_i = tl.where(full, l_i, 1.0)
    acc = tl.where(full[:, None], acc * (gain / l_i)[:, None], 0.0)
    lse = tl.where(full, m_i + tl.log2(l_i), float("inf"))
    split = tl.program_id(2).to(tl.int64)
    out_ptr += head * DIM
    store_rows(out_ptr, acc, split * queries + query, heads * DIM, inside, DIM, BLOCK_D)
    tl.store(lse_ptr + (split * heads + head) * queries + query, lse, mask=inside)
