"""Calls that the GPU suite times: the attention's parts, and what stands around it in a layer."""

from functools import partial

import torch

from ldt.attention import (
    POOLINGS,
    Layout,
    fill_global_rows,
    pooled_attention,
    sliding_window_attention,
)

CELLS = {"size": 5, "stride": 4}  # tokens in a cell, and from the start of one to the next


def tensors(lengths, sizes, training):
    """q, k, v [tokens, heads, dim], x [tokens, width], and the layout of documents whose first
    tokens are global."""
    total, device = sum(lengths), sizes.device
    heads = sizes.width // 64
    generator = torch.Generator(device).manual_seed(0)
    kind = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    q, k, v = (torch.randn(total, heads, 64, **kind).requires_grad_(training) for _ in range(3))
    x = torch.randn(total, sizes.width, **kind).requires_grad_(training)
    borders = torch.tensor([0, *lengths]).cumsum(0)
    is_global = torch.zeros(total, dtype=torch.bool)
    is_global[borders[:-1]] = True
    layout = Layout(borders.to(device), None, is_global.to(device), total, len(lengths))
    return q, k, v, x, layout


def attention(q, k, v, x, layout, dropout):
    """Calls of the band, dilated and not, with the global rows, and of a second level."""
    how = {"dropout": dropout, "seed": 1, "backend": "triton"}
    weight = torch.eye(x.shape[1], device=x.device, dtype=x.dtype)
    project = weight, weight.new_zeros(len(weight))
    band = partial(sliding_window_attention, q, k, v, layout, window=512, **how)
    calls = {"band": band, "band, dilation 4": partial(band, dilation=4)}
    calls["band and global rows"] = lambda: fill_global_rows(
        band(), x, project, project, project, layout, **how
    )
    for name in POOLINGS:
        shape = POOLINGS[name].initial(q.shape[1], q.shape[2], CELLS["size"])
        shape = None if shape is None else shape.to(q.device, q.dtype)
        level = {"pooling": name, "window": 512, **CELLS, **how}
        calls[f"second level, {name}"] = partial(pooled_attention, q, k, v, shape, layout, **level)
    return calls


def pointwise(total, sizes, training):
    """(call, leaves) of what stands around the attention in a layer, by torch's kernels."""
    kind = {"device": sizes.device, "dtype": torch.bfloat16, "requires_grad": training}
    x, y = (torch.randn(total, sizes.width, **kind) for _ in range(2))
    wide = torch.randn(total, 4 * sizes.width, **kind)
    scale = torch.ones(sizes.width, **kind)
    norm = partial(torch.nn.functional.layer_norm, normalized_shape=(sizes.width,), weight=scale)
    return {
        "add and norm": (lambda: norm(x + y, bias=scale), (x, y, scale)),
        "gelu": (lambda: torch.nn.functional.gelu(wide), (wide,)),
    }


def norms(total, dropout, sizes, training):
    """Calls of the kernels around the attention in a layer, those of one pass alone; in bfloat16,
    and as under autocast."""
    from ldt.attention.triton import norms

    kind = {"device": sizes.device, "dtype": torch.bfloat16}
    x, y = (torch.randn(total, sizes.width, **kind) for _ in range(2))
    wide, slope = (torch.randn(total, 4 * sizes.width, **kind) for _ in range(2))
    scale, shift, eps = *torch.ones(2, sizes.width, **kind), 1e-5
    seed = torch.ones((), dtype=torch.int64, device=sizes.device) if dropout else None
    low, wider = torch.bfloat16, (x.float(), y.float(), scale.float(), shift.float())
    end, autocast = (
        norms.End(x.shape, x.get_device(), dtype, low, eps, dropout, 4 * sizes.width)
        for dtype in (low, torch.float32)
    )
    if not training:
        stream = y, shift, x, scale, shift, seed
        return {
            "norm": partial(end.forward, *stream),
            "norm, sum kept": partial(end.forward, *stream, keep=True),
            "norm, autocast": partial(
                autocast.forward, y, shift, wider[0], *wider[2:], seed, keep=True
            ),
        }
    parts = norms.sums_of(y, 4 * sizes.width)
    of_end = x, y, scale, shift, seed, parts
    return {
        "norm backward": partial(end.backward, *of_end),
        "norm backward, output again": partial(end.backward, *of_end, want_out=True),
        "norm backward, autocast": partial(autocast.backward, *wider, seed, parts),
        "norm again": partial(norms.again, x, scale, shift, eps, low),
        "gelu backward": partial(norms.gelu_backward, wide, wide[0], slope, parts),
        "sums over tokens": partial(norms.added, parts, *y.shape, low),
    }
