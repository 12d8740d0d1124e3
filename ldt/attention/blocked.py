"""Attention in blocks of queries: memory linear in length, any device, forward and backward.

The paper's "chunks" made exact: a block of queries meets the slab of keys that its windows reach,
with the global keys of the document in front, in three steps (scores, softmax in place, values) on
scratch memory that every block uses again. The backward pass computes the probabilities anew, so
nothing but q, k and v is kept for it.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from ldt.attention.documents import Documents
from ldt.attention.dropout import dropout_mask, kept, token_codes
from ldt.kernels.cpu import fast_matmul, linear

BLOCK = 128  # queries at a time; 96 to 192 are equally fast, below that the loop shows
ALIGN = 16  # global keys in front of a slab are padded to this many: unaligned rows are slow
ROW_ELEMENTS = 1 << 22  # scores of one block of global rows, which meet the whole document


@dataclass(frozen=True, slots=True)
class Block:
    """Queries ``start:stop`` of q meet the key tokens ``extra`` followed by ``first:last``."""

    start: int
    stop: int
    first: int
    last: int
    extra: torch.Tensor | None = None  # [x] global tokens that every query sees, then fillers
    real: int = 0  # of them are global tokens; the fillers keep rows of scores aligned
    hidden: torch.Tensor | None = None  # columns of first:last that no query sees
    muted: torch.Tensor | None = None  # rows of start:stop whose output is zero
    cut: int | None = None  # columns of the first window that lie before ``first``; None: no band


def band_attention(q, k, v, documents: Documents, *, window: int, dropout=0.0, seed=0):
    """`reference.band_attention` in O(length * window) time and O(length) memory."""
    radius = window // 2
    blocks = documents.cached(("band", radius), lambda: list(_band_blocks(documents, radius)))
    rows = torch.arange(documents.total, device=q.device) if dropout else None
    return _Blocked.apply(q, k, v, blocks, radius, documents, rows, dropout, seed)


def global_rows(q, x, key, value, documents: Documents, *, dropout=0.0, seed=0):
    """`reference.global_rows` in O(globals * length) time and O(length) memory.

    With few global tokens the projections of the whole document are folded away: the key weight
    goes into the query and the value weight is applied after the sum over tokens (exact algebra;
    the key bias adds the same to every score of a row and drops out of the softmax).
    """
    globals_per_document = len(q) / (len(documents.borders) - 1)
    if globals_per_document * q.shape[1] <= x.shape[1]:
        return folded_rows(q, x, key, value, documents, dropout, seed)
    return plain_rows(q, x, key, value, documents, dropout, seed)


def folded_rows(q, x, key, value, documents, dropout, seed):
    width = x.shape[1]
    heads, dim = q.shape[1:]
    folded = torch.einsum("ghd,hdw->ghw", q * dim**-0.5, key[0].view(heads, dim, width))
    context, weight = [], []
    for start, stop, rows in _spans(documents):
        tokens = x[start:stop]
        scores = folded[rows].flatten(0, 1) @ tokens.T  # [g * heads, length]
        if documents.keep is not None:
            scores = scores.masked_fill(~documents.keep[start:stop], torch.finfo(scores.dtype).min)
        probs = scores.softmax(-1)
        if dropout:
            token = torch.arange(start, stop, device=x.device)
            mask = dropout_mask(
                documents, heads, documents.global_index[rows], token, dropout, seed
            )
            probs = probs * mask.transpose(0, 1).flatten(0, 1) / (1 - dropout)
        context.append((probs @ tokens).view(-1, heads, width))
        weight.append(probs.sum(-1).view(-1, heads))
    out = torch.einsum("ghw,hdw->ghd", torch.cat(context), value[0].view(heads, dim, width))
    return out + torch.cat(weight)[..., None] * value[1].view(heads, dim)


def plain_rows(q, x, key, value, documents, dropout, seed):
    k = linear(x, *key).view(-1, *q.shape[1:])
    v = linear(x, *value).view(-1, *q.shape[1:])
    blocks = []
    for start, stop, rows in _spans(documents):
        hidden = None if documents.keep is None else _true(~documents.keep[start:stop])
        step = max(1, ROW_ELEMENTS // (q.shape[1] * (stop - start)))
        for row in range(rows.start, rows.stop, step):
            end = min(row + step, rows.stop)
            blocks.append(Block(row, end, start, stop, hidden=hidden))
    return _Blocked.apply(q, k, v, blocks, 0, documents, documents.global_index, dropout, seed)


def _spans(documents):
    """(start, stop, rows among the global tokens) of every document that has global tokens."""
    borders, rows = documents.borders, documents.global_borders
    for d in range(len(borders) - 1):
        if rows[d] < rows[d + 1]:
            yield borders[d], borders[d + 1], slice(rows[d], rows[d + 1])


def _band_blocks(documents, radius):
    """The blocks of a sliding window over every document."""
    silent = documents.silent
    borders, rows = documents.borders, documents.global_borders
    for d in range(len(borders) - 1):
        begin, end = borders[d], borders[d + 1]
        extra, real = None, rows[d + 1] - rows[d]
        if real:
            extra = documents.global_index[rows[d] : rows[d + 1]]
            extra = torch.cat([extra, extra[:1].expand(-real % ALIGN)])
        for start in range(begin, end, BLOCK):
            stop = min(start + BLOCK, end)
            first, last = max(begin, start - radius), min(end, stop + radius)
            hidden = muted = None
            if silent is not None:
                hidden, muted = _true(silent[first:last]), _true(silent[start:stop])
                if muted is not None and len(muted) == stop - start:
                    continue
            cut = first - (start - radius)
            yield Block(start, stop, first, last, extra, real, hidden, muted, cut)


def _true(mask):
    """Indices of True, None where there is none."""
    index = mask.nonzero().squeeze(1)
    return index if len(index) else None


@lru_cache(maxsize=8)
def _corners(dtype, device):
    """[BLOCK, BLOCK] each: what is added to scores left and right of the band's edges."""
    low = torch.full((BLOCK, BLOCK), torch.finfo(dtype).min / 4, dtype=dtype, device=device)
    return low.tril(-1), low.triu(1)


class _Blocked(torch.autograd.Function):
    """Softmax attention of every block; zeros in rows of q that no block holds."""

    @staticmethod
    def forward(ctx, q, k, v, blocks, radius, documents, rows, dropout, seed):
        ctx.save_for_backward(q, k, v)
        ctx.rest = blocks, radius, documents, rows, dropout, seed
        out = q.new_zeros(q.shape)
        work = _Work(q, k, v, *ctx.rest)
        with fast_matmul(q):
            for block in blocks:
                probs = work.probs(block)
                if dropout:
                    probs.mul_(work.kept(block, probs))
                rows = out[block.start : block.stop]
                rows.copy_(torch.bmm(probs, work.values(block)).transpose(0, 1))
                if block.muted is not None:
                    rows.index_fill_(0, block.muted, 0)
        return out.div_(1 - dropout) if dropout else out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        blocks, _, _, _, dropout, _ = ctx.rest
        work = _Work(q, k, v, *ctx.rest)
        dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
        with fast_matmul(q):
            for block in blocks:
                probs = work.probs(block)  # [heads, b, keys]
                up = grad[block.start : block.stop]
                if block.muted is not None:
                    up = up.index_fill(0, block.muted, 0)
                up = up.transpose(0, 1) / (1 - dropout)  # [heads, b, dim]
                part = torch.bmm(up, work.values(block).transpose(1, 2), out=work.second(probs))
                given = probs
                if dropout:
                    mask = work.kept(block, probs)
                    part.mul_(mask)
                    given = mask.mul_(probs)
                _add(dv, block, torch.bmm(given.transpose(1, 2), up))
                torch._softmax_backward_data(part, probs, -1, probs.dtype, grad_input=part)
                queries = q[block.start : block.stop].transpose(0, 1) * work.scale
                _add(dk, block, torch.bmm(part.transpose(1, 2), queries))
                rows = torch.bmm(part, work.keys(block)).mul_(work.scale)
                dq[block.start : block.stop] = rows.transpose(0, 1)
        return dq, dk, dv, None, None, None, None, None, None


def _add(total, block, part):
    """Adds part [heads, keys, dim] to the block's keys in total [tokens, heads, dim]."""
    part = part.transpose(0, 1)
    x = 0
    if block.extra is not None:
        x = len(block.extra)
        total.index_add_(0, block.extra, part[:x])
    total[block.first : block.last] += part[x:]


class _Work:
    """Scratch memory of one pass, and what both passes compute of a block."""

    def __init__(self, q, k, v, blocks, radius, documents, rows, dropout, seed):
        self.q, self.k, self.v, self.radius = q, k, v, radius
        self.scale = q.shape[-1] ** -0.5
        heads = q.shape[1]
        keys = [b.last - b.first + (0 if b.extra is None else len(b.extra)) for b in blocks]
        sizes = [heads * (b.stop - b.start) * n for b, n in zip(blocks, keys, strict=True)]
        self.scratch = q.new_empty(2, max(sizes, default=0))
        self.low = torch.finfo(q.dtype).min
        if dropout:
            tokens = torch.arange(documents.total, device=q.device)
            self.probability = dropout
            self.codes = torch.empty_like(self.scratch, dtype=torch.int32)
            self.mask = torch.empty_like(self.scratch[0])
            self.query_codes = token_codes(documents, heads, rows, seed, 1)
            self.key_codes = token_codes(documents, heads, tokens, seed, 2)

    def gather(self, x, block):
        """[heads, keys, dim] of the block's keys."""
        slab = x[block.first : block.last]
        if block.extra is not None:
            slab = torch.cat([x[block.extra], slab])
        return slab.transpose(0, 1)

    def keys(self, block):
        return self.gather(self.k, block)

    def values(self, block):
        return self.gather(self.v, block)

    def second(self, probs):
        """Scratch of the shape of probs."""
        return self.scratch[1, : probs.numel()].view(probs.shape)

    def probs(self, block):
        """[heads, b, keys] softmax of the block's scores, in scratch memory."""
        queries = self.q[block.start : block.stop].transpose(0, 1)
        keys = self.keys(block)
        heads, b, n = queries.shape[0], queries.shape[1], keys.shape[1]
        scores = self.scratch[0, : heads * b * n].view(heads, b, n)
        torch.baddbmm(scores, queries, keys.transpose(1, 2), beta=0, alpha=self.scale, out=scores)
        x = n - (block.last - block.first)
        scores[:, :, block.real : x] = self.low
        band = scores[:, :, x:]
        if block.cut is not None:
            self.mask_corners(band, block.cut)
        if block.hidden is not None:
            band.index_fill_(2, block.hidden, self.low)
        return torch.softmax(scores, -1, out=scores)

    def mask_corners(self, band, cut):
        """Lowers the scores outside the band: query i sees columns i to i + 2 * radius of the slab
        that begins with its first window, of which ``cut`` columns are missing."""
        b, n = band.shape[1:]
        left, right = _corners(band.dtype, band.device)
        if cut < b:
            width = min(b - cut, n)
            band[:, :, :width] += left[:b, cut : cut + width]
        edge = max(2 * self.radius - cut, 0)
        if edge < n:
            place = edge + cut - 2 * self.radius
            band[:, :, edge:] += right[:b, place : place + n - edge]

    def kept(self, block, probs):
        """[heads, b, keys] in scratch memory: 0 where dropout takes a probability away, else 1."""
        queries = self.query_codes[:, block.start : block.stop]
        keys = self.key_codes[:, block.first : block.last]
        if block.extra is not None:
            keys = torch.cat([self.key_codes[:, block.extra], keys], 1)
        out = self.mask[: probs.numel()].view(probs.shape)
        return kept(queries, keys, self.probability, self.codes, out)
