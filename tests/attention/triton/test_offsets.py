"""Offsets of the kernels are 64 bits wide: batches and strides of more than 2**31 numbers."""

from contextlib import contextmanager

import pytest
import torch
from device import DEVICE, HAS_GPU, PLAIN, there

pytest.importorskip("triton")

from triton.runtime import interpreter

from ldt.attention import POOLINGS, Layout, sliding_window_attention
from ldt.attention.cells import Cells
from ldt.attention.triton import attention, pooling, rows, rows_plan, splits

TOKENS, HEADS, DIM = 80, 6, 16
LARGEST = 3 * TOKENS  # of indices past the end, masked, as well
HASH = 2**24  # a factor this large belongs to the hash of dropout, which wraps


@contextmanager
def products(monkeypatch):
    """Context that collects the largest 32-bit product of every kernel in a dictionary."""
    found, name = {}, []
    builder, grid = interpreter.InterpreterBuilder, interpreter.GridExecutor
    multiply, run = builder.create_mul, grid.__call__

    def create_mul(self, a, b):
        out = multiply(self, a, b)
        if out.dtype.scalar.is_int() and out.dtype.scalar.primitive_bitwidth == 32:
            a, b = (abs(x.data.astype("int64")).max(initial=0) for x in (a, b))
            if max(a, b) < HASH:
                found[name[-1]] = max(found.get(name[-1], 0), int(a * b))
        return out

    def call(self, *args, **kwargs):
        name.append(f"{self.fn.__module__.split('.')[-1]}.{self.fn.__name__}")
        return run(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(builder, "create_mul", create_mul)
        patch.setattr(grid, "__call__", call)
        yield found


def random(*shape):
    """Normals whose second dimension has the largest stride, if there are three."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() == 3 else x
    return x.to(DEVICE).requires_grad_()


def layout(every=5):
    """Two documents with a hole, one in ``every`` tokens global."""
    place = torch.arange(TOKENS)
    return there(Layout(torch.tensor([0, 50, TOKENS]), place != 7, place % every == 0))


def run_band():
    x = random(TOKENS, HEADS, DIM)
    how = {"window": 16, "dilation": (1, 2) * (HEADS // 2), "dropout": 0.1}
    return attention.sliding_window_attention(x, x, x, layout(), **how), x


def run_rows(form, every):
    where, width = layout(every), HEADS * DIM
    x, weight = random(TOKENS, width), random(width, width)
    q = random(len(where.global_index), HEADS, DIM)
    projection = weight, random(width)
    return form(q, x, projection, projection, where, dropout=0.1), x


def run_cells():
    x, where = random(TOKENS, HEADS, DIM), Cells(layout(), 2, 1)
    k = random(where.count, HEADS, DIM)
    return attention.cell_attention(x, k, k, where, window=16, dropout=0.1), x


def run_pool(name):
    x, weight = random(TOKENS, HEADS, DIM), POOLINGS[name].initial(HEADS, DIM, 5)
    weight = None if weight is None else weight.to(DEVICE).requires_grad_()
    return sum(pooling.pool(name, x, x, weight, Cells(layout(), 5, 1))), x


CALLS = {
    "band": (run_band, ()),
    "rows, folded": (run_rows, (rows.folded_rows, 5)),
    "rows, plain": (run_rows, (rows.plain_rows, 3)),
    "cells": (run_cells, ()),
    **{f"pool, {name}": (run_pool, (name,)) for name in pooling.FUSED},
}


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="looks into the interpreter")
@pytest.mark.parametrize("call", CALLS)
def test_a_32_bit_product_counts_tokens_and_is_no_offset(call, monkeypatch):
    """Where a stride or a number of heads is a factor, the product is 64 bits wide."""
    monkeypatch.setattr(rows_plan, "PROGRAMS", 2)
    monkeypatch.setattr(splits, "PIECE", 16)
    run, arguments = CALLS[call]
    with products(monkeypatch) as found:
        out, x = run(*arguments)
        torch.autograd.grad(out, x, random(*out.shape))
    for counting in ("pattern._fill", "rows_plan._fill"):  # rows and tokens, without strides
        found.pop(counting, None)
    assert len(found) >= 2
    assert {name: size for name, size in found.items() if size > LARGEST} == {}


@pytest.fixture
def room():
    """Skips where 30 GB cannot be had; a CPU gives memory when it is touched."""
    if HAS_GPU and torch.cuda.mem_get_info(DEVICE)[0] < 40e9:
        pytest.skip("needs 40 GB of GPU memory")


def far_apart(x, stride):
    """``x`` with this stride of its first dimension, in memory of which little is touched."""
    room = torch.empty((len(x) - 1) * stride + x[0].numel(), dtype=x.dtype, device=x.device)
    view = room.as_strided(x.shape, (stride, *x.stride()[1:]))
    return view.copy_(x)


@pytest.mark.parametrize("backend", ["triton", "blocked"])
def test_tokens_may_lie_more_than_2_31_numbers_apart(backend, room):
    """The last token of q, and of k and v, is behind place 2**31."""
    device = DEVICE if backend == "triton" else PLAIN
    x = torch.randn(3, 24, 2, 16, generator=torch.Generator().manual_seed(0))
    where = there(Layout(torch.tensor([0, 9, 24]), None, torch.arange(24) % 9 == 0), device)
    x = x.half().to(device)
    found = []
    for stride in (32, 2**27 - 8):
        q, k, v = (far_apart(part, stride).requires_grad_() for part in x)
        out = sliding_window_attention(q, k, v, where, window=6, backend=backend)
        found.append((out, *torch.autograd.grad(out, (q, k, v), far_apart(x[0], stride))))
    assert 23 * stride > 2**31
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_cells_may_lie_more_than_2_31_numbers_apart(room):
    where = there(Cells(Layout(torch.tensor([0, 24])), 2, 1))
    x = torch.randn(3, where.count, 2, 16, generator=torch.Generator().manual_seed(0))
    x = x.half().to(DEVICE)
    found = []
    for stride in (32, 2**27 - 8):
        q, k, v = (far_apart(part, stride).requires_grad_() for part in x)
        pooled = pooling.pool("max", k[:24], v[:24], None, where)
        out = attention.cell_attention(q[:24], k, v, where, window=6)
        grads = torch.autograd.grad(pooled, (k, v), pooled)
        grads += torch.autograd.grad(out, (q, k, v), q[:24].detach())
        found.append((*pooled, out, *grads))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
