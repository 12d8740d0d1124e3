"""Attention over packed documents. An implementation is a name in `BACKENDS`."""

from ldt.attention import blocked, reference
from ldt.attention.documents import Documents
from ldt.attention.probabilities import band_probabilities, global_probabilities

__all__ = [
    "BACKENDS",
    "Documents",
    "band_attention",
    "band_probabilities",
    "global_probabilities",
    "global_rows",
]

# Each has band_attention and global_rows as reference.py defines them.
BACKENDS = {"reference": reference, "blocked": blocked}


def band_attention(q, k, v, documents, *, window, dropout=0.0, seed=0, backend="auto"):
    """`reference.band_attention` by the named backend; `auto` takes the fastest exact one."""
    _check_window(window)
    run = _backend(backend).band_attention
    return run(q, k, v, documents, window=window, dropout=dropout, seed=seed)


def global_rows(q, x, key, value, documents, *, dropout=0.0, seed=0, backend="auto"):
    """`reference.global_rows` by the named backend; `auto` takes the fastest exact one."""
    run = _backend(backend).global_rows
    return run(q, x, key, value, documents, dropout=dropout, seed=seed)


def _backend(name):
    if name == "auto":
        return blocked
    if name not in BACKENDS:
        raise ValueError(f"attention backend must be auto, {', '.join(BACKENDS)}, got {name!r}")
    return BACKENDS[name]


def _check_window(window):
    if window < 2 or window % 2:
        raise ValueError(f"attention_window must be even and at least 2, got {window}")
