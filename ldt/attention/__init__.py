"""Attention over packed documents; `BACKENDS` names the implementations."""

import logging
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch

from ldt.attention import blocked, ops, padded, reference, triton
from ldt.attention.blocked import band_probabilities, global_probabilities
from ldt.attention.cells import POOLINGS, Cells
from ldt.attention.derivatives import refuse_transforms
from ldt.attention.layout import Layout, per_head
from ldt.attention.matmul import project
from ldt.attention.triton import devices

log = logging.getLogger("ldt")

__all__ = [
    "BACKENDS",
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

# Each has the functions that reference.py defines.
BACKENDS: dict[str, ModuleType] = {"reference": reference, "blocked": blocked, "triton": triton}
PLAIN = ("reference", "blocked")  # those with relative positions and biases


def sliding_window_attention(
    q,
    k,
    v,
    layout: Layout,
    *,
    window: int,
    dilation: int | tuple[int, ...] = 1,
    causal: bool = False,
    dropout: float = 0.0,
    seed=0,
    relative=None,
    bias=None,
    backend: str = "auto",
):
    """Attention [total, heads, dim] of each token to its window and to the global tokens of its
    document; zeros at padding and at global tokens (see `fill_global_rows`).

    Args:
        q, k, v: [total, heads, dim], queries, keys and values of the packed tokens.
        layout: `Layout` of the packed tokens.
        window: tokens in reach on both sides together, even, >= 2.
        dilation: distance between neighbouring tokens in reach, 1 = contiguous; one number for all
            heads or one a head.
        causal: True if a token sees no token after it; global tokens are then refused.
        dropout: probability of dropping an attention probability.
        seed: int, or int64 tensor [], that chooses the dropped ones.
        relative: None, or (query [total, heads, dim], table [heads, offsets, dim]); a key's score
            grows by the product of the token's query and the table's row for the offset of the key,
            see `ldt.attention.reference.sliding_window_attention`.
        bias: None, or [total, heads, most], added to the products with the keys of the document's
            global tokens, at most so many, before they are scaled.
        backend: a name in `BACKENDS`, or "auto" for that of `choose`; with ``relative`` or ``bias``
            "auto" is "blocked", and "triton" is refused.

    Raises:
        ValueError: a window, dilation or pattern that has no meaning, or a backend that is unknown
            or cannot run on these tensors.

    Source: Beltagy et al. 2020 (arXiv:2004.05150), sections 3.1 and 4.1.
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
    if relative is None and bias is None:
        if compiling:
            return ops.band(q, k, v, layout, window, dilations, causal, dropout, seed, backend)
        attend = _function("sliding_window_attention", backend, q)
        return attend(q, k, v, layout, **arguments, seed=seed)
    attend = _function("sliding_window_attention", backend, q, plain=True)
    if relative is not None:
        attend = torch.compiler.disable(attend)  # left out of a compiled graph
        offsets = (1 if causal else 2) * (window // 2) + 1
        wanted = [[*q.shape], [q.shape[1], offsets, q.shape[2]]]
        if wanted != (shapes := [[*x.shape] for x in relative]):
            raise ValueError(f"relative positions need queries and a table {wanted}, got {shapes}")
    return attend(q, k, v, layout, **arguments, seed=seed, relative=relative, bias=bias)


def global_attention(q, x, key, value, layout: Layout, *, dropout=0.0, seed=0, backend="auto"):
    """Attention [globals, heads, dim] of each global token to all tokens of its document, by
    projections of its own.

    Args:
        q: [globals, heads, dim], global queries of the tokens at ``layout.global_index``.
        x: [total, width], the layer's input.
        key, value: the global projections, each (weight [heads * dim, width], bias [heads * dim])
            or a function [tokens, width] -> [tokens, heads * dim], which is called.
        layout, dropout, seed, backend: as in `sliding_window_attention`.

    Source: Beltagy et al. 2020, section 3.1 "Linear projections for global attention".
    """
    if layout.rows is not None:
        return padded.global_attention(q, x, key, value, layout)
    name = "global_attention"
    if callable(key) or callable(value):
        name = "projected_global_attention"
        keys_and_values = [project(part, x).unflatten(1, q.shape[1:]) for part in (key, value)]
    else:
        keys_and_values = [x, key, value]
    attend = _function(name, backend, q)
    return attend(q, *keys_and_values, layout, dropout=dropout, seed=seed)


def fill_global_rows(out, x, query, key, value, layout, *, dropout=0.0, seed=0, backend="auto"):
    """Return a copy of ``out`` with the rows of global tokens filled by `global_attention`.

    Args:
        out: [total, heads, dim], output of `sliding_window_attention`, whose global rows are zeros.
        x: [total, width], the layer's input.
        query, key, value: the global projections, each (weight [heads * dim, width], bias [heads *
            dim]) or a function [tokens, width] -> [tokens, heads * dim], which is called.
        layout, dropout, seed, backend: as in `sliding_window_attention`.
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
    """Return a copy of ``out`` with the rows of global tokens filled by attention to their whole
    document, from queries, keys and values that are computed already.

    Args:
        out: [total, heads, dim], output of `sliding_window_attention`, whose global rows are zeros.
        q, k, v: [total, heads, dim], of all tokens.
        bias: None, or [globals, heads, longest], added to the products of each global token's query
            with the keys of its document before they are scaled; longest is the length of the
            longest document.
        layout, dropout, seed, backend: as in `sliding_window_attention`.
    """
    if layout.rows is not None:
        return padded.fill_projected_rows(out, q, k, v, layout)
    if bias is None and torch.compiler.is_compiling():
        return ops.fill_projected_rows(out, q, k, v, layout, dropout, seed, backend)
    index = layout.global_index
    if not len(index):
        return out.clone()
    arguments = {"dropout": dropout, "seed": seed} | ({} if bias is None else {"bias": bias})
    attend = _function("projected_global_attention", backend, q, plain=bias is not None)
    return out.index_copy(0, index, attend(q.index_select(0, index), k, v, layout, **arguments))


def full_attention(q, k, v, layout: Layout, *, dropout=0.0, seed=0, backend: str = "auto"):
    """Attention [total, heads, dim] of each token to all tokens of its document; zeros at padding.

    Args:
        q, k, v: [total, heads, dim].
        layout: layout of the packed tokens in which all but padding are global
            (`Layout.all_global`). With a `PaddedLayout` rows of padding have no meaning, and the
            options are not read.
        dropout, seed, backend: as in `sliding_window_attention`.
    """
    if layout.rows is not None:
        return padded.full_attention(q, k, v, layout)
    arguments = {"dropout": dropout, "seed": seed}
    if torch.compiler.is_compiling() or layout.key_padding_mask is not None:
        none = q.new_zeros(q.shape)
        return fill_projected_rows(none, q, k, v, layout, **arguments, backend=backend)
    return _function("full_attention", backend, q)(q, k, v, layout, **arguments)


def pooled_attention(
    q, k, v, weight, layout, *, pooling, size, stride, window, dropout=0.0, seed=0, backend="auto"
):
    """Attention [total, heads, dim] of every token to the pooled keys and values of cells, a few
    neighbouring tokens each; zeros at padding, at global tokens, and where no cell is in reach.

    Args:
        q, k, v: [total, heads, dim], or functions that return them. q is asked for last, and can
            have the memory of k and v.
        weight: tensor of the shape of the pooling's `initial`, None where that is None.
        layout: layout of the packed tokens; no document shares a cell with another.
        pooling: a name in `POOLINGS`.
        size, stride: tokens in a cell, and from the start of a cell to that of the next.
        window: tokens on both sides together, in which the centre of a cell is in reach.
        dropout, seed, backend: as in `sliding_window_attention`.

    Raises:
        ValueError: a number or name that has no meaning.
    """
    check_pooling(pooling, size, stride, window)
    pattern = {"pooling": pooling, "size": size, "stride": stride, "window": window}
    if layout.rows is not None:
        return padded.pooled_attention(*map(_given, (q, k, v)), weight, layout, **pattern)
    if torch.compiler.is_compiling():
        # An operator takes tensors alone, so all three are in memory at once here.
        options = *pattern.values(), dropout, seed, backend
        return ops.pooled(*map(_given, (q, k, v)), weight, layout, *options)
    # k and v are pooled, and let go, before q is made: not all three are in memory at once.
    cells = Cells(layout, size, stride)
    keys, values = _pool(backend, pooling, _given(k), _given(v), weight, cells)
    q = _given(q)
    attend = _function("cell_attention", backend, q)
    return attend(q, keys, values, cells, window=window, dropout=dropout, seed=seed)


def _given(x):
    return x() if callable(x) else x


def _pool(backend, pooling, k, v, weight, cells):
    # A function of its own, so that k and v are freed when it returns.
    return _function("pool", backend, k)(pooling, k, v, weight, cells)


def check_pooling(pooling: str, size: int, stride: int, window: int) -> None:
    """Raise a ValueError that names the key of the config unless ``pooling`` is in `POOLINGS`, size
    and stride are at least 1, and the window is even and at least 2, all in tokens."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be {', '.join(POOLINGS)}, got {pooling!r}")
    for name, value in (("pooling_size", size), ("pooling_stride", stride)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if window < 2 or window % 2:
        raise ValueError(f"pooling_window must be even and at least 2, got {window}")


def choose(device: torch.device | str, dtype: torch.dtype, dim: int = 64) -> tuple[str, str]:
    """(name, reason) of the backend that "auto" takes for a device, dtype and head width."""
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


def automatic(q: torch.Tensor) -> str:
    """Name of the backend that "auto" takes for tensors like q [tokens, heads, dim]; logs a
    warning, once for each reason, if a GPU has no kernels for them."""
    name, why = choose(q.device, q.dtype, q.shape[-1])
    if name == "blocked" and q.device.type == "cuda":
        _say_once(why)
    return name


@cache
def _say_once(why):
    log.warning("attention runs on the GPU without its kernels (blocked): %s", why)


@cache
def _has_triton():
    return find_spec("triton") is not None


def _function(name, backend, q, plain=False):
    """The function ``name`` of a backend, ``plain`` one of those in `PLAIN`, for tensors like q."""
    if backend == "auto":
        backend = "blocked" if plain else automatic(q)
    names = PLAIN if plain else BACKENDS
    if backend not in names:
        of = " for relative positions and biases" if plain else ""
        raise ValueError(f"attention backend must be auto, {', '.join(names)}{of}, got {backend!r}")
    refuse_transforms(backend)
    return getattr(BACKENDS[backend], name)
