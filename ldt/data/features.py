"""Features on the disk and in batches.

Features are encoded once and kept in an unnamed temporary file, 5 bytes a token (13 with offsets):
a training set larger than memory works, any feature is read at once in any order, by data-loading
processes too. (A ``datasets.Dataset`` would do the same through a cache that outlives the run and
has to guess when it is stale.)
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np

from ldt.data.records import Example
from ldt.data.spool import Spool

Feature = dict[str, Any]

TOKEN_TYPES = {  # keys with one number a token, and their type in the file
    "input_ids": np.int32,
    "global_attention_mask": np.uint8,
    "token_type_ids": np.uint8,
}


class Features(Spool[Feature]):
    """Features that are written once, in order, and read in any order; their arrays are read-only.

    ``lengths`` and ``documents``: the tokens of each feature, and the number of its document; the
    features of a document stand together.
    """

    noun = "encoded documents"

    def __init__(self, features: Iterable[Feature] = ()):
        """Write the features.

        Raises:
            ResourceError: the disk of temporary files is full.
        """
        lengths, documents = array("q"), array("q")

        def seen() -> Iterator[Feature]:
            for feature in features:
                lengths.append(len(feature["input_ids"]))
                documents.append(feature["document"])
                yield feature

        super().__init__(seen())
        self.lengths, self.documents = np.array(lengths, int), np.array(documents, int)

    def pack(self, item):
        fields = dict(item)
        length = len(item["input_ids"])
        for key, value in item.items():
            if key in TOKEN_TYPES or isinstance(value, np.ndarray):
                values = np.asarray(value, TOKEN_TYPES.get(key), order="C").view()
                values.flags.writeable = False  # as it will be read
                if key in TOKEN_TYPES and values.shape != (length,):
                    raise ValueError(f"{key} has the shape {values.shape}, input_ids ({length},)")
                fields[key] = values
        return fields, None

    def unpack(self, fields, more):
        return fields

    def only(self, rows: Sequence[int] | np.ndarray) -> Self:
        """Those of some numbers, in this order; they share the file."""
        part = super().only(rows)
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
        documents: by number.
        numbers: of those that are trained on.
        shuffle: example and random generator to the example in a new order (`Task.shuffle`).
        encode: example to features.
        seed: of the run.
    """

    def __init__(
        self,
        documents: Sequence[Example],
        numbers: Sequence[int],
        shuffle: Callable[[Example, np.random.Generator], Example],
        encode: Callable[[Example], list[Feature]],
        seed: int,
    ):
        self.documents, self.numbers = documents, numbers
        self.shuffle, self.encode, self.seed = shuffle, encode, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer's loader as an epoch begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
        number = self.numbers[index]
        generator = np.random.default_rng((self.seed, self.epoch, number))
        features = self.encode(self.shuffle(self.documents[number], generator))
        return [feature | {"document": number} for feature in features]
