"""Features: model inputs built from named segments, stored on disk, and collated into batches.

All inputs are built by `join`, so that recipes name global tokens by their role. Features are
encoded once and stored in a file with 5 bytes per token (13 with offsets), so a training set may
exceed memory and is read in random order by data-loading processes too.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.data.sentences import EDGES
from ldt.data.tokenization import special_id
from ldt.errors import DataError, RecipeError
from ldt.io.record_store import RecordStore, remove_after
from ldt.io.records import Example, field

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from ldt.data.options import DataSection

Feature = dict[str, Any]

TOKEN_TYPES = {  # keys with one number a token, and their type in the file
    "input_ids": np.int32,
    "global_attention_mask": np.uint8,
    "token_type_ids": np.uint8,
}
NO_POSITION = -100  # fills up rows of labels and positions; losses ignore it
# Keys of features that the model does not see, besides a task's own (`TaskInputs.extras`).
EXTRAS = frozenset({"answer_tokens", "document", "tokens", "flags", "chunks", "read", "unlearnt"})


@dataclass(slots=True)
class Segment:
    """Part of an input: its role ("cls", "question", "document", ...) and its token ids."""

    role: str
    ids: Sequence[int]
    token_type: int = 0


def join(
    segments: Iterable[Segment], global_attention: Iterable[str], *, token_types: bool = False
) -> Feature:
    """Concatenate segments to a feature.

    Args:
        segments: segments in the order of the input, special tokens included.
        global_attention: roles whose tokens get global attention.
        token_types: True adds token_type_ids.

    Returns:
        input_ids, global_attention_mask and, if requested, token_type_ids: lists of one length.

    Raises:
        ValueError: no segment has one of the roles in ``global_attention``.
    """
    segments = list(segments)
    unknown = set(global_attention) - {segment.role for segment in segments}
    if unknown:
        raise ValueError(f"no segment has the role {', '.join(sorted(map(repr, unknown)))}")
    feature: Feature = {"input_ids": [], "global_attention_mask": [], "token_type_ids": []}
    for segment in segments:
        size = len(segment.ids)
        feature["input_ids"] += segment.ids
        feature["global_attention_mask"] += [int(segment.role in global_attention)] * size
        feature["token_type_ids"] += [segment.token_type] * size
    if not token_types:
        del feature["token_type_ids"]
    return feature


def ends(tokenizer: "PreTrainedTokenizerBase") -> tuple[Segment, Segment]:
    """First token and separator of an input, as segments "cls" and "sep" of one token each."""
    return (
        Segment("cls", [special_id(tokenizer, "cls")]),
        Segment("sep", [special_id(tokenizer, "sep")]),
    )


def fit(
    length: int,
    room: int,
    example: Example,
    data: "DataSection",
    text: str | None = None,
    parted: np.ndarray | None = None,
) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """Choose the chunks of a document that the model reads.

    Chunks start every ``room - data.stride`` tokens. The last one ends at the document's end and
    has full length, so it overlaps more with the one before. In a document with passages, chunks
    split as few passages as possible (`apart`). Only the first ``data.max_chunks`` are kept, with
    ``data.overflow`` ``truncate`` only one.

    Args:
        length: tokens of the document, without special tokens.
        room: document tokens that fit in one input.
        example: the example, for messages.
        data: data section with overflow, stride and the limit of chunks.
        text: text of the document; None if blank documents need no flag.
        parted: [length + 1], number of passages that a cut before each token would split; None if
            the document has no passages.

    Returns:
        Pairs (start, end) in tokens, in order, at least one even for an empty document; and flags
            for the answer: ``truncated`` with ``unread_tokens`` if a part goes unread, ``empty`` if
            there is no word.

    Raises:
        RecipeError: ``data.stride`` is not below ``room``.
        DataError: the document is too long, and ``data.overflow`` is ``error``.
    """
    if room < 1 or data.stride >= room:
        raise RecipeError(
            f"data: max_length leaves {room} tokens for the document, stride is {data.stride}; "
            "it must be smaller"
        )
    empty: dict[str, Any] = {} if text is None or text.strip(EDGES) else {"empty": True}
    if length <= room:
        return [(0, length)], empty
    if data.overflow == "error":
        raise DataError(
            f"{example.where}: document {example.id!r} has {length:,} tokens, {room:,} fit; "
            "data.overflow=chunks reads it in parts, truncate its beginning"
        )
    most = 1 if data.overflow == "truncate" else data.max_chunks
    if parted is not None:
        chunks = apart(parted, room, data.stride)[:most]
    else:
        starts = [*range(0, length - room, room - data.stride), length - room]
        chunks = [(start, start + room) for start in starts[:most]]
    return chunks, cut_off(length - chunks[-1][1]) | empty


def cut_off(unread: int) -> dict[str, Any]:
    """Flags ``truncated`` and ``unread_tokens`` of an answer; {} if no token is unread."""
    return {"truncated": True, "unread_tokens": unread} if unread else {}


def apart(parted: np.ndarray, room: int, stride: int) -> list[tuple[int, int]]:
    """Cut a document into chunks that split as few passages as possible.

    Each chunk ends, within ``room``, at the last place where the fewest passages are split. The
    next one starts up to ``stride`` tokens earlier, at the first place that splits no more, unless
    a passage that fits in a chunk would then not fit.

    Args:
        parted: [tokens + 1], number of passages that a cut before each token would split.
        room: tokens of a chunk, more than ``stride``.
        stride: largest overlap of two chunks, in tokens.

    Returns:
        Pairs (start, end) in tokens, in order.
    """
    length = len(parted) - 1
    start = end = 0
    chunks = []
    while True:
        last = _end(parted, start, end, room)
        if start < end and parted[last] > parted[_end(parted, end, end, room)]:
            start, last = end, _end(parted, end, end, room)
        chunks.append((start, last))
        if last == length:
            return chunks
        first = max(last - stride, start + 1)
        start, end = first + int(np.argmin(parted[first : last + 1])), last


def _end(parted: np.ndarray, start: int, after: int, room: int) -> int:
    within = parted[after + 1 : start + room + 1]
    return after + len(within) - int(np.argmin(within[::-1]))


class Features(RecordStore[Feature]):
    """Features on disk, written once in order and read at random; their arrays are read-only.
    ``lengths`` are the tokens of each feature, ``documents`` the number of its document;
    features of one document are consecutive."""

    noun = "encoded documents"
    columns = 2

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each feature, [features] int."""
        return self._index[:, -2]

    @property
    def documents(self) -> np.ndarray:
        """Index of the document that each feature belongs to, [features] int."""
        return self._index[:, -1]

    def numbers(self, item: Feature) -> tuple[int, int]:
        """Number of tokens of a feature, and index of its document."""
        return len(item["input_ids"]), item["document"]

    def pack(self, item: Feature) -> tuple[Feature, None]:
        """Make arrays of token ids and the like, read-only and in the types of the file; ValueError
        if one of `TOKEN_TYPES` is not as long as ``input_ids``."""
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

    def unpack(self, fields: Feature, more: None) -> Feature:
        """Return the fields unchanged: they are the feature."""
        return fields

    def by_document(self) -> "Documents":
        """Sequence with a range for each document: the numbers of its features."""
        return Documents(self.documents)


def documents_there(at: Path) -> int:
    """Remove the last document, which may be incomplete, from the `Features` in the files ``at``
    (without suffix) and return the number of those left; 0 if there are none or the files are
    damaged."""
    try:
        features = Features.reopen(at)
    except (OSError, ValueError):
        return 0
    if not len(features):
        return 0
    last = int(features.documents[-1])
    remove_after(at, Features.columns, int(np.searchsorted(features.documents, last)))
    return last


class Documents(Sequence[range]):
    """Numbers of the features of each document, as consecutive ranges.

    Args:
        documents: [features] int, the document of each feature; equal ones are consecutive.
    """

    def __init__(self, documents: np.ndarray):
        self.starts = np.flatnonzero(np.diff(documents, prepend=-1))
        self._borders = np.append(self.starts, len(documents))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> range:  # type: ignore[override]  # no slices
        number = range(len(self))[index]
        return range(*self._borders[number : number + 2].tolist())


class Items(Sequence[list[Feature]]):
    """Documents as items of training or evaluation: all features of a document form one item.
    ``lengths`` are the tokens of each item."""

    def __init__(self, features: Features):
        self.features, self.rows = features, features.by_document()
        starts = self.rows.starts
        self.lengths = np.add.reduceat(features.lengths, starts) if len(starts) else starts

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
        return [self.features[row] for row in self.rows[index]]


def reordered(example: Example, generator: np.random.Generator, lists: Sequence[str]) -> Example:
    """Copy of an example with each list at these dotted paths in a new random order."""
    changed = {}
    for path in lists:
        values = field(example, path)
        changed[path] = [values[place] for place in generator.permutation(len(values))]
    return replace(example, fields=example.fields | changed)


class Reshuffled(Sequence[list[Feature]]):
    """Training documents encoded on access, with their parts in a new order in each epoch.

    The order depends only on the seed, the epoch and the document's number, so a resumed run sees
    the same.

    Args:
        documents: documents by number.
        numbers: numbers of the training documents.
        shuffle: function of an example and a random generator (`TaskInputs.shuffled`).
        encode: function from an example to its features.
        seed: seed of the run.
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
        """Set the epoch, which the order depends on; the Trainer's data loader calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
        number = self.numbers[index]
        generator = np.random.default_rng((self.seed, self.epoch, number))
        features = self.encode(self.shuffle(self.documents[number], generator))
        return [feature | {"document": number} for feature in features]


class Drawn(Items):
    """Training documents as items with a new sample of their features in each epoch.

    The sample depends only on the seed, the epoch and the document's number.

    Args:
        draw: function of the features and a random generator (`ldt.tasks.base.Drawing.draw`).
        seed: seed of the run.
    """

    def __init__(
        self,
        features: Features,
        draw: Callable[[list[Feature], np.random.Generator], list[Feature]],
        seed: int,
    ):
        super().__init__(features)
        self.draw, self.seed, self.epoch = draw, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which the samples depend on; the Trainer's data loader calls it."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
        generator = np.random.default_rng((self.seed, self.epoch, index))
        return self.draw(super().__getitem__(index), generator)


class Collator:
    """Pad features on the right to the longest of a batch and keep the inputs of the head.

    Numeric ``labels`` become int64 (float32 for regression) [rows], flags a float32 row. Token
    labels and positions (lists of integers) are padded with -100, which heads ignore.

    Args:
        pad_token_id: padding of input_ids.
        head: model class; the parameters of its ``forward`` are the permitted inputs.
        extras: further keys of features, for answers and messages only.
    """

    def __init__(
        self, pad_token_id: int, head: "type[torch.nn.Module]", extras: Iterable[str] = ()
    ):
        self.pad_token_id = pad_token_id
        self.inputs = frozenset(inspect.signature(head.forward).parameters) - {"self", "kwargs"}
        self.extras = EXTRAS.union(extras)
        self.required = {"input_ids"} | ({"global_attention_mask"} & self.inputs)

    def __call__(
        self, features: Sequence[Feature] | Sequence[list[Feature]]
    ) -> dict[str, "torch.Tensor"]:
        """Return input_ids and attention_mask, [rows, longest] int64, and the other inputs of the
        head.

        For lists of features, whose members belong together, also ``example_ids`` [rows] int64, the
        number of each row's list, if the head takes it. ValueError if a feature has no global mask,
        only some features have a key, or the head does not take a key.
        """
        import torch

        batch: dict[str, np.ndarray] = {}
        rows: list[Any] = list(features)
        if isinstance(rows[0], list):
            if "example_ids" in self.inputs:
                batch["example_ids"] = np.repeat(np.arange(len(rows)), list(map(len, rows)))
            rows = [feature for example in rows for feature in example]
        keys = self.required.union(*rows) - self.extras
        if unknown := sorted(keys - self.inputs):
            raise ValueError(f"the head takes no {', '.join(unknown)}")
        for feature in rows:
            if missing := sorted(keys - feature.keys()):
                raise ValueError(f"a feature without {', '.join(missing)}")
        fillers = dict.fromkeys(TOKEN_TYPES, 0) | {"input_ids": self.pad_token_id}
        for key in sorted(keys):
            values = [feature[key] for feature in rows]
            batch[key] = _rows(values, fillers.get(key, NO_POSITION))
        ones = [np.ones(len(feature["input_ids"]), np.int64) for feature in rows]
        batch["attention_mask"] = _rows(ones, 0)
        return {key: torch.from_numpy(values) for key, values in batch.items()}


def by_input(outputs: dict[str, np.ndarray], rows: Iterable[int]) -> list[dict[str, np.ndarray]]:
    """Split a batch's outputs, {name: [rows, ...]}, into one dict for each of the given rows."""
    return [{name: values[row] for name, values in outputs.items()} for row in rows]


def _rows(values: list, filler: int) -> np.ndarray:
    """Array with one row per value: float32 for floats and flags, else int64 padded with
    ``filler``."""
    values = [np.asarray(value) for value in values]
    if any(value.dtype.kind in "fb" and value.size for value in values):
        return np.stack(values).astype(np.float32)
    if not values[0].ndim:
        return np.stack(values).astype(np.int64)
    shape = len(values), max(map(len, values)), *values[0].shape[1:]
    full = np.full(shape, filler, np.int64)
    for row, value in zip(full, values, strict=True):
        row[: len(value)] = value
    return full
