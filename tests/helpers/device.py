"""The device of the kernels: a GPU where there is one, else one that `pretended` makes of the CPU.

Definitions run on the CPU in float64. What a kernel gets is moved with `there`, and what it gives
comes back with `here`; `on_device` does both. The device that is pretended is there in tests that
have the fixture ``kernels_device``; compilers trace graphs of `PLAIN` tensors, of real devices.
"""

from functools import wraps

import pretended
import torch

from ldt.attention import Layout
from ldt.attention.cells import Cells

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if HAS_GPU else pretended.DEVICE
PLAIN = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")


def there(x, device=DEVICE):
    """``x`` on the device of the kernels: a tensor, `Layout`, `Cells`, or a tuple, list or
    dictionary of them; anything else as it is."""
    if isinstance(x, torch.Tensor | Layout):
        return x.to(device)
    if isinstance(x, Cells):
        return Cells(x.layout.to(device), x.size, x.stride)
    if isinstance(x, dict):
        return {name: there(one, device) for name, one in x.items()}
    return type(x)(there(one, device) for one in x) if isinstance(x, tuple | list) else x


def here(x):
    """A tensor, or a tuple of them, on the CPU."""
    if isinstance(x, tuple):
        return tuple(map(here, x))
    return x.cpu() if isinstance(x, torch.Tensor) else x


def on_device(call):
    """``call`` for arguments on the CPU: they go there, and what it returns comes back."""

    @wraps(call)
    def run(*args, **how):
        return here(call(*there(args), **there(how)))

    return run
