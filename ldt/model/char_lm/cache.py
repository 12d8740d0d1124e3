"""KV cache of a character model, as far back as its windows reach, and attention to it."""

import torch
from torch.nn import functional as F


class LayerCache:
    """Keys and values [b, at most reach, heads, dim] of a layer, and its table of distances."""

    def __init__(self, reach):
        self.reach = reach
        self.keys = self.values = self.table = None

    def append(self, k, v):
        """The cached keys and values followed by ``k`` and ``v`` [b, n, heads, dim]; the last of
        them stay in the cache."""
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], 1), torch.cat([self.values, v], 1)
        self.keys, self.values = k[:, -self.reach :].clone(), v[:, -self.reach :].clone()
        return k, v


class KVCache:
    """Keys and values of the last tokens of a text: of each layer those that its window reaches,
    however long the text is.

    Args:
        real: [b, n] bool, False at padding of the tokens that are kept first.
        reaches: tokens before a token that each layer's windows reach.

    Raises:
        ValueError: a row ends with padding, so that nothing can follow it.
    """

    def __init__(self, real, reaches):
        if not real[:, -1].all():
            raise ValueError("what is to be continued ends with a real token: pad on the left")
        self.layers = [LayerCache(reach) for reach in reaches]
        self.reach = max(reaches)
        self.keep = real[:, -self.reach :]

    def extend(self, n):
        """[b, …] bool, False at padding, of the cached tokens and ``n`` new ones, all real."""
        keep = F.pad(self.keep, (0, n), value=True)
        self.keep = keep[:, -self.reach :]
        return keep


def cached_attention(q, k, v, keep, relative, dilation):
    """Causal `reference.sliding_window_attention` of the last tokens of each row alone.

    Args:
        q: [b, n, heads, dim], the queries of the last n tokens.
        k, v: [b, m, heads, dim] of the last m tokens.
        keep: [b, m or more] bool, False at padding.
        relative: (query [b, n, heads, dim], table [heads, offsets, dim]).
        dilation: one gap a head.

    Returns:
        [b, n, heads, dim], in O(n * offsets).
    """
    query, table = relative
    n, heads, m = q.shape[1], q.shape[2], k.shape[1]
    back = torch.arange(table.shape[1] - 1, -1, -1, device=q.device)
    gaps = torch.tensor(dilation, device=q.device)
    place = torch.arange(m - n, m, device=q.device)[:, None] - gaps[:, None, None] * back
    seen = (place >= 0) & keep[:, -m:][:, place.clamp(min=0)]  # [b, heads, n, offsets]
    place = place.clamp(min=0)
    head = torch.arange(heads, device=q.device)[:, None, None]
    k, v = (x.transpose(1, 2)[:, head, place] for x in (k, v))  # [b, heads, n, offsets, dim]
    scores = torch.einsum("bnhd,bhnod->bhno", q, k) + torch.einsum("bnhd,hod->bhno", query, table)
    probs = (scores * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("bhno,bhnod->bnhd", probs, v)
