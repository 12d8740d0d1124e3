"""Features on the disk and in batches.

Features are encoded once and kept in a file, 5 bytes a token (13 with offsets): a training set
larger than memory works, any feature is read at once in any order, by data-loading processes too.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ldt.io.record_store import RecordStore, remove_after
from ldt.io.records import Example

Feature = dict[str, Any]

TOKEN_TYPES = {  # keys with one number a token, and their type in the file
    "input_ids": np.int32,
    "global_attention_mask": np.uint8,
    "token_type_ids": np.uint8,
}


class Features(RecordStore[Feature]):
    """Features that are written once, in order, and read in any order; their arrays are read-only.

    ``lengths`` and ``documents``: the tokens of each feature, and the number of its document; the
    features of a document stand together.
    """

    noun = "encoded documents"
    columns = 2

    @property
    def lengths(self) -> np.ndarray:
        return self._index[:, -2]

    @property
    def documents(self) -> np.ndarray:
        return self._index[:, -1]

    def numbers(self, item):
        return len(item["input_ids"]), item["document"]

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

    def by_document(self) -> "Documents":
        """The numbers of the features of each document."""
        return Documents(self.documents)


def documents_there(at: Path) -> int:
    """Number of documents in a file of features, even where not all `Features` were written.

    The last one of them may lack some, and is removed.
    """
    try:
        found = Features.opened(at)
    except (OSError, ValueError):
        return 0
    if not len(found):
        return 0
    last = int(found.documents[-1])
    remove_after(at, Features.columns, int(np.searchsorted(found.documents, last)))
    return last


class Documents(Sequence[range]):
    """The numbers of the features of each document, one behind the other.

    Args:
        documents: [features] int, the number of each one's document; equal ones stand together.
    """

    def __init__(self, documents: np.ndarray):
        self.starts = np.flatnonzero(np.diff(documents, prepend=-1))
        self.end = len(documents)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> range:  # type: ignore[override]  # no slices
        number = range(len(self))[index]
        end = int(self.starts[number + 1]) if number + 1 < len(self) else self.end
        return range(int(self.starts[number]), end)


class Items(Sequence[list[Feature]]):
    """Documents as a training or an evaluation takes them: all features of one are one item.

    ``lengths``: the tokens of each item.
    """

    def __init__(self, features: Features):
        self.features, self.rows = features, features.by_document()
        starts = self.rows.starts
        self.lengths = np.add.reduceat(features.lengths, starts) if len(starts) else starts

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
