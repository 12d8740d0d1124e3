"""Attention probabilities for people to look at, in transformers' layout, on any device.

They are computed anew on demand and are those before dropout. Memory is that of the answer.
"""

from itertools import pairwise

import torch

from ldt.attention.layout import Layout, per_head
from ldt.attention.matmul import project

BLOCK = 128


def band_probabilities(q, k, layout: Layout, *, window: int, dilation=1, causal=False):
    """Probabilities of each token for the global tokens and for its window.

    Args:
        q, k: [total, heads, dim], as for `reference.sliding_window_attention`.
        layout: of the packed tokens.
        window, dilation, causal: the pattern, as for `reference.sliding_window_attention`.

    Returns:
        [total, heads, x + window + 1], x being the largest number of global tokens of a document:
        the global tokens in order of position, then the offsets -window/2 to window/2 times the
        dilation. Zeros at padding and global rows, at fillers, at what is out of reach, and for
        global keys inside the window, which count once, in front.
    """
    total, heads, dim = q.shape
    radius = window // 2
    borders, rows = layout.cu_seqlens_host, layout.cu_globals_host
    front = max(b - a for a, b in pairwise(rows))
    out = q.new_zeros(total, heads, front + window + 1)
    steps = torch.arange(-radius, radius + 1, device=q.device)
    dilations = per_head(dilation, heads)
    offset = steps * torch.tensor(dilations, device=q.device)[:, None]  # [heads, window + 1]
    ahead = causal & (steps > 0)
    for d in range(len(borders) - 1):
        begin, end = borders[d], borders[d + 1]
        index = layout.global_index[rows[d] : rows[d + 1]]
        for start in range(begin, end, BLOCK):
            stop = min(start + BLOCK, end)
            token = torch.arange(start, stop, device=q.device)[:, None] + offset[:, None]
            inside = (token >= begin) & (token < end) & ~ahead
            token = token.clamp(begin, end - 1)  # [heads, b, window + 1]
            # One product with the slab that all heads' windows reach, of which each takes its own.
            reach = radius * max(dilations)
            first, last = max(begin, start - reach), min(end, stop + reach)
            queries = q[start:stop].transpose(0, 1) * dim**-0.5
            slab = queries @ k[first:last].transpose(0, 1).transpose(1, 2)
            near = slab.gather(2, token - first)
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
    """Probabilities of each global token for every token of its document.

    Args:
        q: [globals, heads, dim], query_global of the global tokens.
        x: [total, width], the layer's input.
        key: key_global, a function or its (weight, bias), see `ldt.attention.matmul.project`.
        layout: of the packed tokens.

    Returns:
        [globals, heads, length of the longest document]; zeros at padding and past its end.
    """
    k = project(key, x).view(-1, *q.shape[1:])
    borders, rows = layout.cu_seqlens_host, layout.cu_globals_host
    longest = max(b - a for a, b in pairwise(borders))
    out = q.new_zeros(*q.shape[:2], longest)
    for d in range(len(borders) - 1):
        begin, end, mine = borders[d], borders[d + 1], slice(rows[d], rows[d + 1])
        scores = torch.einsum("ghd,nhd->ghn", q[mine] * q.shape[-1] ** -0.5, k[begin:end])
        if layout.key_padding_mask is not None:
            scores = scores.masked_fill(~layout.key_padding_mask[begin:end], float("-inf"))
        out[mine, :, : end - begin] = scores.softmax(2)
    return out
