"""Gradients of `ldt.attention.triton.rows_kernels`: probabilities computed anew, and no atomics."""

# mypy: disable-error-code="assignment"
# (tuples of tiles grow where Triton unrolls a loop, and change their type)

import triton
import triton.language as tl

from ldt.attention.triton.launch import launched
from ldt.attention.triton.rows_kernels import LOG2E, _kept, _load, _seen, _store, _zeros
from ldt.attention.triton.tiles import cast, dot


@triton.jit
def _scores(
    q_ptr, low_ptr, dout_ptr, x_ptr, row, in_rows, key, x_token, in_keys,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Scores and gradients of probabilities [rows, keys], and the chunks of q, dout and x."""
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    scores = tl.zeros((row.shape[0], key.shape[0]), tl.float32)
    dp = tl.zeros((row.shape[0], key.shape[0]), tl.float32)
    queries, douts, keys = (), (), ()
    for c in tl.static_range(CHUNKS):
        q = _load(q_ptr, row, WIDTH, in_rows, c, WIDTH, CHUNK)
        x = _load(x_ptr, key, x_token, in_keys, c, WIDTH, CHUNK)
        scores = dot(q, tl.trans(x), scores)
        if low_ptr is not None:
            low = _load(low_ptr, row, WIDTH, in_rows, c, WIDTH, CHUNK)
            scores = dot(low, tl.trans(x), scores)
        dout = _load(dout_ptr, row, WIDTH, in_rows, c, WIDTH, CHUNK)
        dp = dot(dout, tl.trans(x), dp)
        queries, douts, keys = queries + (q,), douts + (dout,), keys + (x,)
    return scores, dp, queries, douts, keys


@triton.jit
def _gradients(
    scores, dp, seen, lse, delta, gain, seed_ptr, token_ptr, index_ptr, weight_grad_ptr,
    row, in_rows, key, in_keys, total, least, PER: tl.constexpr,
):  # fmt: skip
    """Probabilities after dropout and gradients of scores, both [rows, keys]."""
    p = tl.where(seen[None, :], tl.exp2(scores * LOG2E - lse[:, None]), 0.0)
    given = p
    if seed_ptr is not None:
        keep = _kept(
            seed_ptr, token_ptr, index_ptr, row, in_rows, key, in_keys, total, least, PER
        )
        of_weight = tl.load(weight_grad_ptr + row, mask=in_rows, other=0.0)
        dp = tl.where(keep, (dp + of_weight[:, None]) * gain, 0.0)
        given = tl.where(keep, p * gain, 0.0)
    return given, p * (dp - delta[:, None])


@launched
@triton.jit(do_not_specialize=["total", "least"])
def bwd_dq(
    q_ptr,  # [rows, WIDTH]
    low_ptr,  # [rows, WIDTH], to be added to q; None: nothing
    x_ptr,  # [total, WIDTH], stride given: keys and values
    dout_ptr,  # [rows, WIDTH], of the output
    lse_ptr,  # [rows] float32
    delta_ptr,  # [rows] float32, products of output and gradient
    weight_grad_ptr,  # [rows] float32, of the sums of probabilities; None: no dropout
    keep_ptr,  # [total] uint8, 0 at padding; None: no padding
    seed_ptr,  # [] int64 of dropout; None: no dropout
    token_ptr,  # [2, total] int32, see `token_codes`
    index_ptr,  # [globals] int64, tokens of the rows
    item_ptr,  # [items, 4] int32, see Plan
    part_ptr,  # [items, BLOCK_M, WIDTH] float32, gradients of q
    x_token,
    total,
    gain,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program finds what a piece of the document adds to the gradient of a tile of rows."""
    item = tl.program_id(0)
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    row = tl.load(item_ptr + item * 4) + tl.arange(0, BLOCK_M)
    in_rows = row < tl.load(item_ptr + item * 4 + 1)
    begin, end = tl.load(item_ptr + item * 4 + 2), tl.load(item_ptr + item * 4 + 3)
    if tl.load(item_ptr + item * 4) >= tl.load(item_ptr + item * 4 + 1):
        return
    lse = tl.load(lse_ptr + row, mask=in_rows, other=float("inf"))
    delta = tl.load(delta_ptr + row, mask=in_rows, other=0.0)
    dq = _zeros(CHUNKS, BLOCK_M, CHUNK)
    for start in tl.range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        in_keys = key < end
        scores, dp, _, _, keys = _scores(
            q_ptr, low_ptr, dout_ptr, x_ptr, row, in_rows, key, x_token, in_keys, WIDTH, CHUNK
        )
        _, ds = _gradients(
            scores, dp, _seen(keep_ptr, key, end), lse, delta, gain, seed_ptr, token_ptr,
            index_ptr, weight_grad_ptr, row, in_rows, key, in_keys, total, least, PER,
        )  # fmt: skip
        ds = cast(ds, x_ptr.dtype.element_ty)
        sums = ()
        for c in tl.static_range(CHUNKS):
            sums = sums + (dot(ds, keys[c], dq[c]),)
        dq = sums
    place = item.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    for c in tl.static_range(CHUNKS):
        _store(part_ptr, dq[c], place, WIDTH, in_rows, c, WIDTH, CHUNK)


@launched
@triton.jit(do_not_specialize=["total", "least"])
def bwd_dx(
    q_ptr,  # this and the next ten as `bwd_dq` takes them
    low_ptr,
    x_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    weight_grad_ptr,
    keep_ptr,
    seed_ptr,
    token_ptr,
    index_ptr,
    block_ptr,  # [blocks, 4] int32, see Plan
    dx_ptr,  # [total, WIDTH], as keys and as values
    x_token,
    total,
    gain,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program finds the gradients of a block of tokens from all rows of their document."""
    block = tl.program_id(0)
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    begin, end = tl.load(block_ptr + block * 4), tl.load(block_ptr + block * 4 + 1)
    first, last = tl.load(block_ptr + block * 4 + 2), tl.load(block_ptr + block * 4 + 3)
    if begin >= end:
        return
    key = begin + tl.arange(0, BLOCK_N)
    in_keys = key < end
    seen = _seen(keep_ptr, key, end)
    dx = _zeros(CHUNKS, BLOCK_N, CHUNK)
    for start in tl.range(first, last, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        in_rows = row < last
        lse = tl.load(lse_ptr + row, mask=in_rows, other=float("inf"))
        delta = tl.load(delta_ptr + row, mask=in_rows, other=0.0)
        scores, dp, queries, douts, _ = _scores(
            q_ptr, low_ptr, dout_ptr, x_ptr, row, in_rows, key, x_token, in_keys, WIDTH, CHUNK
        )
        p, ds = _gradients(
            scores, dp, seen, lse, delta, gain, seed_ptr, token_ptr, index_ptr,
            weight_grad_ptr, row, in_rows, key, in_keys, total, least, PER,
        )  # fmt: skip
        p = tl.trans(cast(p, x_ptr.dtype.element_ty))
        ds = tl.trans(cast(ds, x_ptr.dtype.element_ty))
        sums = ()
        for c in tl.static_range(CHUNKS):
            sums = sums + (dot(p, douts[c], dot(ds, queries[c], dx[c])),)
        dx = sums
    for c in tl.static_range(CHUNKS):
        _store(dx_ptr, dx[c], key, WIDTH, in_keys, c, WIDTH, CHUNK)
