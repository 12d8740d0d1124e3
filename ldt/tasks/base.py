"""What a task is: text to features, logits to answers, answers to metrics.

Every task builds its input from named segments by the one `join` below, so that a recipe can name
what gets global attention by role. Nothing here imports torch before a head is asked for.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from ldt.errors import DataError, ModelError, RecipeError
from ldt.reading import Example

if TYPE_CHECKING:
    from ldt.recipe import DataSection

Feature = dict[str, Any]

PIECE = 16_384  # characters tokenized at once
LONGEST_WORD = 262_144  # characters without a space that are still tokenized as one word
_LETTER = r"[\w!-~\u3001-\u303f\uff01-\uffef]"  # no tokenizer drops it or joins it to a space
_CUTS = [  # the best places to cut a text, before the space, and the next best ones
    re.compile(f"(?<={before}){space}(?={after})")
    for before, space, after in (("[!-~]", " ", "[!-~]"), (_LETTER, " ", _LETTER))
] + [re.compile(f"(?<={_LETTER})\n(?={_LETTER})")]


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
    feature = {"input_ids": [], "global_attention_mask": []}
    if token_types:
        feature["token_type_ids"] = []
    for segment in segments:
        size = len(segment.ids)
        feature["input_ids"] += segment.ids
        feature["global_attention_mask"] += [int(segment.role in global_attention)] * size
        if token_types:
            feature["token_type_ids"] += [segment.token_type] * size
    return feature


def tokenize(tokenizer, text: str) -> list[int]:
    """Return the ids of a text of any length, without special tokens around or inside it.

    A special token spelt out in the text ("</s>", "[SEP]") is read as the letters it is made of;
    a tokenizer whose vocabulary cannot spell it otherwise gives its unknown token.

    Long texts go through the tokenizer in pieces of some 16,000 characters, cut before a single
    space between two words (or, where there is none, a line end): byte-level BPE, WordPiece and
    SentencePiece models never have a token across it, so the ids are those of the whole text. Only
    a run of 262,144 characters without a space is cut inside, to bound the memory; the ids around
    that cut may differ.
    """
    ids = [
        token
        for piece in _pieces(text)
        for token in tokenizer(
            piece,
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # no warning that the text is longer than the model
        )["input_ids"]
    ]
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    if special.isdisjoint(ids):
        return ids
    return [unknown if token in special else token for token in ids]


def special_id(tokenizer, role: str) -> int:
    """Return the id of "cls" (else bos), "sep" (else eos), "pad" or "mask".

    Raises:
        ModelError: the tokenizer has none.
    """
    for name in {"cls": ("cls", "bos"), "sep": ("sep", "eos")}.get(role, (role,)):
        found = getattr(tokenizer, f"{name}_token_id")
        if found is not None:
            return found
    raise ModelError(f"the tokenizer {tokenizer.name_or_path!r} has no {role} token")


def fit(
    length: int, room: int, example: Example, data: "DataSection"
) -> tuple[list[tuple[int, int]], dict[str, bool]]:
    """Return which parts of a document go into the model, each into one input.

    Windows follow each other every ``room - data.stride`` tokens; the last one ends where the
    document ends, so that it is as long as the others and shares more with the one before.

    Args:
        length: tokens of the document, without special ones.
        room: tokens of it that one input holds.
        example: for messages.
        data: its overflow, stride and max_windows.

    Returns:
        Pairs (start, end) in order, at least one, also for an empty document; and flags for the
        answer: ``truncated`` when a part of the document goes unread.

    Raises:
        RecipeError: no room, or a stride that leaves none.
        DataError: the document is too long and ``data.overflow`` is "error".
    """
    if room < 1 or data.stride >= room:
        raise RecipeError(
            f"data: max_length leaves {room} tokens for the document, stride is {data.stride}; "
            "it must be smaller"
        )
    if length <= room:
        return [(0, length)], {}
    if data.overflow == "error":
        raise DataError(
            f"{example.where}: document {example.id!r} has {length:,} tokens, {room:,} fit; "
            "data.overflow=windows reads it in parts, truncate its beginning"
        )
    if data.overflow == "truncate":
        return [(0, room)], {"truncated": True}
    starts = [*range(0, length - room, room - data.stride), length - room]
    parts = [(start, start + room) for start in starts[: data.max_windows]]
    return parts, {"truncated": True} if len(starts) > len(parts) else {}


class Task(BaseModel, ABC):
    """The fields of the ``task:`` section of a recipe, and what they do with text and answers.

    A feature is one input of the model: input_ids, global_attention_mask, token_type_ids and
    labels where there are any, ``document`` (number of the example in its file, from 0),
    ``tokens`` (of the whole document, special ones included, whether or not all are read) and
    ``flags`` (what the answer must say about the input).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: ClassVar[tuple[str, ...]]  # of the segments that `encode` joins
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss", "mse", "mae"})

    name: str
    global_attention: list[str]

    @model_validator(mode="after")
    def _check_roles(self):
        unknown = [role for role in self.global_attention if role not in self.roles]
        if unknown:
            raise ValueError(
                f"global_attention: no {', '.join(map(repr, unknown))} in the input of "
                f"{self.name}, which has {', '.join(self.roles)}"
            )
        return self

    @abstractmethod
    def head(self) -> type:
        """The model class of ``ldt.model`` that answers."""

    @abstractmethod
    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return what the training set says about the model's config, as class names.

        Warnings go to the logger "ldt".

        Raises:
            DataError: there is nothing to learn from these examples.
        """

    def check(self, examples: Iterable[Example], data: "DataSection", config) -> None:
        """Raise DataError if the evaluation set has what the model cannot answer, or nothing."""

    def stratum(self, example: Example, data: "DataSection") -> Hashable:
        """What a split of the training set must keep in proportion; None for nothing."""
        return None

    @abstractmethod
    def encode(
        self, example: Example, tokenizer, *, data: "DataSection", max_length: int, config=None
    ) -> list[Feature]:
        """Return the features of an example, one per window; with labels if there is a config.

        Raises:
            DataError: the example lacks a field or does not fit; the message says where.
        """

    @abstractmethod
    def gold(self, example: Example, data: "DataSection", config) -> Any:
        """Return the right answer in the form that `score` takes."""

    @abstractmethod
    def decode(self, windows: np.ndarray, config, features: Sequence[Feature] = ()) -> dict:
        """Return the answer for one document.

        Args:
            windows: logits of its features, [windows, …].
            config: the model's.
            features: those features; with them the answer carries their flags.
        """

    @abstractmethod
    def score(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return metrics and the rows of the table to print beside them.

        Raises:
            DataError: there are no answers.
        """

    @abstractmethod
    def default_metric(self, config) -> str:
        """The metric by which the best checkpoint is chosen; see ``lower_is_better``."""


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE:
        end = _cut(text, start)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int) -> int:
    """Where the piece that begins at ``start`` ends: before white space, which the next one has."""
    for space in _CUTS:
        cuts = [found.start() for found in space.finditer(text, start + 1, start + PIECE)]
        if cuts:
            return cuts[-1]
    limit = min(start + LONGEST_WORD, len(text))
    for space in _CUTS:
        found = space.search(text, start + PIECE, limit)
        if found:
            return found.start()
    return limit
