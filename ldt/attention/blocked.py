"""Attention in blocks of queries: memory linear in length, any device, forward and backward.

The paper's "chunks" made exact: a block of queries meets the slab of keys that its windows reach,
with the global keys of the document in front, in three steps (scores, softmax in place, values) on
scratch memory that every block uses again. The backward pass computes the probabilities anew, so
nothing but q, k and v is kept for it. Blocks of half precision are computed in float32.
"""

from functools import partial
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from ldt.attention import parallel
from ldt.attention.block import Block, Reach, Works, queries_at_once, wide
from ldt.attention.derivatives import first_order, is_unread
from ldt.attention.dropout import Dropout, dropout_mask
from ldt.attention.layout import Layout, per_head
from ldt.attention.matmul import choices, fast_matmul, linear

ALIGN = 16  # global keys in front of a slab are padded to this many: unaligned rows are slow
ROW_ELEMENTS = 1 << 22  # scores of one block of global rows, which meet the whole document


def sliding_window_attention(
    q,
    k,
    v,
    layout: Layout,
    *,
    window: int,
    dilation=1,
    causal=False,
    dropout=0.0,
    seed=0,
    relative=None,
    bias=None,
):
    """`reference.sliding_window_attention` in O(length * window) time and O(length) memory.

    Heads of one dilation d go together. For them the batch falls apart into d batches of every
    d-th token, on each of which the window is contiguous.
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
    """`reference.global_attention` in O(globals * length) time and O(length) memory.

    With few global tokens the projections of the whole document are folded away: the key weight
    goes into the query and the value weight is applied after the sum over tokens (exact algebra;
    the key bias adds the same to every score of a row and drops out of the softmax).
    """
    globals_per_document = len(q) / (len(layout.cu_seqlens_host) - 1)
    if globals_per_document * q.shape[1] <= x.shape[1]:
        return folded_rows(q, x, key, value, layout, dropout, seed)
    return plain_rows(q, x, key, value, layout, dropout, seed)


def folded_rows(q, x, key, value, layout, dropout, seed):
    """`global_attention` without projections of the document.

    What is folded is as wide as the document's tokens, of which a head reads a few dims: in half
    precision the rounding of all the others would drown these. So it is float32.
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


def plain_rows(q, x, key, value, layout, dropout, seed):
    k = linear(x, *key).view(-1, *q.shape[1:])
    v = linear(x, *value).view(-1, *q.shape[1:])
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


def projected_global_attention(q, k, v, layout: Layout, *, dropout=0.0, seed=0, bias=None):
    """`reference.projected_global_attention` in O(length) memory: the rows go in blocks."""
    blocks = []
    for start, stop, rows in _spans(layout):
        hidden = (
            None
            if layout.key_padding_mask is None
            else true_places(~layout.key_padding_mask[start:stop])
        )
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
    """`projected_global_attention` where every token is global.

    By torch's own kernel, a document at a time, which sums as it goes and is faster than blocks
    where its products are: with padding inside of documents, dropout, half precision, and where
    oneDNN multiplies faster, blocks do it.
    """
    plain = q.device.type == "cpu" and not dropout and layout.key_padding_mask is None
    if not plain or wide(q) is not q or choices()["bmm"]:
        return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)
    documents = [
        scaled_dot_product_attention(*(x[start:stop].transpose(0, 1)[None] for x in (q, k, v)))
        for start, stop in pairwise(layout.cu_seqlens_host)
    ]
    return torch.cat(documents, 2)[0].transpose(0, 1)


def _spans(layout):
    """(start, stop, rows among the global tokens) of every document that has global tokens."""
    borders, rows = layout.cu_seqlens_host, layout.cu_globals_host
    for d in range(len(borders) - 1):
        if rows[d] < rows[d + 1]:
            yield borders[d], borders[d + 1], slice(rows[d], rows[d + 1])


def _band_blocks(layout, reach, dilation):
    """The blocks of a sliding window of every document, one residue modulo ``dilation`` after
    the other."""
    silent = layout.masked_queries
    borders, rows = layout.cu_seqlens_host, layout.cu_globals_host
    for d in range(len(borders) - 1):
        extra, real = None, rows[d + 1] - rows[d]
        if real:
            extra = layout.global_index[rows[d] : rows[d + 1]]
            extra = torch.cat([extra, extra[:1].expand(-real % ALIGN)])
        for origin in range(borders[d], min(borders[d] + dilation, borders[d + 1])):
            tokens = range(origin, borders[d + 1], dilation)
            size = queries_at_once(reach, len(tokens))
            for start in range(0, len(tokens), size):
                stop = min(start + size, len(tokens))
                first = max(0, start - reach.before)
                queries = _slice(tokens[start:stop])
                keys = _slice(tokens[first : stop + reach.after])
                hidden = muted = None
                if silent is not None:
                    hidden, muted = true_places(silent[keys]), true_places(silent[queries])
                    if muted is not None and len(muted) == stop - start:
                        continue
                cut = first - (start - reach.before)
                yield Block(queries, keys, extra, real, hidden, muted, cut)


def _slice(tokens):
    """The slice that takes the tokens of a range, which is not empty."""
    return slice(tokens[0], tokens[-1] + 1, tokens.step)


def true_places(mask):
    """Indices of True, None where there is none."""
    index = mask.nonzero().squeeze(1)
    return index if len(index) else None


class Blocked(torch.autograd.Function):
    """Softmax attention of every block; zeros in rows of q that no block holds."""

    @staticmethod
    def forward(ctx, q, k, v, blocks, reach, drop, query=None, table=None, bias=None):
        ctx.save_for_backward(q, k, v, query, table, bias)
        ctx.rest = blocks, reach, drop
        if is_unread():
            return q.new_empty(q.shape)
        out = q.new_zeros(q.shape)
        works = Works(q, k, v, *ctx.rest, query, table, bias, forward=True)

        def attend(work, block):
            rows = out[block.rows]
            rows.copy_(work.attend(block))
            if block.muted is not None:
                rows.index_fill_(0, block.muted, 0)

        with fast_matmul(q):
            works.run(attend, blocks)
        return out.div_(1 - drop.probability) if drop else out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        q, k, v, query, table, bias = ctx.saved_tensors
        blocks, _, drop = ctx.rest
        works = Works(q, k, v, *ctx.rest, query, table, bias, forward=False)
        dq, dk, dv = q.new_zeros(q.shape), _Sum(k), _Sum(v)
        dquery = None if query is None else query.new_zeros(query.shape)
        dtable = None if table is None else torch.zeros_like(wide(table))
        dbias = None if bias is None else torch.zeros_like(bias)
        in_order = parallel.InOrder()  # or the sums of keys would depend on who is done first

        def pull(work, place, block):
            queries, seen = work.queries(block), work.keys(block)
            probs = work.probs(block, queries, seen)  # [heads, b, keys]
            up = grad[block.rows]
            if block.muted is not None:
                up = up.index_fill(0, block.muted, 0)
            up = wide(up.transpose(0, 1))  # [heads, b, dim]
            if drop:
                up = up / (1 - drop.probability)
            part = torch.bmm(up, work.values(block).transpose(1, 2), out=work.second(probs))
            dropped = probs
            if drop:
                mask = work.kept(block, probs)
                part.mul_(mask)
                dropped = mask.mul_(probs)
            values = torch.bmm(dropped.transpose(1, 2), up)
            torch._softmax_backward_data(part, probs, -1, probs.dtype, grad_input=part)
            if dbias is not None:
                width = block.biased
                dbias[block.rows, :, :width] = part[:, :, :width].transpose(0, 1) * work.scale
            keys = torch.bmm(part.transpose(1, 2), queries.mul_(work.scale))
            rows = torch.bmm(part, seen, out=queries).mul_(work.scale)
            dq[block.rows] = rows.transpose(0, 1)
            offsets = None
            if table is not None:
                far = work.by_offset(part, block).mul_(work.scale)  # [heads, b, offsets]
                dquery[block.rows] = torch.bmm(far, work.table).transpose(0, 1)
                offsets = torch.bmm(far.transpose(1, 2), wide(query[block.rows].transpose(0, 1)))

            def add():
                dv.add(block, values)
                dk.add(block, keys)
                if offsets is not None:
                    dtable.add_(offsets)

            in_order(place, add)

        with fast_matmul(q):
            works.run(lambda work, each: pull(work, *each), enumerate(blocks))
        if table is not None:
            dtable = dtable.to(table.dtype)
        return dq, dk.total(), dv.total(), None, None, None, dquery, dtable, dbias


class _Sum:
    """Sum of the blocks' gradients of their keys, in float32 at least; apart those of a document's
    global keys, which every block adds to."""

    def __init__(self, like):
        self._dtype = like.dtype
        self._keys = torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
        self._extra = {}  # id of a block's extra -> the tokens, and their sum

    def add(self, block, part):
        """``part`` [heads, keys, dim] of a block's keys."""
        part, x = part.transpose(0, 1), 0
        if block.extra is not None:
            x = len(block.extra)
            if id(block.extra) not in self._extra:
                self._extra[id(block.extra)] = block.extra, part[:x].clone()
            else:
                self._extra[id(block.extra)][1].add_(part[:x])
        self._keys[block.keys] += part[x:]

    def total(self):
        """[tokens, heads, dim]."""
        if self._extra:
            tokens, sums = map(torch.cat, zip(*self._extra.values(), strict=True))
            self._keys.index_add_(0, tokens, sums)
        return self._keys.to(self._dtype)
