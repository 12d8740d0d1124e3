"""Sliding-window attention in one pass of online softmax: the operator and its forward kernel.

A program owns some queries of one head and meets the keys of their windows a tile at a time; only
tiles at an edge (of a window, a document, around hidden keys) are masked. With a gap of d between
the keys of a window, a program takes tokens of one residue modulo d, and index m of that residue
class is token ``residue + m * d``: the rest is the plain window. Scores live in base 2.
"""

import torch
import triton
import triton.language as tl

from ldt.attention.derivatives import first_order, once
from ldt.attention.triton.band_backward import backward
from ldt.attention.triton.band_pattern import LOG2E, Band, Tables, reach, silent_from, take
from ldt.attention.triton.devices import GLOBALS, tile
from ldt.attention.triton.dropout import kept, least, token_codes
from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import cast, check, dot, load_rows, padded, rows, store_rows


def sliding_window_attention(
    q, k, v, layout, *, window, dilation=1, causal=False, dropout=0.0, seed=0
):
    """`reference.sliding_window_attention` for CUDA tensors, or any under TRITON_INTERPRET=1.

    Sums are kept in float32 and float32 inputs are not rounded. Memory is that of the output and 4
    bytes per token and head (12 with dropout); two runs give the same bits, gradients included.

    Raises:
        ValueError: for other devices, dtypes, or heads of more than 128 dims.
    """
    check(q, k, v)
    heads = q.shape[1]
    gaps = (dilation,) * heads if isinstance(dilation, int) else tuple(dilation)
    band = Band(window // 2, causal, gaps, dropout)
    codes = token_codes(layout, heads, seed) if dropout else (None, None)
    return _Attention.apply(q, k, v, Tables.of(layout), band, *codes)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, tables, band, query_codes, key_codes):
        out, lse = once(forward, q, k, v, tables, band, query_codes, key_codes)
        ctx.save_for_backward(q, k, v, out, lse, query_codes, key_codes)
        ctx.tables, ctx.band = tables, band
        return out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        q, k, v, out, lse, *codes = ctx.saved_tensors
        return *backward(grad, q, k, v, out, lse, ctx.tables, ctx.band, *codes), *[None] * 4


def forward(q, k, v, tables, band, query_codes=None, key_codes=None):
    """Output and log-sum-exp of a band.

    Args:
        q, k, v: [total, heads, dim].
        tables, band: the layout's tables, and the pattern.
        query_codes, key_codes: [heads, total] int32 of `token_codes`; None without dropout.

    Returns:
        [total, heads, dim], and [heads, total] float32: the logarithm to base 2 of the sum of the
        exponentials of a row; infinity at silent rows, whose output is zero.
    """
    q, k, v = rows(q), rows(k), rows(v)
    total, heads, dim = q.shape
    out = q.new_empty(total, heads, dim)
    lse = q.new_empty(heads, total, dtype=torch.float32)
    cut = tile("band forward", q, band.dropout > 0)
    _forward[band.programs(total, cut.rows), heads](
        q, k, v, out, lse,
        tables.start, tables.stop, tables.silent, tables.next_silent,
        tables.global_start, tables.global_stop, tables.global_index,
        band.gaps_on(q.device), query_codes, key_codes,
        total, band.radius, 0 if band.causal else band.radius,
        dim**-0.5 * LOG2E, least(band.dropout), 1 / (1 - band.dropout),
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2],
        DIM=dim, BLOCK_D=padded(dim), FEW=GLOBALS, **cut.launch,
    )  # fmt: skip
    return out, lse


@triton.jit
def _gather(scores, v, keep, top, mass, out, scale, dtype: tl.constexpr):
    """One step of online softmax: adds a tile of keys to the sums of its rows."""
    new = tl.maximum(top, tl.max(scores, 1) * scale)
    probs = tl.exp2(scores * scale - new[:, None])
    shrink = tl.exp2(top - new)
    mass = mass * shrink + tl.sum(probs, 1)
    if keep is not None:
        probs = tl.where(keep, probs, 0.0)
    out = dot(cast(probs, dtype), v, out * shrink[:, None])
    return new, mass, out


@launched
@triton.jit(do_not_specialize=["total", "back", "ahead", "least"])
def _forward(
    q_ptr,  # [total, heads, DIM], strides given
    k_ptr,  # [total, heads, DIM], strides given
    v_ptr,  # [total, heads, DIM], strides given
    out_ptr,  # [total, heads, DIM], strides given
    lse_ptr,  # [heads, total] float32
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
    scale,  # of scores to base 2
    least,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    out_token,
    out_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FEW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program attends for ROWS queries of one head and residue class."""
    head = tl.program_id(1).to(tl.int64)
    residue, gap, count, first = take(gaps_ptr, total, head, ROWS)
    if first >= count:
        return
    q_ptr += head * q_head
    k_ptr += head * k_head
    v_ptr += head * v_head
    dtype = q_ptr.dtype.element_ty

    index = first + tl.arange(0, ROWS)
    inside = index < count
    index = tl.minimum(index, count - 1)
    token = residue + index * gap
    low, high = reach(start_ptr, stop_ptr, index, residue, gap, back, ahead)
    # Both grow with the index, so those of the first and the last row bound a tile's.
    final = tl.minimum(first + ROWS, count) - 1
    begin, inner_end = reach(start_ptr, stop_ptr, first, residue, gap, back, ahead)
    inner_begin, end = reach(start_ptr, stop_ptr, final, residue, gap, back, ahead)
    q = load_rows(q_ptr, token, q_token, inside, DIM, BLOCK_D)
    top = tl.full((ROWS,), -1e30, tl.float32)  # finite: a row may meet hidden keys alone
    mass = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, BLOCK_D), tl.float32)
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
            scores = dot(q, tl.trans(k))
            own = (slot[None, :] >= low_slot) & (slot[None, :] < high_slot)
            scores = tl.where(own, scores, float("-inf"))
            keep = None
            if query_codes_ptr is not None:
                key_codes = tl.load(key_codes_ptr + key, mask=there, other=0)
                keep = kept(query_codes, key_codes[None, :], least)
            top, mass, out = _gather(scores, v, keep, top, mass, out, scale, dtype)

    if silent_ptr is not None:
        nearest = silent_from(next_silent_ptr, begin, residue, gap, total)
    for at in tl.range(begin, end + 1, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        there = column <= end
        key = residue + column * gap
        k = load_rows(k_ptr, key, k_token, there, DIM, BLOCK_D)
        v = load_rows(v_ptr, key, v_token, there, DIM, BLOCK_D)
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
        keep = None
        if query_codes_ptr is not None:
            key_codes = tl.load(key_codes_ptr + key, mask=there, other=0)
            keep = kept(query_codes, key_codes[None, :], least)
        top, mass, out = _gather(scores, v, keep, top, mass, out, scale, dtype)

    full = mass > 0
    if silent_ptr is not None:
        full = full & (tl.load(silent_ptr + token) == 0)
    mass = tl.where(full, mass, 1.0)
    out = tl.where(full[:, None], out * (gain / mass)[:, None], 0.0)
    lse = tl.where(full, top + tl.log2(mass), float("inf"))
    store_rows(out_ptr + head * out_head, out, token, out_token, inside, DIM, BLOCK_D)
    tl.store(lse_ptr + head * total + token, lse, mask=inside)
