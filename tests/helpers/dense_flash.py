"""torch's FlashAttention as full matrices, by the arguments ldt passes: any device, any dtype.

As the kernels do, it sums in float32 at least and rounds factors of products to the tensors' dtype.
"""

import torch

from ldt.attention.flash import Kernels


def varlen_attn(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
):
    """Output [total, heads, dim] and the log-sum-exp [heads, total] of scaled scores."""
    scores = _scores(query, key, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size)
    lse = scores.logsumexp(-1)
    probs = _rounded((scores - lse[..., None]).exp(), query.dtype)
    out = torch.einsum("hqk,khd->qhd", probs, value.to(scores.dtype))
    return out.to(query.dtype), lse


def _flash_attention_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    rng_state,
    unused,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
):
    """Gradients by q, k, v, of probabilities by the log-sum-exp that is given."""
    assert grad_out.stride(-1) == out.stride(-1) == 1
    assert (out.dtype, grad_out.dtype) == (query.dtype, query.dtype)
    assert (dropout_p, is_causal) == (0.0, False)
    assert (rng_state.dtype, rng_state.shape) == (torch.uint64, (2,))
    window = window_size_left, window_size_right
    scores = _scores(query, key, cum_seq_q, cum_seq_k, max_q, max_k, scale, window)
    assert (logsumexp.shape, logsumexp.dtype) == (scores.shape[:2], scores.dtype)
    probs = (scores - logsumexp[..., None]).exp()
    grad, out, q, k, v = (x.to(scores.dtype) for x in (grad_out, out, query, key, value))
    slopes = torch.einsum("qhd,khd->hqk", grad, v) - (grad * out).sum(-1).T[..., None]
    slopes = _rounded(slopes * probs, query.dtype) * q.shape[-1] ** -0.5
    probs = _rounded(probs, query.dtype)
    dq, dk = torch.einsum("hqk,khd->qhd", slopes, k), torch.einsum("hqk,qhd->khd", slopes, q)
    dv = torch.einsum("hqk,qhd->khd", probs, grad)
    return tuple(x.to(query.dtype) for x in (dq, dk, dv))


def _rounded(x, dtype):
    return x.to(dtype).to(x.dtype)


def _scores(query, key, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size):
    """[heads, total, total], minus infinity outside of windows and documents."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert min(max_q, max_k) >= cu_seq_q.diff().max()
    assert query.stride(-1) == key.stride(-1) == 1
    assert scale is None
    q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key))
    place = torch.arange(len(q), device=q.device)
    document = torch.searchsorted(cu_seq_q, place, right=True)
    distance = place - place[:, None]
    left, right = window_size
    near = (distance >= -left) & (distance <= right) & (document == document[:, None])
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return scores.masked_fill(~near, float("-inf"))


def kernels(*_):
    """In place of `ldt.attention.flash.kernels`."""
    return Kernels(varlen_attn, _flash_attention_backward)
