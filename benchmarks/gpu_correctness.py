"""Is every backend right on this GPU: outputs, gradients, the same bits twice."""

from functools import partial

import torch

from ldt.attention import BACKENDS, Documents, reference

# lengths, window, dim of a head, and what else the pattern has
CASES = (
    ((700, 1, 333), 128, 64, {}),
    ((257,), 512, 32, {}),
    ((1000,), 64, 128, {}),
    ((900, 300), 128, 64, {"dilation": (1, 2, 5)}),
    ((1100,), 256, 80, {"causal": True, "dilation": (1, 1, 3)}),
    ((513, 64), 126, 64, {"dropout": 0.2, "seed": 3}),
)
BAND = ("out", "dq", "dk", "dv")
ROWS = ("out", "dq", "dx", "dwk", "dwv", "dbv")


def correctness(device, dtypes, cases=CASES):
    """Largest error of every backend against the dense float64 definition, and what is allowed.

    Allowed is twice the error of the dense definition in the tested dtype, as in the tests.

    Returns:
        A row for each case, dtype, backend and operation; ``ok`` says whether all is well.
    """
    names = [name for name in BACKENDS if name != "triton" or device == "cuda"]
    rows = []
    for lengths, window, dim, rest in cases:
        causal = rest.get("causal", False)
        docs = documents(lengths, device, has_globals=not causal)
        pattern = {"window": window} | rest
        runs = {"band": partial(band, documents=docs, dim=dim, pattern=pattern)}
        drop = {key: rest[key] for key in ("dropout", "seed") if key in rest}
        for share in () if causal else (0.01, 0.3):  # few are folded, many projected
            docs = documents(lengths, device, share)
            runs[f"rows-{share}"] = partial(rows_of, documents=docs, dim=dim, drop=drop)
        for operation, run in runs.items():
            exact = run(reference, dtype=torch.float64)
            for dtype in dtypes:
                dense = run(reference, dtype=dtype)
                for name in names:
                    ours, again = (run(BACKENDS[name], dtype=dtype) for _ in range(2))
                    found = compare(operation, exact, dense, ours, dtype)
                    same = all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
                    rows.append(
                        {
                            "operation": operation,
                            "backend": name,
                            "dtype": str(dtype).removeprefix("torch."),
                            "lengths": lengths,
                            "window": window,
                            "dim": dim,
                            **rest,
                            "error_over_allowed": found,
                            "same_bits_twice": same,
                            "ok": all(x <= 1 for x in found.values())
                            and (same or name != "triton"),
                        }
                    )
    return rows


def compare(operation, exact, dense, ours, dtype):
    """{tensor: largest error as a share of what is allowed}."""
    found = {}
    names = BAND if operation == "band" else ROWS
    for name, true, a, b in zip(names, exact, ours, dense, strict=True):
        allowed = 2 * largest(b - true) + torch.finfo(dtype).eps * largest(true)
        found[name] = largest(a - true) / allowed if allowed else float(largest(a - true) > 0)
    return found


def largest(x):
    return x.abs().max().item()


def documents(lengths, device, share=0.01, has_globals=True):
    """Documents with a few holes and a ``share`` of global tokens."""
    generator = torch.Generator().manual_seed(0)
    total = sum(lengths)
    keep = torch.rand(total, generator=generator) < 0.97
    is_global = (torch.rand(total, generator=generator) < share) & keep
    is_global[0] = keep[0] = True
    borders = torch.tensor([0, *lengths]).cumsum(0)
    is_global = is_global.to(device) if has_globals else None
    return Documents(borders.to(device), keep.to(device), is_global, total)


def normals(shapes, dtype, device):
    """Unit normals of these shapes, the same numbers in every dtype; they ask for gradients."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for shape in shapes
    ]


def band(module, documents, dim, dtype, pattern, heads=3):
    """Output, dq, dk, dv in float64 of a band computed in ``dtype``."""
    device = documents.cu_seqlens.device
    *leaves, up = normals([(documents.total, heads, dim)] * 4, dtype, device)
    out = module.band_attention(*leaves, documents, **pattern)
    return [x.double() for x in (out, *torch.autograd.grad(out, leaves, up))]


def rows_of(module, documents, dim, dtype, drop, heads=3):
    """Output and gradients in float64 of the global rows computed in ``dtype``."""
    width, count = heads * dim, len(documents.global_index)
    device = documents.cu_seqlens.device
    shapes = [(count, heads, dim), (documents.total, width)]
    shapes += [(width, width), (width,)] * 2 + [(count, heads, dim)]
    q, x, wk, bk, wv, bv, up = normals(shapes, dtype, device)
    wk, wv = (w.detach().div(width**0.5).requires_grad_() for w in (wk, wv))
    out = module.global_rows(q, x, (wk, bk), (wv, bv), documents, **drop)
    found = torch.autograd.grad(out, (q, x, wk, wv, bv), up)
    return [x.double() for x in (out, *found)]
