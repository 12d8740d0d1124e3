"""Cells of the second level, a few neighbouring tokens of a document each, and how they are pooled.

A cell's key and value are weighted sums of those of its tokens, or their maxima. A pooling, a class
in `POOLINGS`, computes the weights; the backends compute the sums and the gradients of both
factors.

Zhang et al. 2021 (arXiv:2105.04371) compare mean, max and a dynamic convolution. What exactly
generates its weights could not be found there: `DynamicConvolution` is our reading of it.
"""

from dataclasses import dataclass
from functools import wraps

import torch
from torch.nn import functional as F

from ldt.attention.layout import Layout


def _shared(make):
    """A property that is computed once for a batch: all layers with such cells share it."""

    @wraps(make)
    def get(self):
        key = (make.__name__, self.size, self.stride)
        return self.layout.cached(key, lambda: make(self))

    return property(get)


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of a packed batch: every ``stride`` tokens begins one of ``size`` tokens.

    Cell m of a document covers its tokens m * stride to m * stride + size - 1, counted from its
    first kept token, so that padding in front moves no cell. A document of n tokens from there on
    has ceil(n / stride) cells; what of the last ones would lie behind its end is cut off. Tokens
    between two cells (size < stride) are in none. A cell without any kept token is no cell.

    All cells lie in one table of ``count`` rows, those of document d from row ``cu_seqlens[d] //
    stride + d`` on: that is room enough, known without a look at the borders, and leaves a row
    without a cell here and there.

    Args:
        layout: layout of the packed tokens.
        size: tokens in a cell (the paper's kernel).
        stride: tokens from the start of a cell to that of the next.
    """

    layout: Layout
    size: int
    stride: int

    @property
    def count(self) -> int:
        """Number of rows of the table of cells, those without a cell (see `valid`) included."""
        return self.layout.total_tokens // self.stride + len(self.layout.cu_seqlens) - 1

    @_shared
    def first(self) -> torch.Tensor:
        """Packed index of the first kept token of each document, [documents] int64; the document's
        end where there is none."""
        cu_seqlens, keep = self.layout.cu_seqlens, self.layout.key_padding_mask
        if keep is None:
            return cu_seqlens[:-1]
        before = F.pad(keep.cumsum(0), (1, 0))  # [total + 1]
        first = torch.searchsorted(before, before[cu_seqlens[:-1]], right=True) - 1
        return first.minimum(cu_seqlens[1:])

    @_shared
    def row(self) -> torch.Tensor:
        """Row of the table with the first cell of each document, [documents] int64."""
        begin = self.layout.cu_seqlens[:-1]
        return begin // self.stride + torch.arange(len(begin), device=begin.device)

    @_shared
    def document_of(self) -> torch.Tensor:
        """Document of each row of the table, [count] int64."""
        row = torch.arange(self.count, device=self.row.device)
        return torch.searchsorted(self.row, row, right=True) - 1

    @_shared
    def start(self) -> torch.Tensor:
        """Packed index of the first token of the cell in each row of the table, [count] int64; may
        lie past the document's end, even past all tokens: `tokens` masks it."""
        document = self.document_of
        row = torch.arange(self.count, device=document.device)
        return self.first[document] + (row - self.row[document]) * self.stride

    def tokens(self, offset: int | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Packed index of the token ``offset`` places after the start of each cell.

        Args:
            offset: int, or int64 tensor [m].

        Returns:
            [count] or [count, m] int64, the index, that of some other token where the mask is
                False; and a mask of this shape, True where it is a kept token of the cell's
                document.
        """
        end = self.layout.cu_seqlens[1:][self.document_of]
        if isinstance(offset, torch.Tensor):
            token, end = self.start[:, None] + offset, end[:, None]
        else:
            token = self.start + offset
        inside = token < end
        token = token.clamp(max=self.layout.total_tokens - 1)
        if self.layout.key_padding_mask is not None:
            inside = inside & self.layout.key_padding_mask[token]
        return token, inside

    @_shared
    def inside(self) -> torch.Tensor:
        """True for places of each cell that hold a kept token, [count, size] bool."""
        return self.tokens(torch.arange(self.size, device=self.row.device))[1]

    @_shared
    def valid(self) -> torch.Tensor:
        """True for rows of the table that hold a cell, [count] bool."""
        return self.inside.any(1)

    def lowest(self, place, window: int):
        """Number, in its document, of the first cell in reach of a token ``place`` tokens after the
        first kept one, an int or a tensor; may be below 0."""
        return -((window + self.size - 1 - 2 * place) // (2 * self.stride))

    def highest(self, place, window: int):
        """Number, in its document, of the last cell in reach of a token ``place`` tokens after the
        first kept one; may lie past the last cell."""
        return (window - self.size + 1 + 2 * place) // (2 * self.stride)

    def reach(self, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The cells in reach of every token: rows ``begin`` to ``end - 1``, some of them no cell.

        A cell is in reach if its centre is at most ``window / 2`` tokens away, see
        `reference.cell_attention`.

        Returns:
            begin, end: [total] int64 each.
        """
        document = self.layout.document_of
        first, row = self.first[document], self.row[document]
        length = self.layout.cu_seqlens[1:][document] - first
        cells = (length + self.stride - 1) // self.stride
        place = torch.arange(self.layout.total_tokens, device=first.device) - first
        begin = self.lowest(place, window).clamp(min=0).minimum(cells)
        end = (self.highest(place, window) + 1).clamp(min=0).minimum(cells)
        return row + begin, row + end.maximum(begin)

    @_shared
    def spans(self) -> list[tuple[int, int, int]]:
        """(row of the first cell, first token, end) of every document with cells, read to
        the host."""
        rows, first = self.row.tolist(), self.first.tolist()
        spans = zip(rows, first, self.layout.cu_seqlens_host[1:], strict=True)
        return [span for span in spans if span[1] < span[2]]

    @_shared
    def lanes(self) -> list[list[tuple[slice, slice]]]:
        """List with an entry for each offset in a cell: (slice of rows of cells with a token there,
        slice of those tokens) of every document."""
        lanes = []
        for offset in range(self.size):
            lane = []
            for row, first, end in self.spans:
                tokens = range(first + offset, end, self.stride)
                if tokens:
                    places = slice(tokens.start, tokens.stop, tokens.step)
                    lane.append((slice(row, row + len(tokens)), places))
            lanes.append(lane)
        return lanes


class Pooling:
    """Base class of the ways to pool a cell by a weighted sum of its tokens."""

    maximum = False  # each feature's largest value in place of a sum; there are no shares then

    def initial(self, heads: int, dim: int, size: int) -> torch.Tensor | None:
        """Initial value of the trained weight; None for a pooling without one.

        Args:
            heads, dim: number of heads, and features of one.
            size: tokens in a cell.
        """
        return None

    def shares(
        self, keys: torch.Tensor, values: torch.Tensor, weight: torch.Tensor | None, cells: Cells
    ) -> torch.Tensor:
        """Weights of the places of every cell, differentiable in keys, values and weight.

        Args:
            keys, values: [total, heads, dim], zeros at padding.
            weight: trained weight of the shape of `initial`, in any dtype.
            cells: where the cells lie.

        Returns:
            [1 or 2, cells.count or 1, heads or 1, dim or 1, cells.size] for keys and values, 1
                where all have the same weight. A place without a kept token adds nothing, whatever
                its weight. Weights that are normalised are float32 at least.
        """
        raise NotImplementedError


class DynamicConvolution(Pooling):
    """A lightweight dynamic convolution: each head weighs the places of a cell by a softmax over
    those with a kept token.

    The scores are linear in the value of the centre token, which is the one at place
    (size - 1) // 2; where that is padding or behind the document's end, all scores are 0, so the
    cell is a mean. Its weight [heads, size, dim] leads from centre to scores.
    """

    def initial(self, heads, dim, size):
        """Zeros [heads, size, dim], so that training begins with a mean."""
        return torch.zeros(heads, size, dim)  # equal scores: the mean

    def shares(self, keys, values, weight, cells):
        """Softmax weights [1, cells.count, heads, 1, cells.size], one set for keys and values and
        for all features, from the centres' values alone; arguments as in `Pooling.shares`."""
        wide = torch.promote_types(values.dtype, torch.float32)
        token, there = cells.tokens((cells.size - 1) // 2)
        centre = values.index_select(0, token).masked_fill(~there[:, None, None], 0)
        scores = torch.einsum("chd,hsd->chs", centre, weight.to(values.dtype)).to(wide)
        # The scores of a row without a cell become equal, not -inf: it has no token to weigh.
        scores = scores.masked_fill(~cells.inside[:, None], torch.finfo(wide).min)
        return scores.softmax(-1)[None, :, :, None]


class SeparateDynamicConvolution(DynamicConvolution):
    """`DynamicConvolution` of keys by weights made of keys, and of values by those of values.

    The other reading of the paper, with two generators: its weight is [2, heads, size, dim].
    """

    def initial(self, heads, dim, size):
        """Zeros [2, heads, size, dim], for keys and for values."""
        return torch.zeros(2, heads, size, dim)

    def shares(self, keys, values, weight, cells):
        """Softmax weights [2, cells.count, heads, 1, cells.size]: of keys, from them, and of
        values."""
        of = super().shares
        pairs = zip((keys, values), weight, strict=True)
        return torch.cat([of(x, x, one, cells) for x, one in pairs])


class Mean(Pooling):
    """Mean of the kept tokens of a cell."""

    def shares(self, keys, values, weight, cells):
        """Shares [1, cells.count, 1, 1, cells.size]: 1 / n at each of a cell's n kept tokens, else
        0."""
        inside = cells.inside[:, None]  # [cells, 1, size]
        wide = torch.promote_types(values.dtype, torch.float32)
        share = inside.to(wide) / inside.sum(-1, keepdim=True).clamp(min=1)
        return share[None, :, :, None]


class Maximum(Pooling):
    """Largest value of each feature among the kept tokens; the first of equal ones gets the
    gradient."""

    maximum = True


class Convolution(Pooling):
    """Depthwise convolution by trained weights [2, heads, dim, size], of keys and of values."""

    def initial(self, heads, dim, size):
        """Filters [2, heads, dim, size] of 1 / size, for keys and for values: means of
        full cells."""
        return torch.full((2, heads, dim, size), 1 / size)  # the mean of a full cell

    def shares(self, keys, values, weight, cells):
        """The trained weight as [2, 1, heads, dim, cells.size]."""
        return weight.unsqueeze(1)


POOLINGS: dict[str, Pooling] = {
    "ldconv": DynamicConvolution(),
    "ldconv_separate": SeparateDynamicConvolution(),
    "mean": Mean(),
    "max": Maximum(),
    "conv": Convolution(),
}
