"""Products of whole numbers of 8 bits on the CPU: exact sums, by whichever way is fast there."""

from functools import cache, partial
from typing import NamedTuple

import torch

from ldt.attention.matmul import seconds

SPEEDUP = 3.0  # by which packed weights must be faster: more than noise makes of equal speeds


class Packed(NamedTuple):
    """A weight in the layout of oneDNN's products, and the scales and zeros that these want."""

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor


def packed(weight):
    """A weight [in, out] int8 for `product`; None where it is fast as it is.

    Without VNNI instructions `torch._int_mm` takes 60 times as long as a product in float32, while
    oneDNN's product with a weight that it has laid out itself is faster than that.
    """
    return _pack(weight) if _packing_pays() else None


def product(rows, weight, layout=None):
    """rows [n, in] int8 by a weight [in, out] int8: [n, out] float32, rounded from exact sums.

    Args:
        layout: the weight `packed`.
    """
    if layout is None:
        return torch._int_mm(rows, weight).float()
    float32 = torch.float32, "none", [], ""  # of the output, with nothing done to it
    return torch.ops.onednn.qlinear_pointwise(rows, 1.0, 0, *layout, None, 1.0, 0, *float32)


@cache
def largest():
    """The largest weight whose products with int8 rows are added up exactly.

    127, but 64 on a CPU without VNNI instructions, where the library moves the rows to 0 to 255
    and adds two products at a time in 16 bits: those hold 2 * 255 * 64, and are cut off above.
    """
    rows, weight = (torch.full(shape, 127, dtype=torch.int8) for shape in ((32, 64), (64, 32)))
    return 127 if (product(rows, weight, packed(weight)) == 64 * 127**2).all() else 64


@cache
def _packing_pays():
    rows, weight = (torch.ones(shape, dtype=torch.int8) for shape in ((64, 256), (256, 256)))
    try:
        layout = _pack(weight)
        product(rows, weight, layout)
    except (AttributeError, RuntimeError):  # of a torch without oneDNN
        return False
    plain, packed = (
        min(seconds(partial(product, rows, weight, each)) for _ in range(3))
        for each in (None, layout)
    )
    return plain > SPEEDUP * packed


def _pack(weight):
    outputs = weight.shape[1]
    layout = torch.ops.onednn.qlinear_prepack(weight.T.contiguous(), None)
    return Packed(layout, torch.ones(outputs), torch.zeros(outputs, dtype=torch.int64))
