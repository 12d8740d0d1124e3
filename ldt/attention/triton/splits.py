"""Split intervals among several programs, and sum their partial results."""

import triton
import triton.language as tl

from ldt.attention.triton.devices import OPTIONS
from ldt.attention.triton.launch import Launch, launched
from ldt.attention.triton.tiles import cdiv, load_rows, padded, store_rows

FEW = 16  # rows at a time where a document has no more: the fewest that matrix units take
PIECE = 128  # rows, at least, of a split
PROGRAMS = 2048  # enough of them to fill any GPU: no more splits than that needs
SPLITS = 256  # at most: each costs memory


def splits(programs: int, longest: int) -> int:
    """Number of programs, at most 256, that share an interval of up to ``longest`` rows, of
    ``programs`` intervals; 1 if ``longest`` is 0."""
    return max(1, min(cdiv(longest, PIECE), cdiv(PROGRAMS, max(programs, 1)), SPLITS))


def combined(parts, out, place=None, first=0):
    """A `Launch` that adds up the splits of tensors, called with (parts, their log-sum-exp or None,
    out, its log-sum-exp or None).

    Args:
        parts: [tensors, splits, rows, heads, dim] float32.
        out: [tensors, out_rows, heads, dim], to write to; the numbers of a row are contiguous.
        place: [rows] int32, the rows of ``out``; those past its end are left out. None: each its
            own.
        first: number of the tensor that it is called with where those of ``out`` begin.
    """
    tensors, count, rows, heads, dim = parts.shape
    fixed = place, count, rows, out.shape[1], *out.stride()[:2], first
    sizes = {"DIM": dim, "BLOCK_D": padded(dim), "SPLITS": 1 << (count - 1).bit_length()}
    return Launch(_combine, (rows, heads, tensors), fixed, {**sizes, "num_warps": 8, **OPTIONS})


@launched
@triton.jit(do_not_specialize=["splits", "rows", "out_rows"])
def _combine(
    parts_ptr,  # [tensors, splits, rows, heads, DIM] float32
    lse_parts_ptr,  # [splits, heads, rows] float32; None: a plain sum. Logarithms to base 2 of
    # the sums that each split divided by, infinite where it saw nothing
    out_ptr,  # [tensors, out_rows, heads, DIM], strides given
    lse_ptr,  # [heads, rows] float32, or None
    place_ptr,  # [rows] int32, or None
    splits,
    rows,
    out_rows,
    out_tensor,
    out_row,
    out_first,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One program adds up the splits of one row of one head of one tensor."""
    row, head, tensor = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1).to(tl.int64)
    place = row
    if place_ptr is not None:
        place = tl.load(place_ptr + row)
        if place >= out_rows:
            return
    split = tl.arange(0, SPLITS)
    inside = split < splits
    at = ((tensor * splits + split) * heads * rows) + row * heads + head
    part = load_rows(parts_ptr, at, DIM, inside, DIM, BLOCK_D)
    if lse_parts_ptr is not None:
        lse = tl.load(lse_parts_ptr + (split * heads + head) * rows + row, mask=inside, other=0.0)
        inside = inside & (lse < float("inf"))
        lse = tl.where(inside, lse, float("-inf"))
        m_i = tl.maximum(tl.max(lse, 0), -1e30)  # finite: a row may see nothing
        share = tl.exp2(lse - m_i)
        l_i = tl.sum(share, 0)
        part = part * (share / tl.where(l_i > 0, l_i, 1.0))[:, None]
        lse = tl.where(l_i > 0, m_i + tl.log2(l_i), float("inf"))
        tl.store(lse_ptr + head * rows.to(tl.int64) + row, lse)
    out_ptr += tensor * out_tensor.to(tl.int64) + head.to(tl.int64) * DIM + out_first
    one = tl.full((1,), 1, tl.int1)
    place += tl.zeros((1,), tl.int32)
    store_rows(out_ptr, tl.sum(part, 0)[None, :], place, out_row, one, DIM, BLOCK_D)
