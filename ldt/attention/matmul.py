"""Matrix products on the CPU by MKL or oneDNN, whichever is faster there and as exact."""

import os
import platform
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ldt.attention.derivatives import transformed

SPEEDUP = 1.3  # that oneDNN must reach: more than noise makes of equal speeds
EXACT = 4.0  # largest error of oneDNN, in errors of the default library
# Attributes of a module that hold its hooks.
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"

_switch = threading.Lock()
_open: list[str] = []  # for each context that is open in any thread, what was set before
_chosen: dict[str, bool] = {}  # kind of product -> True for oneDNN, without a probe


@contextmanager
def fast_matmul(x):
    """Context manager for batched products of ``wide(x)``: they run on the faster library, and
    without autocast, which would round them. ``x`` is the tensor before `ldt.attention.block.wide`,
    which the caller applies; only its device and dtype count.

    For bfloat16 on a CPU that is oneDNN, where it loses nothing: both factors hold bfloat16 values,
    and sums are float32. For float32 and float16 a probe at first use decides, as MKL, torch's
    default, holds its AVX-512 code back on CPUs of other makers; LDT_ONEDNN overrides it (0: never,
    1: always), except where oneDNN would round to bfloat16, as on a CPU with AMX: there the default
    stays. For float64 and on other devices autocast alone is turned off. The libraries add in
    different orders, so bit-identical runs need the same choice: `chosen`. The switch is a
    process-wide torch setting, restored at exit; other threads may briefly see it.
    """
    device, autocast = x.device.type, nullcontext()
    if torch.is_autocast_enabled(device):
        autocast = torch.autocast(device, enabled=False)
    pays = device == "cpu" and (
        x.dtype == torch.bfloat16 or (x.dtype != torch.float64 and _pays("bmm"))
    )
    with autocast, onednn() if pays else nullcontext():
        yield


def linear(x, weight, bias):
    """``x @ weight.T + bias`` on the faster library, as torch.nn.functional.linear; x is [..., in],
    weight [out, in], and bias [out] or None."""
    if torch.compiler.is_compiling() or transformed() or not _applies(x) or not _pays("linear"):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class Linear(nn.Linear):
    """Linear layer that computes by `linear`; all parts of an encoder use it."""

    def forward(self, x):
        """Return ``x @ weight.T + bias``, [..., out] of x [..., in]."""
        return linear(x, self.weight, self.bias)


def foldable(module: nn.Module):
    """(weight, bias) of a module if calling it is only a product with them, so that it may be
    folded into other products; else the module itself, to be called. A layer without a bias is
    never folded."""
    if not is_plain(module) or module.bias is None:
        return module
    return module.weight, module.bias


def is_plain(module: nn.Module) -> bool:
    """True if calling a module only multiplies by its weight and adds its bias, as it does without
    hooks, adapters, parametrizations, quantised weights and a ``forward`` of the instance."""
    if type(module) not in (Linear, nn.Linear) or hooked(module):
        return False
    return not is_traceable_wrapper_subclass(module.weight)


def project(projection, x):
    """``x`` [..., in] through a projection: a function, or the (weight, bias) of `foldable`."""
    return projection(x) if callable(projection) else linear(x, *projection)


def project_each(modules, x):
    """Yield the projections [..., out] of ``x`` by modules, one after the other.

    On CUDA they are one product with the weights one below the other, if each of the modules is
    `foldable`: the parameters stay apart, and get their own part of its gradient.

    Args:
        modules: sequence of linear layers of one width.
        x: function that returns x [..., in]; called once for each product.
    """
    folded = [foldable(module) for module in modules]
    if any(map(callable, folded)) or not _joins(folded[0][0]):
        for module in modules:
            yield module(x())
        return
    weights, biases = zip(*folded, strict=True)
    joined = linear(x(), torch.cat(weights), torch.cat(biases))
    yield from joined.split([len(weight) for weight in weights], dim=-1)


def _joins(weight):
    """True where one large product, and a copy of the weights for it, take less than small ones: on
    CUDA, where these leave a part of the GPU idle. The CPU keeps its products, and their bits."""
    return weight.device.type == "cuda"


def divisible(module: nn.Module, x: torch.Tensor) -> bool:
    """True if a module may be given rows of x separately, and in threads of their own: on a CPU,
    where nothing is kept for a backward pass, outside of training, whose dropout is drawn in an
    order that a recomputation has to meet, and without hooks, which may count calls."""
    if x.device.type != "cpu" or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling() or transformed():
        return False
    return not any(part.training or hooked(part) for part in module.modules())


def hooked(module: nn.Module) -> bool:
    """True if calling a module runs more than the ``forward`` of its class: a hook of its own or
    for all modules, or a ``forward`` of the instance."""
    state = vars(module)
    return any(state[name] for name in HOOKS) or _has_any_global_hook() or "forward" in state


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        # x is kept, or computed again, for the weight's gradient alone.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        with onednn():
            return F.linear(x, weight, bias)

    @staticmethod
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
    """True if this CPU has instructions for bfloat16, which is slower than float32 without."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    names = "amx_bf16", "avx512_bf16", "bf16"  # Intel, AMD, ARM
    native = any(capabilities.get(name) for name in names)
    return native and torch.backends.mkldnn.is_available()


def choices() -> dict[str, bool]:
    """Choice of library by kind of product, {"linear": ..., "bmm": ...}: True where this process
    takes oneDNN. The first call may measure, for 20 ms."""
    return {kind: _pays(kind) for kind in ("linear", "bmm")}


@contextmanager
def chosen(choices: dict[str, bool]):
    """Context manager with the dict of `choices` of another process in place of those of
    this one."""
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
        return False  # products then run in autocast's dtype, not in x's
    return x.device.type == "cpu" and x.dtype == torch.float32


@contextmanager
def onednn():
    """Context manager in which float32 matrix products run on oneDNN, in all threads, until the
    last exit."""
    settings = torch.backends.mkldnn.matmul
    with _switch:
        # Who comes first keeps what was set, who goes last sets it again.
        _open.append(_open[0] if _open else settings.fp32_precision)
        # torch sends float32 products to oneDNN under this setting only. A CPU without AMX computes
        # them in float32 even so; `_pays` refuses one that rounds.
        settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _switch:
            before = _open.pop()
            if not _open:
                settings.fp32_precision = before


@cache
def _pays(kind):
    """True if oneDNN is as exact as the default library and faster; measured once, in 20 ms."""
    wanted = _chosen.get(kind, {"0": False, "1": True}.get(os.environ.get("LDT_ONEDNN")))
    if wanted is False or not torch.backends.mkldnn.is_available():
        return False
    run, exact = _probe(kind)
    with torch.no_grad():
        error = (run() - exact).abs().max()
        with onednn():
            rounded = (run() - exact).abs().max() > EXACT * error
        if rounded or wanted or (kind == "linear" and _held_back()):
            # Not timed: on a busy machine the choice, and with it the bits of a run, would vary.
            return not rounded
        default_times, onednn_times = [], []
        for _ in range(5):
            default_times.append(seconds(run))
            with onednn():
                onednn_times.append(seconds(run))
    return min(onednn_times) * SPEEDUP < min(default_times)


def _held_back():
    """True if MKL leaves AVX-512 of this CPU unused, as it does on CPUs of other makers."""
    cpuinfo = Path("/proc/cpuinfo")
    maker = cpuinfo.read_text() if cpuinfo.exists() else platform.processor()
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_avx512 and torch.backends.mkl.is_available() and "GenuineIntel" not in maker


def _probe(kind):
    """A function that runs a product as large as a layer's, and its result in float64."""
    generator = torch.Generator().manual_seed(0)
    if kind == "linear":
        x = torch.randn(512, 768, generator=generator)
        w = torch.randn(768, 768, generator=generator)
        return lambda: F.linear(x, w), x.double() @ w.double().T
    q = torch.randn(128, 12, 64, generator=generator).transpose(0, 1)
    k = torch.randn(640, 12, 64, generator=generator).permute(1, 2, 0)
    return lambda: torch.bmm(q, k), q.double() @ k.double()


def seconds(run):
    """Time of one call of ``run``, in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
