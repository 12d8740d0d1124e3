"""The attention as operators of torch.library, for torch.compile and torch.export.

A compiler sees a call with tensors in and out, of shapes that it knows; the pattern, the layout and
the backend stay inside. The backward operators compute the forward pass anew, where gradients need
its output.

Names of operators and of their arguments are kept for good: programs that torch.export has saved
hold both.
"""

import torch
from torch import library

from ldt.attention.derivatives import first_order, unread
from ldt.attention.layout import Layout

_DOCUMENTS = "Tensor cu_seqlens, Tensor? keep, Tensor? is_global, Tensor? globals"
_REST = "float dropout, Tensor? seed, str backend"
_BAND = f"Tensor q, Tensor k, Tensor v, {_DOCUMENTS}, int window, int[] dilation, bool causal"
_WEIGHTS = "Tensor wq, Tensor bq, Tensor wk, Tensor bk, Tensor wv, Tensor bv"
_ROWS = f"Tensor out, Tensor x, {_WEIGHTS}, {_DOCUMENTS}"
_PROJECTED = f"Tensor out, Tensor q, Tensor k, Tensor v, {_DOCUMENTS}"
_POOLED = (
    f"Tensor q, Tensor k, Tensor v, Tensor weight, {_DOCUMENTS}, "
    "str pooling, int size, int stride, int window"
)
_DEVICES = ["cpu", "cuda"]
# A CUDA graph would go on with the numbers of the batch that it was captured with.
_TAGS = (torch.Tag.cudagraph_unsafe,)


def count_globals(is_global):
    """[] int64 on the host, the number of True in a mask [total]: a wait for the device, the only
    one where a `Layout` is given the count."""
    return torch.ops.ldt.count_globals(is_global)


def band(q, k, v, layout, window, dilation, causal, dropout, seed, backend):
    """`ldt.attention.sliding_window_attention` as one operator."""
    return torch.ops.ldt.band(
        q, k, v, *_where(layout), window, list(dilation), causal, dropout, _tensor(seed), backend
    )


def fill_global_rows(out, x, query, key, value, layout, dropout, seed, backend):
    """`ldt.attention.fill_global_rows` as one operator."""
    return torch.ops.ldt.fill_global_rows(
        out, x.to(out.dtype), *query, *key, *value, *_where(layout), dropout, _tensor(seed), backend
    )


def fill_projected_rows(out, q, k, v, layout, dropout, seed, backend):
    """`ldt.attention.fill_global_rows` of projections that were called, as one operator.

    Args:
        q, k, v: [total, heads, dim], the global projections of all tokens.
    """
    return torch.ops.ldt.fill_projected_rows(
        out, q, k, v, *_where(layout), dropout, _tensor(seed), backend
    )


def pooled(q, k, v, weight, layout, pooling, size, stride, window, dropout, seed, backend):
    """`ldt.attention.pooled.pooled_attention` as one operator."""
    weight = q.new_empty(0) if weight is None else weight
    pattern = pooling, size, stride, window, dropout, _tensor(seed), backend
    return torch.ops.ldt.pooled(q, k, v, weight, *_where(layout), *pattern)


def _where(layout):
    globals = None if layout.is_global is None else _tensor(layout.num_global)
    return layout.cu_seqlens, layout.key_padding_mask, layout.is_global, globals


def _documents(total, cu_seqlens, keep, is_global, globals):
    globals = None if globals is None else int(globals)
    is_global = None if globals == 0 else is_global
    return Layout(cu_seqlens, keep, is_global, total_tokens=total, num_global=globals)


def _tensor(number):
    """A number as the operators take it: they know none without bounds, or that only runs know."""
    if number is None or isinstance(number, torch.Tensor):
        return number
    return torch.full((), number, dtype=torch.long)


def _run_band(q, k, v, cu_seqlens, keep, is_global, globals, window, dilation, causal, *rest):
    from ldt import attention

    dropout, seed, backend = rest
    return attention.sliding_window_attention(
        q,
        k,
        v,
        _documents(len(q), cu_seqlens, keep, is_global, globals),
        window=window,
        dilation=tuple(dilation),
        causal=causal,
        dropout=dropout,
        seed=0 if seed is None else seed,
        backend=backend,
    )


def _run_rows(out, x, wq, bq, wk, bk, wv, bv, cu_seqlens, keep, is_global, globals, *rest):
    from ldt import attention

    dropout, seed, backend = rest
    # Graphs run without the autocast that they were traced under.
    with torch.autocast(x.device.type, x.dtype, enabled=x.dtype != wq.dtype):
        return attention.fill_global_rows(
            out,
            x,
            (wq, bq),
            (wk, bk),
            (wv, bv),
            _documents(len(x), cu_seqlens, keep, is_global, globals),
            dropout=dropout,
            seed=0 if seed is None else seed,
            backend=backend,
        )


def _run_projected(out, q, k, v, cu_seqlens, keep, is_global, globals, dropout, seed, backend):
    from ldt import attention

    return attention.fill_global_rows(
        out,
        q,
        lambda rows: rows.flatten(1),
        lambda _: k.flatten(1),
        lambda _: v.flatten(1),
        _documents(len(q), cu_seqlens, keep, is_global, globals),
        dropout=dropout,
        seed=0 if seed is None else seed,
        backend=backend,
    )


def _run_pooled(
    q, k, v, weight, cu_seqlens, keep, is_global, globals, pooling, size, stride, *rest
):
    from ldt.attention.pooled import pooled_attention

    window, dropout, seed, backend = rest
    return pooled_attention(
        q,
        k,
        v,
        weight if len(weight) else None,
        _documents(len(q), cu_seqlens, keep, is_global, globals),
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
        with torch.enable_grad(), unread():
            leaves = [x.detach().requires_grad_() for x in arguments[:count]]
            out = run(*leaves, *arguments[count:])
        grads = torch.autograd.grad(out, leaves, grad, allow_unused=True)
        pairs = zip(grads, leaves, strict=True)
        return [torch.zeros_like(x) if g is None else g.contiguous() for g, x in pairs]

    return backward


def _register(name, schema, run, count):
    """The operator ``name`` and its backward: implementations, shapes, gradients."""
    library.define(f"ldt::{name}", f"({schema}, {_REST}) -> Tensor", tags=_TAGS)
    library.define(
        f"ldt::{name}_backward", f"(Tensor grad, {schema}, {_REST}) -> Tensor[]", tags=_TAGS
    )

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

    library.impl(f"ldt::{name}", _DEVICES, forward)
    library.impl(f"ldt::{name}_backward", _DEVICES, _gradients(run, count))
    library.register_fake(f"ldt::{name}", shape)
    library.register_fake(f"ldt::{name}_backward", backward_shapes)
    library.register_autograd(
        f"ldt::{name}", first_order(differentiate), setup_context=setup_context
    )


_register("band", _BAND, _run_band, 3)
_register("fill_global_rows", _ROWS, _run_rows, 8)
_register("fill_projected_rows", _PROJECTED, _run_projected, 4)
_register("pooled", _POOLED, _run_pooled, 4)

library.define("ldt::count_globals", "(Tensor is_global) -> Tensor", tags=_TAGS)
library.impl("ldt::count_globals", _DEVICES, lambda mask: mask.sum().cpu())
library.register_fake(
    "ldt::count_globals", lambda mask: torch.empty((), dtype=torch.long, device="cpu")
)
