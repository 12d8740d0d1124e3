"""Attention over packed documents, by the backend of a name in `BACKENDS`."""

import inspect
import logging
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch

from ldt.attention import blocked, loop, ops, padded, reference, triton
from ldt.attention.derivatives import refuse_transforms
from ldt.attention.layout import Layout, per_head
from ldt.attention.matmul import project
from ldt.attention.pooled import POOLED, POOLINGS, pooled_attention
from ldt.attention.probabilities import band_probabilities, global_probabilities
from ldt.attention.triton import devices

log = logging.getLogger("ldt")

__all__ = [
    "BACKENDS",
    "POOLED",
    "POOLINGS",
    "Layout",
    "band_probabilities",
    "choose",
    "fill_global_rows",
    "fill_projected_rows",
    "full_attention",
    "global_attention",
    "global_probabilities",
    "per_head",
    "pooled_attention",
    "sliding_window_attention",
]

# Each has sliding_window_attention, global_attention and projected_global_attention as reference.py
# defines them; relative positions where the first has the argument ``relative``; ``full_attention``
# where the last has a faster form for all rows. The second level's are in `POOLED`.
BACKENDS: dict[str, ModuleType] = {
    "reference": reference,
    "loop": loop,
    "blocked": blocked,
    "triton": triton,
}


def _with(name):
    """Names of the backends whose sliding windows take an argument."""
    return tuple(
        backend
        for backend, module in BACKENDS.items()
        if name in inspect.signature(module.sliding_window_attention).parameters
    )


RELATIVE, BIASED = _with("relative"), _with("bias")


def sliding_window_attention(
    q,
    k,
    v,
    layout,
    *,
    window,
    dilation=1,
    causal=False,
    dropout=0.0,
    seed=0,
    relative=None,
    bias=None,
    backend="auto",
):
    """Attention of each token to its window and to the global tokens of its document.

    Shapes, units and source are those of `ldt.attention.reference.sliding_window_attention`;
    ``backend`` is a name in `BACKENDS`, or "auto", which takes what `choose` says.

    Raises:
        ValueError: a window, dilation or pattern that has no meaning, or a backend that is unknown
            or cannot run on these tensors.
    """
    if window < 2 or window % 2:
        raise ValueError(f"attention_window must be even and at least 2, got {window}")
    dilations = per_head(dilation, q.shape[1])
    if len(dilations) != q.shape[1] or min(dilations) < 1:
        raise ValueError(
            f"attention_dilation must be a number >= 1 or one for each of the {q.shape[1]} heads, "
            f"got {dilation}"
        )
    compiling = torch.compiler.is_compiling()  # how many are global only the operator knows then
    if causal and layout.is_global is not None and not compiling:
        raise ValueError(
            "causal attention has no global tokens: every token would see the future through them"
        )
    if layout.rows is not None:
        return padded.sliding_window_attention(q, k, v, layout, window)
    arguments = {"window": window, "dilation": dilations, "causal": causal, "dropout": dropout}
    if relative is not None:
        _check_relative(relative, q, window, causal)
        # Left out of a compiled graph.
        attend = torch.compiler.disable(_only(backend, RELATIVE, "relative positions"))
        return attend(q, k, v, layout, **arguments, seed=seed, relative=relative)
    if bias is not None:
        attend = _only(backend, BIASED, "biases")
        return attend(q, k, v, layout, **arguments, seed=seed, bias=bias)
    if compiling:
        return ops.band(q, k, v, layout, window, dilations, causal, dropout, seed, backend)
    return _module(backend, q).sliding_window_attention(q, k, v, layout, **arguments, seed=seed)


def global_attention(q, x, key, value, layout, *, dropout=0.0, seed=0, backend="auto"):
    """Attention of each global token to all tokens of its document, by projections of its own.

    Shapes and source are those of `ldt.attention.reference.global_attention`; ``key`` and ``value``
    may also be functions, which are then called; ``backend`` is a name in `BACKENDS`, or "auto",
    which takes what `choose` says.
    """
    if layout.rows is not None:
        return padded.global_attention(q, x, key, value, layout)
    module, arguments = _module(backend, q), {"dropout": dropout, "seed": seed}
    if not callable(key) and not callable(value):
        return module.global_attention(q, x, key, value, layout, **arguments)
    k, v = (project(part, x).unflatten(1, q.shape[1:]) for part in (key, value))
    return module.projected_global_attention(q, k, v, layout, **arguments)


def fill_global_rows(out, x, query, key, value, layout, *, dropout=0.0, seed=0, backend="auto"):
    """The output of the sliding window, its rows of global tokens filled by `global_attention`.

    Args:
        out: [total, heads, dim] of `sliding_window_attention`.
        x: [total, width], the layer's input.
        query, key, value: the global projections, each as (weight [heads * dim, width], bias
            [heads * dim]), or as a function [tokens, width] -> [tokens, heads * dim], such as a
            module with an adapter, which is then called.
        layout: of the packed tokens.
        dropout, seed, backend: as in `sliding_window_attention`.

    Returns:
        [total, heads, dim].
    """
    if layout.rows is not None:
        return padded.fill_global_rows(out, x, query, key, value, layout)
    if torch.compiler.is_compiling():
        projections = query, key, value
        if not any(map(callable, projections)):
            return ops.fill_global_rows(out, x, *projections, layout, dropout, seed, backend)
        # Of all tokens: which of them are global only the operator knows.
        heads = (project(part, x).unflatten(1, out.shape[1:]) for part in projections)
        return ops.fill_projected_rows(out, *heads, layout, dropout, seed, backend)
    index = layout.global_index
    if not len(index):
        return out.clone()
    q = project(query, x.index_select(0, index)).unflatten(1, out.shape[1:])
    rows = global_attention(q, x, key, value, layout, dropout=dropout, seed=seed, backend=backend)
    return out.index_copy(0, index, rows.to(out.dtype))


def fill_projected_rows(out, q, k, v, layout, *, dropout=0.0, seed=0, bias=None, backend="auto"):
    """The output of the sliding window, its rows of global tokens filled by attention to their
    whole document with queries, keys and values that are there already.

    Args:
        out: [total, heads, dim] of `sliding_window_attention`.
        q, k, v: [total, heads, dim], of all tokens.
        layout: of the packed tokens.
        bias: None, or as in `ldt.attention.reference.projected_global_attention`.
        dropout, seed, backend: as in `sliding_window_attention`.

    Returns:
        [total, heads, dim].
    """
    if layout.rows is not None:
        return padded.fill_projected_rows(out, q, k, v, layout)
    if bias is None and torch.compiler.is_compiling():
        return ops.fill_projected_rows(out, q, k, v, layout, dropout, seed, backend)
    index = layout.global_index
    if not len(index):
        return out.clone()
    arguments = {"dropout": dropout, "seed": seed}
    attend = _module(backend, q).projected_global_attention
    if bias is not None:
        attend = _only(backend, BIASED, "biases", "projected_global_attention")
        arguments["bias"] = bias
    return out.index_copy(0, index, attend(q.index_select(0, index), k, v, layout, **arguments))


def full_attention(q, k, v, layout, *, dropout=0.0, seed=0, backend="auto"):
    """Attention of each token to all tokens of its document; zeros at padding.

    Args:
        q, k, v: [total, heads, dim].
        layout: of the packed tokens, of which all but padding are global.
        dropout, seed, backend: as in `sliding_window_attention`.

    Returns:
        [total, heads, dim].
    """
    if layout.rows is not None:
        return padded.full_attention(q, k, v, layout)
    arguments = {"dropout": dropout, "seed": seed}
    if torch.compiler.is_compiling() or layout.key_padding_mask is not None:
        none = q.new_zeros(q.shape)
        return fill_projected_rows(none, q, k, v, layout, **arguments, backend=backend)
    module = _module(backend, q)
    attend = getattr(module, "full_attention", module.projected_global_attention)
    return attend(q, k, v, layout, **arguments)


def choose(device, dtype, dim=64):
    """(name, why) of the backend `auto` takes for tensors of this device, dtype and head width."""
    device = torch.device(device)
    if device.type != "cuda":
        return "blocked", f"the fast one on {device.type}"
    if not _has_triton():
        return "blocked", "the package triton is not installed"
    try:
        why = devices.lacking(dtype, dim, devices.limits(device))
    except ValueError as error:
        why = str(error)
    if why:
        return "blocked", why
    return "triton", "fused kernels on CUDA"


def automatic(q):
    """The name `choose` gives for tensors like q [tokens, heads, dim]; that a GPU has no kernels
    for them is logged, once for each reason."""
    name, why = choose(q.device, q.dtype, q.shape[-1])
    if name == "blocked" and q.device.type == "cuda":
        _say_once(why)
    return name


@cache
def _say_once(why):
    log.warning("attention runs on the GPU without its kernels (blocked): %s", why)


def _check_relative(relative, q, window, causal):
    query, table = relative
    offsets = window // 2 + 1 if causal else window + 1
    heads, dim = q.shape[1:]
    if query.shape != q.shape or table.shape != (heads, offsets, dim):
        raise ValueError(
            f"relative positions need queries {list(q.shape)} and a table {[heads, offsets, dim]}, "
            f"got {list(query.shape)} and {list(table.shape)}"
        )


def _only(backend, names, what, function="sliding_window_attention"):
    """A function of a backend of ``names``, those that have ``what``."""
    if backend not in ("auto", *names):
        raise ValueError(
            f"attention backend {backend!r} has no {what}; auto, {', '.join(names)} have"
        )
    backend = "blocked" if backend == "auto" else backend
    refuse_transforms(backend)
    return getattr(BACKENDS[backend], function)


@cache
def _has_triton():
    return find_spec("triton") is not None


def _module(backend, q):
    if backend == "auto":
        backend = automatic(q)
    if backend not in BACKENDS:
        raise ValueError(f"attention backend must be auto, {', '.join(BACKENDS)}, got {backend!r}")
    refuse_transforms(backend)
    return BACKENDS[backend]
