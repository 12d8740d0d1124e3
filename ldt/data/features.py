"""Features: made of named segments, kept on the disk, and put into batches.

Every input is laid out by the one `join` below, so that a recipe names global ones by their role.
Features are encoded once and kept in a file, 5 bytes a token (13 with offsets): a training set
larger than memory works, any feature is read at once in any order, by data-loading processes too.
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

    from ldt.data.options import DataSection

Feature = dict[str, Any]

TOKEN_TYPES = {  # keys with one number a token, and their type in the file
    "input_ids": np.int32,
    "global_attention_mask": np.uint8,
    "token_type_ids": np.uint8,
}
NO_POSITION = -100  # fills up rows of labels and positions; losses ignore it
# Keys of features that the model does not see, besides a task's own (`TaskInputs.extras`).
EXTRAS = frozenset(
    {"answer_tokens", "document", "tokens", "flags", "windows", "chunks", "read", "unlearnt"}
)


@dataclass(slots=True)
class Segment:
    """A part of the input: what it is ("cls", "question", "document" …) and its token ids."""

    role: str
    ids: Sequence[int]
    token_type: int = 0


def join(
    segments: Iterable[Segment], global_attention: Iterable[str], *, token_types: bool = False
) -> Feature:
    """Lay segments end to end.

    Args:
        segments: in the order of the input, special tokens included, each with its role.
        global_attention: roles whose tokens attend to all and are attended to by all.
        token_types: whether the feature has token_type_ids.

    Returns:
        input_ids, global_attention_mask and, if asked for, token_type_ids: lists of one length.

    Raises:
        ValueError: a role of ``global_attention`` that no segment has, and so no token either.
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


def ends(tokenizer) -> tuple[Segment, Segment]:
    """The first token and the separator of an input, as segments "cls" and "sep"."""
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
    """Return the chunks of a document that go into the model, each into one input.

    Chunks follow each other every ``room - data.stride`` tokens; the last one ends where the
    document ends, so that it is as long as the others and shares more with the one before. Where
    the document has passages, chunks part as few as they can (`apart`).

    Args:
        length: tokens of the document, without special ones.
        room: tokens of it that one input holds.
        example: for messages.
        data: its overflow, stride and max_windows.
        text: of the document; None where that it is empty need not be said.
        parted: [length + 1], how many passages a cut in front of each token would part.

    Returns:
        Pairs (start, end) in order, at least one, also for an empty document; and flags for the
        answer: ``truncated`` when a part of the document goes unread, with ``unread_tokens``, its
        size; ``empty`` when there is not a word in it.
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
            "data.overflow=windows reads it in parts, truncate its beginning"
        )
    most = 1 if data.overflow == "truncate" else data.max_windows
    if parted is not None:
        chunks = apart(parted, room, data.stride)[:most]
    else:
        starts = [*range(0, length - room, room - data.stride), length - room]
        chunks = [(start, start + room) for start in starts[:most]]
    return chunks, cut_off(length - chunks[-1][1]) | empty


def cut_off(unread: int) -> dict[str, Any]:
    """Flags of a document by its tokens that go unread, none where all are read."""
    return {"truncated": True, "unread_tokens": unread} if unread else {}


def apart(parted: np.ndarray, room: int, stride: int) -> list[tuple[int, int]]:
    """Chunks that part as few passages as they can.

    Each ends where the fewest are parted, of such places at the last that is within ``room``; the
    next one begins up to ``stride`` tokens earlier, at the first place where no more are parted,
    unless a passage that fits would then not.

    Args:
        parted: [tokens + 1], passages that a cut in front of each token would part.
        room: tokens of a chunk, more than ``stride``.
        stride: tokens that two chunks share at most.

    Returns:
        Pairs (start, end) in order.
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
    """The last of the places behind ``after`` where the fewest passages are parted."""
    within = parted[after + 1 : start + room + 1]
    return after + len(within) - int(np.argmin(within[::-1]))


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
        features = Features.opened(at)
    except (OSError, ValueError):
        return 0
    if not len(features):
        return 0
    last = int(features.documents[-1])
    remove_after(at, Features.columns, int(np.searchsorted(features.documents, last)))
    return last


class Documents(Sequence[range]):
    """The numbers of the features of each document, one behind the other.

    Args:
        documents: [features] int, the number of each one's document; equal ones stand together.
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


def reordered(example: Example, generator: np.random.Generator, lists: Sequence[str]) -> Example:
    """An example with its lists, each in a new order."""
    changed = {}
    for path in lists:
        values = field(example, path)
        changed[path] = [values[place] for place in generator.permutation(len(values))]
    return replace(example, fields=example.fields | changed)


class Reshuffled(Sequence[list[Feature]]):
    """Training documents that are encoded on access, each epoch with its parts in a new order.

    What comes out depends on the seed, the epoch and the number of the document alone, so a run
    that is resumed sees the same.

    Args:
        documents: by number.
        numbers: of those that are trained on.
        shuffle: example and random generator to the example in a new order (`TaskInputs.shuffled`).
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


class Drawn(Items):
    """Training documents as items, of whose features each epoch takes some, drawn anew.

    What comes out depends on the seed, the epoch and the number of the document alone.

    Args:
        draw: features and random generator to those that are taken (`ldt.tasks.base.Drawing.draw`).
        seed: of the run.
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
        """Called by the Trainer's loader as an epoch begins."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
        generator = np.random.default_rng((self.seed, self.epoch, index))
        return self.draw(super().__getitem__(index), generator)


class Collator:
    """Pads features on the right to the longest of a batch, and keeps what the head takes.

    ``labels`` become one number a row (int64, or float32 of a regression), a float32 row of flags;
    they, positions and labels of tokens, where a feature has a list of whole numbers, become rows
    filled up with -100, which heads ignore.

    Args:
        pad_token_id: fills up input_ids.
        head: model class; the parameters of its ``forward`` are the inputs that a batch may have.
        extras: further keys of features that are for answers and messages only.
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
        """Return input_ids and attention_mask, [rows, longest] int64, and every other input of the
        head that the features have. Of lists of features, whose members belong together, also
        ``example_ids`` [rows] int64, which list each row is of, if the head takes it.

        Raises:
            ValueError: a feature without its global mask, some with and some without a key, or a
                key that the head does not take.
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
    """The outputs of a head for a batch, [rows, ...] by name, as one dict for each of the rows."""
    return [{name: values[row] for name, values in outputs.items()} for row in rows]


def _rows(values: list, filler: int) -> np.ndarray:
    """One row a value: float32 of floats and flags, else int64, lists of numbers filled up."""
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
