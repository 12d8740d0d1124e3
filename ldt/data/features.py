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
from copy import copy
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from ldt.data.records import Example
from ldt.errors import ResourceError

Feature = dict[str, Any]

TOKEN_TYPES = {  # keys with one number a token, and their type in the file
    "input_ids": np.int32,
    "global_attention_mask": np.uint8,
    "token_type_ids": np.uint8,
}


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
            if key in TOKEN_TYPES:
                arrays[key] = np.asarray(value, TOKEN_TYPES[key])
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

    def __getitem__(self, index: int) -> Feature:  # type: ignore[override]  # no slices
        """Return a feature; its arrays, and what has one number a token, are read-only arrays."""
        offset, kinds, rest = self._rows[index]
        feature = {}
        for key, dtype, shape in kinds:
            size = math.prod(shape) * dtype.itemsize
            feature[key] = np.frombuffer(self._bytes, dtype, math.prod(shape), offset)
            feature[key] = feature[key].reshape(shape)
            offset += size
        return feature | rest

    def only(self, rows: Sequence[int]) -> "Features":
        """Those of some numbers, in this order; they share the file."""
        part = copy(self)
        part._rows = [self._rows[row] for row in rows]
        part.lengths, part.documents = self.lengths[rows], self.documents[rows]
        return part

    def by_document(self) -> list[range]:
        """The numbers of the features of each document."""
        starts = np.flatnonzero(np.diff(self.documents, prepend=-1)).tolist()
        return [range(*pair) for pair in pairwise([*starts, len(self)])]


class Items(Sequence[list[Feature]]):
    """Documents as a training or an evaluation takes them: all features of one are one item.

    ``lengths``: the tokens of each item.
    """

    def __init__(self, features: Features):
        self.features, self.rows = features, features.by_document()
        self.lengths = np.array([features.lengths[list(rows)].sum() for rows in self.rows], int)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
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
        """Called by the Trainer's loader as an epoch begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
        number, example = self.documents[index]
        generator = np.random.default_rng((self.seed, self.epoch, number))
        features = self.encode(self.shuffle(example, generator))
        return [feature | {"document": number} for feature in features]
