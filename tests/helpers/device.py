"""The device of the kernels: a GPU where there is one, else the CPU, which interprets them.

Definitions run on the CPU in float64. What a kernel gets is moved with `there`, and what it gives
comes back with `here`.
"""

import torch

from ldt.attention import Layout
from ldt.attention.pooled.cells import Cells

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def there(x):
    """``x`` on the device of the kernels: a tensor, `Layout`, `Cells`, or None, or a tuple, list
    or dictionary of them; anything else as it is."""
    if isinstance(x, torch.Tensor):
        return x.to(DEVICE)
    if isinstance(x, Layout):
        return x.to(DEVICE)
    if isinstance(x, Cells):
        return Cells(x.layout.to(DEVICE), x.size, x.stride)
    if isinstance(x, dict):
        return {name: there(one) for name, one in x.items()}
    return type(x)(map(there, x)) if isinstance(x, tuple | list) else x


def here(x):
    """A tensor, or a tuple of tensors and None, on the CPU."""
    if isinstance(x, tuple):
        return tuple(map(here, x))
    return x.cpu() if isinstance(x, torch.Tensor) else x


def on_device(call):
    """``call`` for arguments on the CPU: they go there, and what it returns comes back."""

    def run(*args, **how):
        return here(call(*there(args), **there(how)))

    return run
