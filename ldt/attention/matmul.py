"""Matrix products on the CPU by whichever library is faster there, at equal exactness."""

import os
import platform
import time
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

GAIN = 1.3  # oneDNN must be faster by this factor: above what noise makes of equal speeds
EXACT = 4.0  # and its largest error at most this many times the default's

_chosen = {}  # kind -> whether oneDNN is taken, without a probe


def fast_matmul(x):
    """Context in which batched products of tensors like ``x`` run on the faster library.

    MKL, torch's default in float32, holds its AVX-512 code back on CPUs of other makers; oneDNN
    does not. There `linear` takes oneDNN; for batched products, and elsewhere, a probe at first use
    decides. Before both goes the environment variable LDT_ONEDNN (0: never, 1: always). Where
    oneDNN would round to bfloat16, as on a CPU with AMX, the default stays even so.
    The two add in another order, so bit-identical runs need the same choice: `chosen`. The switch
    is a process-wide torch setting, restored at exit, so other threads may briefly see it.
    """
    return onednn() if _applies(x) and _pays("bmm") else nullcontext()


def linear(x, weight, bias):
    """``x @ weight.T + bias``, as torch.nn.functional.linear, on the faster library.

    Args:
        x: [..., in]. weight: [out, in]. bias: [out].
    """
    if torch.compiler.is_compiling() or not _applies(x) or not _pays("linear"):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        with onednn():
            return F.linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        dx = dw = db = None
        with onednn():
            if ctx.needs_input_grad[0]:
                dx = grad @ weight
            if ctx.needs_input_grad[1]:
                dw = rows.T @ x.reshape(-1, x.shape[-1])
        if ctx.needs_input_grad[2]:
            db = rows.sum(0)
        return dx, dw, db


def has_bfloat16():
    """Whether this CPU has instructions for bfloat16, which is slower than float32 without."""
    found = getattr(torch.cpu, "get_capabilities", dict)()
    native = any(found.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))  # Intel, AMD, ARM
    return native and torch.backends.mkldnn.is_available()


@cache
def largest_int8():
    """The largest weight whose products with int8 rows `torch._int_mm` adds up exactly.

    127, but 64 on a CPU without VNNI instructions, where the library moves the rows to 0 to 255
    and adds two products at a time in 16 bits: those hold 2 * 255 * 64, and are cut off above.
    """
    rows, weight = (torch.full(shape, 127, dtype=torch.int8) for shape in ((32, 64), (64, 32)))
    return 127 if (torch._int_mm(rows, weight) == 64 * 127**2).all() else 64


def choices():
    """For which kinds of products oneDNN is taken in this process."""
    return {kind: _pays(kind) for kind in ("linear", "bmm")}


@contextmanager
def chosen(choices):
    """Context with the `choices` of another process, whatever would be faster in this one."""
    before = dict(_chosen)
    try:
        _chosen.update(choices)
        _pays.cache_clear()
        yield
    finally:
        _chosen.clear()
        _chosen.update(before)
        _pays.cache_clear()


def _applies(x):
    if torch.is_autocast_enabled("cpu"):
        return False  # the products are then not of x's dtype
    return x.device.type == "cpu" and x.dtype == torch.float32


@contextmanager
def onednn():
    """Context in which float32 products run on oneDNN."""
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    # A CPU without AMX computes in float32 under this setting; `_pays` refuses one that does not.
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


@cache
def _pays(kind):
    """Whether oneDNN is as exact as the default and faster, told or measured once (20 ms)."""
    wanted = _chosen.get(kind, {"0": False, "1": True}.get(os.environ.get("LDT_ONEDNN")))
    if wanted is False or not torch.backends.mkldnn.is_available():
        return False
    run, exact = _probe(kind)
    with torch.no_grad():
        error = (run() - exact).abs().max()
        with onednn():
            rounded = (run() - exact).abs().max() > EXACT * error
        if rounded or wanted or (kind == "linear" and _held_back()):
            return not rounded  # not timed: a busy machine would make of the same seed other bits
        plain, other = [], []
        for _ in range(5):
            plain.append(_seconds(run))
            with onednn():
                other.append(_seconds(run))
    return min(other) * GAIN < min(plain)


def _held_back():
    """Whether MKL leaves AVX-512 of this CPU unused, which it does if Intel has not made it."""
    about = Path("/proc/cpuinfo")
    maker = about.read_text() if about.exists() else platform.processor()
    has_it = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_it and torch.backends.mkl.is_available() and "GenuineIntel" not in maker


def _probe(kind):
    """A product of a kind, of the size of a layer's: as a function, and its exact result."""
    generator = torch.Generator().manual_seed(0)
    if kind == "linear":
        x = torch.randn(512, 768, generator=generator)
        w = torch.randn(768, 768, generator=generator)
        return lambda: F.linear(x, w), x.double() @ w.double().T
    q = torch.randn(128, 12, 64, generator=generator).transpose(0, 1)
    k = torch.randn(640, 12, 64, generator=generator).permute(1, 2, 0)
    return lambda: torch.bmm(q, k), q.double() @ k.double()


def _seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
