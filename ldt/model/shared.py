"""Lowered weights that several processes share: one of them lowers, all map what it wrote. Linux.

The memory is a file without a name, of `os.memfd_create`, which is gone with its last process.
"""

import fcntl
from copy import deepcopy
from itertools import chain

import torch
from torch import nn

from ldt.model.precision import lower, lowered

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def lowered_in(model, precision, memory):
    """`ldt.model.precision.lowered`, with the weights that it makes in memory of all processes.

    The first process that comes writes them and seals the memory; others wait for that. Where it
    dies in the middle, the memory has no seal, and the next one writes anew.

    Args:
        memory: descriptor of a file of `os.memfd_create` that can be sealed, one a model and
            precision, empty at first.
    """
    named = dict(_named(model))
    path = f"/proc/self/fd/{memory}"
    with open(path, "r+b") as file:  # a description of its own, so that the lock is one as well
        fcntl.flock(file, fcntl.LOCK_EX)
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
            tensors = {
                name: tensor.detach()
                for name, tensor in _named(lowered(model, precision))
                if name not in named or named[name].data_ptr() != tensor.data_ptr()
            }
            file.truncate(0)
            torch.save(tensors, file)
            del tensors
            file.flush()
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    weights = named | torch.load(path, mmap=True, weights_only=True)
    # A copy without memory is lowered for its shape, and gets the weights.
    memo = {id(each): _without_memory(each) for each in named.values()}
    copy = deepcopy(model, memo)
    lower(copy, precision)
    for name, empty in list(_named(copy)):
        holder, _, leaf = name.rpartition(".")
        tensor = weights[name].detach()
        if isinstance(empty, nn.Parameter):
            tensor = nn.Parameter(tensor, empty.requires_grad)
        setattr(copy.get_submodule(holder), leaf, tensor)
    return copy


def _named(model):
    """Names and tensors of a module, a tensor of several names under each of them."""
    every = {"remove_duplicate": False}
    return chain(model.named_parameters(**every), model.named_buffers(**every))


def _without_memory(tensor):
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, tensor.requires_grad)
    return empty
