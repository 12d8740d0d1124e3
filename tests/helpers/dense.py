"""Attention on the device alone, in the way of the kernels: full score matrices behind masks.

`ldt.attention.reference` asks the device how many tokens are global or padding, which no CUDA graph
can; kernels do not, and take seconds without a GPU. Nothing is dropped.
"""

import torch


def sliding_window_attention(q, k, v, layout, *, window, dilation, causal, dropout, seed):
    assert not causal
    place = torch.arange(len(q))
    distance = (place[:, None] - place).abs()
    step = torch.stack([torch.full((), gap) for gap in dilation])[:, None, None]
    near = (distance <= window // 2 * step) & (distance % step == 0)
    if layout.is_global is not None:
        near = near | layout.is_global
    seen = near & (layout.document_of[:, None] == layout.document_of)
    out = _attend(q, k, v, seen, layout)
    silent = layout.masked_queries
    return out if silent is None else out.masked_fill(silent[:, None, None], 0)


def global_attention(q, x, key, value, layout, *, dropout, seed):
    k, v = (
        torch.nn.functional.linear(x, *part).view(len(x), *q.shape[1:]) for part in (key, value)
    )
    return projected_global_attention(q, k, v, layout, dropout=dropout, seed=seed)


def projected_global_attention(q, k, v, layout, *, dropout, seed):
    index, end = layout.global_index, layout.cu_globals[1:]
    document = torch.searchsorted(end, torch.arange(len(index)), right=True)
    return _attend(q, k, v, (document[:, None] == layout.document_of)[None], layout)


def _attend(q, k, v, seen, layout):
    if layout.key_padding_mask is not None:
        seen = seen & layout.key_padding_mask
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    probs = scores.masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1)
    return torch.einsum("hqk,khd->qhd", probs * seen, v)
