"""The pattern of a band, and where in a packed batch a program of its kernels stands."""

import math
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of the tokens of a batch that kernels read, int32 unless said, on its device.

    Args:
        start, stop: [total], where the token's document starts and stops.
        silent: [total] uint8, 1 at padding and global tokens; None: there are none.
        next_silent: [total + 1], the first such token at or after one; total where none is.
        global_start, global_stop: [total], which of the global tokens are its document's, or None.
        global_index: [globals] int64, the global tokens; only those of a document are valid.
    """

    start: torch.Tensor
    stop: torch.Tensor
    silent: torch.Tensor | None = None
    next_silent: torch.Tensor | None = None
    global_start: torch.Tensor | None = None
    global_stop: torch.Tensor | None = None
    global_index: torch.Tensor | None = None

    @classmethod
    def of(cls, layout):
        """The tables of a layout, which caches them."""
        return layout.cached("tables", lambda: cls._make(layout))

    @classmethod
    def _make(cls, layout):
        def bounds(borders):
            borders = borders.to(torch.int32)
            return borders[document], borders[document + 1]

        document = layout.document_of
        silent = following = None
        if layout.masked_queries is not None:
            silent = layout.masked_queries.view(torch.uint8)
            place = torch.arange(len(silent) + 1, dtype=torch.int32, device=silent.device)
            place[:-1].masked_fill_(silent == 0, len(silent))
            following = place.flip(0).cummin(0).values.flip(0)
        of_globals = (None, None, None)
        if len(layout.global_index):
            of_globals = *bounds(layout.cu_globals), layout.global_index
        return cls(*bounds(layout.cu_seqlens), silent, following, *of_globals)


@dataclass(frozen=True, slots=True)
class Band:
    """The pattern of one call: which indices a query reaches, and what dropout takes."""

    radius: int
    causal: bool
    gaps: tuple[int, ...]  # one a head
    dropout: float

    def gaps_on(self, device):
        """[heads] int32, None where every gap is 1."""
        return None if set(self.gaps) == {1} else _gaps(self.gaps, device)

    def programs(self, total, rows):
        """Number of programs of ``rows`` tokens that the head with most of them needs."""
        return max(gap * triton.cdiv(triton.cdiv(total, gap), rows) for gap in set(self.gaps))


@cache  # and never freed: CUDA graphs read them
def _gaps(gaps, device):
    return torch.tensor(gaps, dtype=torch.int32, device=device)


@triton.jit
def take(gaps_ptr, total, head, ROWS: tl.constexpr):
    """(residue, gap, count, first): this program has indices from ``first`` on of the ``count``
    that this residue class has; there are none where first >= count."""
    if gaps_ptr is None:
        residue, gap = 0, 1
        count, first = total, tl.program_id(0) * ROWS
    else:
        gap = tl.load(gaps_ptr + head)
        programs = tl.cdiv(tl.cdiv(total, gap), ROWS)
        residue = tl.program_id(0) // programs
        first = (tl.program_id(0) % programs) * ROWS
        count = tl.where(residue < gap, tl.cdiv(total - residue, gap), 0)
    return residue, gap, count, first


@triton.jit
def reach(start_ptr, stop_ptr, index, residue, gap, back, ahead):
    """First and last index that ``index`` reaches in its residue class, document and window."""
    token = residue + index * gap
    first = (tl.load(start_ptr + token) - residue + gap - 1) // gap
    last = (tl.load(stop_ptr + token) - residue + gap - 1) // gap - 1
    return tl.maximum(first, index - back), tl.minimum(last, index + ahead)


@triton.jit
def silent_from(next_silent_ptr, index, residue, gap, total):
    """The first silent token at or after an index of a residue class, of any class."""
    return tl.load(next_silent_ptr + tl.minimum(residue + index * gap, total))
