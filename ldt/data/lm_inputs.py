"""Inputs of a masked language model: sequences over joined documents, or whole documents."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from ldt.data.corpus import CorpusSource, Reader
from ldt.data.features import Feature
from ldt.data.masking import Masker
from ldt.data.options import CorpusSection
from ldt.data.token_store import TokenStore, token_arrays
from ldt.data.tokenization import special_id
from ldt.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ldt")

Row = TypeVar("Row")

SHUFFLED = 1024  # items of a stream among which the next one is drawn


class Frame(NamedTuple):
    """Ids of the first token, the last token and the separator."""

    first: int
    last: int
    separator: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Frame:
        """Frame of a tokenizer: its start token, its end token, and the latter again as
        separator."""
        last = special_id(tokenizer, "sep")
        return cls(special_id(tokenizer, "cls"), last, last)

    def around(self, ids: np.ndarray) -> np.ndarray:
        """Add the first and the last token: [n] -> [n + 2] int64."""
        framed = np.empty(len(ids) + 2, np.int64)
        framed[0], framed[1:-1], framed[-1] = self.first, ids, self.last
        return framed


def _masked(row: np.ndarray, masker: Masker, generator, see_all: bool, number: int) -> Feature:
    """Feature of a row [n] of ids with a random mask; ``see_all`` makes the first token global."""
    shown, labels = masker(row, generator)
    everywhere = np.zeros(len(row), np.uint8)
    everywhere[0] = see_all
    return {
        "input_ids": shown,
        "labels": labels,
        "global_attention_mask": everywhere,
        "document": number,
    }


@dataclass(eq=False)
class LmItems(Sequence[list[Feature]]):
    """Training items, each a list of rows. Masks depend only on the seed, the epoch and the number.

    Args:
        store: tokens of the corpus.
        documents: numbers of the documents to use, in order.
        frame: special tokens.
        masker: draws the masks.
        max_length: largest number of tokens of an item, with special tokens.
        seed: seed of the masks.
        see_all: True gives the first token of each row global attention.
        fixed: True, for evaluation, uses the same masks in every epoch and one row per item.
    """

    store: TokenStore
    documents: np.ndarray
    frame: Frame
    masker: Masker
    _: KW_ONLY
    max_length: int
    seed: int
    see_all: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        self.room, self.epoch = self.max_length - 2, 0

    @property
    def tokens(self) -> int:
        """Number of tokens of all documents, without special tokens."""
        return int(self.store.lengths[self.documents].sum())

    @property
    def size(self) -> int:
        """Size of the texts of these items' documents, in bytes of UTF-8."""
        return int(self.store.sizes[self.documents].sum())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes the masks unless ``fixed``; the Trainer's data loader calls
        it."""
        self.epoch = epoch

    @abstractmethod
    def rows(self, index: int) -> list[np.ndarray]:
        """Rows of item ``index`` before masking: int64 arrays [n] of token ids, with first and last
        token; n may differ."""

    def __getitem__(self, index: int) -> list[Feature]:  # type: ignore[override]  # no slices
        if not 0 <= index < len(self):
            raise IndexError(index)
        key = (self.seed, index) if self.fixed else (self.seed, self.epoch, index)
        generator = np.random.default_rng(key)
        return [
            _masked(row, self.masker, generator, self.see_all, index) for row in self.rows(index)
        ]


class FullSentences(LmItems):
    """Sequences of full length cut from the concatenated documents, with a separator behind each
    document. Only the last sequence may be shorter. Liu et al. 2019 (arXiv:1907.11692), section
    4.2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ends = np.cumsum(self.store.lengths[self.documents] + 1)

    def __len__(self) -> int:
        total = int(self._ends[-1]) - 1 if len(self._ends) else 0  # no separator at the end
        return -(-total // self.room)

    def rows(self, index: int) -> list[np.ndarray]:
        """Sequence number ``index`` as the only row: int64 [n] token ids, with first and last
        token."""
        start = index * self.room
        end = min(start + self.room, int(self._ends[-1]) - 1)
        return [self.frame.around(self._stretch(start, end))]

    def _stretch(self, start: int, end: int) -> np.ndarray:
        parts: list[np.ndarray | list[int]] = []
        place = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            behind = int(self._ends[place])
            length = int(self.store.lengths[self.documents[place]])
            inside = start - (behind - length - 1)
            ids = self.store.tokens(self.documents[place], inside, inside + end - start)
            parts += [ids, [self.frame.separator]] if inside + end - start > length else [ids]
            start, place = behind, place + 1
        return np.concatenate(parts)


def _filled(rows: Iterable[tuple[Row, int]], most: int) -> Iterator[list[Row]]:
    """Group consecutive (row, tokens) pairs into items of at most ``most`` tokens. A longer row
    gets an item of its own."""
    item: list[Row] = []
    used = 0
    for row, size in rows:
        if item and used + size > most:
            yield item
            item, used = [], 0
        item.append(row)
        used += size
    if item:
        yield item


class WholeDocuments(LmItems):
    """Rows that hold one document, or a part of a longer one. An item takes as many consecutive
    rows as fit in ``max_length`` tokens; rows do not attend to each other.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = (
            ((place, start), min(self.room, length - start) + 2)
            for place, length in enumerate(self.store.lengths[self.documents].tolist())
            for start in range(0, length, self.room)
        )
        items = list(_filled(rows, 0 if self.fixed else self.max_length))
        self._rows = np.array([row for item in items for row in item], np.int64).reshape(-1, 2)
        self._items = np.cumsum([0, *map(len, items)])

    def __len__(self) -> int:
        return len(self._items) - 1

    def rows(self, index: int) -> list[np.ndarray]:
        """Rows of item ``index``, each one document or a part of it: int64 [n] token ids, with
        first and last token."""
        first, behind = self._items[index : index + 2]
        return [
            self.frame.around(self.store.tokens(self.documents[place], start, start + self.room))
            for place, start in self._rows[first:behind]
        ]


PACKINGS: dict[str, type[LmItems]] = {"full_sentences": FullSentences, "document": WholeDocuments}


@dataclass(eq=False)
class Stream(IterableDataset):
    """Endless stream of training items read directly from the corpus; nothing is stored on disk.

    Each of ``parts`` readers (processes times data-loading workers) takes every n-th document and
    shuffles its items within a buffer of 1,024, which with one document is all it keeps in memory.

    Args:
        sources: sources of the corpus, in order.
        data: reading options.
        tokenizer: tokenizer of the model.
        masker: draws the masks.
        max_length: largest number of tokens of an item, with special tokens.
        seed: seed of masks and order.
        part, parts: number of this process, and number of processes.
        see_all: True gives the first token of each row global attention.
    """

    sources: Sequence[CorpusSource]
    data: CorpusSection
    tokenizer: PreTrainedTokenizerBase
    masker: Masker
    _: KW_ONLY
    max_length: int
    seed: int
    part: int = 0
    parts: int = 1
    see_all: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.frame = Frame.of(self.tokenizer)

    def __iter__(self) -> Iterator[list[Feature]]:
        worker = get_worker_info()
        part, parts = self.part, self.parts
        if worker is not None:
            part, parts = part * worker.num_workers + worker.id, parts * worker.num_workers
        packed = self._joined if self.data.packing == "full_sentences" else self._apart
        generator = np.random.default_rng((self.seed, part))
        waiting: list[list[np.ndarray]] = []
        for number, rows in enumerate(packed(self._documents(part, parts))):
            waiting.append(rows)
            if len(waiting) == SHUFFLED:
                place = int(generator.integers(SHUFFLED))
                waiting[place], waiting[-1] = waiting[-1], waiting[place]
                yield [
                    _masked(row, self.masker, generator, self.see_all, number)
                    for row in waiting.pop()
                ]

    def _documents(self, part: int, parts: int) -> Iterator[np.ndarray]:
        warned = False
        while True:
            number = rejected = 0
            for source in self.sources:
                reader = Reader(source, self.data)
                for text in reader:
                    if number % parts == part:
                        arrays = token_arrays(self.tokenizer, text)
                        yield np.concatenate(arrays) if arrays else np.empty(0, np.uint32)
                    number += 1
                rejected += reader.rejected
            if number <= part:
                raise DataError(
                    f"data.train: {number:,} documents for {parts:,} readers (processes, times "
                    "training.dataloader_num_workers); each needs one"
                )
            if rejected and part == 0 and not warned:
                log.warning("%d documents of the stream could not be read", rejected)
            warned = True

    def _joined(self, documents) -> Iterator[list[np.ndarray]]:
        room, left = self.max_length - 2, np.empty(0, np.int64)
        for ids in documents:
            left = np.concatenate([left, ids, [self.frame.separator]])
            whole = len(left) // room * room
            for start in range(0, whole, room):
                yield [self.frame.around(left[start : start + room])]
            left = left[whole:]

    def _apart(self, documents) -> Iterator[list[np.ndarray]]:
        room = self.max_length - 2
        rows = (
            self.frame.around(ids[start : start + room])
            for ids in documents
            for start in range(0, len(ids), room)
        )
        return _filled(((row, len(row)) for row in rows), self.max_length)
