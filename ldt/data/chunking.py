"""Parts of a long document that become inputs: chunks."""

from typing import TYPE_CHECKING, Any

from ldt.data.records import Example
from ldt.errors import DataError, RecipeError

if TYPE_CHECKING:
    from ldt.data.options import DataSection


def fit(
    length: int, room: int, example: Example, data: "DataSection", text: str | None = None
) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """Return the chunks of a document that go into the model, each into one input.

    Chunks follow each other every ``room - data.stride`` tokens; the last one ends where the
    document ends, so that it is as long as the others and shares more with the one before.

    Args:
        length: tokens of the document, without special ones.
        room: tokens of it that one input holds.
        example: for messages.
        data: its overflow, stride and max_windows.
        text: of the document; None where that it is empty need not be said.

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
    empty: dict[str, Any] = {} if text is None or text.strip() else {"empty": True}
    if length <= room:
        return [(0, length)], empty
    if data.overflow == "error":
        raise DataError(
            f"{example.where}: document {example.id!r} has {length:,} tokens, {room:,} fit; "
            "data.overflow=windows reads it in parts, truncate its beginning"
        )
    starts = [*range(0, length - room, room - data.stride), length - room]
    most = 1 if data.overflow == "truncate" else data.max_windows
    chunks = [(start, start + room) for start in starts[:most]]
    return chunks, cut_off(length - chunks[-1][1]) | empty


def cut_off(unread: int) -> dict[str, Any]:
    """Flags of a document by its tokens that go unread, none where all are read."""
    return {"truncated": True, "unread_tokens": unread} if unread else {}
