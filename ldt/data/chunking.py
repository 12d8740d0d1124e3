"""Inputs made of named segments, and the parts of a long document that become inputs: chunks.

Every input is laid out by the one `join` below, so that a recipe names global ones by their role.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.data.features import Feature
from ldt.data.sentences import EDGES
from ldt.data.tokenization import special_id
from ldt.errors import DataError, RecipeError
from ldt.io.records import Example

if TYPE_CHECKING:
    from ldt.data.options import DataSection


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
    feature: Feature = {"input_ids": [], "global_attention_mask": []}
    if token_types:
        feature["token_type_ids"] = []
    for segment in segments:
        size = len(segment.ids)
        feature["input_ids"] += segment.ids
        feature["global_attention_mask"] += [int(segment.role in global_attention)] * size
        if token_types:
            feature["token_type_ids"] += [segment.token_type] * size
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

    Raises:
        RecipeError: no room, or a stride that leaves none.
        DataError: the document is too long and ``data.overflow`` is "error".
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
