"""Parts shared by the attention kernels: the rows that a program owns, and the tiles that
it reads."""

import triton
import triton.language as tl


@triton.jit
def own_block(classes_ptr, program, count, head, BLOCK: tl.constexpr):
    """(residue, dilation, table, first, size): a program has BLOCK rows from ``first`` on of the
    ``size`` that its residue class has, none where first >= size. ``table`` is where the
    intervals of its dilation begin. ``classes_ptr`` is that of `Pattern.classes`, ``count`` all
    rows."""
    if classes_ptr is None:
        residue, dilation, table = 0, 1, 0
        size, first = count, program * BLOCK
    else:
        dilation = tl.load(classes_ptr + head * 2)
        table = tl.load(classes_ptr + head * 2 + 1).to(tl.int64) * count
        programs = tl.cdiv(tl.cdiv(count, dilation), BLOCK)
        residue = program // programs
        first = (program % programs) * BLOCK
        size = tl.where(residue < dilation, tl.cdiv(count - residue, dilation), 0)
    return residue, dilation, table, first, size


@triton.jit
def own_rows(residue, dilation, first, size, BLOCK: tl.constexpr):
    """(place, inside, first, last): where the BLOCK rows of `own_block` lie, the last one again
    where there are no more; which are there; and where the first and the last one lie."""
    row = first + tl.arange(0, BLOCK)
    place = residue + tl.minimum(row, size - 1) * dilation
    return place, row < size, residue + first * dilation, tl.max(place, 0)


@triton.jit
def seen_by(begin_ptr, end_ptr, place, first, last, alive):
    """(low, high, begin, end): each row at ``place`` sees low to high - 1, as tables of both tell,
    and all of `own_rows` together begin to end - 1, which is nothing unless ``alive``."""
    low, high = tl.load(begin_ptr + place), tl.load(end_ptr + place)
    begin, end = tl.load(begin_ptr + first), tl.load(end_ptr + last)
    return low, high, begin, tl.where(alive, end, begin)


@triton.jit
def own_tiles(
    begin_ptr, end_ptr, place, first, last, alive, next_hidden_ptr, count, residue, dilation,
    split, splits, BLOCK: tl.constexpr,
):  # fmt: skip
    """(low, high, begin, end, left, right, tiles): those of `seen_by`, but begin to end - 1 is part
    ``split`` of ``splits`` of it, and those of `_inner_tiles` of that part."""
    low, high, begin, end = seen_by(begin_ptr, end_ptr, place, first, last, alive)
    size = tl.cdiv(tl.cdiv(end - begin, splits), BLOCK) * BLOCK
    begin = tl.minimum(begin + split * size, end)
    end = tl.minimum(begin + size, end)
    left, right, tiles = _inner_tiles(
        begin, tl.load(begin_ptr + last), tl.load(end_ptr + first), end, next_hidden_ptr, count,
        residue, dilation, BLOCK,
    )  # fmt: skip
    return low, high, begin, end, left, right, tiles


@triton.jit
def _inner_tiles(
    begin, inner_begin, inner_end, end, next_hidden_ptr, count, residue, dilation,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(left, right, tiles): of the tiles of begin to end - 1, those from left to right - 1 lie
    inside of inner_begin to inner_end - 1, what all rows see, and before any hidden key."""
    tiles = tl.cdiv(end - begin, BLOCK)
    left = tl.minimum(tl.cdiv(tl.maximum(inner_begin - begin, 0), BLOCK), tiles)
    if next_hidden_ptr is not None:
        place = residue + (begin + left * BLOCK) * dilation
        hidden = tl.load(next_hidden_ptr + place, mask=place < count, other=count)
        inner_end = tl.minimum(inner_end, tl.cdiv(hidden - residue, dilation))
    right = (tl.minimum(inner_end, end) - begin) // BLOCK
    return left, tl.maximum(right, left), tiles


@triton.jit
def meet(i, begin, end, place_ptr, residue, dilation, BLOCK: tl.constexpr):
    """(column, place): the [BLOCK] rows of the i-th tile of begin to end - 1, and where they lie,
    the last one again where there are no more; in ``place_ptr`` if they are gathered, else None."""
    column = begin + i * BLOCK + tl.arange(0, BLOCK)
    place = tl.minimum(column, end - 1)
    place = residue + place * dilation if place_ptr is None else tl.load(place_ptr + place)
    return column, place


@triton.jit
def seen_only(
    scores, i, left, right, column, low, high, place, begin, hidden_ptr, next_hidden_ptr,
    residue, dilation,
):  # fmt: skip
    """Scores [rows, columns] of the i-th tile, -inf where a row does not see a column. Nothing is
    done to tiles from left to right - 1, and bytes of ``hidden_ptr`` are read where the next hidden
    row lies in the tile."""
    if (i < left) | (i >= right):
        if hidden_ptr is not None:
            first = residue + (begin + i * column.shape[0]) * dilation
            if tl.load(next_hidden_ptr + first) < first + column.shape[0] * dilation:
                column = tl.where(tl.load(hidden_ptr + place) == 0, column, -1)
        seen = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    return scores
