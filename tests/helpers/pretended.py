"""A device that is not there: tensors that say they lie on it, though the CPU computes them.

Where kernels are interpreted, all tensors lie on the CPU, and one that a test forgot to move is
noticed by nobody but who has a GPU. Within `pretending`, a tensor that is moved to `DEVICE`, and
all that is computed of it, says ``device=DEVICE``; an operation of tensors of both devices raises,
and so does a launch that gets a tensor of the CPU.
"""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

# The type is that of tensors without memory: of those that need no driver, autograd knows it.
DEVICE = torch.device("meta")
aten = torch.ops.aten
# Operations that may read tensors of both devices: copies, and indices that the host holds.
BOTH = {
    aten._to_copy.default,
    aten.copy_.default,
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
}


class There(torch.Tensor):
    """A tensor of the CPU, ``inner``, that says it lies on `DEVICE`."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __repr__(self):
        return f"There({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})

    def tolist(self):
        return self.inner.tolist()


def run(function, args, kwargs):
    """An operation on what the tensors hold; its results are where its tensors were."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    moved = [x for x in tensors if isinstance(x, There)]
    forgotten = [x for x in tensors if not isinstance(x, There) and x.dim()]
    if moved and forgotten and function not in BOTH:
        raise RuntimeError(
            f"{function} got tensors of {list(moved[0].shape)} on the kernels' device and of "
            f"{list(forgotten[0].shape)} on the CPU"
        )
    wanted = kwargs.get("device")
    device = bool(moved) if wanted is None else torch.device(wanted).type == DEVICE.type
    if function is aten.copy_.default:
        device = isinstance(args[0], There)
    if wanted is not None and device:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner = tree_map(bare, (args, kwargs))
    found = function(*inner[0], **inner[1])
    if not device:
        return found
    found = tree_map(lambda x: There(x) if isinstance(x, torch.Tensor) else x, found)
    return return_and_correct_aliasing(function, args, kwargs, found)


def bare(x):
    """What a tensor of `DEVICE` holds; anything else as it is."""
    return x.inner if isinstance(x, There) else x


class Pretending(TorchDispatchMode):
    """Runs what makes tensors on `DEVICE` of nothing."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


@contextmanager
def pretending():
    """Context in which there is a `DEVICE`, and kernels take tensors of no other."""
    from triton.runtime.interpreter import GridExecutor

    launch, autocast, tensor = GridExecutor.__call__, torch.autocast, torch.tensor

    def checked(self, *args, **kwargs):
        for name, x in [*zip(self.arg_names, args, strict=False), *kwargs.items()]:
            if isinstance(x, torch.Tensor) and not isinstance(x, There):
                raise RuntimeError(f"{self.fn.__name__} got {name} on the CPU")
        return launch(self, *map(bare, args), **{k: bare(x) for k, x in kwargs.items()})

    def autocast_on(device_type, *args, **kwargs):
        return autocast("cpu" if device_type == DEVICE.type else device_type, *args, **kwargs)

    def moved_tensor(data, *, device="cpu", **kwargs):
        return tensor(data, **kwargs).to(device)  # of a list, the real device makes no numbers

    with (
        patch.object(GridExecutor, "__call__", checked),
        patch.object(torch, "autocast", autocast_on),
        patch.object(torch, "tensor", moved_tensor),
        Pretending(),
    ):
        yield
