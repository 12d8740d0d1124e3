"""The source of a conversion: what is known of it, whatever its kind."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from ldt.errors import ModelError, first_line, listed
from ldt.model.config import layer_windows
from ldt.model.loading import TOKENIZERS, find_folder
from ldt.model.weights import WEIGHTS, check_finite, read_weights, skeleton

_LISTED = 4  # names in a message
PROVED_LENGTH = 512  # tokens; the source's memory grows with their square


@dataclass
class Source(ABC):
    """A model that is to become long; its subclasses are the families of models.

    Attributes:
        folder: where its files are.
        kind: its model_type; `longformer` or `led` for the authors' files.
        config: transformers' config of the kind, with as many words as the tokenizer has.
        model: transformers' own model in float32 and evaluation mode: with its head when that is
            kept, else the base model, with a pooler when the file has one.
        base: {name: float32 tensor} of embeddings and layers, and of the pooler if `model` has
            one, under the names of the long model and without prefix.
        head: {name: tensor} of the head under the names of the long model; empty when it is not
            kept.
        head_note: "kept", or why the head is not.
        first: row of the position table that the first token of a text gets.
        left_out: parts of the file that the converted model has no place for.
        windows: of the layers, as the file has them; empty where attention is full.
        generation: settings of `generate` that are kept with the model.

    Class attributes:
        target_config: class of the converted model's config.
        fields: of the config, those that stay as they are.
        prefix: of the base model's names in the converted file.
        positions: name of the encoder's position table in both models.
        attention: beginning of the names of a layer's self-attention in the converted model, ``{}``
            for the number of the layer.
        longest: length of the converted model if none is asked for, in tokens.
        default_windows: {architecture: window of the converted model if none is asked for}.
    """

    folder: Path
    kind: str
    config: PreTrainedConfig
    model: PreTrainedModel
    base: dict[str, torch.Tensor]
    head: dict[str, torch.Tensor]
    head_note: str
    first: int
    left_out: list[str]
    windows: list[int] = field(default_factory=list)
    generation: GenerationConfig | None = None

    target_config: ClassVar[Any]
    fields: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]
    positions: ClassVar[str]
    attention: ClassVar[str]
    longest: ClassVar[int]
    default_windows: ClassVar[dict[str, int]]

    @classmethod
    @abstractmethod
    def read(cls, folder, kind, config):
        """The source in a folder.

        Args:
            kind, config: of `ldt.convert.kinds.source_config`.

        Raises:
            ModelError: weights are missing, damaged, not finite, of the wrong shape or without a
                place.
        """

    @property
    def length(self):
        """Longest input in tokens."""
        return len(self.base[self.positions]) - self.first

    @property
    def proved(self):
        """Longest input of the proof, in tokens, which `model` sees all of."""
        return min(self.length, PROVED_LENGTH)

    @property
    def facts(self):
        """Further lines of the report, by what they are about."""
        return {}

    @property
    @abstractmethod
    def leading(self):
        """Rows of the converted model's position table before that of the first token."""

    @property
    @abstractmethod
    def target_class(self):
        """The class of ldt that the converted model is saved as."""

    @abstractmethod
    def load(self, folder):
        """The converted model as it was written, in float32 and evaluation mode."""

    @abstractmethod
    def lengths(self, max_length):
        """Values of the converted model's config that say how long its inputs are."""

    @abstractmethod
    def inputs(self, shape, generator):
        """Random inputs of the proof, besides ids and mask of the encoder.

        Args:
            shape: (rows, tokens) of the encoder's input.
        """

    @abstractmethod
    def outputs(self, model, inputs, real):
        """Tensors in which source and converted model have to agree.

        Args:
            model: the source's, or the converted one.
            real: [rows, tokens] bool, False at padding.
        """

    def further_checks(self, model, length):
        """`ldt.convert.proof.OutputCheck` of what only this family has.

        Args:
            model: the converted one.
            length: of inputs that its windows cover, in tokens.
        """
        return []


def find_source(name):
    """The folder of a source; a hub id is looked up when there is no folder of that name.

    Raises:
        ModelError: there is no such model, or a file of it is missing.
    """
    try:
        folder = find_folder(name)
    except ModelError as error:  # its advice is to convert something, as is being done
        raise ModelError(str(error).partition("; ldt convert")[0]) from error
    for what, names in (
        ("config", ("config.json",)),
        ("weights", WEIGHTS),
        ("tokenizer", TOKENIZERS),
    ):
        if not any((folder / name).is_file() for name in names):
            raise ModelError(
                f"{folder}: no {what} ({' or '.join(names)}); a source has config, weights and "
                "tokenizer in one folder"
            )
    return folder


def float_weights(folder):
    """{name: tensor} of a folder without the encoder's prefix, numbers in float32."""
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in read_weights(folder).items()
    }


def seeing_all(folder, config, length):
    """(windows of a source that is long, its config with windows that see all of a short input).

    Args:
        length: longest input of the source, in tokens.

    Raises:
        ModelError: the windows cannot be those of the layers.
    """
    try:
        windows = layer_windows(config)
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error
    config = copy.copy(config)
    config.attention_window = 2 * min(max(2, length), PROVED_LENGTH)
    return windows, config


def source_model(folder, cls, config, state, inside, tied=(), **options):
    """transformers' model of a class in float32 and evaluation mode, with the weights of a file.

    Args:
        state: {name: tensor} under the names of the class.
        inside: beginnings of names for which each tensor of the file must have a place.
        tied: ends of the names that the file need not have, since others stand for them.
        options: of the class.

    Raises:
        ModelError: weights are missing, misshapen, without a place or not finite.
    """
    where = folder / "config.json"
    try:
        expected = skeleton(cls, config, **options).state_dict()
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise ModelError(f"{where}: {first_line(error)}") from error
    needed = (name for name in expected if not name.endswith(tuple(tied)))
    missing = sorted(set(needed) - state.keys())
    if missing:
        raise ModelError(f"{folder}: weights are missing: {listed(missing, _LISTED, str)}")
    extra = sorted(name for name in state.keys() - expected.keys() if name.startswith(inside))
    if extra:
        raise ModelError(
            f"{folder}: weights without a place in the model that config.json describes: "
            f"{listed(extra, _LISTED, str)}"
        )
    for name in sorted(state.keys() & expected.keys()):
        if state[name].shape != expected[name].shape:
            raise ModelError(
                f"{folder}: {name} is {list(state[name].shape)}, by config.json "
                f"{list(expected[name].shape)}"
            )
    model = cls(config, **options).float()
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    check_finite(folder, model)
    return model.eval()
