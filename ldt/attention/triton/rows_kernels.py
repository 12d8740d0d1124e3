"""Softmax attention of a few rows over all tokens of their document, in pieces of the document, and
its gradients: probabilities computed anew, and no atomics.

The rows of one global token are its PER heads, and all of them meet the tokens themselves, as keys
and as values. Both are wide: products run over CHUNK columns at a time, and tuples hold one tile
for each chunk. Scores live in base 2.
"""

# mypy: disable-error-code="assignment"
# (tuples of tiles grow where Triton unrolls a loop, and change their type)

import triton
import triton.language as tl

from ldt.attention.triton.dropout import KEY, QUERY, document_code, in_head, kept, token_codes
from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import cast, dot, load_rows, store_rows

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(ptr, row, stride, inside, c: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """[rows, CHUNK], chunk c of the columns of rows."""
    LEFT: tl.constexpr = WIDTH - c * CHUNK
    return load_rows(ptr + c * CHUNK, row, stride, inside, CHUNK if LEFT > CHUNK else LEFT, CHUNK)


@triton.jit
def _store(ptr, x, row, stride, inside, c: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    LEFT: tl.constexpr = WIDTH - c * CHUNK
    store_rows(ptr + c * CHUNK, x, row, stride, inside, CHUNK if LEFT > CHUNK else LEFT, CHUNK)


@triton.jit
def _zeros(CHUNKS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    tiles = ()
    for _ in tl.static_range(CHUNKS):
        tiles = tiles + (tl.zeros((SIZE, CHUNK), tl.float32),)
    return tiles


@triton.jit
def _seen(keep_ptr, key, end):
    """True of tokens that lie before the end and are no holes."""
    seen = key < end
    if keep_ptr is not None:
        seen = seen & (tl.load(keep_ptr + key, mask=seen, other=0) != 0)
    return seen


@triton.jit
def _kept(
    seed_ptr, token_ptr, place_ptr, row, in_rows, key, in_keys, total, least, PER: tl.constexpr
):
    """[rows, keys], which probabilities dropout leaves."""
    seed, head = tl.load(seed_ptr), row % PER
    token = tl.load(place_ptr + row // PER, mask=in_rows, other=0)
    queries = token_codes(token_ptr, total, token, in_rows, seed, head, QUERY)
    document = tl.load(token_ptr + key, mask=in_keys)
    place = tl.load(token_ptr + total + key, mask=in_keys)
    code = document_code(document, seed, KEY)
    keys = in_head(code[None, :], place[None, :], head[:, None])
    return kept(queries[:, None], keys, least)


@launched
@triton.jit(do_not_specialize=["total", "least"])
def attend(
    q_ptr,  # [rows, WIDTH], scaled
    low_ptr,  # [rows, WIDTH], to be added to q; None: nothing
    x_ptr,  # [total, WIDTH], stride given: keys and values
    part_ptr,  # [items, BLOCK_M, WIDTH] float32, sums of values before division
    stats_ptr,  # [3, items, BLOCK_M] float32: largest score, sum, sum of what dropout leaves
    seed_ptr,  # [] int64 of dropout; None: no dropout
    keep_ptr,  # [total] uint8, 0 at padding; None: no padding
    token_ptr,  # [2, total] int32, see `token_codes`
    place_ptr,  # [globals] int32, tokens of the rows
    item_ptr,  # [items, 4] int32, see Plan
    x_token,
    total,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program attends from a tile of rows to a piece of their document; it writes sums to
    ``part_ptr`` and ``stats_ptr``, which `merge` puts together."""
    item = tl.program_id(0)
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    row = tl.load(item_ptr + item * 4) + tl.arange(0, BLOCK_M)
    in_rows = row < tl.load(item_ptr + item * 4 + 1)
    begin, end = tl.load(item_ptr + item * 4 + 2), tl.load(item_ptr + item * 4 + 3)
    if tl.load(item_ptr + item * 4) >= tl.load(item_ptr + item * 4 + 1):
        return
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    kept_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = _zeros(CHUNKS, BLOCK_M, CHUNK)
    for start in tl.range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        in_keys = key < end
        scores = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        values = ()
        for c in tl.static_range(CHUNKS):
            q = _load(q_ptr, row, WIDTH, in_rows, c, WIDTH, CHUNK)
            x = _load(x_ptr, key, x_token, in_keys, c, WIDTH, CHUNK)
            scores = dot(q, tl.trans(x), scores)
            if low_ptr is not None:
                low = _load(low_ptr, row, WIDTH, in_rows, c, WIDTH, CHUNK)
                scores = dot(low, tl.trans(x), scores)
            values = values + (x,)
        seen = _seen(keep_ptr, key, end)
        scores = tl.where(seen[None, :], scores * LOG2E, float("-inf"))
        new = tl.maximum(m_i, tl.max(scores, 1))
        shift = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(scores - shift[:, None])
        alpha = tl.exp2(m_i - shift)
        l_i = l_i * alpha + tl.sum(p, 1)
        if seed_ptr is not None:
            keep = _kept(
                seed_ptr, token_ptr, place_ptr, row, in_rows, key, in_keys, total, least, PER
            )
            p = tl.where(keep, p, 0.0)
            kept_sum = kept_sum * alpha + tl.sum(p, 1)
        p = cast(p, x_ptr.dtype.element_ty)
        sums = ()
        for c in tl.static_range(CHUNKS):
            sums = sums + (dot(p, values[c], acc[c] * alpha[:, None]),)
        acc = sums
        m_i = new
    items = tl.num_programs(0).to(tl.int64)
    place = item.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    for c in tl.static_range(CHUNKS):
        _store(part_ptr, acc[c], place, WIDTH, in_rows, c, WIDTH, CHUNK)
    tl.store(stats_ptr + place, m_i)
    tl.store(stats_ptr + items * BLOCK_M + place, l_i)
    if seed_ptr is not None:
        tl.store(stats_ptr + 2 * items * BLOCK_M + place, kept_sum)


@launched
@triton.jit(do_not_specialize=["items"])
def merge(
    part_ptr,  # [items, BLOCK_M, WIDTH] float32
    stats_ptr,  # [3, items, BLOCK_M] float32 of `attend`; None: a plain sum
    out_ptr,  # [rows, WIDTH]
    lse_ptr,  # [rows] float32, logarithm to base 2 of the sum of exponentials
    weight_ptr,  # [rows] float32, sum of a row's probabilities after dropout; None: one
    tile_ptr,  # [tiles, 4] int32, see Plan
    items,
    factor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """One program sums CHUNK columns of a row, ``part_ptr`` of `attend` or `bwd_dq`, over the
    pieces of its document, times ``factor``, to ``out_ptr``."""
    lane = tl.program_id(0) % BLOCK_M
    tile_ptr += tl.program_id(0) // BLOCK_M * 4
    row = tl.load(tile_ptr) + lane
    if row >= tl.load(tile_ptr + 1):
        return
    begin, end = tl.load(tile_ptr + 2), tl.load(tile_ptr + 3)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    count = items.to(tl.int64) * BLOCK_M
    m_i = float("-inf")
    l_i = 0.0
    kept_sum = 0.0
    acc = tl.zeros((CHUNK,), tl.float32)
    for start in tl.range(begin, end, ITEMS):
        item = start + tl.arange(0, ITEMS)
        inside = item < end
        place = item.to(tl.int64) * BLOCK_M + lane
        mask = inside[:, None] & (column < WIDTH)[None, :]
        part = tl.load(part_ptr + place[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        if stats_ptr is not None:
            tops = tl.load(stats_ptr + place, mask=inside, other=float("-inf"))
            new = tl.maximum(m_i, tl.max(tops, 0))
            shift = tl.where(new == float("-inf"), 0.0, new)
            grown, alpha = tl.exp2(tops - shift), tl.exp2(m_i - shift)
            sums = tl.load(stats_ptr + count + place, mask=inside, other=0.0)
            l_i = l_i * alpha + tl.sum(sums * grown, 0)
            if weight_ptr is not None:
                sums = tl.load(stats_ptr + 2 * count + place, mask=inside, other=0.0)
                kept_sum = kept_sum * alpha + tl.sum(sums * grown, 0)
            part = part * grown[:, None]
            acc = acc * alpha
            m_i = new
        acc += tl.sum(part, 0)
    if stats_ptr is not None:
        factor = factor / l_i
        tl.store(lse_ptr + row, m_i + tl.log2(l_i))
        if weight_ptr is not None:
            tl.store(weight_ptr + row, kept_sum * factor)
    out = cast(acc * factor, out_ptr.dtype.element_ty)
    tl.store(out_ptr + row.to(tl.int64) * WIDTH + column, out, mask=column < WIDTH)


@triton.jit
def _sums(ptr, row, in_rows, PARTS: tl.constexpr):
    """[rows], the sums of rows of a matrix [.., PARTS]."""
    total = tl.zeros(row.shape, tl.float32)
    for part in tl.range(PARTS):
        total += tl.load(ptr + row * PARTS + part, mask=in_rows, other=0.0)
    return total


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
    scores, dp, seen, lse, delta, gain, seed_ptr, token_ptr, place_ptr, weight_grad_ptr,
    row, in_rows, key, in_keys, total, least, PER: tl.constexpr,
):  # fmt: skip
    """Probabilities after dropout and gradients of scores, both [rows, keys]."""
    p = tl.where(seen[None, :], tl.exp2(scores * LOG2E - lse[:, None]), 0.0)
    dropped = p
    if seed_ptr is not None:
        keep = _kept(seed_ptr, token_ptr, place_ptr, row, in_rows, key, in_keys, total, least, PER)
        of_weight = tl.load(weight_grad_ptr + row, mask=in_rows, other=0.0)
        dp = tl.where(keep, (dp + of_weight[:, None]) * gain, 0.0)
        dropped = tl.where(keep, p * gain, 0.0)
    return dropped, p * (dp - delta[:, None])


@launched
@triton.jit(do_not_specialize=["total", "least"])
def bwd_dq(
    q_ptr,  # [rows, WIDTH]
    low_ptr,  # [rows, WIDTH], to be added to q; None: nothing
    x_ptr,  # [total, WIDTH], stride given: keys and values
    dout_ptr,  # [rows, WIDTH], of the output
    lse_ptr,  # [rows] float32
    delta_ptr,  # [rows, PARTS] float32, to be added: products of output and gradient
    weight_grad_ptr,  # [rows] float32, of the sums of probabilities; None: no dropout
    seed_ptr,  # [] int64 of dropout; None: no dropout
    part_ptr,  # [items, BLOCK_M, WIDTH] float32, gradients of q
    keep_ptr,  # [total] uint8, 0 at padding; None: no padding
    token_ptr,  # [2, total] int32, see `token_codes`
    place_ptr,  # [globals] int32, tokens of the rows
    item_ptr,  # [items, 4] int32, see Plan
    x_token,
    total,
    gain,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program finds what a piece of the document adds to the gradients of a tile of rows, and
    writes it to ``part_ptr`` for `merge`."""
    item = tl.program_id(0)
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    row = tl.load(item_ptr + item * 4) + tl.arange(0, BLOCK_M)
    in_rows = row < tl.load(item_ptr + item * 4 + 1)
    begin, end = tl.load(item_ptr + item * 4 + 2), tl.load(item_ptr + item * 4 + 3)
    if tl.load(item_ptr + item * 4) >= tl.load(item_ptr + item * 4 + 1):
        return
    lse = tl.load(lse_ptr + row, mask=in_rows, other=float("inf"))
    delta = _sums(delta_ptr, row, in_rows, PARTS)
    dq = _zeros(CHUNKS, BLOCK_M, CHUNK)
    for start in tl.range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        in_keys = key < end
        scores, dp, _, _, keys = _scores(
            q_ptr, low_ptr, dout_ptr, x_ptr, row, in_rows, key, x_token, in_keys, WIDTH, CHUNK
        )
        _, ds = _gradients(
            scores, dp, _seen(keep_ptr, key, end), lse, delta, gain, seed_ptr, token_ptr,
            place_ptr, weight_grad_ptr, row, in_rows, key, in_keys, total, least, PER,
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
    q_ptr,  # tensors as `bwd_dq` takes them
    low_ptr,
    x_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    weight_grad_ptr,
    seed_ptr,
    base_ptr,  # [total, WIDTH], to be added, or None
    dx_ptr,  # [total, WIDTH], as keys and as values
    keep_ptr,
    token_ptr,
    place_ptr,
    block_ptr,  # [blocks, 4] int32, see Plan
    x_token,
    total,
    gain,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program writes to ``dx_ptr`` the gradients of a block of tokens from all rows of their
    document, as keys and as values."""
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
        delta = _sums(delta_ptr, row, in_rows, PARTS)
        scores, dp, queries, douts, _ = _scores(
            q_ptr, low_ptr, dout_ptr, x_ptr, row, in_rows, key, x_token, in_keys, WIDTH, CHUNK
        )
        p, ds = _gradients(
            scores, dp, seen, lse, delta, gain, seed_ptr, token_ptr, place_ptr,
            weight_grad_ptr, row, in_rows, key, in_keys, total, least, PER,
        )  # fmt: skip
        p = tl.trans(cast(p, x_ptr.dtype.element_ty))
        ds = tl.trans(cast(ds, x_ptr.dtype.element_ty))
        sums = ()
        for c in tl.static_range(CHUNKS):
            sums = sums + (dot(p, douts[c], dot(ds, queries[c], dx[c])),)
        dx = sums
    for c in tl.static_range(CHUNKS):
        out = dx[c]
        if base_ptr is not None:
            out += _load(base_ptr, key, WIDTH, in_keys, c, WIDTH, CHUNK).to(tl.float32)
        _store(dx_ptr, out, key, WIDTH, in_keys, c, WIDTH, CHUNK)
