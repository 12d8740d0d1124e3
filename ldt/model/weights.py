"""Read the tensors of a model folder, in memory or memory-mapped, and check their shapes."""

import logging
import os
import pickle
import re
from math import prod
from pathlib import Path
from zipfile import is_zipfile

import psutil
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers.initialization import no_init_weights

from ldt.errors import ModelError, ResourceError, ShapeError, first_line, listed
from ldt.model import sentence_transformers
from ldt.model.config_file import read_json
from ldt.model.encoders import ENCODERS, SEQ2SEQ, encoder_class

log = logging.getLogger("ldt")

WEIGHTS = (  # the first of them that is there counts
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
UNNAMED = "LABEL_"  # transformers' names of a head's outputs that nobody named
_ROWS = re.compile(r"(type_)?classifier(\.out_proj)?\.(weight|bias)")  # of a head: one a label
_AUTHORS_PREFIXES = ("roberta.", "model.")  # of the base in the files of Longformer's authors
_OLD_BUFFER = "embeddings.position_ids"
TRAINED = 4  # times its weights: they, their gradients and the two moments of Adam


def weight_files(folder: Path) -> list[Path]:
    """Weight files of a folder: one file, or the shards named in its index.

    Raises:
        ModelError: there are none, or the index names a file that is missing or outside the folder.
    """
    for name in WEIGHTS:
        file = folder / name
        if file.is_file():
            break
    else:
        raise ModelError(
            f"{folder}: no weights (model.safetensors or pytorch_model.bin); "
            f"ldt convert SOURCE {folder} makes a model there"
        )
    if not name.endswith(".index.json"):
        return [file]
    try:
        shards = sorted(set(read_json(file)["weight_map"].values()))
    except (KeyError, AttributeError, TypeError):
        raise ModelError(f"{file}: no weight_map of names to files") from None
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard or "\\" in shard:
            raise ModelError(f"{file}: {shard!r} is not a file of this folder and is not read")
        if not (folder / shard).is_file():
            raise ModelError(f"{folder}: {shard} is missing, which {name} names")
    return [folder / shard for shard in shards]


def read_weights(folder: Path, *, mapped: bool = False):
    """Read the tensors of a folder, {name without the encoder's prefix: tensor}, on the CPU.

    Args:
        folder: folder of the model.
        mapped: True memory-maps the tensors, shared between processes and copied on write. This is
            for inference, and for files that are replaced by renaming, as ldt does: if a file is
            overwritten in place the weights change (a predictor notices), if it is truncated the
            process is killed. False reads every tensor into memory.

    Raises:
        ModelError: the weights are missing, damaged, or not tensors.
    """
    prefixes = [f"{encoder_class(name).base_model_prefix}." for name in ENCODERS | SEQ2SEQ]
    weights = {}
    for file in weight_files(folder):
        for name, tensor in _read(file, mapped).items():
            for prefix in (*prefixes, *_AUTHORS_PREFIXES):
                name = name.removeprefix(prefix)
            if name != _OLD_BUFFER:
                weights[name] = tensor
    if sentence_transformers.PROJECTION not in weights:
        weights |= sentence_transformers.projection(folder)
    return weights


def rows_by_name(weights, before: list[str] | None, config, where):
    """Reorder the rows of a head to match the labels of a new model; rows of new labels are drawn
    at random, with a warning in the log.

    If the old model has no label names (``LABEL_0`` and so on), they are matched by number if the
    new names are numbers, else by order.

    Args:
        weights: {name: tensor} of a model, changed in place.
        before: old labels in order; None leaves the rows unchanged.
        config: config of the new model.
        where: prefix of log lines.
    """
    if before is None:
        return
    names = [config.id2label[number] for number in range(config.num_labels)]
    mine = [key for key in weights if _ROWS.fullmatch(key) and len(weights[key]) == len(before)]
    if not mine or before == names:
        return
    if all(name.startswith(UNNAMED) for name in before) and not set(before) & set(names):
        before = [name.removeprefix(UNNAMED) for name in before]
        if set(before) != set(names):
            if len(before) == len(names):
                pairs = listed([*zip(before, names, strict=True)], 5, " is ".join)
                log.warning("%s: its head names no labels; in their order row %s", where, pairs)
            return
    places = {name: place for place, name in enumerate(before)}
    known = [number for number, name in enumerate(names) if name in places]
    for key in mine:
        old = weights[key].detach()
        rows = old.new_zeros(len(names), *old.shape[1:])
        if len(known) < len(names) and key.endswith("weight"):
            rows.normal_(0, config.initializer_range)
        rows[known] = old[[places[names[number]] for number in known]]
        weights[key] = rows
    if new := [name for name in names if name not in places]:
        rows = listed(new, 5)
        log.warning("%s: rows of its head that start anew, drawn at random: %s", where, rows)


def _copies(file):
    """Tensors of a safetensors file, copied to memory that torch has allocated.

    With safetensors' own alignment the last bits of a product would depend on the address, which
    differs between processes.
    """
    with safe_open(file, framework="pt", backend="pread") as opened:

        def size(name):
            return prod(opened.get_slice(name).get_shape())

        # The largest first: what was read and its copy are in memory beside the copies before.
        names = sorted(opened.keys(), key=size, reverse=True)
        return {name: opened.get_tensor(name).clone() for name in names}


def _read(file, mapped):
    mapped = mapped and os.name != "nt"  # Windows replaces no file that is mapped
    try:
        if file.suffix == ".safetensors":
            if mapped:
                return load_file(file)
            return _copies(file)
        mapped = mapped and is_zipfile(file)  # not of torch before 1.6
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{file}: holds more than tensors, or is damaged, and is not read; "
            "a safetensors file cannot hold code"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # of a damaged file any
        raise ModelError(f"{file}: damaged or cut off: {first_line(error)}") from error
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise ModelError(f"{file}: not a table of names and tensors")
    return tensors


def meta_model(cls, config, *args, **kwargs):
    """Make ``cls(config, *args, **kwargs)``, a model, on torch's meta device: shapes without
    memory. Draws no random numbers."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), no_init_weights():
        return cls(config, *args, **kwargs)


def require_memory(cls, config, where):
    """Raise ResourceError if a new model and, on a machine without a GPU, its gradients and
    optimizer state, in float32, exceed this machine's main memory, all of it and not its free part.

    Args:
        cls, config: class and config of the model.
        where: prefix of the message.
    """
    size = 4 * sum(weight.numel() for weight in meta_model(cls, config).parameters())
    size *= 1 if torch.cuda.is_available() else TRAINED
    memory = psutil.virtual_memory().total
    if size > memory:
        raise ResourceError(
            f"{where}: the model needs {size / 2**30:,.0f} GiB of memory, this machine has "
            f"{memory / 2**30:,.0f}; a smaller vocabulary, hidden_size or max_length needs less"
        )


def in_encoder(model, name: str) -> bool:
    """True for the ``name`` of a weight of a model's encoder, which loading must find: not of a
    head, nor of the pooler, which short encoders lack and most heads do not use."""
    children = (child for child, _ in model.base_model.named_children())
    parts = tuple(f"{child}." for child in children if child != "pooler")
    return name.removeprefix(f"{model.base_model_prefix}.").startswith(parts)


def check_shapes(folder, cls, config, args, state_dict, new_head):
    """Raise ShapeError for weights whose shape differs from the config's; transformers would
    initialise them instead.

    Args:
        folder: folder, for the message.
        cls, config, args: class, config and further arguments of the model.
        state_dict: tensors by name, without the encoder's prefix; may lack some.
        new_head: True permits other shapes outside the encoder, as a head to be trained.
    """
    model, other = meta_model(cls, config, *args), []
    for name, expected in model.state_dict().items():
        tensor = state_dict.get(name.removeprefix(f"{model.base_model_prefix}."))
        if tensor is None or tensor.shape == expected.shape:
            continue
        if not new_head or in_encoder(model, name):
            other.append(f"{name} is {list(tensor.shape)}, by config.json {list(expected.shape)}")
    if other:
        raise ShapeError(
            f"{folder}: weights of another shape: {listed(sorted(other), most=4, show=str)}"
        )


def check_finite(folder: Path, model: torch.nn.Module) -> None:
    """Raise ModelError, which names the folder, for a model's weights that are not finite."""
    for name, weight in model.named_parameters():
        # The ends and not the sum, which would be taken of a copy in float64.
        if weight.numel() and not all(map(torch.isfinite, weight.detach().aminmax())):
            raise ModelError(f"{folder}: {name} holds numbers that are not finite")
