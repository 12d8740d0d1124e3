"""Attention over packed documents; the implementation is a name in `BACKENDS`."""

from ldt.attention import reference
from ldt.attention.documents import Documents

__all__ = ["BACKENDS", "Documents", "backend", "band_attention", "global_rows"]

# Each has band_attention and global_rows with the arguments of reference.py.
BACKENDS = {"reference": reference}


def backend(name="auto"):
    """The module that computes: `auto` picks, a name gets that one or a ValueError."""
    if name == "auto":
        name = "reference"
    if name not in BACKENDS:
        raise ValueError(f"attention backend must be auto, {', '.join(BACKENDS)}, got {name!r}")
    return BACKENDS[name]


def band_attention(*args, backend_name="auto", **kwargs):
    return backend(backend_name).band_attention(*args, **kwargs)


def global_rows(*args, backend_name="auto", **kwargs):
    return backend(backend_name).global_rows(*args, **kwargs)
