"""Dropout, residual sum, LayerNorm and GELU of a layer in one pass each, forward and backward.

Each kernel reads and writes its tensors once. Sums are made in float32, those over all tokens by a
fixed number of programs whose parts are added in one order, so two runs give the same bits. Dropout
is decided by `ldt.attention.dropout`'s hash of the seed, the row and the column: nothing is kept.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

from ldt.attention.triton.devices import OPTIONS
from ldt.attention.triton.dropout import _mix, kept, least
from ldt.attention.triton.launch import Launch, launched

NUMBERS = 1024  # that a program of four warps holds of each tensor
PROGRAMS = 512  # of a kernel that sums over all tokens, at most
# Of the hash of rows, and of that of columns; 1 and 2 are those of attention.
ROW, COLUMN = tl.constexpr(3), tl.constexpr(4)
SUMS = {torch.float64: torch.float64}  # dtypes of sums of a dtype, else float32
LAUNCHES = 256  # of each kind that are held at most
ADDED = 32  # numbers that a program adds up the parts of


@lru_cache(LAUNCHES)
class End:
    """The end of a half of a layer: dropout, sum with the residual stream, LayerNorm.

    The sum is made in float32 and rounded once, to the stream's dtype; what is normalised is the
    rounded sum, so that `again` gives the bits of the output.

    Args:
        shape, device, dtype: of the stream: (n, width), index of the device, a dtype.
        products: dtype of the products before and behind it.
        eps: epsilon of the normalisation.
        dropout: probability that an entry of y is zero; the others grow by 1 / (1 - dropout).
        wide: columns of the layer's GELU.
        second: True for the end of the second half, whose parts of sums have another place.
        copies: True to have a copy of the output in the products' dtype, if that is another.
    """

    def __init__(
        self, shape, device, dtype, products, eps, dropout, wide, second=False, copies=True
    ):
        (rows, width), self.products, self.dropout = shape, products, dropout
        self.low = products if copies and products != dtype else None
        self.own_dy = bool(dropout) or products != dtype
        self.norm, self.norm_kept = (_normalise(shape, eps, dropout) for _ in range(2))
        sizes, at_once = _of_rows(width, 2 * NUMBERS, eps, dropout)
        programs, share = _shared(rows, at_once, PROGRAMS)
        fixed, sizes["COLUMNS"] = (rows, share, 3 * width if second else 0), 6 * width + wide
        self.slopes, self.slopes_again = (
            Launch(_norm_backward, (programs,), fixed, sizes) for _ in range(2)
        )

    def forward(self, y, of_y, stream, weight, bias, seed=None, keep=False):
        """LayerNorm of ``dropout(y + of_y) + stream``.

        Args:
            y: [n, width], what a product gave; contiguous, as the stream is.
            of_y: [width], bias of that product.
            stream: [n, width], the residual stream.
            weight, bias: [width], of the norm.
            seed: [] int64, None without dropout.
            keep: True to have the sum.

        Returns:
            The output [n, width] in the stream's dtype, its copy in the products' or None, and the
                sum or None.
        """
        out, total = torch.empty_like(stream), torch.empty_like(stream) if keep else None
        copy = None if self.low is None else torch.empty_like(stream, dtype=self.low)
        launch = self.norm_kept if keep else self.norm
        launch(stream, y, of_y, weight, bias, seed, out, copy, total)
        return out, copy, total

    def backward(self, dout, total, weight, bias, seed, parts, want_out=False):
        """Gradients of the stream and of y (one tensor where they are the same), and the output of
        `forward` or None; those of weight, bias and of_y are summed in ``parts``.

        Args:
            dout: [n, width], gradient of the output, contiguous.
            total: [n, width], the sum that `forward` kept.
            weight, bias, seed: as `forward` took them.
            parts: room of `sums_of`, which is written to.
            want_out: True to compute the output again, in the products' dtype; its last digit may
                differ from the copy's.
        """
        dtotal, dtype = torch.empty_like(total), self.products
        dy = torch.empty_like(total, dtype=dtype) if self.own_dy else None
        out = torch.empty_like(total, dtype=dtype) if want_out else None
        launch = self.slopes_again if want_out else self.slopes
        launch(dout, total, weight, bias, seed, dtotal, dy, out, parts)
        return dtotal, dtotal if dy is None else dy, out


def again(total, weight, bias, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Compute the output [n, width] of an `End` in ``dtype`` again, from the sum that it kept."""
    out = torch.empty_like(total, dtype=dtype)
    launch = _of_norm(total.shape, out.get_device(), total.dtype, dtype, eps)
    launch(total, None, None, weight, bias, None, out, None, None)
    return out


def gelu(wide: torch.Tensor, bias: torch.Tensor, in_place: bool = False) -> torch.Tensor:
    """Compute the exact GELU [n, width] of ``wide + bias``: ``wide`` is [n, width], contiguous, and
    overwritten by the output if ``in_place``; ``bias`` is [width]."""
    out = wide if in_place else torch.empty_like(wide)
    _of_gelu(wide.shape, wide.get_device(), wide.dtype)(wide, bias, out)
    return out


def gelu_backward(wide, bias, slope, parts, want_out=True):
    """Turn ``slope`` from the gradient of `gelu`'s output into that of its input; return the output
    or None.

    Args:
        wide, bias: as `gelu` took them.
        slope: [n, width], gradient of the output; overwritten.
        parts: room of `sums_of`, to which sums of the input's gradients are written.
        want_out: True to compute the output again.
    """
    out = torch.empty_like(wide) if want_out else None
    kind = wide.get_device(), wide.dtype, parts.dtype
    _of_gelu_backward(wide.shape, kind, want_out, parts.shape[1])(wide, bias, slope, out, parts)
    return out


def sums_of(total, wide):
    """Allocate room, not filled, for the partial sums over all tokens of a layer, which `added`
    adds up.

    Args:
        total: [n, width], a sum that an `End` kept.
        wide: columns of its GELU.

    Returns:
        [programs, 6 * width + wide] float32, float64 of float64: parts of the gradients of the
            first norm's weight and bias and of the sum of its y's; those of the second; of the
            GELU's.
    """
    (rows, width), dtype = total.shape, SUMS.get(total.dtype, torch.float32)
    return total.new_empty((max(_programs(rows, width, wide)), 6 * width + wide), dtype=dtype)


def added(parts, rows: int, width: int, dtype: torch.dtype):
    """Add up the partial sums of `sums_of` for ``rows`` tokens: six of [width] and one of [wide],
    in ``dtype``."""
    columns = parts.shape[1]
    sums = parts.new_empty((columns,), dtype=dtype)
    _of_partials(parts.get_device(), parts.dtype, dtype, rows, width, columns)(parts, sums)
    return sums.split_with_sizes((*(width,) * 6, columns - 6 * width))


@lru_cache(LAUNCHES)
def _of_norm(shape, device, dtype, of_out, eps):
    return _normalise(shape, eps, 0.0)


def _normalise(shape, eps, dropout):
    sizes, at_once = _of_rows(shape[1], NUMBERS, eps, dropout)
    return Launch(_norm, (-(-shape[0] // at_once),), shape[:1], sizes)


@lru_cache(LAUNCHES)
def _of_gelu(shape, device, dtype):
    rows, width = shape
    sizes = {"WIDTH": width, "BLOCK": 2 * NUMBERS, "num_warps": 4, **OPTIONS}
    return Launch(_gelu, (-(-rows * width // (2 * NUMBERS)),), (rows * width,), sizes)


@lru_cache(LAUNCHES)
def _of_gelu_backward(shape, kind, want_out, columns):
    """The `Launch` of a pass over columns, whose parts are the last of ``columns``."""
    rows, width = shape
    block, at_once, programs, share = _of_columns(rows, width)
    sizes = {"WIDTH": width, "BLOCK": block, "ROWS": at_once, "num_warps": 4, **OPTIONS}
    grid = programs, -(-width // block)
    return Launch(_gelu_backward, grid, (rows, share), {"COLUMNS": columns, **sizes})


@lru_cache(LAUNCHES)
def _of_partials(device, dtype, of_sums, rows, width, columns):
    counts = _programs(rows, width, columns - 6 * width)
    sizes = {"BORDER": 6 * width, "COLUMNS": columns, "BLOCK": ADDED, "PARTS": 64, "num_warps": 4}
    return Launch(_partials, (-(-columns // ADDED),), counts, sizes | OPTIONS)


@lru_cache(LAUNCHES)
def _programs(rows, width, wide):
    """Numbers of programs of a norm's backward pass, and for each column of a GELU's."""
    _, at_once = _of_rows(width, 2 * NUMBERS, 0.0, 0.0)
    return _shared(rows, at_once, PROGRAMS)[0], _of_columns(rows, wide)[2]


def _of_columns(rows, width):
    """Columns of a program of `_gelu_backward`, rows at a time, programs that share rows, rows of
    each."""
    block = min(256, triton.next_power_of_2(width))
    at_once = 2 * NUMBERS // block
    most = max(2 * PROGRAMS // -(-width // block), 1)
    return block, at_once, *_shared(rows, at_once, most)


def _of_rows(width, numbers, eps, dropout):
    """Constants of a kernel whose programs hold whole rows, options of its launch; rows held."""
    block = max(triton.next_power_of_2(width), 16)
    at_once = max(numbers // block, 1)
    drops = {"EPS": eps, "LEAST": least(dropout), "GAIN": 1 / (1 - dropout)}
    sizes = {"WIDTH": width, "BLOCK": block, "ROWS": at_once}
    return {**drops, **sizes, "num_warps": max(4, min(16, block // 256)), **OPTIONS}, at_once


def _shared(rows, at_once, most):
    """Number of programs that share rows, at most ``most``, and rows of each."""
    share = -(-rows // (most * at_once)) * at_once
    return -(-rows // share) if share else 0, share


@triton.jit
def _wide(x):
    """``x`` as sums are made: in float32, in float64 of float64."""
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    return x


@triton.jit
def _dropped(x, seed_ptr, row, column, LEAST: tl.constexpr, GAIN: tl.constexpr):
    """``x`` [rows, columns] behind dropout; as it is where there is no seed."""
    if seed_ptr is not None:
        seed = tl.load(seed_ptr).to(tl.int32)
        rows = _mix(_mix(tl.zeros_like(row) + seed + ROW) + row)
        columns = _mix(_mix(tl.zeros_like(column) + seed + COLUMN) + column)
        x = tl.where(kept(rows[:, None], columns[None, :], LEAST), x * GAIN, 0.0)
    return x


@triton.jit
def _normal(total, inside, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """[rows, columns] of mean 0 and variance 1 a row, and 1 / deviation of each row."""
    mean = tl.sum(tl.where(inside, total, 0.0), 1) / WIDTH
    total = tl.where(inside, total - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(total * total, 1) / WIDTH + EPS)
    return total * rstd[:, None], rstd


@launched
@triton.jit(do_not_specialize=["rows"])
def _norm(
    residual_ptr,  # [rows, WIDTH]
    y_ptr,  # [rows, WIDTH], or None
    of_y_ptr,  # [WIDTH], to be added to y, or None
    weight_ptr,  # [WIDTH]
    bias_ptr,  # [WIDTH]
    seed_ptr,  # [] int64, or None without dropout
    out_ptr,  # [rows, WIDTH]
    copy_ptr,  # [rows, WIDTH], or None
    total_ptr,  # [rows, WIDTH], or None
    rows,
    EPS: tl.constexpr,
    LEAST: tl.constexpr,
    GAIN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    there = column < WIDTH
    inside = (row < rows)[:, None] & there[None, :]
    total = _wide(tl.load(residual_ptr + place, mask=inside, other=0.0))
    if y_ptr is not None:
        y = _wide(tl.load(y_ptr + place, mask=inside, other=0.0))
        if of_y_ptr is not None:
            y += _wide(tl.load(of_y_ptr + column, mask=there, other=0.0))[None, :]
        total += _dropped(y, seed_ptr, row, column, LEAST, GAIN)
        rounded = total.to(residual_ptr.dtype.element_ty)
        if total_ptr is not None:
            tl.store(total_ptr + place, rounded, mask=inside)
        total = _wide(rounded)
    out, _ = _normal(total, inside, WIDTH, EPS)
    weight = _wide(tl.load(weight_ptr + column, mask=there, other=0.0))
    bias = _wide(tl.load(bias_ptr + column, mask=there, other=0.0))
    out = out * weight[None, :] + bias[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside)
    if copy_ptr is not None:
        tl.store(copy_ptr + place, out.to(copy_ptr.dtype.element_ty), mask=inside)


@launched
@triton.jit(do_not_specialize=["rows", "share", "first_column"])
def _norm_backward(
    dout_ptr,  # [rows, WIDTH]
    total_ptr,  # [rows, WIDTH]
    weight_ptr,  # [WIDTH]
    bias_ptr,  # [WIDTH]
    seed_ptr,  # [] int64, or None without dropout
    dtotal_ptr,  # [rows, WIDTH]
    dy_ptr,  # [rows, WIDTH], or None where it is the same
    out_ptr,  # [rows, WIDTH], or None
    parts_ptr,  # [programs, COLUMNS] float32
    rows,
    share,  # rows of a program
    first_column,  # of the parts of three sums
    COLUMNS: tl.constexpr,
    EPS: tl.constexpr,
    LEAST: tl.constexpr,
    GAIN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program takes ``share`` rows, ROWS at a time, and sums its part of three gradients."""
    column = tl.arange(0, BLOCK)
    there = column < WIDTH
    weight = _wide(tl.load(weight_ptr + column, mask=there, other=0.0))
    bias = tl.load(bias_ptr + column, mask=there, other=0.0)
    dweight, dbias, dsum = tl.zeros_like(weight), tl.zeros_like(weight), tl.zeros_like(weight)
    first = tl.program_id(0) * share
    for start in tl.range(first, tl.minimum(first + share, rows), ROWS):
        row = start + tl.arange(0, ROWS)
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        inside = (row < rows)[:, None] & there[None, :]
        dout = _wide(tl.load(dout_ptr + place, mask=inside, other=0.0))
        total = _wide(tl.load(total_ptr + place, mask=inside, other=0.0))
        normal, rstd = _normal(total, inside, WIDTH, EPS)
        if out_ptr is not None:
            out = normal * weight[None, :] + _wide(bias)[None, :]
            tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside)
        dweight += tl.sum(dout * normal, 0)
        dbias += tl.sum(dout, 0)
        slope = dout * weight[None, :]
        along = tl.sum(slope * normal, 1) / WIDTH
        slope = slope - (tl.sum(slope, 1) / WIDTH)[:, None] - normal * along[:, None]
        slope *= rstd[:, None]
        tl.store(dtotal_ptr + place, slope.to(dtotal_ptr.dtype.element_ty), mask=inside)
        slope = _dropped(slope, seed_ptr, row, column, LEAST, GAIN)
        if dy_ptr is not None:
            tl.store(dy_ptr + place, slope.to(dy_ptr.dtype.element_ty), mask=inside)
        dsum += tl.sum(slope, 0)
    part = parts_ptr + tl.program_id(0).to(tl.int64) * COLUMNS + first_column + column
    tl.store(part, dweight, mask=there)
    tl.store(part + WIDTH, dbias, mask=there)
    tl.store(part + 2 * WIDTH, dsum, mask=there)


@triton.jit
def _below(x):
    """The normal distribution up to x."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@launched
@triton.jit(do_not_specialize=["count"])
def _gelu(
    wide_ptr,  # [rows, WIDTH]
    bias_ptr,  # [WIDTH]
    out_ptr,  # [rows, WIDTH]
    count,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    x = _wide(tl.load(wide_ptr + place, mask=inside, other=0.0))
    x += _wide(tl.load(bias_ptr + place % WIDTH, mask=inside, other=0.0))
    tl.store(out_ptr + place, (x * _below(x)).to(out_ptr.dtype.element_ty), mask=inside)


@launched
@triton.jit(do_not_specialize=["rows", "share"])
def _gelu_backward(
    wide_ptr,  # [rows, WIDTH]
    bias_ptr,  # [WIDTH]
    slope_ptr,  # [rows, WIDTH], read and written
    out_ptr,  # [rows, WIDTH], or None
    parts_ptr,  # [programs, COLUMNS] float32, the last WIDTH of each row
    rows,
    share,  # rows of a program
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program takes BLOCK columns of ``share`` rows, ROWS at a time."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < WIDTH
    bias = _wide(tl.load(bias_ptr + column, mask=there, other=0.0))
    total = tl.zeros((ROWS, BLOCK), parts_ptr.dtype.element_ty)
    first = tl.program_id(0) * share
    for start in tl.range(first, tl.minimum(first + share, rows), ROWS):
        row = start + tl.arange(0, ROWS)
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        inside = (row < rows)[:, None] & there[None, :]
        x = _wide(tl.load(wide_ptr + place, mask=inside, other=0.0)) + bias[None, :]
        slope = _wide(tl.load(slope_ptr + place, mask=inside, other=0.0))
        below = _below(x)
        if out_ptr is not None:
            tl.store(out_ptr + place, (x * below).to(out_ptr.dtype.element_ty), mask=inside)
        slope *= below + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        tl.store(slope_ptr + place, slope.to(slope_ptr.dtype.element_ty), mask=inside)
        total += slope
    part = parts_ptr + tl.program_id(0).to(tl.int64) * COLUMNS + (COLUMNS - WIDTH) + column
    tl.store(part, tl.sum(total, 0), mask=there)


@launched
@triton.jit(do_not_specialize=["programs", "last_programs"])
def _partials(
    parts_ptr,  # [.., COLUMNS] float32
    out_ptr,  # [COLUMNS]
    programs,  # parts of each of the columns up to BORDER
    last_programs,  # parts of each of the others
    BORDER: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program adds up the parts of BLOCK numbers."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.where(column < BORDER, programs, last_programs)
    count = tl.where(column < COLUMNS, count, 0)
    total = tl.zeros((PARTS, BLOCK), parts_ptr.dtype.element_ty)
    for start in tl.range(0, tl.max(count, 0), PARTS):
        part = start + tl.arange(0, PARTS)
        place = part[:, None] * COLUMNS + column[None, :]
        total += tl.load(parts_ptr + place, mask=part[:, None] < count[None, :], other=0.0)
    sums = tl.sum(total, 0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + column, sums, mask=column < COLUMNS)
