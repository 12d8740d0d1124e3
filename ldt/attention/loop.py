"""Attention one diagonal at a time: nothing larger than q is ever made. Slow, small, any pattern.

The paper's first implementation ("loop", Beltagy et al. 2020, section 3.1 and appendix A): all
tokens look at the key that stands m places from them, for one m after the other, and the softmax
runs along. The backward pass goes the same way with the softmax' sums kept.
"""

from itertools import pairwise

import torch

from ldt.attention.derivatives import first_order
from ldt.attention.dropout import kept, token_codes
from ldt.attention.layout import Layout, per_head


def sliding_window_attention(
    q, k, v, layout: Layout, *, window: int, dilation=1, causal=False, dropout=0.0, seed=0
):
    """`reference.sliding_window_attention` in O(length * window) time and O(length) memory."""
    pattern = _Band(layout, window // 2, per_head(dilation, q.shape[1]), causal)
    return _attend(q, k, v, pattern, dropout, seed)


def global_attention(q, x, key, value, layout: Layout, *, dropout=0.0, seed=0):
    """`reference.global_attention`, one key of every document after the other."""
    k, v = (torch.nn.functional.linear(x, *part).view(-1, *q.shape[1:]) for part in (key, value))
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


def projected_global_attention(q, k, v, layout: Layout, *, dropout=0.0, seed=0):
    """`reference.projected_global_attention`, one key of every document after the other."""
    return _attend(q, k, v, _Rows(layout), dropout, seed)


def _attend(q, k, v, pattern, dropout, seed):
    """In float64, since every key adds to the same sums."""
    return _Loop.apply(*(x.double() for x in (q, k, v)), pattern, dropout, seed).to(q.dtype)


class _Band:
    """The keys of a sliding window: the document's global tokens, then the diagonals."""

    def __init__(self, layout, radius, dilations, causal):
        self.layout = layout
        self.dilations = torch.tensor(dilations, device=layout.cu_seqlens.device)
        self.queries = torch.arange(layout.total_tokens, device=self.dilations.device)
        self.offsets = range(-radius, 1 if causal else radius + 1)

    def __iter__(self):
        """Yields (index [queries, heads or 1], seen of the same shape), a key for every query."""
        layout = self.layout
        document = layout.document_of
        begin, end = (layout.cu_seqlens[document + side][:, None] for side in (0, 1))
        silent = layout.masked_queries
        rows = torch.ones_like(begin, dtype=torch.bool) if silent is None else ~silent[:, None]
        if layout.is_global is not None:
            first, last = (layout.cu_globals[document + side][:, None] for side in (0, 1))
            borders = layout.cu_globals_host
            most = max(b - a for a, b in pairwise(borders))
            for slot in range(most):
                seen = first + slot < last
                place = torch.where(seen, first + slot, 0)
                yield layout.global_index[place], seen & rows
        for offset in self.offsets:
            index = self.queries[:, None] + offset * self.dilations
            seen = (index >= begin) & (index < end) & rows
            index = torch.where(seen, index, 0)
            if silent is not None:
                seen = seen & ~silent[index]
            yield index, seen


class _Rows:
    """The keys of global tokens: the whole document."""

    def __init__(self, layout):
        self.layout = layout
        self.queries = layout.global_index

    def __iter__(self):
        layout = self.layout
        document = layout.document_of[self.queries]
        begin, end = (layout.cu_seqlens[document + side][:, None] for side in (0, 1))
        longest = max(b - a for a, b in pairwise(layout.cu_seqlens_host))
        for place in range(longest):
            seen = begin + place < end
            index = torch.where(seen, begin + place, 0)
            if layout.key_padding_mask is not None:
                seen = seen & layout.key_padding_mask[index]
            yield index, seen


class _Loop(torch.autograd.Function):
    """Softmax attention over the keys that a pattern yields one after the other."""

    @staticmethod
    def forward(ctx, q, k, v, pattern, dropout, seed):
        total = torch.zeros_like(q)
        most = q.new_full(q.shape[:2], float("-inf"))  # [queries, heads], largest score so far
        weight = torch.zeros_like(most)  # sum of exp(score - most)
        for step in _steps(q, k, pattern, dropout, seed):
            higher = torch.maximum(most, step.scores)
            shrink = _exp(most - higher)
            part = _exp(step.scores - higher)
            weight = weight * shrink + part
            dropped = part if step.kept is None else part * step.kept
            total = total * shrink[..., None] + dropped[..., None] * step.of(v)
            most = higher
        out = total / weight.masked_fill(weight == 0, 1)[..., None] / (1 - dropout)
        ctx.save_for_backward(q, k, v, out, most, weight)
        ctx.rest = pattern, dropout, seed
        return out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        q, k, v, out, most, weight = ctx.saved_tensors
        pattern, dropout, seed = ctx.rest
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        scale = q.shape[-1] ** -0.5
        delta = (grad * out).sum(-1)
        weight = weight.masked_fill(weight == 0, 1)
        for step in _steps(q, k, pattern, dropout, seed):
            probs = _exp(step.scores - most) / weight
            up = (grad * step.of(v)).sum(-1)
            dropped = probs
            if step.kept is not None:
                factor = step.kept.to(q.dtype) / (1 - dropout)
                dropped, up = probs * factor, up * factor
            change = (probs * (up - delta) * scale)[..., None]
            dq += change * step.of(k)
            step.add(dk, change * q)
            step.add(dv, dropped[..., None] * grad)
        return dq, dk, dv, None, None, None


class _Step:
    """One key for every query and head: ``index`` and ``seen`` [queries, heads]."""

    def __init__(self, q, k, index, seen):
        heads = q.shape[1]
        self.index = index.expand(-1, heads)
        self.head = torch.arange(heads, device=q.device).expand_as(self.index)
        self.scores = (q * self.of(k)).sum(-1) * q.shape[-1] ** -0.5
        self.scores = self.scores.masked_fill(~seen, float("-inf"))
        self.kept = None

    def of(self, x):
        """[queries, heads, dim], the key's row of x."""
        return x[self.index, self.head]

    def add(self, total, part):
        """Adds part [queries, heads, dim] to the keys' rows of total."""
        total.index_put_((self.index, self.head), part, accumulate=True)


def _steps(q, k, pattern, dropout, seed):
    if dropout:
        layout, heads = pattern.layout, q.shape[1]
        everything = torch.arange(layout.total_tokens, device=q.device)
        query_codes = token_codes(layout, heads, pattern.queries, seed, 1).T.reshape(-1, 1)
        key_codes = token_codes(layout, heads, everything, seed, 2).T[..., None]
    for index, seen in pattern:
        step = _Step(q, k, index, seen)
        if dropout:
            codes = step.of(key_codes).reshape(-1, 1)
            step.kept = kept(query_codes, codes, dropout).view(step.index.shape)
        yield step


def _exp(difference):
    """exp, with 0 where two infinities were subtracted."""
    return difference.exp().nan_to_num(nan=0.0)
