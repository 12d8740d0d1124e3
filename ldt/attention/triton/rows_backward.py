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
    q_ptr,
    low_ptr,
    grad_ptr,
    k_ptr,
    v_ptr,
    row,
    q_row,
    grad_row,
    in_rows,
    key,
    k_row,
    v_row,
    in_keys,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Scores and gradients of probabilities [rows, keys], and the chunks of q, grad and k."""
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    scores = tl.zeros((row.shape[0], key.shape[0]), tl.float32)
    grads = tl.zeros((row.shape[0], key.shape[0]), tl.float32)
    queries, ups, keys = (), (), ()
    for c in tl.static_range(CHUNKS):
        q = _load(q_ptr, row, q_row, in_rows, c, WIDTH, CHUNK)
        k = _load(k_ptr, key, k_row, in_keys, c, WIDTH, CHUNK)
        scores = dot(q, tl.trans(k), scores)
        if low_ptr is not None:
            low = _load(low_ptr, row, q_row, in_rows, c, WIDTH, CHUNK)
            scores = dot(low, tl.trans(k), scores)
        up = _load(grad_ptr, row, grad_row, in_rows, c, WIDTH, CHUNK)
        v = k
        if v_ptr is not None:
            v = _load(v_ptr, key, v_row, in_keys, c, WIDTH, CHUNK)
        grads = dot(up, tl.trans(v), grads)
        queries, ups, keys = queries + (q,), ups + (up,), keys + (k,)
    return scores, grads, queries, ups, keys


@triton.jit
def _gradients(
    scores, grads, seen, lse, delta, gain, query_code_ptr, key_code_ptr, index_ptr,
    weight_grad_ptr, row, in_rows, key, in_keys, head, rows, total, least, PER: tl.constexpr,
):  # fmt: skip
    """Probabilities after dropout and gradients of scores, both [rows, keys]."""
    probs = tl.where(seen[None, :], tl.exp2(scores * LOG2E - lse[:, None]), 0.0)
    given = probs
    if query_code_ptr is not None:
        left = _kept(
            query_code_ptr, key_code_ptr, index_ptr, row, in_rows, key, in_keys, head, total,
            least, PER,
        )  # fmt: skip
        ups = tl.load(weight_grad_ptr + head * rows + row, mask=in_rows, other=0.0)
        grads = tl.where(left, (grads + ups[:, None]) * gain, 0.0)
        given = tl.where(left, probs * gain, 0.0)
    return given, probs * (grads - delta[:, None])


@launched
@triton.jit(do_not_specialize=["rows", "total", "least"])
def pull(
    q_ptr,  # [rows, heads, WIDTH]
    low_ptr,  # [rows, heads, WIDTH], to be added to q, strides of q; None: nothing
    k_ptr,  # [total, heads, WIDTH]
    v_ptr,  # [total, heads, WIDTH]; None: the keys
    grad_ptr,  # [rows, heads, WIDTH], of the output
    lse_ptr,  # [heads, rows] float32
    delta_ptr,  # [heads, rows] float32, products of output and gradient
    weight_grad_ptr,  # [heads, rows] float32, of the sums of probabilities; None: no dropout
    keep_ptr,  # [total] uint8, 0 at holes; None: no holes
    query_code_ptr,  # [heads * PER, total] int32 of dropout; None: no dropout
    key_code_ptr,  # [heads * PER, total] int32
    index_ptr,  # [globals] int64, tokens of the rows
    item_ptr,  # [items, 4] int32, see Plan
    part_ptr,  # [items, heads, ROWS, WIDTH] float32, gradients of q over ``scale``
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    grad_row,
    grad_head,
    rows,
    total,
    scale,
    gain,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program finds what a piece of the document adds to the gradient of a tile of rows."""
    item, head = tl.program_id(0), tl.program_id(1)
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    row = tl.load(item_ptr + item * 4) + tl.arange(0, ROWS)
    in_rows = row < tl.load(item_ptr + item * 4 + 1)
    begin, end = tl.load(item_ptr + item * 4 + 2), tl.load(item_ptr + item * 4 + 3)
    if tl.load(item_ptr + item * 4) >= tl.load(item_ptr + item * 4 + 1):
        return
    q_ptr += head.to(tl.int64) * q_head
    if low_ptr is not None:
        low_ptr += head.to(tl.int64) * q_head
    k_ptr += head.to(tl.int64) * k_head
    grad_ptr += head.to(tl.int64) * grad_head
    if v_ptr is not None:
        v_ptr += head.to(tl.int64) * v_head
    lse = tl.load(lse_ptr + head * rows + row, mask=in_rows, other=float("inf"))
    delta = tl.load(delta_ptr + head * rows + row, mask=in_rows, other=0.0)
    sums = _zeros(CHUNKS, ROWS, CHUNK)
    for start in tl.range(begin, end, COLUMNS):
        key = start + tl.arange(0, COLUMNS)
        in_keys = key < end
        scores, grads, _, _, keys = _scores(
            q_ptr, low_ptr, grad_ptr, k_ptr, v_ptr, row, q_row, grad_row, in_rows,
            key, k_row, v_row, in_keys, WIDTH, CHUNK,
        )  # fmt: skip
        _, grads = _gradients(
            scores * scale, grads, _seen(keep_ptr, key, end), lse, delta, gain,
            query_code_ptr, key_code_ptr, index_ptr, weight_grad_ptr, row, in_rows, key, in_keys,
            head, rows, total, least, PER,
        )  # fmt: skip
        grads = cast(grads, k_ptr.dtype.element_ty)
        new = ()
        for c in tl.static_range(CHUNKS):
            new = new + (dot(grads, keys[c], sums[c]),)
        sums = new
    place = (item.to(tl.int64) * tl.num_programs(1) + head) * ROWS + tl.arange(0, ROWS)
    for c in tl.static_range(CHUNKS):
        _store(part_ptr, sums[c], place, WIDTH, in_rows, c, WIDTH, CHUNK)


@launched
@triton.jit(do_not_specialize=["rows", "total", "least"])
def push(
    q_ptr,  # [rows, heads, WIDTH]
    low_ptr,  # [rows, heads, WIDTH], to be added to q, strides of q; None: nothing
    k_ptr,  # [total, heads, WIDTH]
    v_ptr,  # [total, heads, WIDTH]; None: the keys
    grad_ptr,  # [rows, heads, WIDTH], of the output
    lse_ptr,  # [heads, rows] float32
    delta_ptr,  # [heads, rows] float32, products of output and gradient
    weight_grad_ptr,  # [heads, rows] float32, of the sums of probabilities; None: no dropout
    keep_ptr,  # [total] uint8, 0 at holes; None: no holes
    query_code_ptr,  # [heads * PER, total] int32 of dropout; None: no dropout
    key_code_ptr,  # [heads * PER, total] int32
    index_ptr,  # [globals] int64, tokens of the rows
    block_ptr,  # [blocks, 4] int32, see Plan
    dk_ptr,  # [total, heads, WIDTH], with the gradient of the values where they are the keys
    dv_ptr,  # [total, heads, WIDTH]; None where v is
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    grad_row,
    grad_head,
    rows,
    total,
    scale,
    gain,
    least,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program finds the gradients of a block of tokens from all rows of their document."""
    block, head = tl.program_id(0), tl.program_id(1)
    CHUNKS: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    begin, end = tl.load(block_ptr + block * 4), tl.load(block_ptr + block * 4 + 1)
    first, last = tl.load(block_ptr + block * 4 + 2), tl.load(block_ptr + block * 4 + 3)
    if begin >= end:
        return
    q_ptr += head.to(tl.int64) * q_head
    if low_ptr is not None:
        low_ptr += head.to(tl.int64) * q_head
    k_ptr += head.to(tl.int64) * k_head
    grad_ptr += head.to(tl.int64) * grad_head
    if v_ptr is not None:
        v_ptr += head.to(tl.int64) * v_head
    key = begin + tl.arange(0, COLUMNS)
    in_keys = key < end
    seen = _seen(keep_ptr, key, end)
    dk = _zeros(CHUNKS, COLUMNS, CHUNK)
    dv = _zeros(0 if v_ptr is None else CHUNKS, COLUMNS, CHUNK)
    for start in tl.range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        in_rows = row < last
        lse = tl.load(lse_ptr + head * rows + row, mask=in_rows, other=float("inf"))
        delta = tl.load(delta_ptr + head * rows + row, mask=in_rows, other=0.0)
        scores, grads, queries, ups, _ = _scores(
            q_ptr, low_ptr, grad_ptr, k_ptr, v_ptr, row, q_row, grad_row, in_rows,
            key, k_row, v_row, in_keys, WIDTH, CHUNK,
        )  # fmt: skip
        probs, grads = _gradients(
            scores * scale, grads, seen, lse, delta, gain, query_code_ptr, key_code_ptr,
            index_ptr, weight_grad_ptr, row, in_rows, key, in_keys, head, rows, total, least, PER,
        )  # fmt: skip
        probs = tl.trans(cast(probs, k_ptr.dtype.element_ty))
        grads = tl.trans(cast(grads * scale, k_ptr.dtype.element_ty))
        new_k, new_v = (), ()
        for c in tl.static_range(CHUNKS):
            if v_ptr is None:
                new_k = new_k + (dot(probs, ups[c], dot(grads, queries[c], dk[c])),)
            else:
                new_k = new_k + (dot(grads, queries[c], dk[c]),)
                new_v = new_v + (dot(probs, ups[c], dv[c]),)
        dk, dv = new_k, new_v
    heads = tl.num_programs(1)
    for c in tl.static_range(CHUNKS):
        place = head.to(tl.int64) * WIDTH
        _store(dk_ptr + place, dk[c], key, heads * WIDTH, in_keys, c, WIDTH, CHUNK)
        if v_ptr is not None:
            _store(dv_ptr + place, dv[c], key, heads * WIDTH, in_keys, c, WIDTH, CHUNK)
