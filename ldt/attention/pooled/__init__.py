"""Attention to pooled cells over packed documents, by the backend of a name in `POOLED`."""

from types import ModuleType

import torch

from ldt.attention import ops, triton
from ldt.attention.derivatives import refuse_transforms
from ldt.attention.pooled import blocked, reference
from ldt.attention.pooled.cells import Cells
from ldt.attention.pooled.poolings import POOLINGS

# Each has pool and cell_attention as reference.py defines them.
POOLED: dict[str, ModuleType] = {"reference": reference, "blocked": blocked, "triton": triton}


def pooled_attention(
    q,
    k,
    v,
    weight,
    layout,
    *,
    pooling,
    size,
    stride,
    window,
    dropout=0.0,
    seed=0,
    backend="auto",
):
    """Attention of every token to pooled keys and values, in a window wider than the first level's.

    Args:
        q, k, v: [total, heads, dim], or functions that return them. q is asked for last, and can
            have the memory of k and v.
        weight: of the shape of the pooling's `initial`, None where that is None.
        layout: of the packed tokens; no document shares a cell with another.
        pooling: a name in `POOLINGS`.
        size, stride: of the `Cells`, in tokens.
        window: tokens in reach on both sides together, see `reference.cell_attention`.
        dropout, seed: as in `reference.sliding_window_attention`.
        backend: a name in `POOLED`; `auto` takes the fastest.

    Returns:
        [total, heads, dim]; zeros at padding, at global tokens, and where no cell is in reach.

    Raises:
        ValueError: a number or name that has no meaning.
    """
    check(pooling, size, stride, window)
    if layout.rows is not None:
        from ldt.attention import padded

        q, k, v = map(_given, (q, k, v))
        pattern = {"pooling": pooling, "size": size, "stride": stride, "window": window}
        return padded.pooled_attention(q, k, v, weight, layout, **pattern)
    if torch.compiler.is_compiling():
        # An operator takes tensors alone, so all three are in memory at once here.
        q, k, v = map(_given, (q, k, v))
        return ops.pooled(
            q, k, v, weight, layout, pooling, size, stride, window, dropout, seed, backend
        )
    # k and v are pooled, and let go, before q is made: not all three are in memory at once.
    cells = Cells(layout, size, stride)
    keys, values = _pool(backend, pooling, _given(k), _given(v), weight, cells)
    q = _given(q)
    attend = _module(backend, q).cell_attention
    return attend(q, keys, values, cells, window=window, dropout=dropout, seed=seed)


def _given(x):
    return x() if callable(x) else x


def _pool(backend, pooling, k, v, weight, cells):
    # A function of its own, so that k and v are freed when it returns.
    return _module(backend, k).pool(pooling, k, v, weight, cells)


def check(pooling, size, stride, window):
    """Raise a ValueError that names the key of the config, unless all of them have a meaning."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be {', '.join(POOLINGS)}, got {pooling!r}")
    for name, value in (("pooling_size", size), ("pooling_stride", stride)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if window < 2 or window % 2:
        raise ValueError(f"pooling_window must be even and at least 2, got {window}")


def _module(backend, q):
    if backend == "auto":
        from ldt.attention import automatic

        backend = automatic(q)
    if backend not in POOLED:
        raise ValueError(
            f"attention backend {backend!r} has no pooled level; auto, {', '.join(POOLED)} have"
        )
    refuse_transforms(backend)
    return POOLED[backend]
