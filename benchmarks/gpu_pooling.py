"""What a second level costs beside a first one: attention alone, at one length."""

import torch

from ldt.attention import POOLINGS, pooled_attention, sliding_window_attention
from ldt.bench import operations
from ldt.bench.measure import cuda_peak_mib, medians

SIZE, STRIDE = 5, 4  # tokens in a cell, and from the start of one to that of the next


def level_row(tokens, kind, setting, rounds):
    """Seconds and MiB of a window and of second levels of the same reach, and of a quarter of it.

    Args:
        tokens: of the one document.
        kind: forward or training.
        setting: of the operations; its window is that of the second level.
        rounds: calls of each that are timed, in turn.
    """
    given = operations.Given(setting, tokens, kind == "training")
    calls = {
        f"window {window}": band(given, window) for window in (setting.window, setting.window // 4)
    }
    calls |= {f"level 2, {name}": level(given, name) for name in POOLINGS}
    runs = {name: lambda f=operation: f.run(kind) for name, operation in calls.items()}
    memory = {
        n: cuda_peak_mib(run) if setting.device == "cuda" else None for n, run in runs.items()
    }
    seconds = medians(runs, rounds, setting.device)
    return {"tokens": tokens, "pass": kind, "seconds": seconds, "mib": memory}


def band(given, window, backend="auto", dropout=0.0):
    """The sliding window alone."""
    q, k, v = given.packed
    how = {"window": window, "backend": backend, "dropout": dropout}
    call = lambda: sliding_window_attention(q, k, v, given.layout, **how)  # noqa: E731
    return operations.Operation(call, (q, k, v), torch.randn_like(q))


def level(given, pooling, backend="auto", dropout=0.0):
    """The second level alone: pooling, and attention to its cells."""
    q, k, v = given.packed
    setting, leaves = given.setting, [q, k, v]
    weight = POOLINGS[pooling].initial(setting.heads, setting.dim, SIZE)
    if weight is not None:
        weight = weight.to(q.device, q.dtype).requires_grad_(given.training)
        leaves.append(weight)
    how = {"pooling": pooling, "size": SIZE, "stride": STRIDE, "window": setting.window}
    how |= {"backend": backend, "dropout": dropout}
    call = lambda: pooled_attention(q, k, v, weight, given.layout, **how)  # noqa: E731
    return operations.Operation(call, tuple(leaves), torch.randn_like(q))
