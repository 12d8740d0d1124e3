"""Gradients of the attention to cells: probabilities computed anew from the saved log-sum-exp.

Two kernels, as in the band (`ldt.attention.triton.band_backward`): the queries' gradients, a block
of
queries a program; the cells' keys and values, a block of cells over the queries that reach it.
What a program sums it sums in one order, so two runs give the same bits.
"""

import torch
import triton
import triton.language as tl

from ldt.attention.triton.band_backward import _add_values as add_values
from ldt.attention.triton.band_backward import _slopes as slopes
from ldt.attention.triton.band_pattern import LOG2E
from ldt.attention.triton.devices import tile
from ldt.attention.triton.dropout import kept, least
from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import cast, dot, load_rows, padded, rows, store_rows


def backward(grad, q, k, v, out, lse, tables, dropout=0.0, query_codes=None, key_codes=None):
    """Gradients of q [total, heads, dim], and of k and v [count, heads, dim].

    Args:
        grad: [total, heads, dim], of the output.
        q, k, v, tables, dropout, query_codes, key_codes: as `cells.forward` took them.
        out, lse: as it returned them.
    """
    grad, q, k, v = rows(grad), rows(q), rows(k), rows(v)
    total, heads, dim = q.shape
    count = len(k)
    dq = torch.empty_like(out)
    dk, dv = k.new_empty(2, *k.shape)
    delta = torch.empty_like(lse)
    with_dropout = dropout > 0
    numbers = dim**-0.5, dim**-0.5 * LOG2E, least(dropout), 1 / (1 - dropout)
    strides = *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *grad.stride()[:2]
    dims = {"DIM": dim, "BLOCK_D": padded(dim)}
    codes = query_codes, key_codes

    cut = tile("cells queries", q, with_dropout)
    _queries[triton.cdiv(total, cut.rows), heads](
        q, k, v, grad, out, dq, lse, delta, tables.begin, tables.end, tables.hidden, *codes,
        total, count, *numbers, *strides, *out.stride()[:2], **dims, **cut.launch,
    )  # fmt: skip
    cut = tile("cells keys", q, with_dropout)
    _keys[triton.cdiv(count, cut.rows), heads](
        q, k, v, grad, dk, dv, lse, delta, tables.first, tables.last, tables.hidden, *codes,
        total, count, *numbers, *strides, *dk.stride()[:2], **dims, **cut.launch,
    )  # fmt: skip
    return dq, dk, dv


@launched
@triton.jit(do_not_specialize=["total", "count", "least"])
def _queries(
    q_ptr,  # [total, heads, DIM], strides given, as the next five
    k_ptr,  # [count, heads, DIM]
    v_ptr,  # [count, heads, DIM]
    grad_ptr,  # [total, heads, DIM], gradients of the output
    out_ptr,  # [total, heads, DIM]
    dq_ptr,  # [total, heads, DIM], strides of out
    lse_ptr,  # [heads, total], infinite where the output is zero: no gradient
    delta_ptr,  # [heads, total], filled here: sums of grad * out
    begin_ptr,  # [total]; this and the next two as in Tables
    end_ptr,  # [total]
    hidden_ptr,  # [count] or None
    query_codes_ptr,  # [heads, total], or None without dropout
    key_codes_ptr,  # [heads, count], or None without dropout
    total,
    count,
    factor,  # of scores
    scale,  # of scores to base 2
    least,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_cell,
    k_head,
    v_cell,
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
    """One program sums the gradients of ROWS queries of one head."""
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * ROWS
    final = tl.minimum(first + ROWS, total) - 1
    k_ptr += head * k_head
    v_ptr += head * v_head
    dtype = q_ptr.dtype.element_ty

    token = first + tl.arange(0, ROWS)
    inside = token < total
    token = tl.minimum(token, final)
    low, high = tl.load(begin_ptr + token)[:, None], tl.load(end_ptr + token)[:, None]
    begin, inner_end = tl.load(begin_ptr + first), tl.load(end_ptr + first)
    inner_begin, end = tl.load(begin_ptr + final), tl.load(end_ptr + final)
    up = load_rows(grad_ptr + head * grad_head, token, grad_token, inside, DIM, BLOCK_D)
    out = load_rows(out_ptr + head * out_head, token, out_token, inside, DIM, BLOCK_D)
    delta = tl.sum(up.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_ptr + head * total + token, delta, mask=inside)
    delta = delta[:, None]
    lse = tl.load(lse_ptr + head * total + token)[:, None]
    q = load_rows(q_ptr + head * q_head, token, q_token, inside, DIM, BLOCK_D)
    dq = tl.zeros((ROWS, BLOCK_D), tl.float32)
    if query_codes_ptr is not None:
        key_codes_ptr += head * count
        query_codes = tl.load(query_codes_ptr + head * total + token)[:, None]

    for at in tl.range(begin, end, COLUMNS):
        cell = at + tl.arange(0, COLUMNS)
        there = cell < end
        k = load_rows(k_ptr, cell, k_cell, there, DIM, BLOCK_D)
        v = load_rows(v_ptr, cell, v_cell, there, DIM, BLOCK_D)
        keep = None
        if query_codes_ptr is not None:
            key_codes = tl.load(key_codes_ptr + cell, mask=there, other=0)
            keep = kept(query_codes, key_codes[None, :], least)
        scores = dot(q, tl.trans(k))
        if (at < inner_begin) | (at + COLUMNS > inner_end):
            near = (cell[None, :] >= low) & (cell[None, :] < high)
            scores = tl.where(near, scores, float("-inf"))
        if hidden_ptr is not None:
            hidden = tl.load(hidden_ptr + cell, mask=there, other=1) != 0
            scores = tl.where(hidden[None, :], float("-inf"), scores)
        ds = slopes(tl.exp2(scores * scale - lse), up, v, delta, keep, gain)
        dq = dot(cast(ds, dtype), k, dq)

    store_rows(dq_ptr + head * out_head, dq * factor, token, out_token, inside, DIM, BLOCK_D)


@launched
@triton.jit(do_not_specialize=["total", "count", "least"])
def _keys(
    q_ptr,  # [total, heads, DIM], strides given, as the next five
    k_ptr,  # [count, heads, DIM]
    v_ptr,  # [count, heads, DIM]
    grad_ptr,  # [total, heads, DIM], gradients of the output
    dk_ptr,  # [count, heads, DIM]
    dv_ptr,  # [count, heads, DIM], strides of dk
    lse_ptr,  # [heads, total]
    delta_ptr,  # [heads, total]
    first_ptr,  # [count]; this and the next two as in Tables
    last_ptr,  # [count]
    hidden_ptr,  # [count] or None
    query_codes_ptr,  # [heads, total], or None without dropout
    key_codes_ptr,  # [heads, count], or None without dropout
    total,
    count,
    factor,  # of scores
    scale,  # of scores to base 2
    least,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_cell,
    k_head,
    v_cell,
    v_head,
    grad_token,
    grad_head,
    dk_cell,
    dk_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program sums the gradients of the keys and values of ROWS cells of one head."""
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * ROWS
    final = tl.minimum(first + ROWS, count) - 1
    q_ptr += head * q_head
    grad_ptr += head * grad_head
    lse_ptr += head * total
    delta_ptr += head * total
    dtype = q_ptr.dtype.element_ty

    cell = first + tl.arange(0, ROWS)
    inside = cell < count
    cell = tl.minimum(cell, final)
    low, high = tl.load(first_ptr + cell)[:, None], tl.load(last_ptr + cell)[:, None]
    begin, inner_end = tl.load(first_ptr + first), tl.load(last_ptr + first)
    inner_begin, end = tl.load(first_ptr + final), tl.load(last_ptr + final)
    k = load_rows(k_ptr + head * k_head, cell, k_cell, inside, DIM, BLOCK_D)
    v = load_rows(v_ptr + head * v_head, cell, v_cell, inside, DIM, BLOCK_D)
    dk = tl.zeros((ROWS, BLOCK_D), tl.float32)
    dv = tl.zeros((ROWS, BLOCK_D), tl.float32)
    if query_codes_ptr is not None:
        query_codes_ptr += head * total
        key_codes = tl.load(key_codes_ptr + head * count + cell)[:, None]

    for at in tl.range(begin, end, COLUMNS):
        query = at + tl.arange(0, COLUMNS)
        there = query < end
        q = load_rows(q_ptr, query, q_token, there, DIM, BLOCK_D)
        up = load_rows(grad_ptr, query, grad_token, there, DIM, BLOCK_D)
        known = tl.minimum(query, end - 1)  # in bounds without a mask; near hides what is beyond
        lse = tl.load(lse_ptr + known)[None, :]
        delta = tl.load(delta_ptr + known)[None, :]
        keep = None
        if query_codes_ptr is not None:
            query_codes = tl.load(query_codes_ptr + known)[None, :]
            keep = kept(query_codes, key_codes, least)
        scores = dot(k, tl.trans(q))
        if (at < inner_begin) | (at + COLUMNS > inner_end):
            near = (query[None, :] >= low) & (query[None, :] < high)
            scores = tl.where(near, scores, float("-inf"))
        probs = tl.exp2(scores * scale - lse)
        dv = add_values(probs, up, dv, keep)
        ds = slopes(probs, v, up, delta, keep, gain)
        dk = dot(cast(ds, dtype), q, dk)

    dk *= factor
    dv *= gain
    if hidden_ptr is not None:
        seen = (tl.load(hidden_ptr + cell) == 0)[:, None]
        dk = tl.where(seen, dk, 0.0)
        dv = tl.where(seen, dv, 0.0)
    store_rows(dk_ptr + head * dk_head, dk, cell, dk_cell, inside, DIM, BLOCK_D)
    store_rows(dv_ptr + head * dk_head, dv, cell, dk_cell, inside, DIM, BLOCK_D)
