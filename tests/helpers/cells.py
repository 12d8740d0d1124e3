"""For the tests of the pooled level: the cells of a batch one by one, and runs with gradients."""

import torch
from patterns import rand

from ldt.attention import POOLINGS
from ldt.attention.cells import Cells


def cells_by_hand(layout, size, stride):
    """[(document, start, kept tokens)] of all cells, in order."""
    found, borders = [], layout.cu_seqlens_host
    kept = (
        [True] * layout.total_tokens
        if layout.key_padding_mask is None
        else layout.key_padding_mask.tolist()
    )
    for d in range(len(borders) - 1):
        tokens = [i for i in range(borders[d], borders[d + 1]) if kept[i]]
        start = tokens[0] if tokens else borders[d + 1]
        while start < borders[d + 1]:
            inside = [i for i in tokens if start <= i < start + size]
            if inside:
                found.append((d, start, inside))
            start += stride
    return found


def pool_weight(pooling, size, heads, dim, generator, dtype=torch.float64, rounded=torch.float64):
    """A random weight of a pooling, None for those that have none.

    Its numbers are of variance 1 / dim, so that products with a token are of about 1, as scores
    are. At variance 1 scores reach 30, which float32 holds to 1e-6, and their sums of ``dim``
    products are off by up to 1e-5 in any order: two exact softmaxes then differ by more than
    twice the error of one of them.
    """
    initial = POOLINGS[pooling].initial(heads, dim, size)
    return (
        None
        if initial is None
        else rand(
            *initial.shape, generator=generator, dtype=dtype, scale=dim**-0.5, rounded=rounded
        )
    )


def pooled(
    module,
    layout,
    generator,
    pooling,
    size,
    stride,
    dtype=torch.float64,
    heads=2,
    dim=4,
    rounded=torch.float64,
    **how,
):
    """Output of a module's two functions together, and all gradients."""
    shape, kind = (layout.total_tokens, heads, dim), {"dtype": dtype, "rounded": rounded}
    q, k, v, up = (rand(*shape, generator=generator, **kind) for _ in range(4))
    weight = pool_weight(pooling, size, heads, dim, generator, **kind)
    cells = Cells(layout, size, stride)
    keys, values = module.pool(pooling, k, v, weight, cells)
    out = module.cell_attention(q, keys, values, cells, **how)
    leaves = [q, k, v] if weight is None else [q, k, v, weight]
    return out, keys, values, *torch.autograd.grad(out, leaves, up)
