"""A model without memory: its shapes, before anything is allocated that a config asks for."""

import psutil
import torch
from transformers.initialization import no_init_weights

from ldt.errors import ModelError, ResourceError, ShapeError, listed

TRAINED = 4  # times its weights: they, their gradients and the two moments of Adam


def skeleton(cls, config, *args, **kwargs):
    """The model of a class on torch's meta device; draws no random number."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), no_init_weights():
        return cls(config, *args, **kwargs)


def require_memory(cls, config, where):
    """Raise ResourceError if this machine cannot hold a new model with what trains it.

    Args:
        where: the beginning of the message.
    """
    size = 4 * sum(weight.numel() for weight in skeleton(cls, config).parameters())
    size *= 1 if torch.cuda.is_available() else TRAINED
    memory = psutil.virtual_memory().total
    if size > memory:
        raise ResourceError(
            f"{where}: the model needs {size / 2**30:,.0f} GiB of memory, this machine has "
            f"{memory / 2**30:,.0f}; a smaller vocabulary, hidden_size or max_length needs less"
        )


def check_shapes(folder, cls, config, args, state_dict, new_head):
    """Raise ShapeError for weights of another shape than those that a config describes.

    What does not fit would be made anew, as large as the config says.

    Args:
        folder: for the message.
        args: further ones of the class.
        state_dict: tensors by name, without the encoder's prefix.
        new_head: whether other shapes outside of the encoder are a head to be trained.
    """
    model = skeleton(cls, config, *args)
    prefix = f"{model.base_model_prefix}."
    children = (name for name, _ in model.base_model.named_children())
    inside = tuple(f"{name}." for name in children if name != "pooler")  # part of a head
    other = []
    for name, expected in model.state_dict().items():
        tensor = state_dict.get(name.removeprefix(prefix))
        if tensor is None or tensor.shape == expected.shape:
            continue
        if not new_head or name.removeprefix(prefix).startswith(inside):
            other.append(f"{name} is {list(tensor.shape)}, by config.json {list(expected.shape)}")
    if other:
        raise ShapeError(
            f"{folder}: weights of another shape: {listed(sorted(other), most=4, show=str)}"
        )


def check_finite(folder, model):
    """Raise ModelError for weights that are not finite: the answers would not be either."""
    for name, weight in model.named_parameters():
        # The ends and not the sum, which would be taken of a copy in float64.
        if weight.numel() and not all(map(torch.isfinite, weight.detach().aminmax())):
            raise ModelError(f"{folder}: {name} holds numbers that are not finite")
