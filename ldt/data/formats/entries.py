"""Entries of a gold file that is a list of questions, and their ids."""

from collections.abc import Iterable, Iterator
from typing import Any

from ldt.errors import DataError, shown
from ldt.io.strict_json import JsonFile, take_id


def entries(
    file: JsonFile, id_key: str, key: str | None = None
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield each entry of a list with its id, and its place for messages.

    Args:
        id_key: field of the id.
        key: field of the file with the list; None where the file is the list.

    Raises:
        DataError: an entry that is no object or has no id.
    """
    for number, entry in enumerate(file.value if key is None else file.value[key], 1):
        id = take_id(entry, id_key, f"{file.name}: question {number:,}")
        yield entry, id, f"{file.name}: {id}"


def once(keys: Iterable[str], where: str) -> None:
    """Refuse a key that comes twice.

    Raises:
        DataError: the first that does.
    """
    seen = set()
    for key in keys:
        if key in seen:
            raise DataError(f"{where}: the id {shown(key)} stands twice; each question once")
        seen.add(key)
