"""Features on the disk and in batches.

Features are encoded once and kept in an unnamed temporary file, 5 bytes a token (13 with offsets),
mapped into memory: a training set larger than memory works, any feature is read at once in any
order, and data-loading processes share the pages. (A ``datasets.Dataset`` would do the same
through a cache that outlives the run and has to guess when it is stale.)
"""

import errno
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ldt.errors import ResourceError
from ldt.reading import Example
from ldt.tasks.base import Feature

if TYPE_CHECKING:
    import torch

_TOKEN_TYPES = {  # what has one number a token, and its type in the file
    "input_ids": np.int32,
    "global_attention_mask": np.uint8,
    "token_type_ids": np.uint8,
}
NO_POSITION = -100  # fills up rows of labels and positions; losses ignore it
# What the heads take besides; a list of any length becomes a row of a batch.
_INPUTS = (
    *("labels", "start_positions", "end_positions", "positions", "choices"),
    *("paragraph_positions", "sentence_positions", "paragraph_labels", "sentence_labels"),
)


class Features(Sequence[Feature]):
    """Features that are written once, in order, and read in any order.

    ``lengths`` and ``documents``: the tokens of each feature, and the number of its document; the
    features of a document stand together. Arrays of a feature are kept in the file, all else in
    memory.
    """

    def __init__(self, features: Iterable[Feature] = ()):
        """Write the features.

        Raises:
            ResourceError: the disk of temporary files is full.
        """
        self._rows: list[tuple[int, list[tuple[str, np.dtype, tuple]], dict[str, Any]]] = []
        lengths = []
        self._bytes = np.empty(0, np.uint8)
        offset = 0
        try:
            with tempfile.TemporaryFile() as file:
                for feature in features:
                    offset = self._write(feature, file, offset)
                    lengths.append(len(feature["input_ids"]))
                file.flush()
                if offset:
                    self._bytes = np.asarray(np.memmap(file, np.uint8, "r"))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise ResourceError(
                f"{tempfile.gettempdir()}: full after {offset:,} bytes of encoded documents; "
                "TMPDIR can name another folder"
            ) from None
        self.lengths = np.array(lengths, int)
        self.documents = np.array([rest["document"] for *_, rest in self._rows], int)

    def _write(self, feature: Feature, file: BinaryIO, offset: int) -> int:
        rest, arrays, length = {}, {}, len(feature["input_ids"])
        for key, value in feature.items():
            if key in _TOKEN_TYPES:
                arrays[key] = np.asarray(value, _TOKEN_TYPES[key])
                if arrays[key].shape != (length,):
                    raise ValueError(
                        f"{key} has the shape {arrays[key].shape}, input_ids ({length},)"
                    )
            elif isinstance(value, np.ndarray):
                arrays[key] = value
            else:
                rest[key] = value
        kinds = [(key, values.dtype, values.shape) for key, values in arrays.items()]
        self._rows.append((offset, kinds, rest))
        for values in arrays.values():
            offset += file.write(values.tobytes())
        return offset

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Feature:
        """Return a feature; its arrays, and what has one number a token, are read-only arrays."""
        offset, kinds, rest = self._rows[index]
        feature = {}
        for key, dtype, shape in kinds:
            size = math.prod(shape) * dtype.itemsize
            feature[key] = np.frombuffer(self._bytes, dtype, math.prod(shape), offset)
            feature[key] = feature[key].reshape(shape)
            offset += size
        return feature | rest

    def by_document(self) -> list[range]:
        """The numbers of the features of each document."""
        starts = np.flatnonzero(np.diff(self.documents, prepend=-1)).tolist()
        return [range(*pair) for pair in pairwise([*starts, len(self)])]


class Items(Sequence[list[Feature]]):
    """Documents as a training or an evaluation takes them: all features of one are one item."""

    def __init__(self, features: Features):
        self.features, self.rows = features, features.by_document()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[Feature]:
        return [self.features[row] for row in self.rows[index]]


class Reshuffled(Sequence[list[Feature]]):
    """Training documents that are encoded on access, each epoch with its parts in a new order.

    What comes out depends on the seed, the epoch and the number of the document alone, so a run
    that is resumed sees the same.

    Args:
        documents: (number, example) of what is trained on.
        shuffle: example and random generator to the example in a new order (`Task.shuffle`).
        encode: example to features.
        seed: of the run.
    """

    def __init__(
        self,
        documents: Sequence[tuple[int, Example]],
        shuffle: Callable[[Example, np.random.Generator], Example],
        encode: Callable[[Example], list[Feature]],
        seed: int,
    ):
        self.documents, self.shuffle, self.encode, self.seed = documents, shuffle, encode, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Is called by the Trainer's loader as an epoch begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> list[Feature]:
        number, example = self.documents[index]
        generator = np.random.default_rng((self.seed, self.epoch, number))
        features = self.encode(self.shuffle(example, generator))
        return [feature | {"document": number} for feature in features]


class Collator:
    """Pads features on the right to the longest of a batch.

    ``labels`` become one number a row (int64, or float32 of a regression), a float32 row of a
    multi-label feature; they, positions and labels of tokens, where a feature has a list of whole
    numbers, become rows filled up with -100, which heads ignore.
    """

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(
        self, features: Sequence[Feature] | Sequence[list[Feature]]
    ) -> dict[str, "torch.Tensor"]:
        """Return input_ids, attention_mask, global_attention_mask, [rows, longest] int64, and
        token_type_ids, labels and positions if the features have them. Of lists of features, whose
        members belong together, also ``documents`` [rows] int64, which list each row is of.

        Raises:
            ValueError: a feature without its global mask, or some with and some without a key.
        """
        import torch

        extra = {}
        if isinstance(features[0], list):
            rows = [len(document) for document in features]
            extra["documents"] = np.repeat(np.arange(len(rows)), rows)
            features = [feature for document in features for feature in document]
        every = (*_TOKEN_TYPES, *_INPUTS)
        keys = {key for feature in features for key in every if key in feature}
        keys |= {"input_ids", "global_attention_mask"}
        for feature in features:
            if missing := sorted(keys - feature.keys()):
                raise ValueError(f"a feature without {', '.join(missing)}")
        fillers = dict.fromkeys(_TOKEN_TYPES, 0) | {"input_ids": self.pad_token_id}
        batch = {
            key: _rows([feature[key] for feature in features], fillers.get(key, NO_POSITION))
            for key in every
            if key in keys
        }
        ones = [np.ones(len(feature["input_ids"]), np.int64) for feature in features]
        batch["attention_mask"] = _rows(ones, 0)
        return {key: torch.from_numpy(values) for key, values in (batch | extra).items()}


def _rows(values: list, filler: int) -> np.ndarray:
    """One row a value: float32 of floats, else int64, lists of whole numbers filled up."""
    values = [np.asarray(value) for value in values]
    if any(value.dtype.kind == "f" and value.size for value in values):
        return np.stack(values).astype(np.float32)
    if not values[0].ndim:
        return np.stack(values).astype(np.int64)
    full = np.full((len(values), max(map(len, values))), filler, np.int64)
    for row, value in zip(full, values, strict=True):
        row[: len(value)] = value
    return full
