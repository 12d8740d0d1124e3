"""Products of the few global rows with the weights of a layer, before and after they attend.

A program has up to ROWS global tokens and one head. Tokens that are not there, whose place is the
number of tokens, read zeros.
"""

import triton
import triton.language as tl

from ldt.attention.triton.launch import launched
from ldt.attention.triton.tiles import cast, dot

ROWS = tl.constexpr(16)  # the fewest that matrix units take


@triton.jit
def _globals(place_ptr, block, globals, total):
    """(row, place, there, inside): the numbers and the tokens of ROWS global tokens."""
    row = block * ROWS + tl.arange(0, ROWS)
    there = row < globals
    place = tl.load(place_ptr + row, mask=there, other=total)
    return row.to(tl.int64), place.to(tl.int64), there, place < total


@triton.jit
def _load(ptr, row, stride, in_rows, column, in_columns):
    mask = in_rows[:, None] & in_columns[None, :]
    return tl.load(ptr + row[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store(ptr, x, row, stride, in_rows, column, in_columns):
    mask = in_rows[:, None] & in_columns[None, :]
    x = cast(x, ptr.dtype.element_ty)
    tl.store(ptr + row[:, None] * stride + column[None, :], x, mask=mask)


@launched
@triton.jit(do_not_specialize=["globals", "total"])
def fold(
    q_ptr,  # [globals, heads, DIM], the queries
    x_ptr,  # [total, WIDTH], stride given, that queries are made of; None: they are there
    query_ptr,  # [heads * DIM, WIDTH], weight of the queries, or None
    bias_ptr,  # [heads * DIM], or None
    key_ptr,  # [heads * DIM, WIDTH], weight of the keys
    high_ptr,  # [globals, heads, WIDTH], queries times their head's part of that weight
    low_ptr,  # the same, what rounding leaves of it, or None
    dout_ptr,  # [.., heads, DIM], stride given, gradients of the output; None: a forward pass
    value_ptr,  # [heads * DIM, WIDTH], weight of the values
    value_bias_ptr,  # [heads * DIM]
    context_ptr,  # [globals, heads, WIDTH] float32, what the rows gathered
    share_ptr,  # [globals, heads] float32, the sums of their probabilities; None: no dropout
    dcontext_ptr,  # [globals, heads, WIDTH], gradients times their head's part of that weight
    dshare_ptr,  # [globals, heads] float32, or None
    delta_ptr,  # [globals, heads, programs] float32, to be added: probabilities by their gradients
    place_ptr,  # [globals] int32, tokens of the global rows
    globals,
    total,
    factor,  # of the folded queries
    x_token,
    dout_token,
    PLACED: tl.constexpr,  # True: dout has a row for each token, else for each global one
    PRECISION: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program makes BLOCK columns of the folded queries ``high_ptr`` + ``low_ptr`` of ROWS
    global tokens and a head: q, or the product that makes it, times the key's weight; and with
    ``dout_ptr`` gradients besides."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    row, place, there, inside = _globals(place_ptr, tl.program_id(2), globals, total)
    dims = tl.arange(0, BLOCK_D)
    cols, in_dims = head * DIM + dims, dims < DIM
    first = tl.program_id(0) == 0
    if x_ptr is not None:
        q = tl.zeros((ROWS, BLOCK_D), tl.float32)
        for start in tl.range(0, WIDTH, CHUNK):
            column = start + tl.arange(0, CHUNK)
            x = _load(x_ptr, place, x_token, inside, column, column < WIDTH)
            weight = _load(query_ptr, cols, WIDTH, in_dims, column, column < WIDTH)
            q = dot(x, tl.trans(weight.to(x.dtype)), q, PRECISION)
        q += tl.load(bias_ptr + cols, mask=in_dims, other=0.0).to(tl.float32)[None, :]
        _store(q_ptr, q, row, heads * DIM, there & first, cols, in_dims)
    else:
        q = _load(q_ptr, row, heads * DIM, inside, cols, in_dims).to(tl.float32)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_columns, at = column < WIDTH, row * heads + head
    weight = _load(key_ptr, cols, WIDTH, in_dims, column, in_columns).to(tl.float32)
    folded = dot(q, weight, None, PRECISION) * factor
    high = cast(folded, high_ptr.dtype.element_ty)
    _store(high_ptr, high, at, WIDTH, there, column, in_columns)
    if low_ptr is not None:
        _store(low_ptr, folded - high.to(tl.float32), at, WIDTH, there, column, in_columns)
    if dout_ptr is not None:
        source = place if PLACED else row
        dout = _load(dout_ptr, source, dout_token, inside, cols, in_dims).to(tl.float32)
        weight = _load(value_ptr, cols, WIDTH, in_dims, column, in_columns).to(tl.float32)
        dcontext = cast(dot(dout, weight, None, PRECISION), dcontext_ptr.dtype.element_ty)
        _store(dcontext_ptr, dcontext, at, WIDTH, there, column, in_columns)
        context = _load(context_ptr, at, WIDTH, inside, column, in_columns)
        delta = tl.sum(dcontext.to(tl.float32) * context, 1)
        if share_ptr is not None:
            bias = tl.load(value_bias_ptr + cols, mask=in_dims, other=0.0).to(tl.float32)
            dshare = tl.sum(dout * bias[None, :], 1)
            tl.store(dshare_ptr + at, dshare, mask=there & first)
            share = tl.load(share_ptr + at, mask=inside, other=0.0)
            delta += tl.where(first, dshare * share, 0.0)
        tl.store(delta_ptr + at * tl.num_programs(0) + tl.program_id(0), delta, mask=there)


@launched
@triton.jit(do_not_specialize=["globals", "total"])
def unfold(
    context_ptr,  # [globals, heads, WIDTH] float32
    weight_ptr,  # [heads * DIM, WIDTH]
    bias_ptr,  # [heads * DIM], or None
    share_ptr,  # [globals, heads] float32, how much of the bias; None: all of it
    out_ptr,  # [.., heads, DIM], stride given
    place_ptr,  # [globals] int32, tokens of the global rows
    globals,
    total,
    factor,
    out_token,
    PLACED: tl.constexpr,  # True: out has a row for each token, else for each global one
    PRECISION: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program multiplies the sums ``context_ptr`` of ROWS global tokens and a head by the
    transpose of their head's part of a weight, adds a bias, and writes ``out_ptr``."""
    head, heads = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    row, place, there, inside = _globals(place_ptr, tl.program_id(1), globals, total)
    dims = tl.arange(0, BLOCK_D)
    cols, in_dims, at = head * DIM + dims, dims < DIM, row * heads + head
    out = tl.zeros((ROWS, BLOCK_D), tl.float32)
    for start in tl.range(0, WIDTH, CHUNK):
        column = start + tl.arange(0, CHUNK)
        context = _load(context_ptr, at, WIDTH, inside, column, column < WIDTH)
        weight = _load(weight_ptr, cols, WIDTH, in_dims, column, column < WIDTH)
        out = dot(context, tl.trans(weight.to(tl.float32)), out, PRECISION)
    out *= factor
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + cols, mask=in_dims, other=0.0).to(tl.float32)[None, :]
        if share_ptr is not None:
            bias *= tl.load(share_ptr + at, mask=inside, other=0.0)[:, None]
        out += bias
    out = tl.where(inside[:, None], out, 0.0)
    if PLACED:
        _store(out_ptr, out, place, out_token, inside, cols, in_dims)
    else:
        _store(out_ptr, out, row, out_token, there, cols, in_dims)


@triton.jit
def _add_outer(
    total_sum, a_ptr, a_row, a_stride, inside, own, in_dims, b_ptr, b_row, b_stride, column,
    in_columns, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds the product [columns, own] of the columns ``column`` and ``own`` of two matrices, over
    their rows; the part of the matrix with ``own`` is given back too."""
    a = _load(a_ptr, a_row, a_stride, inside, own, in_dims).to(tl.float32)
    b = _load(b_ptr, b_row, b_stride, inside, column, in_columns).to(tl.float32)
    return dot(tl.trans(b), a, total_sum, PRECISION), a


@launched
@triton.jit(do_not_specialize=["globals", "total"])
def weights(
    q_ptr,  # [globals, heads, DIM]
    dfolded_ptr,  # [globals, heads, WIDTH] float32
    dkey_ptr,  # [heads * DIM, WIDTH], gradient of the keys' weight, or None
    dkey_bias_ptr,  # [heads * DIM], of their bias, which is zero; None: not asked for
    dout_ptr,  # [.., heads, DIM], stride given
    context_ptr,  # [globals, heads, WIDTH] float32
    share_ptr,  # [globals, heads] float32, or None
    dvalue_ptr,  # [heads * DIM, WIDTH], gradient of the values' weight, or None
    dvalue_bias_ptr,  # [heads * DIM]
    dq_ptr,  # [globals, heads, DIM] float32; this and all that follow are None without a query
    x_ptr,  # [total, WIDTH], stride given
    dquery_ptr,  # [heads * DIM, WIDTH], gradient of the queries' weight, or None
    dquery_bias_ptr,  # [heads * DIM]
    query_ptr,  # [heads * DIM, WIDTH]
    dx_ptr,  # [total, WIDTH], to which the gradients of what queries are made of are added, or None
    place_ptr,  # [globals] int32, tokens of the global rows
    globals,
    total,
    factor,
    x_token,
    dout_token,
    PLACED: tl.constexpr,  # True: dout has a row for each token, else for each global one
    PRECISION: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program sums BLOCK columns of the gradient of one head's part of a weight (key, value or
    query) and its bias, or adds the gradients of queries to ``dx_ptr``."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    role, blocks = tl.program_id(2), tl.cdiv(globals, ROWS)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_columns = column < WIDTH
    dims = tl.arange(0, BLOCK_D)
    cols, in_dims = head * DIM + dims, dims < DIM
    first = tl.program_id(0) == 0
    product = tl.zeros((BLOCK, BLOCK_D), tl.float32)  # so few rows go to no warpgroup units
    of_bias = tl.zeros((BLOCK_D,), tl.float32)
    if role == 0:
        if dkey_ptr is not None:
            for block in tl.range(0, blocks):
                row, _, _, inside = _globals(place_ptr, block, globals, total)
                product, _ = _add_outer(
                    product, q_ptr, row, heads * DIM, inside, cols, in_dims, dfolded_ptr,
                    row * heads + head, WIDTH, column, in_columns, PRECISION,
                )  # fmt: skip
            _store(dkey_ptr, tl.trans(product * factor), cols, WIDTH, in_dims, column, in_columns)
        if dkey_bias_ptr is not None:
            tl.store(dkey_bias_ptr + cols, tl.zeros((BLOCK_D,), tl.float32), mask=in_dims & first)
    elif role == 1:
        if dvalue_ptr is not None:
            for block in tl.range(0, blocks):
                row, place, _, inside = _globals(place_ptr, block, globals, total)
                at = row * heads + head
                product, dout = _add_outer(
                    product, dout_ptr, place if PLACED else row, dout_token, inside, cols, in_dims,
                    context_ptr, at, WIDTH, column, in_columns, PRECISION,
                )  # fmt: skip
                if share_ptr is not None:
                    dout *= tl.load(share_ptr + at, mask=inside, other=0.0)[:, None]
                of_bias += tl.sum(dout, 0)
            _store(dvalue_ptr, tl.trans(product), cols, WIDTH, in_dims, column, in_columns)
            bias = cast(of_bias, dvalue_bias_ptr.dtype.element_ty)
            tl.store(dvalue_bias_ptr + cols, bias, mask=in_dims & first)
    elif role == 2:
        if dquery_ptr is not None:
            for block in tl.range(0, blocks):
                row, place, _, inside = _globals(place_ptr, block, globals, total)
                product, dq = _add_outer(
                    product, dq_ptr, row, heads * DIM, inside, cols, in_dims, x_ptr, place, x_token,
                    column, in_columns, PRECISION,
                )  # fmt: skip
                of_bias += tl.sum(dq, 0)
            _store(dquery_ptr, tl.trans(product), cols, WIDTH, in_dims, column, in_columns)
            bias = cast(of_bias, dquery_bias_ptr.dtype.element_ty)
            tl.store(dquery_bias_ptr + cols, bias, mask=in_dims & first)
    else:
        if dx_ptr is not None:
            for block in tl.range(tl.program_id(1), blocks, tl.num_programs(1)):
                row, place, _, inside = _globals(place_ptr, block, globals, total)
                dx = _load(dx_ptr, place, WIDTH, inside, column, in_columns).to(tl.float32)
                for part in tl.range(0, tl.num_programs(1)):
                    dims_of = part * DIM + dims
                    dq = _load(dq_ptr, row, heads * DIM, inside, dims_of, in_dims)
                    weight = _load(query_ptr, dims_of, WIDTH, in_dims, column, in_columns)
                    dx = dot(dq, weight.to(tl.float32), dx, PRECISION)
                _store(dx_ptr, dx, place, WIDTH, inside, column, in_columns)
