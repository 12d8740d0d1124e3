"""The attention as operators of torch.library, for torch.compile and torch.export.

A compiler sees a call with tensors in and out, of shapes that it knows; the pattern, the layout and
the backend stay inside. Kernels give the log-sum-exp of their rows along, with which the backward
operators need not compute the forward pass anew; they do where global rows are filled by kernels.

Names of operators and of their arguments are kept for good: programs that torch.export has saved
hold them.
"""

import itertools
import secrets
from collections import OrderedDict
from dataclasses import replace
from threading import Lock

import torch
from torch import library

from ldt.attention.derivatives import first_order, noting, unread
from ldt.attention.layout import Layout

_LAYOUT = "Tensor cu_seqlens, Tensor? keep, Tensor? is_global, Tensor? globals"
_DOCUMENTS = f"{_LAYOUT}, Tensor? number"
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
# A CUDA graph would go on with the numbers of the batch that it was captured with: the host knows
# the layout of a ``number``, and counts global tokens. `ldt.model.graphs` captures no operators.
_TAGS = (torch.Tag.cudagraph_unsafe,)


def count_globals(is_global: torch.Tensor) -> torch.Tensor:
    """Number of True in a mask [total], a tensor [] int64 on the host. It waits for the device: the
    only such wait where a `Layout` is given the count."""
    return torch.ops.ldt.count_globals(is_global)


def band(q, k, v, layout: Layout, window, dilation, causal, dropout, seed, backend: str):
    """Sliding-window attention [total, heads, dim] as one custom operator of torch, with the
    arguments of `ldt.attention.sliding_window_attention`; ``dilation`` is one number a head."""
    pattern = window, list(dilation), causal, dropout, _tensor(seed), backend
    return torch.ops.ldt.band_forward(q, k, v, *_where(layout), *pattern)[0]


def fill_global_rows(out, x, query, key, value, layout: Layout, dropout, seed, backend):
    """Copy of ``out`` with the rows of global tokens filled, as one operator; the arguments are
    those of `ldt.attention.fill_global_rows`, each projection a (weight, bias)."""
    x, options = x.to(out.dtype), (*_where(layout), dropout, _tensor(seed), backend)
    return torch.ops.ldt.fill_global_rows_forward(out, x, *query, *key, *value, *options)[0]


def fill_projected_rows(out, q, k, v, layout: Layout, dropout, seed, backend: str):
    """Copy of ``out`` with the rows of global tokens filled from q, k and v of all tokens, as one
    operator; the arguments are those of `ldt.attention.fill_projected_rows`."""
    options = *_where(layout), dropout, _tensor(seed), backend
    return torch.ops.ldt.fill_projected_rows_forward(out, q, k, v, *options)[0]


def pooled(q, k, v, weight, layout, pooling, size, stride, window, dropout, seed, backend):
    """Attention to pooled keys and values, [total, heads, dim], as one operator with the arguments
    of `ldt.attention.pooled_attention`; q, k and v are tensors."""
    weight = q.new_empty(0) if weight is None else weight
    pattern = pooling, size, stride, window, dropout, _tensor(seed), backend
    return torch.ops.ldt.pooled_forward(q, k, v, weight, *_where(layout), *pattern)[0]


def shared(layout: Layout) -> Layout:
    """Copy of a layout with a ``number``, by which the operators of a graph share what they compute
    from it (the last four layouts are kept); a `PaddedLayout` is returned as it is."""
    if layout.rows is not None:  # of plain operators alone
        return layout
    *where, globals, _ = _where(layout)
    number = torch.ops.ldt.layout(*where, globals, layout.total_tokens)
    return replace(layout, num_global=globals, number=number)


def _where(layout):
    globals = None if layout.is_global is None else _tensor(layout.num_global)
    masks = layout.cu_seqlens, layout.key_padding_mask, layout.is_global
    return *masks, globals, layout.number


_KEPT = 4  # layouts: of a batch, and of what else runs or waits for its backward pass meanwhile
_layouts: OrderedDict[int, Layout] = OrderedDict()  # by number, the newest last
_lock = Lock()
_numbers = itertools.count(secrets.randbits(62))  # that a program saved elsewhere does not hold


def _number(cu_seqlens, keep, is_global, globals, total):
    layout, number = _layout(total, cu_seqlens, keep, is_global, globals), next(_numbers)
    with _lock:
        _layouts[number] = layout
        if len(_layouts) > _KEPT:
            _layouts.popitem(last=False)
    return torch.tensor(number)


def _layout(total, cu_seqlens, keep, is_global, globals, number=None):
    with _lock:
        known = None if number is None else _layouts.get(int(number))
    if known is not None:
        return known
    globals = None if globals is None else int(globals)
    is_global = None if globals == 0 else is_global
    return Layout(cu_seqlens, keep, is_global, total=total, num_global=globals)


def _tensor(number):
    """A number as the operators take it: they know none without bounds, or that only runs know."""
    if number is None or isinstance(number, torch.Tensor):
        return number
    return torch.full((), number, dtype=torch.long)


def _runs(name, count, *options):
    """A function of an operator's arguments that calls the function ``name`` of `ldt.attention`: of
    ``count`` tensors with gradients, the layout, ``options`` (their names) and those of `_REST`."""
    names = *options, "dropout", "seed", "backend"

    def run(*arguments):
        from ldt import attention

        tensors, layout = arguments[:count], _layout(len(arguments[0]), *arguments[count:][:5])
        options = dict(zip(names, arguments[count + 5 :], strict=True))
        options["seed"] = 0 if options["seed"] is None else options["seed"]
        return getattr(attention, name)(*tensors, layout, **options)

    return run


def _run_rows(out, x, wq, bq, wk, bk, wv, bv, *rest):
    # Graphs run without the autocast that they were traced under.
    with torch.autocast(x.device.type, x.dtype, enabled=x.dtype != wq.dtype):
        return _rows(out, x, (wq, bq), (wk, bk), (wv, bv), *rest)


def _run_pooled(q, k, v, weight, *rest):
    return _pooled(q, k, v, weight if len(weight) else None, *rest)


_run_band = _runs("sliding_window_attention", 3, "window", "dilation", "causal")
_rows = _runs("fill_global_rows", 5)
_run_projected = _runs("fill_projected_rows", 4)
_pooled = _runs("pooled_attention", 4, "pooling", "size", "stride", "window")


def _register(name, schema, run, count):
    """The operator ``name``, whose first ``count`` arguments have gradients.

    ``name``_forward gives the log-sum-exp [heads, total] along, [0] where ``run`` is not one call
    of a kernel that has it; ``name``_backward takes both, of which gradients need nothing else.
    """
    schema = f"{schema}, {_REST}"

    def forward(*arguments):
        with torch.no_grad(), noting() as noted:
            out = run(*arguments).contiguous()
        lse = noted[0][1] if noted and name in _WITH_LSE else _none(out)
        return out, lse

    def shapes(*arguments):
        out = _like(arguments[0])
        total, heads, dim = out.shape
        backend = arguments[-1]
        if backend == "auto":
            backend = _choose(out.device, out.dtype, dim)
        if backend == "triton" and name in _WITH_LSE:
            return out, out.new_empty(heads, total, dtype=torch.float32)
        return out, _none(out)

    def backward(grad, found, lse, *arguments):
        known = (found, lse) if len(lse) else ()
        with torch.enable_grad(), unread(*known):
            leaves = [x.detach().requires_grad_() for x in arguments[:count]]
            out = run(*leaves, *arguments[count:])
        grads = torch.autograd.grad(out, leaves, grad, allow_unused=True)
        pairs = zip(grads, leaves, strict=True)
        return [torch.zeros_like(x) if g is None else g.contiguous() for g, x in pairs]

    def backward_shapes(grad, found, lse, *arguments):
        return [_like(x) for x in arguments[:count]]

    _operator(f"{name}_forward", f"({schema}) -> (Tensor, Tensor)", forward, shapes)
    given = f"(Tensor grad, Tensor found, Tensor lse, {schema})"
    _operator(f"{name}_backward", f"{given} -> Tensor[]", backward, backward_shapes)
    _differentiate(name, count)


def _operator(name, schema, run, shapes):
    library.define(f"ldt::{name}", schema, tags=_TAGS)
    library.impl(f"ldt::{name}", _DEVICES, run)
    library.register_fake(f"ldt::{name}", shapes)


def _differentiate(name, count):
    backward = getattr(torch.ops.ldt, f"{name}_backward")

    def setup_context(ctx, inputs, output):
        ctx.tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        out, lse = output
        # Without the one the other would be kept for nothing.
        results = (out, lse) if len(lse) else (lse, lse)
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(*results, *(inputs[i] for i in ctx.tensors))
        ctx.inputs = [None if isinstance(x, torch.Tensor) else x for x in inputs]

    def slopes(ctx, grad, _):
        inputs, (result, lse, *tensors) = list(ctx.inputs), ctx.saved_tensors
        for i, x in zip(ctx.tensors, tensors, strict=True):
            inputs[i] = x
        grads = backward(grad.contiguous(), result, lse, *inputs)
        return *grads, *[None] * (len(inputs) - count)

    library.register_autograd(
        f"ldt::{name}_forward", first_order(slopes), setup_context=setup_context
    )


def _like(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _none(x):
    return x.new_empty(0, dtype=torch.float32)


def _choose(*given):
    from ldt import attention

    return attention.choose(*given)[0]


_WITH_LSE = ("band", "pooled")  # by the backend triton
_register("band", _BAND, _run_band, 3)
_register("fill_global_rows", _ROWS, _run_rows, 8)
_register("fill_projected_rows", _PROJECTED, _run_projected, 4)
_register("pooled", _POOLED, _run_pooled, 4)


def _host(*_):
    return torch.empty((), dtype=torch.long, device="cpu")


_operator("count_globals", "(Tensor is_global) -> Tensor", lambda mask: mask.sum().cpu(), _host)
_operator("layout", f"({_LAYOUT}, SymInt total) -> Tensor", _number, _host)
