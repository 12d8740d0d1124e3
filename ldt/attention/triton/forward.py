"""Attention by a `Pattern` in one pass of online softmax (FlashAttention-2, Dao 2023).

Scores live in base 2. Sums are kept in float32, and no score is in memory.
"""

import math

import torch
import triton
import triton.language as tl

from ldt.attention.triton.blocks import meet, own_block, own_rows, own_tiles, seen_by, seen_only
from ldt.attention.triton.devices import Tile, precision
from ldt.attention.triton.dropout import KEY, QUERY, kept, least, token_codes
from ldt.attention.triton.launch import Launch, launched, room
from ldt.attention.triton.pattern import Pattern
from ldt.attention.triton.splits import FEW, combined, splits
from ldt.attention.triton.tiles import cast, dot, load_columns, load_rows, padded, rows, store_rows

LOG2E = math.log2(math.e)


class Forward:
    """Compiled forward pass for queries, keys and values of one shape and memory layout.

    Called with q [queries, heads, dim], k and v [keys, heads, dim], the numbers of each token
    contiguous, with the seed of dropout, int64 [] on the device, or None, and with room for the
    output or None, it returns

    - [queries, heads, dim], float32 where programs share intervals;
    - [heads, queries] float32: the logarithm to base 2 of the sum of the exponentials of a row;
      infinity where the output is zero: at masked queries, and where no key is in reach.

    Args:
        q, k, v: such tensors.
        pattern: `Pattern` of the keys that each query sees.
        dropout: probability of dropping an attention probability.
        joined: True if it is called with one tensor [tokens, 3, heads, dim] for all three of these.
    """

    def __init__(self, q, k, v, pattern, dropout=0.0, joined=False):
        count, heads, dim = self.shape = q.shape
        tile = pattern.tile("forward", q, dropout)
        blocks = pattern.programs(count, tile.rows)
        parts = splits(blocks * heads, pattern.longest)
        self.parts = (parts,) if parts > 1 else ()
        # Few rows: their output is not rounded.
        self.dtype = torch.float32 if pattern.longest else q.dtype
        self.lse = room(q, (*self.parts, heads, count))
        numbers = count, len(k), dim**-0.5 * LOG2E, least(dropout), 1 / (1 - dropout)
        fixed = *tables(pattern), *numbers, *(x.stride(0) for x in (q, k, v)), *firsts(q, joined)
        options = {"MASKED": pattern.masked, **sizes(pattern, q, tile), **tile.launch}
        self.launch = Launch(_forward, (blocks, heads, parts), fixed, options)

    def __call__(self, q, k, v, seed, out=None):
        count, heads, dim = self.shape
        if out is None:
            out = q.new_empty((*self.parts, count, heads, dim), dtype=self.dtype)
        lse = torch.empty_like(self.lse)
        self.launch(q, k, v, out, lse, seed)
        if not self.parts:
            return out, lse
        whole, lse_whole = out.new_empty(self.shape), lse.new_empty(lse.shape[1:])
        combined(out[None], whole[None])(out, lse, whole, lse_whole)
        return whole, lse_whole


def forward(q, k, v, pattern: Pattern, dropout=0.0, seed=None):
    """Run a `Forward` once, built for these tensors; return its (output, log-sum-exp)."""
    q, k, v = rows(q), rows(k), rows(v)
    return Forward(q, k, v, pattern, dropout)(q, k, v, seed)


def tables(pattern: Pattern) -> tuple[torch.Tensor | None, ...]:
    """Five tensors of a `Pattern` that kernels read, each None where it has none: tables of
    queries, keys, hidden and gathered keys, classes."""
    return pattern.queries, pattern.keys, pattern.hidden, pattern.gathered, pattern.classes()


def firsts(q: torch.Tensor, joined: bool) -> tuple[int, int]:
    """Offsets of k and of v, in numbers, in the tensors that kernels get; (0, 0) unless
    ``joined``."""
    step = q.shape[1] * q.shape[2] if joined else 0
    return step, 2 * step


def sizes(pattern: Pattern, q: torch.Tensor, tile: Tile) -> dict:
    """Compile-time constants, by name, of a kernel that attends by a `Pattern`, without those of
    its `Tile`."""
    dim = q.shape[2]
    return {
        "CLASSES": len(set(pattern.dilations)),
        "DIM": dim,
        "BLOCK_D": padded(dim),
        "BLOCK_G": FEW if pattern.few_gathered else tile.columns,  # keys at a time
        "PRECISION": precision(q),
    }


@triton.jit
def _attend(
    m_i, l_i, acc, q, low, high, query_codes, k_ptr, v_ptr, place_ptr, hidden_ptr,
    next_hidden_ptr, token_ptr, keys, seed, head, k_token, v_token, residue, dilation, begin, end,
    left, right, tiles, scale, threshold, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles of keys to the largest score, sum and output of rows; see `seen_only`."""
    STAGES: tl.constexpr = None if place_ptr is None else 1
    for i in tl.range(0, tiles, num_stages=STAGES):
        column, key = meet(i, begin, end, place_ptr, residue, dilation, BLOCK_N)
        k = load_columns(k_ptr, key, k_token, DIM, BLOCK_D)
        v = load_rows(v_ptr, key, v_token, None, DIM, BLOCK_D)
        scores = seen_only(
            dot(q, k, None, PRECISION), i, left, right, column, low, high, key, begin, hidden_ptr,
            next_hidden_ptr, residue, dilation,
        )  # fmt: skip
        new = tl.maximum(m_i, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new[:, None])
        alpha = tl.exp2(m_i - new)
        l_i = l_i * alpha + tl.sum(p, 1)
        if query_codes is not None:
            codes = token_codes(token_ptr, keys, key, None, seed, head, KEY)
            p = tl.where(kept(query_codes[:, None], codes[None, :], threshold), p, 0.0)
        acc = dot(cast(p, q.dtype), v, acc * alpha[:, None], PRECISION)
        m_i = new
    return m_i, l_i, acc


@launched
@triton.jit(do_not_specialize=["queries", "keys", "threshold"])
def _forward(
    q_ptr,  # [queries, heads, DIM], stride given
    k_ptr,  # [keys, heads, DIM] from k_first on, stride given
    v_ptr,  # [keys, heads, DIM] from v_first on, stride given
    out_ptr,  # [splits, queries, heads, DIM]
    lse_ptr,  # [splits, heads, queries] float32
    seed_ptr,  # [] int64, or None without dropout
    query_ptr,  # [.., queries]; this and the next three as in Pattern
    key_ptr,  # [.., keys]
    hidden_ptr,  # [keys], or None
    gathered_ptr,  # [3, gathered], or None
    classes_ptr,  # [heads, 2], or None without a dilation
    queries,
    keys,
    scale,  # of scores to base 2
    threshold,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    k_token,
    v_token,
    k_first,
    v_first,
    MASKED: tl.constexpr,
    CLASSES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program attends for BLOCK_M queries of one head and residue class."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    residue, dilation, table, first, size = own_block(
        classes_ptr, tl.program_id(0), queries, head, BLOCK_M
    )
    if first >= size:
        return
    query, inside, first, last = own_rows(residue, dilation, first, size, BLOCK_M)
    q = load_rows(q_ptr + head * DIM, query, q_token, inside, DIM, BLOCK_D)
    behind = 2 * CLASSES * queries.to(tl.int64)  # the rows of bounds
    seed, query_codes = None, None
    if seed_ptr is not None:
        seed = tl.load(seed_ptr)
        query_codes = token_codes(
            query_ptr + behind, queries, query, None, seed, tl.program_id(1), QUERY
        )
    alive = True
    masked_ptr = query_ptr + behind + 2 * queries.to(tl.int64)
    if MASKED:  # where all are, the program has nothing to sum
        alive = tl.min(tl.load(masked_ptr + query), 0) == 0
    m_i = tl.full((BLOCK_M,), -1e30, tl.float32)  # finite: a row may meet hidden keys alone
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    k_ptr += head * DIM + k_first
    v_ptr += head * DIM + v_first
    token_ptr = key_ptr + 2 * CLASSES * keys.to(tl.int64)
    next_hidden_ptr = None if hidden_ptr is None else token_ptr + 2 * keys.to(tl.int64)

    if gathered_ptr is not None:
        begin_ptr = masked_ptr + queries
        low, high, begin, end = seen_by(begin_ptr, begin_ptr + queries, query, first, last, alive)
        tiles = tl.cdiv(end - begin, BLOCK_G)
        m_i, l_i, acc = _attend(
            m_i, l_i, acc, q, low, high, query_codes, k_ptr, v_ptr, gathered_ptr, None, None,
            token_ptr, keys, seed, tl.program_id(1), k_token, v_token, 0, 1, begin, end, tiles,
            tiles, tiles, scale, threshold, DIM, BLOCK_D, BLOCK_G, PRECISION,
        )  # fmt: skip

    begin_ptr = query_ptr + table
    low, high, begin, end, left, right, tiles = own_tiles(
        begin_ptr, begin_ptr + CLASSES * queries.to(tl.int64), query, first, last, alive,
        next_hidden_ptr, keys, residue, dilation, tl.program_id(2), tl.num_programs(2), BLOCK_N,
    )  # fmt: skip
    m_i, l_i, acc = _attend(
        m_i, l_i, acc, q, low, high, query_codes, k_ptr, v_ptr, None, hidden_ptr, next_hidden_ptr,
        token_ptr, keys, seed, tl.program_id(1), k_token, v_token, residue, dilation, begin, end,
        left, right, tiles, scale, threshold, DIM, BLOCK_D, BLOCK_N, PRECISION,
    )  # fmt: skip

    full = l_i > 0
    if MASKED:
        full = full & (tl.load(masked_ptr + query) == 0)
    l_i = tl.where(full, l_i, 1.0)
    acc = tl.where(full[:, None], acc * (gain / l_i)[:, None], 0.0)
    lse = tl.where(full, m_i + tl.log2(l_i), float("inf"))
    split = tl.program_id(2).to(tl.int64)
    out_ptr += head * DIM
    store_rows(out_ptr, acc, split * queries + query, heads * DIM, inside, DIM, BLOCK_D)
    tl.store(lse_ptr + (split * heads + head) * queries + query, lse, mask=inside)
