"""Sliding windows by torch's FlashAttention, and beside it the global tokens outside of them.

One call of `torch.nn.attention.varlen.varlen_attn` goes over the windows of all documents, with the
global tokens inside of them. Keys of global tokens outside of a window make a small product, and
the parts merge by their log-sum-exp (Dao et al. 2022, arXiv:2205.14135, section 3.1). Backward,
both are given the merged output and log-sum-exp: their probabilities are then those of the one
softmax over all keys, and their gradients add up.

FlashAttention is the version 2 that torch has, or what `activate_flash_attention_impl` of
`torch.nn.attention` has put in its place.
"""

import inspect
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import torch

from ldt.attention.block import wide
from ldt.attention.blocked import Reach
from ldt.attention.derivatives import first_order, once
from ldt.attention.layout import Layout, per_head
from ldt.attention.matmul import fast_matmul

DTYPES = (torch.bfloat16, torch.float16)  # that FlashAttention takes
LARGEST = 192  # dims of a head; the backward pass of wider ones is not there on all GPUs
CAPABILITY = (8, 0)  # the first GPUs that it runs on: Ampere
# The small product in pieces. One piece has TOKENS * GLOBALS scores a head, of which a pass holds
# three in float32 at a time: 144 MiB with 12 heads.
GLOBALS = 64  # global keys
TOKENS = 16_384  # queries


class Kernels(NamedTuple):
    """FlashAttention of packed documents.

    Args:
        forward: `varlen_attn`, which gives output [total, heads, dim] and log-sum-exp
            [heads, total].
        backward: aten's private operator, since no public one takes a log-sum-exp: gradients by
            q, k and v.
    """

    forward: Callable
    backward: Callable


@cache
def of_torch():
    """The `Kernels` of the torch that is installed; None where its `varlen_attn` lacks windows or
    the log-sum-exp."""
    try:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn
    except ImportError:
        return None
    if not {"window_size", "return_aux"} <= set(inspect.signature(varlen_attn).parameters):
        return None
    forward = partial(varlen_attn, return_aux=AuxRequest(lse=True))
    return Kernels(forward, torch.ops.aten._flash_attention_backward)


def kernels(device, dtype, dim):
    """The `Kernels` that take tensors of this device, dtype and head width.

    Raises:
        ValueError: none do; the end of a sentence that says why.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"runs on CUDA, the tensors are on {device.type}")
    if dtype not in DTYPES:
        found = str(dtype).removeprefix("torch.")
        raise ValueError(f"takes bfloat16 and float16, got {found}")
    if dim > LARGEST or dim % 8:
        raise ValueError(f"takes heads of a multiple of 8 dims, at most {LARGEST}, got {dim}")
    if not torch.backends.cuda.is_flash_attention_available():
        raise ValueError("needs a torch that was built with FlashAttention")
    found = of_torch()
    if found is None:
        raise ValueError(
            "needs window_size and return_aux of torch.nn.attention.varlen.varlen_attn, which "
            f"torch {torch.__version__} has not"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        least, there = (".".join(map(str, pair)) for pair in (CAPABILITY, capability))
        raise ValueError(f"needs a GPU of compute capability {least}, this one has {there}")
    return found


def unfit(device, dtype, dim, layout=None, dilation=1, dropout=0.0):
    """Why the backend does not compute a sliding window; None where it does.

    Args:
        device, dtype, dim: of the tensors, and the width of a head.
        layout, dilation, dropout: as in `reference.sliding_window_attention`.

    Returns:
        The end of a sentence about the backend.
    """
    try:
        kernels(device, dtype, dim)
    except ValueError as error:
        return str(error)
    if set(per_head(dilation, 1)) != {1}:
        return "takes windows without gaps, attention_dilation 1"
    if dropout:
        return "has no dropout of probabilities"
    if layout is not None and layout.key_padding_mask is not None:
        return "takes documents without padding between their tokens"
    return None


def sliding_window_attention(
    q, k, v, layout: Layout, *, window, dilation=1, causal=False, dropout=0.0, seed=0
):
    """`reference.sliding_window_attention` by FlashAttention, forward and backward.

    The windows are summed as FlashAttention sums, the part of the global tokens in float32. Memory
    is that of the output in float32, 4 bytes per token and head, a byte for each token and global
    key of a `Piece`, and what one piece takes. Two runs give the same gradients, bit for bit, under
    `torch.use_deterministic_algorithms` alone: by default FlashAttention adds in any order.

    Raises:
        ValueError: tensors or a pattern that it does not take, why, and the backend that does.
    """
    why = unfit(q.device, q.dtype, q.shape[-1], layout, dilation, dropout)
    if why:
        raise ValueError(f"backend 'flash' {why}; backend {_beside(q)[0]!r} takes these")
    if not q.dtype == k.dtype == v.dtype:
        found = ", ".join(str(x.dtype).removeprefix("torch.") for x in (q, k, v))
        raise ValueError(f"backend 'flash' takes tensors of one dtype, got {found}")
    reach = Reach(window // 2, 0 if causal else window // 2)
    return _Attention.apply(q, k, v, layout, reach)


def global_attention(q, x, key, value, layout: Layout, **arguments):
    """`reference.global_attention` by the backend that `choose` says: FlashAttention has no part
    in rows of global tokens."""
    return _beside(q)[1].global_attention(q, x, key, value, layout, **arguments)


def projected_global_attention(q, k, v, layout: Layout, **arguments):
    """`reference.projected_global_attention` by the backend that `choose` says."""
    return _beside(q)[1].projected_global_attention(q, k, v, layout, **arguments)


def _beside(q):
    """(name, module) of the backend that computes what this one does not."""
    from ldt.attention import BACKENDS, choose

    name = choose(q.device, q.dtype, q.shape[-1])[0]
    return name, BACKENDS[name]


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries ``tokens`` meet the global keys ``slots`` of the layout's ``global_index``."""

    tokens: slice
    slots: slice
    hidden: torch.Tensor  # [tokens, slots], keys of other documents, and those in the window


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, layout, reach):
        q, k, v = (_last_contiguous(x) for x in (q, k, v))
        out, lse = once(_forward, q, k, v, layout, reach)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = layout, reach
        return out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        return *_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None


def _forward(q, k, v, layout, reach):
    """Output [total, heads, dim], zeros at silent rows, and log-sum-exp [heads, total]."""
    attend = kernels(q.device, q.dtype, q.shape[-1]).forward
    out, lse = attend(q, k, v, *_documents(layout), window_size=(reach.before, reach.after))
    if len(layout.global_index):
        work, dtype = _Outside(q, k, v, layout, reach), out.dtype
        out = wide(out)
        with fast_matmul(q):
            for piece in work.pieces:
                scores, inside = work.scores(piece), lse[:, piece.tokens]
                both = torch.logaddexp(inside, scores.logsumexp(-1))
                probs = scores.sub_(both[..., None]).exp_()
                rows = out[piece.tokens].transpose(0, 1)
                rows *= (inside - both).exp_()[..., None]
                rows += torch.bmm(probs, work.values[:, piece.slots])
                inside.copy_(both)
        out = out.to(dtype)
    if layout.is_global is not None:
        out.masked_fill_(layout.is_global[:, None, None], 0)
    return out, lse


def _backward(grad, q, k, v, out, lse, layout, reach):
    """Gradients by q, k and v, of the merged ``out`` and ``lse`` of `_forward`."""
    grad = _last_contiguous(grad)
    if layout.is_global is not None:
        grad = grad.masked_fill(layout.is_global[:, None, None], 0)
    pull = kernels(q.device, q.dtype, q.shape[-1]).backward
    no_dropout = 0.0, False, torch.zeros(2, dtype=torch.uint64, device=q.device), q.new_empty(0)
    sides = {"window_size_left": reach.before, "window_size_right": reach.after}
    dq, dk, dv = pull(grad, q, k, v, out, lse, *_documents(layout), *no_dropout, **sides)
    if not len(layout.global_index):
        return dq, dk, dv
    work, dtype = _Outside(q, k, v, layout, reach), dq.dtype
    dq, dkeys, dvalues = wide(dq), torch.zeros_like(work.keys), torch.zeros_like(work.values)
    with fast_matmul(q):
        for piece in work.pieces:
            probs = work.scores(piece).sub_(lse[:, piece.tokens, None]).exp_()
            up = wide(grad[piece.tokens]).transpose(0, 1)
            dvalues[:, piece.slots] += torch.bmm(probs.mT, up)
            mean = (up * wide(out[piece.tokens]).transpose(0, 1)).sum(-1, keepdim=True)
            slopes = torch.bmm(up, work.values[:, piece.slots].mT).sub_(mean)
            slopes.mul_(probs).mul_(work.scale)
            dkeys[:, piece.slots] += torch.bmm(slopes.mT, work.queries(piece))
            dq[piece.tokens].transpose(0, 1).add_(torch.bmm(slopes, work.keys[:, piece.slots]))
    # Each global token is there once, besides places that stand for none, whose sums are zero.
    for total, part in ((dk, dkeys), (dv, dvalues)):
        total.index_add_(0, work.index, part.transpose(0, 1).to(total.dtype))
    return dq.to(dtype), dk, dv


class _Outside:
    """What both passes compute of the global keys outside of the windows."""

    def __init__(self, q, k, v, layout, reach):
        self.q, self.scale = q, q.shape[-1] ** -0.5
        self.index = layout.global_index.clamp(max=layout.total_tokens - 1)
        self.keys, self.values = (wide(x[self.index].transpose(0, 1)) for x in (k, v))
        self.pieces = layout.cached(("flash", reach), lambda: list(_pieces(layout, reach)))

    def queries(self, piece):
        """[heads, tokens, dim]."""
        return wide(self.q[piece.tokens].transpose(0, 1))

    def scores(self, piece):
        """[heads, tokens, slots]."""
        scores = torch.bmm(self.queries(piece), self.keys[:, piece.slots].mT).mul_(self.scale)
        return scores.masked_fill_(piece.hidden, float("-inf"))


def _documents(layout):
    """cu_seqlens and the longest document of queries and keys, as torch's kernels are given them.

    Where the host does not know the lengths, all tokens bound the longest document: kernels read
    the true lengths on the device, and the host does not wait for it.
    """
    borders = layout.cached("int32", lambda: layout.cu_seqlens.to(torch.int32))
    longest = layout.total_tokens
    if "cu_seqlens_host" in vars(layout):
        longest = max(stop - start for start, stop in pairwise(layout.cu_seqlens_host))
    return borders, borders, longest, longest


def _pieces(layout, reach):
    """The `Piece`s that hold each query and each global key of its document once."""
    index = layout.global_index
    place = torch.arange(layout.total_tokens, device=index.device)
    document = torch.searchsorted(layout.cu_seqlens, index, right=True) - 1
    for slots, tokens in _spans(layout):
        for start in range(tokens.start, tokens.stop, TOKENS):
            some = slice(start, min(start + TOKENS, tokens.stop))
            distance = place[some, None] - index[slots]
            inside = (distance <= reach.before) & (distance >= -reach.after)
            other = layout.document_of[some, None] != document[slots]
            yield Piece(some, slots, inside | other)


def _spans(layout):
    """(at most GLOBALS slots, the tokens of their documents). If there are few global tokens, they
    go with all tokens, and nothing is read from the device."""
    count = len(layout.global_index)
    if count <= GLOBALS:
        yield slice(0, count), slice(0, layout.total_tokens)
        return
    borders, rows = layout.cu_seqlens_host, layout.cu_globals_host
    for first in range(0, rows[-1], GLOBALS):
        last = min(first + GLOBALS, rows[-1])
        start = borders[bisect_right(rows, first) - 1]
        yield slice(first, last), slice(start, borders[bisect_right(rows, last - 1)])


def _last_contiguous(x):
    """``x`` with its last dimension contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
