"""Attention by the Triton kernels, on CUDA.

Each function is `reference`'s of its name, forward and backward in fused kernels; it raises a
ValueError for tensors that no kernel takes, with the backend that does. Triton is imported on first
use, so the package works where it is not installed.
"""

from importlib import import_module


def _later(module, name):
    """A function of a module of this package that is imported when it is called."""

    def call(*arguments, **options):
        return getattr(import_module(f"{__name__}.{module}"), name)(*arguments, **options)

    return call


sliding_window_attention = _later("attention", "sliding_window_attention")
projected_global_attention = _later("attention", "projected_global_attention")
full_attention = projected_global_attention
cell_attention = _later("attention", "cell_attention")
global_attention = _later("rows", "global_attention")
pool = _later("pooling", "pool")
