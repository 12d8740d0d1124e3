"""Definition of attention by full score matrices: the oracle of every other backend, in any dtype.

Memory grows with the square of the packed length; for tests and short inputs.
"""

import torch

from ldt.attention.cells import POOLINGS, Cells
from ldt.attention.dropout import dropout_mask
from ldt.attention.layout import Layout, per_head


def sliding_window_attention(
    q,
    k,
    v,
    layout: Layout,
    *,
    window: int,
    dilation: int | tuple[int, ...] = 1,
    causal: bool = False,
    dropout=0.0,
    seed=0,
    relative=None,
    bias=None,
):
    """Sliding-window attention of every token, with the global tokens of its document in reach.

    A kept, non-global token i sees those kept tokens j of its document whose distance i - j is
    m * dilation for a whole m, |m| <= window / 2, and all its global tokens; each key counts once,
    in one softmax, scaled by 1 / sqrt(dim).

    Args:
        q, k, v: [total, heads, dim], the local projections.
        layout: layout of the packed tokens.
        window: tokens in reach on both sides together, even, >= 2.
        dilation: distance between neighbouring tokens in reach, 1 = contiguous; one number for all
            heads or one a head.
        causal: True if a token sees no token after it (0 <= m); no token may be global then.
        dropout: probability of dropping a probability; what is kept is scaled by 1 / (1 - dropout).
        seed: int, or int64 tensor [], that chooses the dropped ones, see `dropout_mask`.
        relative: None, or (query [total, heads, dim], table [heads, offsets, dim]): the score of
            token i for token j is then that of q_i k_j + query_i table_((j - i) / dilation +
            window / 2). Offsets are window + 1, causal ones
            window / 2 + 1. Keys of global tokens have no such part.
        bias: None, or [total, heads, most], what is added to the products of each query and the
            keys of its document's global tokens, at most so many, in their order.

    Returns:
        [total, heads, dim]; zeros at padding and at global tokens (see `global_attention`).

    Source: Beltagy et al. 2020 (arXiv:2004.05150), section 3.1; semantics of transformers'
    LongformerSelfAttention; dilation and causal windows of section 4.1; relative positions of
    Dai et al. 2019 (arXiv:1901.02860), section 3.3.
    """
    position = torch.arange(len(q), device=q.device)
    distance = position[:, None] - position
    step = torch.tensor(per_head(dilation, q.shape[1]), device=q.device)[:, None, None]
    near = (distance.abs() <= window // 2 * step) & (distance % step == 0)  # [heads, q, k]
    if causal:
        near = near & (distance >= 0)
    window_alone = near
    rows = torch.ones_like(position, dtype=torch.bool)
    if layout.is_global is not None:
        window_alone = near & ~layout.is_global
        near = near | layout.is_global
        rows = rows & ~layout.is_global
    if layout.key_padding_mask is not None:
        rows = rows & layout.key_padding_mask
    # Only rows that see a key go on: a softmax over nothing would be NaN, and its gradient too.
    index = rows.nonzero().squeeze(1)
    far: torch.Tensor | float = 0.0
    if relative is not None:
        query, table = relative
        place = window // 2 - (distance[index] // step)  # [heads, q, k]
        by_offset = torch.einsum("qhd,hod->hqo", query[index], table)
        far = by_offset.gather(2, place.clamp(0, table.shape[1] - 1).expand(len(step), -1, -1))
        far = far.masked_fill(~window_alone[:, index], 0)
    if bias is not None and layout.is_global is not None:
        far = far + _by_key(bias[index], layout)
    out = _attend(q[index], index, k, v, layout, near[:, index], dropout, seed, far)
    return torch.zeros_like(q).index_copy(0, index, out)


def _by_key(bias, layout):
    """[heads, queries, total] of a ``bias`` [queries, heads, most] by global token, 0 at others."""
    rank = layout.is_global.cumsum(0) - 1 - layout.cu_globals[layout.document_of]
    chosen = bias.transpose(0, 1).index_select(2, rank.clamp(0, bias.shape[2] - 1))
    return chosen.masked_fill(~layout.is_global, 0)


def global_attention(q, x, key, value, layout: Layout, *, dropout=0.0, seed=0):
    """Attention [globals, heads, dim] of the global tokens, each to every kept token of its
    document.

    Args:
        q: [globals, heads, dim], query_global of the tokens at ``layout.global_index``.
        x: [total, width], the layer's input.
        key, value: (weight [heads * dim, width], bias [heads * dim]) of the global projections.
        layout, dropout, seed: as in `sliding_window_attention`.

    Source: Beltagy et al. 2020, section 3.1 "Linear projections for global attention".
    """
    shape = (-1, *q.shape[1:])
    k = torch.nn.functional.linear(x, *key).view(shape)
    v = torch.nn.functional.linear(x, *value).view(shape)
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


def projected_global_attention(q, k, v, layout: Layout, *, dropout=0.0, seed=0, bias=None):
    """Attention [globals, heads, dim] of the global tokens to their document, with keys and values
    computed already.

    Args:
        q: [globals, heads, dim], query_global of the tokens at ``layout.global_index``.
        k, v: [total, heads, dim], key_global and value_global of all tokens.
        layout, dropout, seed: as in `sliding_window_attention`.
        bias: None, or [globals, heads, longest], added to the products of each query with the keys
            of its document, in their order, before they are scaled; longest is the length of the
            longest document.
    """
    index = layout.global_index
    everything = torch.ones(1, len(index), len(k), dtype=torch.bool, device=k.device)
    more: torch.Tensor | float = 0.0
    if bias is not None:
        place = torch.arange(len(k), device=k.device) - layout.cu_seqlens[layout.document_of]
        more = bias.transpose(0, 1).index_select(2, place)
    return _attend(q, index, k, v, layout, everything, dropout, seed, more)


full_attention = projected_global_attention  # of all tokens


def _attend(q, index, k, v, layout, allowed, dropout, seed, more=0.0):
    """Full-matrix softmax attention of the queries of tokens ``index`` over ``allowed`` keys, with
    ``more`` added to the products of queries and keys."""
    allowed = allowed & (layout.document_of[index][:, None] == layout.document_of)
    if layout.key_padding_mask is not None:
        allowed = allowed & layout.key_padding_mask
    scores = (torch.einsum("qhd,khd->hqk", q, k) + more) * q.shape[-1] ** -0.5
    probs = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    if dropout:
        everything = torch.arange(len(k), device=k.device)
        mask = dropout_mask(layout, q.shape[1], index, everything, dropout, seed)
        probs = probs * mask / (1 - dropout)
    return torch.einsum("hqk,khd->qhd", probs, v)


def pool(pooling: str, k, v, weight, cells: Cells):
    """Pooled keys and pooled values of the cells, [cells.count, heads, dim] each; zeros where there
    is no cell.

    Args:
        pooling: a name in `POOLINGS`.
        k, v: [total, heads, dim].
        weight: trained weight of the pooling, of the shape of its `initial`; None where that is
            None.
        cells: where the cells lie.
    """
    token, inside = cells.tokens(torch.arange(cells.size, device=k.device))
    outside = ~inside[..., None, None]  # [cells, size, 1, 1]
    keys, values = (x[token].masked_fill(outside, 0) for x in (k, v))  # [cells, size, heads, dim]
    if POOLINGS[pooling].maximum:
        low = torch.finfo(k.dtype).min
        # Not amax, which shares a gradient among equals: the first of them gets it.
        largest = (x.masked_fill(outside, low).max(1).values for x in (keys, values))
        return tuple(x.masked_fill(~cells.valid[:, None, None], 0) for x in largest)
    if cells.layout.key_padding_mask is not None:
        k, v = (x.masked_fill(~cells.layout.key_padding_mask[:, None, None], 0) for x in (k, v))
    shares = POOLINGS[pooling].shares(k, v, weight, cells).to(k.dtype)
    shares = shares.movedim(-1, 2)  # [1 or 2, cells or 1, size, heads or 1, dim or 1]
    return (keys * shares[0]).sum(1), (values * shares[-1]).sum(1)


def cell_attention(q, k, v, cells: Cells, *, window, dropout=0.0, seed=0):
    """Attention [total, heads, dim] of every token to the cells around it; zeros at padding and at
    global tokens.

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
