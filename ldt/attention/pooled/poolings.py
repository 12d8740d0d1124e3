"""Poolings: a class and its row in `POOLINGS` each, which every backend then computes.

A cell's key and value are weighted sums of those of its tokens, or their maxima. A pooling says
with which weights; the sums, and the gradients of both factors, are the backends'.

Zhang et al. 2021 (arXiv:2105.04371) compare mean, max and a dynamic convolution. What exactly
generates its weights could not be found there: `DynamicConvolution` is our reading of it.
"""

import torch

from ldt.attention.pooled.cells import Cells


class Pooling:
    """A weighted sum of the tokens of a cell, keys and values alike or each by its own weights."""

    maximum = False  # each feature's largest value in place of a sum; there are no shares then

    def initial(self, heads: int, dim: int, size: int) -> torch.Tensor | None:
        """The trained weight as training begins; None for a pooling without one.

        Args:
            heads, dim: number of heads, and features of one.
            size: tokens in a cell.
        """
        return None

    def shares(
        self, keys: torch.Tensor, values: torch.Tensor, weight: torch.Tensor | None, cells: Cells
    ) -> torch.Tensor:
        """Weights of the places of every cell, differentiable in all that they are made of.

        Args:
            keys, values: [total, heads, dim], zeros at padding.
            weight: of the shape of `initial`, in any dtype.
            cells: where the cells lie.

        Returns:
            [1 or 2, cells.count or 1, heads or 1, dim or 1, cells.size] for keys and values, 1
            where all are weighed alike. A place without a kept token adds nothing, whatever its
            weight. Of sums that are normalised, float32 at least.
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
        return torch.zeros(heads, size, dim)  # equal scores: the mean

    def shares(self, keys, values, weight, cells):
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
        return torch.zeros(2, heads, size, dim)

    def shares(self, keys, values, weight, cells):
        of = super().shares
        pairs = zip((keys, values), weight, strict=True)
        return torch.cat([of(x, x, one, cells) for x, one in pairs])


class Mean(Pooling):
    """The mean of the kept tokens of a cell."""

    def shares(self, keys, values, weight, cells):
        inside = cells.inside[:, None]  # [cells, 1, size]
        wide = torch.promote_types(values.dtype, torch.float32)
        share = inside.to(wide) / inside.sum(-1, keepdim=True).clamp(min=1)
        return share[None, :, :, None]


class Maximum(Pooling):
    """The largest value of each feature among the kept tokens; the first of equal ones counts."""

    maximum = True


class Convolution(Pooling):
    """A depthwise convolution by weights [2, heads, dim, size], of keys and of values."""

    def initial(self, heads, dim, size):
        return torch.full((2, heads, dim, size), 1 / size)  # the mean of a full cell

    def shares(self, keys, values, weight, cells):
        return weight.unsqueeze(1)


POOLINGS: dict[str, Pooling] = {
    "ldconv": DynamicConvolution(),
    "ldconv_separate": SeparateDynamicConvolution(),
    "mean": Mean(),
    "max": Maximum(),
    "conv": Convolution(),
}
