"""Attention in blocks of queries: memory linear in length, any device, forward and backward.

The paper's "chunks" made exact: a block of queries meets the slab of keys that its windows reach,
with the global keys of the document in front, in three steps (scores, softmax in place, values) on
scratch memory that every block uses again. The backward pass computes the probabilities anew, so
nothing but q, k and v is kept for it. Blocks of half precision are computed in float32.
"""

from functools import lru_cache, partial
from itertools import pairwise

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ldt.attention.block import BLOCK, SHORT, Block, Blocked, Reach, queries_at_once, wide
from ldt.attention.cells import POOLINGS, Cells
from ldt.attention.derivatives import first_order
from ldt.attention.dropout import Dropout, dropout_mask
from ldt.attention.layout import Layout, per_head
from ldt.attention.matmul import choices, fast_matmul, linear, project

ALIGN = 16  # global keys in front of a slab are padded to this many: unaligned rows are slow
ROW_ELEMENTS = 1 << 22  # scores of one block of global rows, which meet the whole document


def sliding_window_attention(
    q,
    k,
    v,
    layout: Layout,
    *,
    window: int,
    dilation: int | tuple[int, ...] = 1,
    causal: bool = False,
    dropout: float = 0.0,
    seed=0,
    relative=None,
    bias=None,
):
    """Sliding-window attention [total, heads, dim] of every token, as
    `reference.sliding_window_attention` defines it, in O(length * window) time and O(length)
    memory.

    Heads of one dilation d go together: in d batches of every d-th token, where windows are
    contiguous.
    """
    reach = Reach(window // 2, 0 if causal else window // 2)
    parts: dict[int, list[int]] = {}  # dilation -> its heads
    for head, step in enumerate(per_head(dilation, q.shape[1])):
        parts.setdefault(step, []).append(head)
    out = [
        _heads_of_one_dilation(q, k, v, layout, reach, step, heads, dropout, seed, relative, bias)
        for step, heads in parts.items()
    ]
    if len(out) == 1:
        return out[0]
    order = torch.tensor([h for heads in parts.values() for h in heads], device=q.device)
    return torch.cat(out, 1).index_select(1, order.argsort())


def _heads_of_one_dilation(q, k, v, layout, reach, dilation, heads, dropout, seed, relative, bias):
    query, table = relative or (None, None)
    key = ("blocks", reach, dilation)
    blocks = layout.cached(key, lambda: list(_band_blocks(layout, reach, dilation)))
    if len(heads) < q.shape[1]:
        q, k, v = (x[:, heads] for x in (q, k, v))
        if relative is not None:
            query, table = query[:, heads], table[heads]
        if bias is not None:
            bias = bias[:, heads]
    drop = None
    if dropout:
        rows = torch.arange(layout.total_tokens, device=q.device)
        heads_of = torch.tensor(heads, device=q.device)
        drop = Dropout(layout, rows, rows, heads_of, dropout, seed)
    return Blocked.apply(q, k, v, blocks, reach, drop, query, table, bias)


def global_attention(q, x, key, value, layout: Layout, *, dropout=0.0, seed=0):
    """Attention [globals, heads, dim] of the global tokens to their documents, as
    `reference.global_attention` defines it, in O(globals * length) time and O(length) memory.

    With few global tokens the projections of the whole document are folded away: the key weight
    goes into the query and the value weight is applied after the sum over tokens (exact algebra;
    the key bias adds the same to every score of a row and drops out of the softmax).
    """
    globals_per_document = len(q) / (len(layout.cu_seqlens_host) - 1)
    if globals_per_document * q.shape[1] <= x.shape[1]:
        return folded_rows(q, x, key, value, layout, dropout, seed)
    return plain_rows(q, x, key, value, layout, dropout, seed)


def folded_rows(q, x, key, value, layout: Layout, dropout: float, seed):
    """`global_attention` of q [globals, heads, dim] that folds the weights of key and value, each a
    (weight, bias), into the queries: the documents, x [total, width], are not projected.

    The folded queries are as wide as the document's tokens, of which a head reads a few dims: in
    half precision the rounding of all the others would drown these. So they are float32.
    """
    dtype, width = q.dtype, x.shape[1]
    heads, dim = q.shape[1:]

    def span(folded, tokens, start, rows):
        """[g * heads, length] probabilities, times the tokens; and their sums [g * heads]."""
        tokens = wide(tokens)
        scores = folded @ tokens.T
        stop = start + len(tokens)
        if layout.key_padding_mask is not None:
            scores = scores.masked_fill(
                ~layout.key_padding_mask[start:stop], torch.finfo(scores.dtype).min
            )
        probs = scores.softmax(-1)
        if dropout:
            token = torch.arange(start, stop, device=x.device)
            mask = dropout_mask(layout, heads, layout.global_index[rows], token, dropout, seed)
            probs = probs * mask.transpose(0, 1).flatten(0, 1) / (1 - dropout)
        return probs @ tokens, probs.sum(-1)

    if x.dtype != wide(x).dtype and torch.is_grad_enabled():  # or it would keep wide tokens
        span = partial(checkpoint, span, use_reentrant=False, preserve_rng_state=False)
    with fast_matmul(q):
        folded = torch.einsum(
            "ghd,hdw->ghw", wide(q) * dim**-0.5, wide(key[0]).view(heads, dim, width)
        )
        spans = [
            span(folded[rows].flatten(0, 1), x[start:stop], start, rows)
            for start, stop, rows in _spans(layout)
        ]
        context, weight = map(torch.cat, zip(*spans, strict=True))
        context = context.view(-1, heads, width)
        out = torch.einsum("ghw,hdw->ghd", context, wide(value[0]).view(heads, dim, width))
        out = out + weight.view(-1, heads, 1) * wide(value[1]).view(heads, dim)
    return out.to(dtype)


def plain_rows(q, x, key, value, layout: Layout, dropout: float, seed):
    """`global_attention` of q [globals, heads, dim] that projects the documents, x [total, width],
    by key and value, each a (weight, bias)."""
    k = linear(x, *key).view(-1, *q.shape[1:])
    v = linear(x, *value).view(-1, *q.shape[1:])
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


def projected_global_attention(q, k, v, layout: Layout, *, dropout=0.0, seed=0, bias=None):
    """Attention [globals, heads, dim] of the global tokens' queries q to given k and v [total,
    heads, dim], as `reference.projected_global_attention` defines it, in O(length) memory."""
    blocks = []
    for start, stop, rows in _spans(layout):
        keep = layout.key_padding_mask
        hidden = None if keep is None else _true_places(~keep[start:stop])
        step = max(1, ROW_ELEMENTS // (q.shape[1] * (stop - start)))
        for row in range(rows.start, rows.stop, step):
            end = min(row + step, rows.stop)
            blocks.append(Block(slice(row, end), slice(start, stop), hidden=hidden))
    drop = None
    if dropout:
        heads = torch.arange(q.shape[1], device=q.device)
        tokens = torch.arange(layout.total_tokens, device=q.device)
        drop = Dropout(layout, layout.global_index, tokens, heads, dropout, seed)
    return Blocked.apply(q, k, v, blocks, None, drop, None, None, bias)


def full_attention(q, k, v, layout: Layout, *, dropout=0.0, seed=0):
    """Attention [globals, heads, dim] of every token, all but padding being global, to its
    document.

    On a CPU by torch's own kernel, a document at a time, which sums as it goes; in blocks with
    padding inside of documents, dropout, half precision, or where oneDNN multiplies faster.

    Args:
        q: [globals, heads, dim], which is every token if there is no padding.
        k, v: [total, heads, dim].
        layout: layout of the packed tokens.
        dropout, seed: as in `reference.sliding_window_attention`.
    """
    plain = q.device.type == "cpu" and not dropout and layout.key_padding_mask is None
    if not plain or wide(q) is not q or choices()["bmm"]:
        return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)
    documents = [
        F.scaled_dot_product_attention(*(x[start:stop].transpose(0, 1)[None] for x in (q, k, v)))
        for start, stop in pairwise(layout.cu_seqlens_host)
    ]
    return torch.cat(documents, 2)[0].transpose(0, 1)


def _spans(layout):
    """`Layout.documents` that have global tokens."""
    return [each for each in layout.documents if each[2].start < each[2].stop]


def _band_blocks(layout, reach, dilation):
    """Blocks of a sliding window of every document, one residue modulo ``dilation`` at a time."""
    silent = layout.masked_queries
    for begin, end, globals_ in layout.documents:
        extra, real = None, globals_.stop - globals_.start
        if real:
            extra = layout.global_index[globals_]
            extra = torch.cat([extra, extra[:1].expand(-real % ALIGN)])
        for origin in range(begin, min(begin + dilation, end)):
            tokens = range(origin, end, dilation)
            size = queries_at_once(reach, len(tokens))
            for start in range(0, len(tokens), size):
                stop = min(start + size, len(tokens))
                first = max(0, start - reach.before)
                queries = _slice(tokens[start:stop])
                keys = _slice(tokens[first : stop + reach.after])
                hidden = muted = None
                if silent is not None:
                    hidden, muted = _true_places(silent[keys]), _true_places(silent[queries])
                    if muted is not None and len(muted) == stop - start:
                        continue
                cut = first - (start - reach.before)
                yield Block(queries, keys, extra, real, hidden, muted, cut)


def _slice(tokens):
    return slice(tokens[0], tokens[-1] + 1, tokens.step)


def _true_places(mask):
    """Indices of True in a mask [n]; None where there is none."""
    index = mask.nonzero().squeeze(1)
    return index if len(index) else None


def pool(pooling: str, k, v, weight, cells: Cells):
    """Pooled keys and pooled values of the cells, [cells.count, heads, dim] each, zeros where there
    is no cell; by strided views, one for each place in a cell.

    Args:
        pooling: a name in `POOLINGS`.
        k, v: [total, heads, dim].
        weight: trained weight of the pooling (`Pooling.initial`); None for mean and maximum.
        cells: where the cells lie.
    """
    is_real, maximum = cells.layout.key_padding_mask, POOLINGS[pooling].maximum
    if is_real is not None:
        fill = torch.finfo(k.dtype).min if maximum else 0
        k, v = (x.masked_fill(~is_real[:, None, None], fill) for x in (k, v))
    if maximum:
        largest = _Max.apply(k, cells), _Max.apply(v, cells)
        if is_real is None:
            return largest
        return tuple(x.masked_fill(~cells.valid[:, None, None], 0) for x in largest)
    shares = POOLINGS[pooling].shares(k, v, weight, cells)
    if len(shares) == 1:  # keys and values alike: one pass over the weights sums both
        return _Weighted.apply(shares.squeeze(0), cells, k, v)
    return *_Weighted.apply(shares[0], cells, k), *_Weighted.apply(shares[1], cells, v)


def cell_attention(q, k, v, cells: Cells, *, window, dropout=0.0, seed=0):
    """Attention [total, heads, dim] of every token to the cells in its window, whose k and v are
    [cells.count, heads, dim], as `reference.cell_attention` defines it."""
    layout = cells.layout
    dtype = wide(q[:0]).dtype
    key = ("cell blocks", cells.size, cells.stride, window, dtype)
    blocks = layout.cached(key, lambda: list(_cell_blocks(cells, window, dtype)))
    drop = None
    if dropout:
        rows = torch.arange(layout.total_tokens, device=q.device)
        heads = torch.arange(q.shape[1], device=q.device)
        drop = Dropout(layout, rows, cells.tokens(0)[0], heads, dropout, seed)
    return Blocked.apply(q, k, v, blocks, None, drop)


def _cell_blocks(cells, window, dtype):
    """The `Block`s of all documents: tokens as queries, rows of the table of cells as keys."""
    begin, end = cells.reach(window)
    before = F.pad(cells.valid.cumsum(0), (1, 0))
    silent = before[begin] == before[end]  # no cell in reach
    if cells.layout.masked_queries is not None:
        silent = silent | cells.layout.masked_queries
    for row, first, last in cells.spans:
        count = -(-(last - first) // cells.stride)
        for start in range(first, last, BLOCK):
            stop = min(start + BLOCK, last)
            low = max(cells.lowest(start - first, window), 0)
            high = min(cells.highest(stop - 1 - first, window) + 1, count)
            muted = _true_places(silent[start:stop])
            if low >= high or (muted is not None and len(muted) == stop - start):
                continue
            keys = slice(row + low, row + high)
            place = start - first - low * cells.stride  # of the first query, from the first cell on
            shape = stop - start, high - low
            edges = _edges(cells.size, cells.stride, window, place, shape, dtype, begin.device)
            hidden = _true_places(~cells.valid[keys])
            yield Block(slice(start, stop), keys, hidden=hidden, muted=muted, edges=edges)


@lru_cache(maxsize=64)
def _edges(size, stride, window, place, shape, dtype, device):
    """(first column, [queries, columns] to add to the scores) left and right of what all see."""
    query, cell = (torch.arange(n, device=device) for n in shape)
    outside = (2 * (cell * stride - place - query[:, None]) + size - 1).abs() > window
    seen = (~outside.any(0)).nonzero().squeeze(1).tolist() or [shape[1]]
    parts = slice(0, seen[0]), slice(seen[-1] + 1, shape[1])
    bias = outside.to(dtype) * (torch.finfo(dtype).min / 4)
    return tuple((part.start, bias[:, part]) for part in parts if part.start < part.stop)


class _Weighted(torch.autograd.Function):
    """Sums over the places of each cell of weight times token, of all ``tokens`` in one pass."""

    @staticmethod
    def forward(ctx, weight, cells, *tokens):
        """[cells, heads, dim] of each [total, heads, dim]; weight [cells or 1, heads or 1, dim or
        1, size]."""
        ctx.save_for_backward(weight, *tokens)
        ctx.cells = cells
        sums = [wide(x[:0]).new_zeros(cells.count, *x.shape[1:]) for x in tokens]
        for offset, lane in enumerate(cells.lanes):
            for rows, places in lane:
                part = _part(weight, rows, offset)
                for total, x in zip(sums, tokens, strict=True):
                    total[rows].addcmul_(x[places], part)
        return tuple(total.to(x.dtype) for total, x in zip(sums, tokens, strict=True))

    @staticmethod
    @first_order
    def backward(ctx, *grads):
        weight, *tokens = ctx.saved_tensors
        share_grad = torch.zeros_like(wide(weight)) if ctx.needs_input_grad[0] else None
        token_grads = [torch.zeros_like(x) for x in tokens]
        for offset, lane in enumerate(ctx.cells.lanes):
            for rows, places in lane:
                part = _part(weight, rows, offset)
                for token_grad, x, grad in zip(token_grads, tokens, grads, strict=True):
                    up = grad[rows]
                    token_grad[places].addcmul_(up, part)
                    if share_grad is not None:
                        place = _part(share_grad, rows, offset)
                        place += (wide(x[places]) * up).sum_to_size(part.shape)
        if share_grad is not None:
            share_grad = share_grad.to(weight.dtype)
        return share_grad, None, *token_grads


def _part(weight, rows, offset):
    """A view of the weights of one place, in the cells of ``rows``."""
    return (weight if len(weight) == 1 else weight[rows])[..., offset]


class _Max(torch.autograd.Function):
    """The largest value of each feature in each cell; its first place gets the gradient."""

    @staticmethod
    def forward(ctx, x, cells):
        """[cells, heads, dim] of [total, heads, dim]; zeros in rows without a cell."""
        largest = x.new_zeros(cells.count, *x.shape[1:])
        place = torch.zeros_like(largest, dtype=torch.int16) if ctx.needs_input_grad[0] else None
        for offset, lane in enumerate(cells.lanes):
            for rows, places in lane:
                best, new = largest[rows], x[places]
                if not offset:
                    best.copy_(new)
                    continue
                if place is not None:
                    place[rows].masked_fill_(new > best, offset)
                torch.maximum(best, new, out=best)
        ctx.save_for_backward(place)
        ctx.rest = x.shape, cells
        return largest

    @staticmethod
    @first_order
    def backward(ctx, grad):
        (place,) = ctx.saved_tensors
        shape, cells = ctx.rest
        dx = grad.new_zeros(shape)
        for offset, lane in enumerate(cells.lanes):
            for rows, places in lane:
                dx[places] += grad[rows] * (place[rows] == offset)
        return dx, None


def band_probabilities(q, k, layout: Layout, *, window: int, dilation=1, causal=False):
    """Attention probabilities of each token for the global tokens and its window, before dropout,
    for inspection. Memory is that of the result.

    Args:
        q, k: [total, heads, dim], as for `reference.sliding_window_attention`.
        layout: layout of the packed tokens.
        window, dilation, causal: the pattern, as for `reference.sliding_window_attention`.

    Returns:
        [total, heads, x + window + 1], x being the largest number of global tokens of a document:
            the global tokens in order of position, then the offsets -window/2 to window/2 times the
            dilation. Zeros at padding and global rows, at unused columns, out of reach, and for
            global keys inside the window, which count once, in the first x columns.
    """
    total, heads, dim = q.shape
    radius = window // 2
    front = max(b - a for a, b in pairwise(layout.cu_globals_host))
    out = q.new_zeros(total, heads, front + window + 1)
    steps = torch.arange(-radius, radius + 1, device=q.device)
    dilations = per_head(dilation, heads)
    offset = steps * torch.tensor(dilations, device=q.device)[:, None]  # [heads, window + 1]
    ahead = causal & (steps > 0)
    for begin, end, globals_ in layout.documents:
        index = layout.global_index[globals_]
        for start in range(begin, end, SHORT):
            stop = min(start + SHORT, end)
            token = torch.arange(start, stop, device=q.device)[:, None] + offset[:, None]
            inside = (token >= begin) & (token < end) & ~ahead
            token = token.clamp(begin, end - 1)  # [heads, b, window + 1]
            # One product with the slab that all heads' windows reach, of which each takes its own.
            reach = radius * max(dilations)
            slab = slice(max(begin, start - reach), min(end, stop + reach))
            queries = q[start:stop].transpose(0, 1) * dim**-0.5
            near = queries @ k[slab].transpose(0, 1).transpose(1, 2)
            near = near.gather(2, token - slab.start)
            if layout.masked_queries is not None:
                inside = inside & ~layout.masked_queries[token]
            near = near.masked_fill(~inside, float("-inf"))
            far = queries @ k[index].transpose(0, 1).transpose(1, 2)
            probs = torch.cat([far, near], 2).softmax(2).transpose(0, 1)
            if layout.masked_queries is not None:
                probs = probs.masked_fill(layout.masked_queries[start:stop, None, None], 0)
            out[start:stop, :, : len(index)] = probs[:, :, : len(index)]
            out[start:stop, :, front:] = probs[:, :, len(index) :]
    return out


def global_probabilities(q, x, key, layout: Layout):
    """Attention probabilities of each global token for every token of its document.

    Args:
        q: [globals, heads, dim], query_global of the global tokens.
        x: [total, width], the layer's input.
        key: key_global, a function or its (weight, bias), see `ldt.attention.matmul.project`.
        layout: layout of the packed tokens.

    Returns:
        [globals, heads, length of the longest document]; zeros at padding and past its end.
    """
    k = project(key, x).view(-1, *q.shape[1:])
    longest = max(b - a for a, b in pairwise(layout.cu_seqlens_host))
    out = q.new_zeros(*q.shape[:2], longest)
    for begin, end, mine in layout.documents:
        scores = torch.einsum("ghd,nhd->ghn", q[mine] * q.shape[-1] ** -0.5, k[begin:end])
        if layout.key_padding_mask is not None:
            scores = scores.masked_fill(~layout.key_padding_mask[begin:end], float("-inf"))
        out[mine, :, : end - begin] = scores.softmax(2)
    return out
