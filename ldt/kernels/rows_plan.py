"""Which global rows meet which tokens: equal shares of work, found on the device."""

from dataclasses import dataclass

import torch

PROGRAMS = 512  # items at most, beside one a tile: about four for every multiprocessor of an H200


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What the programs of the row kernels work on; rows of zero length are left out.

    Rows are numbered ``global token * per + i``. A tile is up to ``block_rows`` rows of one
    document; an item is a tile and a piece of that document, as long as every other; a block is up
    to ``block_keys`` tokens of one document.

    Args:
        items: [i, 4] int32, first row, last row, first token, last token (each end exclusive).
        tiles: [t, 4] int32, first row, last row, first item, last item.
        blocks: [b, 4] int32, first token, last token, first row, last row.
    """

    items: torch.Tensor
    tiles: torch.Tensor
    blocks: torch.Tensor


def plan(cu_seqlens, cu_globals, total, globals, *, per, block_rows, block_keys, programs=PROGRAMS):
    """The `Plan` of a packed batch. Sizes come from the host's numbers, nothing is read back.

    Args:
        cu_seqlens, cu_globals: [documents + 1] int64, as in `Documents`.
        total, globals: tokens, and global tokens at most.
        per: rows that a global token stands for.
        block_rows, block_keys: rows of a tile, tokens of a block.
        programs: items that long documents are split into.
    """
    documents, rows = len(cu_seqlens) - 1, globals * per
    starts, row_starts = cu_seqlens, cu_globals * per
    lengths = starts.diff()
    tiles = _split(row_starts.diff(), block_rows)  # [documents]
    most_tiles = rows // block_rows + min(documents, globals)
    # One length for all pieces, so that there are at most `programs` of them and one a tile more.
    length = _split((tiles * lengths).sum(), programs)
    length = (_split(length, block_keys) * block_keys).clamp(min=block_keys)
    pieces = _split(lengths, length)
    most_items = most_tiles + min(programs, most_tiles * (total // block_keys))

    doc, place = _place(tiles, most_tiles)
    first_row = row_starts[doc] + place * block_rows
    last_row = torch.minimum(first_row + block_rows, row_starts[doc + 1])
    items = (tiles * pieces).cumsum(0) - tiles * pieces
    first_item = items[doc] + place * pieces[doc]
    table_tiles = torch.stack([first_row, last_row, first_item, first_item + pieces[doc]], 1)

    doc, place = _place(tiles * pieces, most_items)
    first_row = row_starts[doc] + place // pieces[doc] * block_rows
    last_row = torch.minimum(first_row + block_rows, row_starts[doc + 1])
    first = starts[doc] + place % pieces[doc] * length
    last = torch.minimum(first + length, starts[doc + 1])
    table_items = torch.stack([first_row, last_row, first, last], 1)

    doc, place = _place(_split(lengths, block_keys), total // block_keys + documents)
    first = starts[doc] + place * block_keys
    last = torch.minimum(first + block_keys, starts[doc + 1])
    table_blocks = torch.stack([first, last, row_starts[doc], row_starts[doc + 1]], 1)
    return Plan(*(t.to(torch.int32) for t in (table_items, table_tiles, table_blocks)))


def _split(size, part):
    """Parts needed for a size."""
    return (size + part - 1) // part


def _place(counts, most):
    """(document, place in it) of ``most`` things, ``counts`` [documents] of them in each.

    Those beyond the last count as places beyond the end of the last document.
    """
    ends = counts.cumsum(0)
    number = torch.arange(most, device=counts.device)
    doc = torch.searchsorted(ends, number, right=True).clamp(max=len(counts) - 1)
    return doc, number - (ends - counts)[doc]
