"""Calls whose kernels `test_compile.py` compiles: `calls` gives them by label.

Each launches kernels, forward and backward, on tensors of the CPU, with the tiles of the device
that `ldt.attention.triton.devices.LATEST` is set to.
"""

from functools import partial

import torch

from ldt.attention import Layout
from ldt.attention.cells import Cells

DIMS = (32, 64, 96, 128)
WIDTHS = {"half": (768, 1024), "fp32": (768,)}  # of rows whose projections are folded
FUSED = "ldconv", "mean", "max", "conv"  # `ldt.attention.triton.pooling.FUSED`; needs no triton


def calls(half):
    """{label: function without arguments}; "half" in a label is the dtype that is given."""
    found = {}
    for name, dtype in (("half", half), ("fp32", torch.float32)):
        for dim in DIMS:
            label = f"{name} {dim}"
            found |= {
                f"band {label}": partial(band, dtype, dim),
                f"band {label}, globals, gaps": partial(band, dtype, dim, True, (1, 4)),
                f"band {label}, globals, gaps, dropout": partial(
                    band, dtype, dim, True, (1, 4), 0.1
                ),
                f"band {label}, globals, long": partial(band, dtype, dim, True, tokens=2**16),
                f"cells {label}": partial(cells, dtype, dim),
                f"cells {label}, holes, dropout": partial(cells, dtype, dim, True, 0.1),
                f"rows {label}, few, dropout": partial(rows, dtype, dim, 4, dropout=0.1),
                f"rows {label}, many": partial(rows, dtype, dim, 100),
                f"rows {label}, many, dropout": partial(rows, dtype, dim, 100, dropout=0.1),
            }
            found |= {f"pool {label}, {way}": partial(pool, dtype, dim, way) for way in FUSED}
        for width in WIDTHS[name]:
            label = f"rows {name} folded {width}"
            found[label] = partial(rows, dtype, width, 1, True)
            found[f"{label}, several, dropout"] = partial(rows, dtype, width, 4, True, 0.1)
            found[f"norm and gelu {name} {width}"] = partial(norm_and_gelu, dtype, width, half)
            found[f"norm and gelu {name} {width}, dropout"] = partial(
                norm_and_gelu, dtype, width, half, 0.1
            )
    found["norm and gelu fp32 768, products fp32"] = partial(
        norm_and_gelu, torch.float32, 768, torch.float32
    )
    found["pool half 128, ldconv, its weight fp32"] = partial(
        pool, half, 128, "ldconv", torch.float32
    )
    return found


def band(dtype, dim, globals=False, gaps=(1, 1), dropout=0.0, tokens=1024):
    from ldt.attention.triton import pattern

    borders = torch.tensor([0, tokens // 2, tokens])
    where = Layout(borders, None, torch.arange(tokens) % (tokens // 2) == 0 if globals else None)
    q, k, v = torch.empty(tokens, 3, 2, dim, dtype=dtype).unbind(1)
    both(q, k, v, pattern.windows(where, 512, gaps), dropout)


def both(q, k, v, pattern, dropout):
    """Forward and backward by a pattern."""
    from ldt.attention.triton import backward, forward

    rest = pattern, dropout, torch.zeros((), dtype=torch.int64) if dropout else None
    out, lse = forward.forward(q, k, v, *rest)
    backward.backward(torch.empty_like(q), q, k, v, out, lse, *rest)


def rows(dtype, width, globals, folded=False, dropout=0.0):
    from ldt.attention.triton import pattern, rows

    where = Layout(torch.tensor([0, 1024]), torch.ones(1024).bool(), torch.arange(1024) < globals)
    if not folded:
        q, k = (torch.empty(count, 6, width, dtype=dtype) for count in (globals, 1024))
        both(q, k, k, pattern.of_globals(where), dropout)
        return
    heads, x = width // 64, torch.empty(1024, width, dtype=dtype)
    if not rows.folds((globals, heads, 64), x, where, dtype):
        return  # the device has no tile so wide, and the rows are projected there
    weight, bias = torch.empty(width, width, dtype=dtype), torch.empty(width, dtype=dtype)
    weights = rows.Weights(weight, bias, weight, bias, weight, bias)
    seed, out = torch.zeros((), dtype=torch.int64) if dropout else None, torch.empty(x.shape)
    work = rows.RowsWork.of(where, x, heads, 64, dropout, True, dtype)
    kept = work.forward(x, None, weights, out, seed)
    for dx in (None, out, out.float()):  # the last one under autocast
        work.backward(out, x, kept, weights, [True] * 6, seed, dx)


def cells(dtype, dim, holes=False, dropout=0.0):
    from ldt.attention.triton import pattern

    where = _cells(holes)
    q = torch.empty(1024, 2, dim, dtype=dtype)
    k, v = torch.empty(2, where.count, 2, dim, dtype=dtype)
    both(q, k, v, pattern.of_cells(where, 512), dropout)


def pool(dtype, dim, pooling, of_weight=None):
    from ldt.attention.triton import pooling as pool

    shape = {"ldconv": (2, 5, dim), "conv": (2, 2, 5, dim)}.get(pooling)
    k, v = torch.empty(1024, 2, 2, dim, dtype=dtype).unbind(1)
    weight = None if shape is None else torch.empty(shape, dtype=of_weight or dtype)
    how = pooling, pool.Tables.of(_cells(holes=True))
    keys, values, *kept = pool.forward(k, v, weight, *how)
    pool.backward(keys, values, k, v, weight, *kept, *how)


def norm_and_gelu(dtype, width, products, dropout=0.0):
    """Of float32 as under autocast, where products have half precision."""
    from ldt.attention.triton import norms

    x, wide = torch.empty(1024, width, dtype=dtype), torch.empty(1024, 4 * width, dtype=products)
    weight = torch.empty(width, dtype=dtype)
    seed = torch.zeros((), dtype=torch.int64) if dropout else None
    of_y, bias = (torch.empty(size, dtype=products) for size in (width, 4 * width))
    end = norms.End(x.shape, x.get_device(), dtype, products, 1e-5, dropout, 4 * width)
    for keep in (True, False):
        end.forward(x.to(products), of_y, x, weight, weight, seed, keep)
    norms.again(x, weight, weight, 1e-5, products)
    parts = norms.sums_of(x, 4 * width)
    for want_out in (False, True):
        end.backward(x, x, weight, weight, seed, parts, want_out)
    norms.gelu(wide, bias)
    norms.gelu_backward(wide, bias, wide, parts)
    norms.added(parts, *x.shape, dtype)


def _cells(holes):
    """The cells of two documents whose first tokens are global."""
    keep, is_global = torch.ones(1024).bool(), torch.arange(1024) % 512 == 0
    return Cells(Layout(torch.tensor([0, 512, 1024]), keep if holes else None, is_global), 5, 4)
