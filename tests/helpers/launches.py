"""Calls whose kernels `test_compile.py` compiles: one function per operator in
`ldt.attention.triton`.

Each takes the compute capability and gives pairs of a label and a function without arguments that
launches kernels, forward and backward, on tensors of any device.
"""

import torch

from ldt.attention import Layout
from ldt.attention.pooled.cells import Cells

BAND = {
    # label: dtype, dims of a head, globals, gaps, dropout
    "bf16 64": (torch.bfloat16, 64, False, 1, 0.0),
    "bf16 64, globals": (torch.bfloat16, 64, True, 1, 0.0),
    "bf16 64, globals, gaps, dropout": (torch.bfloat16, 64, True, (1, 4), 0.1),
    "bf16 128, globals, dropout": (torch.bfloat16, 128, True, 1, 0.1),
    "fp32 64, globals, dropout": (torch.float32, 64, True, 1, 0.1),
    "fp32 128, globals": (torch.float32, 128, True, 1, 0.0),
}


def band(capability):
    from ldt.attention.triton import band

    layout = Layout(torch.tensor([0, 512, 1024]))
    silent = Layout(layout.cu_seqlens, None, torch.arange(1024) % 512 == 0)
    for label, (dtype, dim, globals, gaps, dropout) in BAND.items():
        where = silent if globals else layout

        def call(dtype=dtype, dim=dim, where=where, gaps=gaps, dropout=dropout):
            q, k, v = torch.empty(1024, 3, 2, dim, dtype=dtype).unbind(1)
            pattern = band.Band(256, False, (gaps,) * 2 if gaps == 1 else gaps, dropout)
            codes = band.token_codes(where, 2, 0) if dropout else (None, None)
            rest = band.Tables.of(where), pattern
            out, lse = band.forward(q, k, v, *rest, *codes)
            band.backward(out, q, k, v, out, lse, *rest, *codes)

        yield label, call


ROWS = {
    # label: dtype, heads, dims of a head, globals, whether the projections are folded, dropout
    "bf16 folded 768": (torch.bfloat16, 12, 64, 1, True, 0.0),
    "bf16 folded 768, several, dropout": (torch.bfloat16, 12, 64, 4, True, 0.1),
    "bf16 folded 1024, several, dropout": (torch.bfloat16, 16, 64, 4, True, 0.1),
    "fp32 folded 768, dropout": (torch.float32, 12, 64, 1, True, 0.1),
    "bf16 plain 64, many, dropout": (torch.bfloat16, 12, 64, 100, False, 0.1),
    "bf16 plain 128, many": (torch.bfloat16, 6, 128, 200, False, 0.0),
    "fp32 plain 128, many, dropout": (torch.float32, 6, 128, 200, False, 0.1),
}


def rows(capability):
    from ldt.attention.triton import rows

    keep = torch.ones(1024, dtype=torch.bool)
    for label, (dtype, heads, dim, globals, folded, dropout) in ROWS.items():
        where = Layout(torch.tensor([0, 1024]), keep, torch.arange(1024) < globals)
        per, width = (heads, heads * dim) if folded else (1, dim)

        def call(dtype=dtype, shape=(heads // per, width), per=per, where=where, dropout=dropout):
            # What is folded is float32.
            kind = dtype if per == 1 else torch.float32
            q = torch.empty(len(where.global_index) * per, *shape, dtype=kind)
            k = torch.empty(1024, *shape, dtype=dtype)
            work = rows.Call(q, k, k if per == 1 else None, where, per, 1.0, dropout, 0)
            out, weight, lse = work.forward()
            work.backward(out, weight, out, weight, lse)

        yield label, call


CELLS = {
    # label: dtype, dims of a head, whether there are holes, dropout
    "bf16 64, cells": (torch.bfloat16, 64, False, 0.0),
    "bf16 64, cells, holes, dropout": (torch.bfloat16, 64, True, 0.1),
    "bf16 128, cells, holes, dropout": (torch.bfloat16, 128, True, 0.1),
    "fp32 64, cells": (torch.float32, 64, False, 0.0),
    "fp32 128, cells, holes, dropout": (torch.float32, 128, True, 0.1),
}


def cells(capability):
    from ldt.attention.triton import cells

    for label, (dtype, dim, holes, dropout) in CELLS.items():
        where = _cells(holes)

        def call(dtype=dtype, dim=dim, where=where, dropout=dropout):
            q = torch.empty(1024, 2, dim, dtype=dtype)
            k, v = torch.empty(2, where.count, 2, dim, dtype=dtype)
            codes = torch.empty(2, 1024, dtype=torch.int32), torch.empty(2, len(k)).int()
            rest = cells.Tables.of(where, 512), dropout, *(codes if dropout else (None, None))
            out, lse = cells.forward(q, k, v, *rest)
            cells.backward(out, q, k, v, out, lse, *rest)

        yield label, call


FUSED = "ldconv", "mean", "max", "conv"  # `ldt.attention.triton.pooling.FUSED`; needs no triton
POOL = {
    # label: pooling, dtype, of the weight, dims of a head
    **{f"bf16 64, {name}": (name, torch.bfloat16, torch.bfloat16, 64) for name in FUSED},
    "bf16 128, ldconv, its weight fp32": ("ldconv", torch.bfloat16, torch.float32, 128),
    "bf16 128, max": ("max", torch.bfloat16, torch.bfloat16, 128),
    **{f"fp32 128, {name}": (name, torch.float32, torch.float32, 128) for name in FUSED},
}


def pool(capability):
    from ldt.attention.triton import pooling as pool

    where = _cells(holes=True)
    for label, (pooling, dtype, of_weight, dim) in POOL.items():
        shape = {"ldconv": (2, 5, dim), "conv": (2, 2, 5, dim)}.get(pooling)

        def call(pooling=pooling, dtype=dtype, of_weight=of_weight, dim=dim, shape=shape):
            k, v = torch.empty(1024, 2, 2, dim, dtype=dtype).unbind(1)
            weight = None if shape is None else torch.empty(shape, dtype=of_weight)
            how = pooling, pool.Tables.of(where)
            keys, values, *kept = pool.forward(k, v, weight, *how)
            pool.backward(keys, values, k, v, weight, *kept, *how)

        yield label, call


def _cells(holes):
    """The cells of two documents whose first tokens are global."""
    keep, is_global = torch.ones(1024).bool(), torch.arange(1024) % 512 == 0
    return Cells(Layout(torch.tensor([0, 512, 1024]), keep if holes else None, is_global), 5, 4)
