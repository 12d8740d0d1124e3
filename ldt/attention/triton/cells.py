"""Attention of tokens to pooled cells in one pass of online softmax: the operator and its kernel.

It goes as in the band (`ldt.attention.triton.band`), whose steps it shares: a program owns some
queries of one head and meets the cells in their reach a tile at a time, of which those at an edge
are masked. What a query reaches stands in a table, and so do the queries that reach a cell.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ldt.attention.derivatives import first_order, once
from ldt.attention.triton.band import _gather as gather
from ldt.attention.triton.band_pattern import LOG2E
from ldt.attention.triton.cells_backward import backward
from ldt.attention.triton.devices import tile
from ldt.attention.triton.dropout import kept, least, token_codes
from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import check, dot, load_rows, padded, rows, store_rows


def cell_attention(q, k, v, cells, *, window, dropout=0.0, seed=0):
    """`ldt.attention.pooled.reference.cell_attention` for CUDA, or any under TRITON_INTERPRET=1.

    Sums are kept in float32 and float32 inputs are not rounded. Memory is that of the output and 4
    bytes per token and head (8 and 4 per cell with dropout); two runs give the same bits,
    gradients included.

    Raises:
        ValueError: for other devices, dtypes, or heads of more than 128 dims.
    """
    check(q, k, v)
    codes = (None, None)
    if dropout:
        queries, keys = token_codes(cells.layout, q.shape[1], seed)
        codes = queries, keys.index_select(1, cells.tokens(0)[0])  # of the first tokens
    return _Attention.apply(q, k, v, Tables.of(cells, window), dropout, *codes)


@dataclass(frozen=True, slots=True)
class Tables:
    """Cells in reach of tokens and tokens in reach of cells, int32 unless said, on the device.

    Args:
        begin, end: [total], a token reaches rows begin to end - 1; neither ever falls.
        first, last: [count], tokens first to last - 1 reach a cell; neither ever falls.
        silent: [total] uint8, 1 at holes and global tokens; None: there are none.
        hidden: [count] uint8, 1 at rows without a cell; None: no token reaches one.
    """

    begin: torch.Tensor
    end: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    silent: torch.Tensor | None
    hidden: torch.Tensor | None

    @classmethod
    def of(cls, cells, window):
        """The tables of `Cells`, cached by their layout."""
        key = "cell tables", cells.size, cells.stride, window
        return cells.layout.cached(key, lambda: cls._make(cells, window))

    @classmethod
    def _make(cls, cells, window):
        layout = cells.layout
        start, stop = layout.cu_seqlens[:-1], layout.cu_seqlens[1:]
        start, stop = start[cells.document_of], stop[cells.document_of]
        # Whole numbers of the places that are at most window / 2 from start + (size - 1) / 2.
        first = cells.start + (cells.size - window) // 2
        last = cells.start + (cells.size - 1 + window) // 2 + 1
        between = cells.start >= stop  # rows behind the last cell of a document
        first, last = (
            place.maximum(start).minimum(stop).where(~between, stop) for place in (first, last)
        )
        numbers = (x.to(torch.int32) for x in (*cells.reach(window), first, last))
        silent, hidden = layout.masked_queries, None
        if layout.key_padding_mask is not None:
            hidden = (~cells.valid).view(torch.uint8)
        return cls(*numbers, None if silent is None else silent.view(torch.uint8), hidden)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, tables, dropout, query_codes, key_codes):
        out, lse = once(forward, q, k, v, tables, dropout, query_codes, key_codes)
        ctx.save_for_backward(q, k, v, out, lse, query_codes, key_codes)
        ctx.tables, ctx.dropout = tables, dropout
        return out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        q, k, v, out, lse, *codes = ctx.saved_tensors
        found = backward(grad, q, k, v, out, lse, ctx.tables, ctx.dropout, *codes)
        return *found, *[None] * 4


def forward(q, k, v, tables, dropout=0.0, query_codes=None, key_codes=None):
    """Output and log-sum-exp.

    Args:
        q: [total, heads, dim].
        k, v: [count, heads, dim].
        tables: of what is in reach.
        dropout: probability that dropout takes a probability.
        query_codes, key_codes: [heads, total] and [heads, count] int32; None without dropout.

    Returns:
        [total, heads, dim], and [heads, total] float32: the logarithm to base 2 of the sum of the
        exponentials of a row; infinity where the output is zero: at silent tokens, and where no
        cell is in reach.
    """
    q, k, v = rows(q), rows(k), rows(v)
    total, heads, dim = q.shape
    out = q.new_empty(total, heads, dim)
    lse = q.new_empty(heads, total, dtype=torch.float32)
    cut = tile("cells forward", q, dropout > 0)
    _forward[triton.cdiv(total, cut.rows), heads](
        q, k, v, out, lse, tables.begin, tables.end, tables.silent, tables.hidden,
        query_codes, key_codes, total, len(k),
        dim**-0.5 * LOG2E, least(dropout), 1 / (1 - dropout),
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2],
        DIM=dim, BLOCK_D=padded(dim), **cut.launch,
    )  # fmt: skip
    return out, lse


@launched
@triton.jit(do_not_specialize=["total", "count", "least"])
def _forward(
    q_ptr,  # [total, heads, DIM], strides given
    k_ptr,  # [count, heads, DIM], strides given
    v_ptr,  # [count, heads, DIM], strides given
    out_ptr,  # [total, heads, DIM], strides given
    lse_ptr,  # [heads, total] float32
    begin_ptr,  # [total]; this and the next three as in Tables
    end_ptr,  # [total]
    silent_ptr,  # [total] or None
    hidden_ptr,  # [count] or None
    query_codes_ptr,  # [heads, total], or None without dropout
    key_codes_ptr,  # [heads, count], or None without dropout
    total,
    count,
    scale,  # of scores to base 2
    least,  # see kept
    gain,  # 1 / (1 - dropout)
    q_token,
    q_head,
    k_cell,
    k_head,
    v_cell,
    v_head,
    out_token,
    out_head,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program attends for ROWS queries of one head."""
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
    # Both never fall, so those of the first and the last row bound a tile's.
    begin, inner_end = tl.load(begin_ptr + first), tl.load(end_ptr + first)
    inner_begin, end = tl.load(begin_ptr + final), tl.load(end_ptr + final)
    q = load_rows(q_ptr + head * q_head, token, q_token, inside, DIM, BLOCK_D)
    top = tl.full((ROWS,), -1e30, tl.float32)  # finite: a row may meet hidden cells alone
    mass = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, BLOCK_D), tl.float32)
    if query_codes_ptr is not None:
        key_codes_ptr += head * count
        query_codes = tl.load(query_codes_ptr + head * total + token)[:, None]

    for at in tl.range(begin, end, COLUMNS):
        cell = at + tl.arange(0, COLUMNS)
        there = cell < end
        k = load_rows(k_ptr, cell, k_cell, there, DIM, BLOCK_D)
        v = load_rows(v_ptr, cell, v_cell, there, DIM, BLOCK_D)
        scores = dot(q, tl.trans(k))
        if (at < inner_begin) | (at + COLUMNS > inner_end):
            near = (cell[None, :] >= low) & (cell[None, :] < high)
            scores = tl.where(near, scores, float("-inf"))
        if hidden_ptr is not None:
            hidden = tl.load(hidden_ptr + cell, mask=there, other=1) != 0
            scores = tl.where(hidden[None, :], float("-inf"), scores)
        keep = None
        if query_codes_ptr is not None:
            key_codes = tl.load(key_codes_ptr + cell, mask=there, other=0)
            keep = kept(query_codes, key_codes[None, :], least)
        top, mass, out = gather(scores, v, keep, top, mass, out, scale, dtype)

    full = mass > 0
    if silent_ptr is not None:
        full = full & (tl.load(silent_ptr + token) == 0)
    mass = tl.where(full, mass, 1.0)
    out = tl.where(full[:, None], out * (gain / mass)[:, None], 0.0)
    lse = tl.where(full, top + tl.log2(mass), float("inf"))
    store_rows(out_ptr + head * out_head, out, token, out_token, inside, DIM, BLOCK_D)
    tl.store(lse_ptr + head * total + token, lse, mask=inside)
