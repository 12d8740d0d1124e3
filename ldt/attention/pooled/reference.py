"""The definition of the second level: tokens that attend to pooled cells of their neighbourhood.

Plain PyTorch in any dtype, the oracle of every other implementation. The pooling is linear in the
length, the attention a full score matrix.

What Zhang et al. 2021 (arXiv:2105.04371) say of it: keys and values of a larger window are
compressed by a pooling of a certain kernel and stride; mean, max and a dynamic convolution whose
weights come from the input by a softmax (LDConv) are compared. How cells lie at the borders of a
document, which of them a window takes in, and what exactly generates the dynamic weights could not
be found there: what `Cells`, `cell_attention` and `pool` say of it is our reading.
"""

import torch

from ldt.attention.dropout import dropout_mask
from ldt.attention.pooled.cells import Cells


def pool(pooling, k, v, weight, cells: Cells):
    """Keys and values of the cells.

    - ``mean`` of the kept tokens of a cell.
    - ``max`` of the kept tokens, of each feature on its own.
    - ``conv``: a depthwise convolution, the sum over the places of a cell of weight times token; a
      place without a kept token adds nothing.
    - ``ldconv``: a lightweight dynamic convolution. Each head weighs the places of a cell by a
      softmax over those with a kept token, and the same weights pool keys and values. The scores
      are linear in the value of the centre token, which is the one at place (size - 1) // 2; where
      that is a hole or behind the document's end, all scores are 0, so the cell is a mean.

    Args:
        pooling: the name of one of these.
        k, v: [total, heads, dim].
        weight: ldconv: [heads, size, dim], from centre to scores. conv: [2, heads, dim, size], for
            keys and for values. mean, max: None.
        cells: where the cells lie.

    Returns:
        [cells.count, heads, dim] twice; zeros where there is no cell.
    """
    place = torch.arange(cells.size, device=k.device)
    token, inside = cells.tokens(place)
    inside = inside[..., None, None]  # [cells, size, 1, 1]
    keys, values = (x[token].masked_fill(~inside, 0) for x in (k, v))  # [cells, size, heads, dim]
    if pooling == "mean":
        count = inside.sum(1).clamp(min=1)
        return keys.sum(1) / count, values.sum(1) / count
    if pooling == "max":
        low = torch.finfo(k.dtype).min
        return tuple(
            x.masked_fill(~inside, low).amax(1).masked_fill(~cells.valid[:, None, None], 0)
            for x in (keys, values)
        )
    if pooling == "conv":
        return tuple(
            torch.einsum("cshd,hds->chd", x, w) for x, w in zip((keys, values), weight, strict=True)
        )
    scores = torch.einsum("chd,hsd->csh", values[:, (cells.size - 1) // 2], weight)[..., None]
    # All scores of a row without a cell are equal, and its tokens zero.
    share = scores.masked_fill(~inside, torch.finfo(k.dtype).min).softmax(1)
    return (keys * share).sum(1), (values * share).sum(1)


def cell_attention(q, k, v, cells: Cells, *, window, dropout=0.0, seed=0):
    """Attention of every token to the cells around it.

    A kept, non-global token i sees the cells of its own document whose centre, the middle of its
    first and last place, (size - 1) / 2 tokens behind its start, is at most ``window / 2`` tokens
    before or after it: window / stride cells, or one more. A cell that the document's end cuts
    keeps that centre. The softmax is scaled by 1 / sqrt(dim). A token without a cell in reach gets
    zeros.

    There is no causal version: a cell holds tokens before and after each other, so a token would
    see its future in the cell that it is in.

    Args:
        q: [total, heads, dim].
        k, v: [cells.count, heads, dim], from `pool`.
        cells: where the cells lie.
        window: tokens in reach on both sides together, even, >= 2.
        dropout, seed: as in `sliding_window_attention`; a cell is drawn for as its first token.

    Returns:
        [total, heads, dim]; zeros at holes and at global tokens.
    """
    layout = cells.layout
    token = torch.arange(len(q), device=q.device)[:, None]
    allowed = (2 * (cells.start - token) + cells.size - 1).abs() <= window  # [total, cells]
    allowed = allowed & (layout.document_of[:, None] == cells.document_of) & cells.valid
    if layout.masked_queries is not None:
        allowed = allowed & ~layout.masked_queries[:, None]
    rows = allowed.any(1).nonzero().squeeze(1)
    scores = torch.einsum("qhd,chd->hqc", q[rows], k) * q.shape[-1] ** -0.5
    probs = scores.masked_fill(~allowed[rows], float("-inf")).softmax(-1)
    if dropout:
        first, _ = cells.tokens(0)
        probs = probs * dropout_mask(layout, q.shape[1], rows, first, dropout, seed)
        probs = probs / (1 - dropout)
    return torch.zeros_like(q).index_copy(0, rows, torch.einsum("hqc,chd->qhd", probs, v))
