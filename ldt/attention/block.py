"""Attention of blocks of queries to blocks of keys, forward and backward, on scratch memory."""

from dataclasses import dataclass
from functools import cache, lru_cache, partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from ldt.attention import parallel
from ldt.attention.derivatives import first_order, is_unread
from ldt.attention.dropout import kept
from ldt.attention.matmul import fast_matmul

BLOCK = 96  # queries at a time: of fewer, products are slow; scores of more overflow a core's cache
SHORT = 128  # of a short document, which has less keys: two threads share 512 tokens evenly
SCORES = 1 << 16  # of a head, in as large a block


def wide(x):
    """Cast ``x`` to float32 if it has fewer bits, contiguous then; else return ``x`` itself."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x if x.dtype == dtype else x.to(dtype, memory_format=torch.contiguous_format)


@cache
def has_tiles():
    """True if this CPU has the instructions by which torch's kernel multiplies bfloat16 (AMX)."""
    return bool(getattr(torch.cpu, "get_capabilities", dict)().get("amx_bf16"))


@dataclass(frozen=True, slots=True)
class Block:
    """A block of queries, rows ``rows`` of q, and the keys that they meet: tokens ``extra``, then
    ``keys``."""

    rows: slice
    keys: slice
    extra: torch.Tensor | None = None  # [x] global tokens that every query sees, then fillers
    real: int = 0  # of them are global tokens; the fillers keep rows of scores aligned
    hidden: torch.Tensor | None = None  # columns of keys that no query sees
    muted: torch.Tensor | None = None  # rows of the block whose output is zero
    cut: int | None = None  # columns of the first window that the keys lack; None: no band
    edges: tuple = ()  # pairs: a column of keys, and [queries, columns] to add to scores from there

    @property
    def shape(self) -> tuple[int, int]:
        """(number of queries, number of keys with ``extra``)."""
        return _length(self.rows), self.in_front + _length(self.keys)

    @property
    def biased(self) -> int:
        """Number of leading keys that `Blocked` adds a bias to: the global tokens, or all where
        there is no band."""
        return self.real if self.cut is not None else self.shape[1]

    @property
    def in_front(self) -> int:
        """Number of keys before ``keys``: the length of ``extra``."""
        return 0 if self.extra is None else len(self.extra)


@dataclass(frozen=True, slots=True)
class Reach:
    """Numbers of tokens in a query's window before and after it."""

    before: int
    after: int


def queries_at_once(reach: Reach, tokens: int) -> int:
    """Number of queries in a block of a document: 128 where a block has at most 512 keys,
    else 96."""
    keys = min(SHORT + reach.before + reach.after, tokens)
    return SHORT if SHORT * keys <= SCORES else BLOCK


def _length(part):
    return len(range(part.start, part.stop, part.step or 1))


@lru_cache(maxsize=8)
def _corners(dtype, device):
    """[SHORT, SHORT] each: what is added to scores left and right of the band's edges."""
    low = torch.full((SHORT, SHORT), torch.finfo(dtype).min / 4, dtype=dtype, device=device)
    return low.tril(-1), low.triu(1)


def _skewed(shape, like):
    """Zeros [heads, b, b + offsets - 1], keys from the first query's first offset on; and their
    view [heads, b, offsets], in which every query begins with its own."""
    heads, b, offsets = shape
    slab = like.new_zeros(heads, b, b + offsets - 1)
    wide = slab.shape[2]
    return slab, slab.as_strided(shape, (b * wide, wide + 1, 1))


class _Works:
    """Scratch memory, one `_Work` for each thread of a forward or a backward pass."""

    def __init__(self, q, k, v, blocks, reach, drop, query=None, table=None, bias=None, *, forward):
        codes = drop.codes() if drop else None
        table = None if table is None else wide(table)
        shapes = [block.shape for block in blocks] or [(0, 0)]
        sizes = max(b for b, _ in shapes), max(n for _, n in shapes), max(b * n for b, n in shapes)
        # Torch's own kernel for a CPU with tiles, whose sums are float32. Elsewhere products of
        # bfloat16 are as slow in it as those of float32.
        self._apart = q.device.type == "cpu"
        plain = self._apart and q.dtype == torch.bfloat16 and not drop
        plain = plain and table is None and bias is None
        fused, arrays = forward and plain and has_tiles(), 1 if forward else 2
        # Made here, not by the threads: what a thread gives back serves no other.
        number = parallel.threads(len(blocks)) if self._apart else 1
        more = query, table, bias
        new = partial(_Work, q, k, v, (arrays, *sizes), reach, drop, more, codes, fused)
        self._free = [new() for _ in range(number)]

    def run(self, act, each):
        """Call ``act(work, one)`` for every item of ``each``; on a CPU in several threads."""

        def take(one):
            work = self._free.pop()
            act(work, one)
            self._free.append(work)

        if self._apart:
            parallel.run(take, each)
            return
        for one in each:
            take(one)


class _Work:
    """Scratch memory of one thread in a pass, and the steps on a block that both passes share.

    Every result as large as a block is computed in this memory.

    Args:
        sizes: arrays for scores; of the largest block the queries, keys, and scores of a head.
        fused: True if torch's own kernel attends.
    """

    def __init__(self, q, k, v, sizes, reach, drop, more, codes, fused):
        self.q, self.k, self.v, self.reach, self.drop = q, k, v, reach, drop
        self.query, self.table, self.added = more
        self.fused = fused
        self.scale = q.shape[-1] ** -0.5
        dtype = torch.promote_types(q.dtype, torch.float32)
        arrays, most_queries, most_keys, largest = sizes
        heads, dim = q.shape[1:]
        self.scratch = q.new_empty(arrays, heads * largest, dtype=dtype)
        slabs = q.dtype if fused else dtype
        self.slabs = q.new_empty(2, heads * most_keys * dim, dtype=slabs)
        self.there: list[Block | None] = [None, None]  # whose keys, and values, are in the slabs
        self.rows = q.new_empty(heads * most_queries * dim, dtype=slabs)
        self.low = torch.finfo(dtype).min
        self.biases: dict[tuple, torch.Tensor] = {}
        if drop:
            self.codes = q.new_empty(2, heads * largest, dtype=torch.int32)
            self.mask = torch.empty_like(self.scratch[0])
            self.query_codes, self.key_codes = codes

    def queries(self, block):
        """Queries of the block, [heads, b, dim], copied to scratch memory."""
        heads, dim = self.q.shape[1:]
        b = block.shape[0]
        out = self.rows[: heads * b * dim].view(heads, b, dim)
        return out.copy_(self.q[block.rows].transpose(0, 1))

    def keys(self, block):
        """Keys of the block, [heads, keys, dim], copied to scratch memory."""
        return self._gather(self.k, block, 0)

    def values(self, block):
        """Values of the block, [heads, keys, dim], copied to scratch memory."""
        return self._gather(self.v, block, 1)

    def _gather(self, x, block, number):
        heads, dim = x.shape[1:]
        n, front = block.shape[1], block.in_front
        out = self.slabs[number, : heads * n * dim].view(heads, n, dim)
        last, self.there[number] = self.there[number], block
        if last and last.keys == block.keys and last.extra is block.extra:
            return out  # as with rows that all meet the whole document
        if front:
            out[:, :front] = x[block.extra].transpose(0, 1)
        out[:, front:] = x[block.keys].transpose(0, 1)
        return out

    def attend(self, block):
        """Attention output of the block's queries, [b, heads, dim]."""
        q, k, v = self.queries(block), self.keys(block), self.values(block)
        if self.fused:
            bias = self.bias(block)
            return scaled_dot_product_attention(q[None], k[None], v[None], bias)[0].transpose(0, 1)
        probs = self.probs(block, q, k)
        if self.drop:
            probs.mul_(self.kept(block, probs))
        return torch.bmm(probs, v, out=q).transpose(0, 1)

    def bias(self, block):
        """Mask to add to the scores, [1, 1, b, keys]; one tensor for all blocks inside a
        document."""
        kind = block.shape, block.cut, block.real
        common = block.hidden is None and not block.edges
        if common and kind in self.biases:
            return self.biases[kind]
        bias = self.lowered(self.scratch.new_zeros(1, *block.shape), block)[None].to(self.q.dtype)
        if common:
            self.biases[kind] = bias
        return bias

    def second(self, probs):
        return self.scratch[1, : probs.numel()].view(probs.shape)

    def probs(self, block, queries, keys):
        """Softmax of the block's scores, [heads, b, keys], in scratch memory."""
        heads, (b, n) = queries.shape[0], block.shape
        scores = self.scratch[0, : heads * b * n].view(heads, b, n)
        torch.baddbmm(scores, queries, keys.transpose(1, 2), beta=0, alpha=self.scale, out=scores)
        if self.table is not None:
            x = block.in_front
            scores[:, :, x:] += self.by_key(block, n - x)
        if self.added is not None:
            width = block.biased
            more = self.added[block.rows, :, :width].transpose(0, 1)
            scores[:, :, :width].add_(more, alpha=self.scale)
        return torch.softmax(self.lowered(scores, block), -1, out=scores)

    def lowered(self, scores, block):
        """Mask scores [heads, b, keys] in place: far below 0 where a query sees no key."""
        x = block.in_front
        scores[:, :, block.real : x] = self.low
        band = scores[:, :, x:]
        if block.cut is not None:
            self.mask_corners(band, block.cut)
        for column, bias in block.edges:
            band[:, :, column : column + bias.shape[1]] += bias
        if block.hidden is not None:
            band.index_fill_(2, block.hidden, self.low)
        return scores

    def by_key(self, block, keys):
        """Scores of relative positions, [heads, b, keys], to add to a block's scores."""
        queries = wide(self.query[block.rows].transpose(0, 1))
        far = torch.bmm(queries, self.table.transpose(1, 2)).mul_(self.scale)
        slab, view = _skewed(far.shape, far)
        view.copy_(far)
        return slab[:, :, block.cut : block.cut + keys]

    def by_offset(self, part, block):
        """``part`` [heads, b, keys] by offset, [heads, b, offsets]; zero where there is no key."""
        part = part[:, :, block.in_front :]
        heads, b, keys = part.shape
        slab, view = _skewed((heads, b, self.table.shape[1]), part)
        slab[:, :, block.cut : block.cut + keys] = part
        return view.contiguous()

    def mask_corners(self, band, cut):
        """Mask the scores outside the band: query i sees columns i to i + before + after of the
        slab that begins with its first window, of which ``cut`` columns are missing."""
        b, n = band.shape[1:]
        left, right = _corners(band.dtype, band.device)
        if cut < b:
            width = min(b - cut, n)
            band[:, :, :width] += left[:b, cut : cut + width]
        wide = self.reach.before + self.reach.after
        edge = max(wide - cut, 0)
        if edge < n:
            place = edge + cut - wide
            band[:, :, edge:] += right[:b, place : place + n - edge]

    def kept(self, block, probs):
        """Dropout mask [heads, b, keys] in scratch memory: 0 for a dropped probability, else 1."""
        queries = self.query_codes[:, block.rows]
        keys = self.key_codes[:, block.keys]
        if block.extra is not None:
            keys = torch.cat([self.key_codes[:, block.extra], keys], 1)
        out = self.mask[: probs.numel()].view(probs.shape)
        return kept(queries, keys, self.drop.probability, self.codes, out)


class Blocked(torch.autograd.Function):
    """Softmax attention of every block; zeros in rows of q that no block holds."""

    @staticmethod
    def forward(ctx, q, k, v, blocks, reach, drop, query=None, table=None, bias=None):
        """Attention [queries, heads, dim] of the rows of q that blocks hold; zeros in the others,
        anything within `unread`.

        Args:
            ctx: context of autograd.
            q: [queries, heads, dim].
            k, v: [keys, heads, dim].
            blocks: list of `Block`.
            reach: `Reach` of the window; None where no block has a band.
            drop: `Dropout`, or None.
            query, table: None, or relative positions, see `reference.sliding_window_attention`.
            bias: None, or [queries, heads, most], added to the products with `Block.biased` keys.
        """
        ctx.save_for_backward(q, k, v, query, table, bias)
        ctx.rest = blocks, reach, drop
        if is_unread():
            return q.new_empty(q.shape)
        out = q.new_zeros(q.shape)
        works = _Works(q, k, v, *ctx.rest, query, table, bias, forward=True)

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
        """Gradients of q, k, v, query, table and bias at their places among `forward`'s arguments,
        None at the others; ``grad`` is [queries, heads, dim]."""
        q, k, v, query, table, bias = ctx.saved_tensors
        blocks, _, drop = ctx.rest
        works = _Works(q, k, v, *ctx.rest, query, table, bias, forward=False)
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
