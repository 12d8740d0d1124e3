"""Is every backend right on this GPU: outputs, gradients, the same bits twice."""

from functools import partial

import torch

from ldt.attention import (
    BACKENDS,
    POOLINGS,
    Layout,
    reference,
    sliding_window_attention,
)
from ldt.attention.cells import Cells

# lengths, window, dim of a head, and what else the pattern has; padding inside of documents, unless
# "holes" says no: then windows alone are checked; "share" of global tokens
CASES = (
    ((700, 1, 333), 128, 64, {}),
    ((257,), 512, 32, {}),
    ((1000,), 64, 128, {}),
    ((900, 300), 128, 64, {"dilation": (1, 2, 5)}),
    ((1100,), 256, 80, {"causal": True, "dilation": (1, 1, 3)}),
    ((513, 64), 126, 64, {"dropout": 0.2, "seed": 3}),
    ((900, 1, 40), 128, 64, {"holes": False}),
    ((700, 90), 64, 80, {"holes": False, "causal": True}),
    ((1200, 300), 128, 64, {"share": 0.3}),  # several hundred global tokens
    ((23,) * 40 + (1,) * 5, 32, 32, {}),  # more documents than a warp has threads
)
FAR = 2**27 - 8  # numbers from a token to the next: 17 of them go beyond 2**31
# lengths, size and stride of the cells, window, dim of a head, and what else the pattern has
POOLED_CASES = (
    ((700, 1, 333), (5, 4), 512, 64, {}),
    ((257, 3, 64), (6, 4), 96, 80, {"dropout": 0.2, "seed": 3}),
)
SUMS = 64 * torch.finfo(torch.float32).eps  # see tests/helpers/patterns.py
NAMES = {
    "band": ("out", "dq", "dk", "dv"),
    "rows": ("out", "dq", "dx", "dwk", "dwv", "dbv"),
    "pooled": ("out", "dq", "dk", "dv", "dw"),
}


def check(kind, case, dtype, device, names):
    """Largest error of backends against the dense float64 definition, and what is allowed.

    Allowed is twice the error of the dense definition in the tested dtype, and what sums of some
    hundred numbers are off in any order, as in the tests.

    Args:
        kind: windows (and rows of global tokens), or cells.
        case: of `CASES` or `POOLED_CASES`.
        dtype, device: of the tensors.
        names: of backends.

    Yields:
        A row for each operation and backend; ``ok`` says if all is well.
    """
    runs, about = _windows(case, device) if kind == "windows" else _cells(case, device)
    chosen = {name: BACKENDS[name] for name in names if name in BACKENDS}
    yield from checked(runs, reference, chosen, about, dtype)


def _windows(case, device):
    lengths, window, dim, rest = case
    causal, holes = rest.get("causal", False), rest.get("holes", True)
    docs = layout(lengths, device, rest.get("share", 0.01), has_globals=not causal, holes=holes)
    pattern = {"window": window}
    pattern |= {key: rest[key] for key in rest if key not in ("holes", "share")}
    runs = {"band": partial(band, layout=docs, dim=dim, pattern=pattern)}
    drop = {key: rest[key] for key in ("dropout", "seed") if key in rest}
    shares = () if causal or not holes else (0.01, 0.3)  # few are folded, many projected
    for share in shares:
        docs = layout(lengths, device, share)
        runs[f"rows-{share}"] = partial(rows_of, layout=docs, dim=dim, drop=drop)
    return runs, {"lengths": lengths, "window": window, "dim": dim, **rest}


def _cells(case, device):
    lengths, cell, window, dim, rest = case
    cells = Cells(layout(lengths, device), *cell)
    how = {"cells": cells, "dim": dim, "pattern": {"window": window} | rest}
    runs = {f"pooled-{name}": partial(pooled, pooling=name, **how) for name in POOLINGS}
    return runs, {"lengths": lengths, "cell": cell, "window": window, "dim": dim, **rest}


def checked(runs, definition, backends, about, dtype):
    """Yield rows of `check`.

    Args:
        runs: name -> function of a module and dtype that gives the tensors of `NAMES`.
        definition: the module that defines them.
        backends: name -> module.
        about: what rows say of the case.
        dtype: of the tensors.
    """
    for operation, run in runs.items():
        exact, dense = run(definition, dtype=torch.float64), run(definition, dtype=dtype)
        for name, module in backends.items():
            row = {"operation": operation, "backend": name, **about}
            row["dtype"] = str(dtype).removeprefix("torch.")
            try:
                ours, again = (run(module, dtype=dtype) for _ in range(2))
            except Exception as error:  # a row says so; the others go on
                yield row | {"failed": f"{type(error).__name__}: {str(error)[:300]}", "ok": False}
                continue
            found = compare(operation, exact, dense, ours, dtype)
            same = all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
            right = all(x <= 1 for x in found.values()) and (same or name != "triton")
            yield row | {"error_over_allowed": found, "same_bits_twice": same, "ok": right}


def far(device, names, stride=FAR):
    """Yield rows of windows over tensors of more than 2**31 numbers, bit by bit as close together.

    Args:
        names: of backends that run on the device.
        stride: numbers from a token to the next.
    """
    documents = layout((9, 15), device, 0.2, holes=False)
    for name in names:
        found = []
        for step in (128, stride):
            tokens = [apart(x, step) for x in normals([(24, 2, 64)] * 4, torch.float16, device)]
            *leaves, up = (x.detach().requires_grad_() for x in tokens)
            out = sliding_window_attention(*leaves, documents, window=6, backend=name)
            found.append((out, *torch.autograd.grad(out, leaves, up)))
        same = all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        yield {"operation": "far", "backend": name, "dtype": "float16", "ok": same}


def apart(x, stride):
    """``x`` with this stride of its first dimension."""
    room = torch.empty((len(x) - 1) * stride + x[0].numel(), dtype=x.dtype, device=x.device)
    return room.as_strided(x.shape, (stride, *x.stride()[1:])).copy_(x)


def compare(operation, exact, dense, ours, dtype):
    """{tensor: largest error as a share of what is allowed}."""
    found = {}
    names = NAMES[operation.split("-")[0]][: len(exact)]
    for name, true, a, b in zip(names, exact, ours, dense, strict=True):
        allowed = 2 * largest(b - true) + torch.finfo(dtype).eps * largest(true) + SUMS
        found[name] = largest(a - true) / allowed
    return found


def largest(x):
    return x.abs().max().item()


def layout(lengths, device, share=0.01, has_globals=True, holes=True):
    """Documents with a ``share`` of global tokens, and a few holes."""
    generator = torch.Generator().manual_seed(0)
    total = sum(lengths)
    keep = torch.rand(total, generator=generator) < 0.97
    is_global = (torch.rand(total, generator=generator) < share) & keep
    is_global[0] = keep[0] = True
    borders = torch.tensor([0, *lengths]).cumsum(0)
    is_global = is_global.to(device) if has_globals else None
    return Layout(borders.to(device), keep.to(device) if holes else None, is_global, total)


def normals(shapes, dtype, device):
    """Unit normals of these shapes, the same numbers in every dtype; they ask for gradients."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for shape in shapes
    ]


def band(module, layout, dim, dtype, pattern, heads=3):
    """Output, dq, dk, dv in float64 of a band computed in ``dtype``."""
    device = layout.cu_seqlens.device
    *leaves, up = normals([(layout.total_tokens, heads, dim)] * 4, dtype, device)
    out = module.sliding_window_attention(*leaves, layout, **pattern)
    return [x.double() for x in (out, *torch.autograd.grad(out, leaves, up))]


def rows_of(module, layout, dim, dtype, drop, heads=3):
    """Output and gradients in float64 of the global rows computed in ``dtype``."""
    width, count = heads * dim, len(layout.global_index)
    device = layout.cu_seqlens.device
    shapes = [(count, heads, dim), (layout.total_tokens, width)]
    shapes += [(width, width), (width,)] * 2 + [(count, heads, dim)]
    q, x, wk, bk, wv, bv, up = normals(shapes, dtype, device)
    wk, wv = (w.detach().div(width**0.5).requires_grad_() for w in (wk, wv))
    out = module.global_attention(q, x, (wk, bk), (wv, bv), layout, **drop)
    found = torch.autograd.grad(out, (q, x, wk, wv, bv), up)
    return [x.double() for x in (out, *found)]


def pooled(module, dtype, pooling, cells, dim, pattern, heads=3):
    """Output and gradients in float64 of the pooled level computed in ``dtype``."""
    layout = cells.layout
    device, total = layout.cu_seqlens.device, layout.total_tokens
    shapes = [(total, heads, dim)] * 4
    initial = POOLINGS[pooling].initial(heads, dim, cells.size)
    if initial is not None:
        shapes.append(tuple(initial.shape))
    q, k, v, up, *weight = normals(shapes, dtype, device)
    if pooling == "max":  # no two tokens of a cell have the same number, in any dtype
        place = 5 * torch.arange(total, device=device)[:, None, None]
        k, v = (
            ((place + (7 * x[:1]).round()) % 16 / 4 - 2).to(dtype).detach().requires_grad_()
            for x in (k, v)
        )
    leaves = [q, k, v, *weight]
    keys, values = module.pool(pooling, k, v, *(weight or [None]), cells)
    out = module.cell_attention(q, keys, values, cells, **pattern)
    return [x.double() for x in (out, *torch.autograd.grad(out, leaves, up))]
