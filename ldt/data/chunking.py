"""Which parts of a long document become inputs."""

from typing import TYPE_CHECKING

from ldt.data.records import Example
from ldt.errors import DataError, RecipeError

if TYPE_CHECKING:
    from ldt.data.options import DataSection


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
