"""The definition of the second level: tokens that attend to pooled cells of their neighbourhood.

Plain PyTorch in any dtype, the oracle of every other implementation. The pooling is linear in the
length, the attention a full score matrix.

What Zhang et al. 2021 (arXiv:2105.04371) say of it: keys and values of a larger window are
compressed by a pooling of a certain kernel and stride (`ldt.attention.pooled.poolings`). How cells
lie at the borders of a document and which of them a window takes in could not be found there: what
`Cells` and `cell_attention` say of it is our reading.
"""

import torch

from ldt.attention.dropout import dropout_mask
from ldt.attention.pooled.cells import Cells
from ldt.attention.pooled.poolings import POOLINGS


def pool(pooling: str, k, v, weight, cells: Cells):
    """Keys and values of the cells.

    Args:
        pooling: a name in `POOLINGS`.
        k, v: [total, heads, dim].
        weight: of the shape of the pooling's `initial`, None where that is None.
        cells: where the cells lie.

    Returns:
        [cells.count, heads, dim] twice; zeros where there is no cell.
    """
    token, inside = cells.tokens(torch.arange(cells.size, device=k.device))
    outside = ~inside[..., None, None]  # [cells, size, 1, 1]
    keys, values = (x[token].masked_fill(outside, 0) for x in (k, v))  # [cells, size, heads, dim]
    if POOLINGS[pooling].maximum:
        low = torch.finfo(k.dtype).min
        largest = (x.masked_fill(outside, low).amax(1) for x in (keys, values))
        return tuple(x.masked_fill(~cells.valid[:, None, None], 0) for x in largest)
    if cells.layout.key_padding_mask is not None:
        k, v = (x.masked_fill(~cells.layout.key_padding_mask[:, None, None], 0) for x in (k, v))
    shares = POOLINGS[pooling].shares(k, v, weight, cells).to(k.dtype)
    shares = shares.movedim(-1, 2)  # [1 or 2, cells or 1, size, heads or 1, dim or 1]
    return (keys * shares[0]).sum(1), (values * shares[-1]).sum(1)


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
        [total, heads, dim]; zeros at padding and at global tokens.
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
