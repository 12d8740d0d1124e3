"""The attention as operators of torch.library, for torch.compile and torch.export.

A compiler sees a call with tensors in and out, of shapes that it knows; the pattern, the documents
and the backend stay inside. The backward operators compute the forward pass anew.
"""

import torch

from ldt.attention.documents import Documents

_DOCUMENTS = "Tensor cu_seqlens, Tensor? keep, Tensor? is_global"
_REST = "float dropout, Tensor? seed, str backend"
_BAND = f"Tensor q, Tensor k, Tensor v, {_DOCUMENTS}, int window, int[] dilation, bool causal"
_WEIGHTS = "Tensor wq, Tensor bq, Tensor wk, Tensor bk, Tensor wv, Tensor bv"
_ROWS = f"Tensor out, Tensor x, {_WEIGHTS}, {_DOCUMENTS}"
_POOLED = (
    f"Tensor q, Tensor k, Tensor v, Tensor weight, {_DOCUMENTS}, "
    "str pooling, int size, int stride, int window"
)

torch.library.define("ldt::band", f"({_BAND}, {_REST}) -> Tensor")
torch.library.define("ldt::band_backward", f"(Tensor grad, {_BAND}, {_REST}) -> Tensor[]")
torch.library.define("ldt::fill_global_rows", f"({_ROWS}, {_REST}) -> Tensor")
torch.library.define(
    "ldt::fill_global_rows_backward", f"(Tensor grad, {_ROWS}, {_REST}) -> Tensor[]"
)
torch.library.define("ldt::pooled", f"({_POOLED}, {_REST}) -> Tensor")
torch.library.define("ldt::pooled_backward", f"(Tensor grad, {_POOLED}, {_REST}) -> Tensor[]")


def band(q, k, v, documents, window, dilation, causal, dropout, seed, backend):
    """`ldt.attention.band_attention` as one operator."""
    where = documents.cu_seqlens, documents.keep, documents.is_global
    return torch.ops.ldt.band(
        q, k, v, *where, window, list(dilation), causal, dropout, _tensor(seed), backend
    )


def fill_global_rows(out, x, query, key, value, documents, dropout, seed, backend):
    """`ldt.attention.fill_global_rows` as one operator."""
    where = documents.cu_seqlens, documents.keep, documents.is_global
    return torch.ops.ldt.fill_global_rows(
        out, x, *query, *key, *value, *where, dropout, _tensor(seed), backend
    )


def pooled(q, k, v, weight, documents, pooling, size, stride, window, dropout, seed, backend):
    """`ldt.attention.pooled.pooled_attention` as one operator."""
    where = documents.cu_seqlens, documents.keep, documents.is_global
    weight = q.new_empty(0) if weight is None else weight
    return torch.ops.ldt.pooled(
        q, k, v, weight, *where, pooling, size, stride, window, dropout, _tensor(seed), backend
    )


def _tensor(seed):
    """A seed as the operators take it: they know no numbers without bounds."""
    return seed if isinstance(seed, torch.Tensor) else torch.full((), seed, dtype=torch.long)


def _run_band(q, k, v, cu_seqlens, keep, is_global, window, dilation, causal, *rest):
    from ldt import attention

    dropout, seed, backend = rest
    return attention.band_attention(
        q,
        k,
        v,
        Documents(cu_seqlens, keep, is_global, total=len(q)),
        window=window,
        dilation=tuple(dilation),
        causal=causal,
        dropout=dropout,
        seed=0 if seed is None else seed,
        backend=backend,
    )


def _run_rows(out, x, wq, bq, wk, bk, wv, bv, cu_seqlens, keep, is_global, *rest):
    from ldt import attention

    dropout, seed, backend = rest
    return attention.fill_global_rows(
        out,
        x,
        (wq, bq),
        (wk, bk),
        (wv, bv),
        Documents(cu_seqlens, keep, is_global, total=len(x)),
        dropout=dropout,
        seed=0 if seed is None else seed,
        backend=backend,
    )


def _run_pooled(q, k, v, weight, cu_seqlens, keep, is_global, pooling, size, stride, *rest):
    from ldt.attention.pooled import pooled_attention

    window, dropout, seed, backend = rest
    return pooled_attention(
        q,
        k,
        v,
        weight if len(weight) else None,
        Documents(cu_seqlens, keep, is_global, total=len(q)),
        pooling=pooling,
        size=size,
        stride=stride,
        window=window,
        dropout=dropout,
        seed=0 if seed is None else seed,
        backend=backend,
    )


def _gradients(run, count):
    """The backward operator of ``run``, whose first ``count`` arguments have gradients."""

    def backward(grad, *arguments):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in arguments[:count]]
            out = run(*leaves, *arguments[count:])
        found = torch.autograd.grad(out, leaves, grad, allow_unused=True)
        pairs = zip(found, leaves, strict=True)
        return [torch.zeros_like(x) if g is None else g.contiguous() for g, x in pairs]

    return backward


def _register(name, run, count):
    """Implementation, shapes and gradients of the operator ``name`` and of its backward."""
    devices = ["cpu", "cuda"]

    def forward(*arguments):
        with torch.no_grad():
            return run(*arguments).contiguous()

    def shape(*arguments):
        return torch.empty_like(arguments[0], memory_format=torch.contiguous_format)

    def backward_shapes(grad, *arguments):
        return [shape(x) for x in arguments[:count]]

    def setup_context(ctx, inputs, output):
        ctx.tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*(inputs[i] for i in ctx.tensors))
        ctx.inputs = [None if isinstance(x, torch.Tensor) else x for x in inputs]

    def differentiate(ctx, grad):
        inputs = list(ctx.inputs)
        for i, x in zip(ctx.tensors, ctx.saved_tensors, strict=True):
            inputs[i] = x
        operator = getattr(torch.ops.ldt, f"{name}_backward")
        return *operator(grad.contiguous(), *inputs), *[None] * (len(inputs) - count)

    torch.library.impl(f"ldt::{name}", devices, forward)
    torch.library.impl(f"ldt::{name}_backward", devices, _gradients(run, count))
    torch.library.register_fake(f"ldt::{name}", shape)
    torch.library.register_fake(f"ldt::{name}_backward", backward_shapes)
    torch.library.register_autograd(f"ldt::{name}", differentiate, setup_context=setup_context)


_register("band", _run_band, 3)
_register("fill_global_rows", _run_rows, 8)
_register("pooled", _run_pooled, 4)
