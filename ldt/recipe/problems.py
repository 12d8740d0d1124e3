"""Problems with values of a recipe, each with its place: the lines of a `RecipeError`."""

import json
import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NamedTuple

from pydantic import ValidationError

from ldt.errors import RecipeError

MAX_LINES = 50  # in one error


class Place(NamedTuple):
    """Place where a value was written.

    Args:
        label: ``recipes/x.yaml:12``, or an override as it was typed.
        names: number of the value's keys that the label names itself.
        order: position by which messages are sorted.
    """

    label: str
    names: int = 0
    order: int = 0

    def say(self, keys: tuple) -> str:
        """Beginning of a message about a key: ``recipes/x.yaml:12: data: train``."""
        words = [f"item {key + 1}" if isinstance(key, int) else word(key) for key in keys]
        return ": ".join([self.label, *words[self.names :]])


class Problems:
    """Collected problems with values whose places are known.

    Args:
        places: where the value at each path of keys, such as ("data", "train"), was written.
    """

    def __init__(self, places: dict[tuple, Place]):
        self.places = places
        self.found: list[tuple[int, tuple, str]] = []  # (order, keys, line)

    def add(self, keys: tuple, what: str, place: Place | None = None) -> None:
        """Add a problem; its place is that of its keys unless another is given."""
        place = place or self.place(keys)
        self.found.append((place.order, keys, f"{place.say(keys)}: {what}"))

    def place(self, keys: tuple) -> Place:
        """Place of the value at these keys, or of the nearest one around it; ``recipe`` if none is
        known."""
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, Place("recipe"))

    def clean(self, keys: tuple) -> bool:
        """True if there is no problem at these keys or above them."""
        return not any(keys[: len(path)] == path for _, path, _ in self.found)

    def stop(self) -> None:
        """Raise a RecipeError with all problems, in the order of the file, if there are any."""
        if self.found:
            lines = [line for _, _, line in sorted(self.found, key=itemgetter(0))]
            more = len(lines) - MAX_LINES
            last = [f"and {more} more problems"] if more > 0 else []
            raise RecipeError("\n".join(lines[:MAX_LINES] + last))


_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
}


def explain(error: ValidationError, value: Any) -> Iterable[tuple[tuple, str | None]]:
    """Yield (keys, message) for each problem of a pydantic error; the message is None for an
    unknown key. ``value`` is what was validated.

    A union has an error for each of its branches; they become one line, of the branch that came
    furthest.
    """
    problems: dict[tuple, list[tuple[str, str, Any]]] = {}
    for item in error.errors(include_url=False, include_context=False):
        keys, inside = [], value
        for part in item["loc"]:  # the names of union branches are in no value
            inner = isinstance(inside, dict) and part in inside
            if inner or (isinstance(inside, list) and isinstance(part, int)):
                keys.append(part)
                inside = inside[part]
        if item["type"] == "missing":
            keys.append(item["loc"][-1])
        problems.setdefault(tuple(keys), []).append((item["type"], item["msg"], inside))
    for path, items in problems.items():
        if not any(other[: len(path)] == path and other != path for other in problems):
            yield path, _reason(items)


def _reason(items):
    kinds, messages, inputs = zip(*items, strict=True)
    if "extra_forbidden" in kinds:
        return None
    if "missing" in kinds:
        return "missing"
    plain = [message.removeprefix("Value error, ") for message in messages]
    if any(kind in ("value_error", "assertion_error") for kind in kinds):
        return plain[0]
    expected = [
        _EXPECTED.get(kind, re.sub(r"^\w+ should (be|have) ", "", message))
        for kind, message in zip(kinds, plain, strict=True)
    ]
    hint = ""
    if "text" in expected and not isinstance(inputs[0], str | list | dict | None):
        hint = "; quotes make it text"
    return f"expected {' or '.join(dict.fromkeys(expected))}, got {quote(inputs[0])}{hint}"


def quote(value: Any) -> str:
    """Text of a value for a message, as in a recipe: one line of at most 80 characters; of a dict
    the words "keys and values"."""
    if isinstance(value, dict):
        return "keys and values"
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return _cut(text.replace("Infinity", ".inf") if isinstance(value, float) else text)


def word(text: str) -> str:
    """Text of a key or override for a message: in quotes if it has line ends or control characters,
    and of at most 80 characters."""
    return _cut(text if text.isprintable() else repr(text))


def _cut(text):
    return text if len(text) <= 80 else f"{text[:77]}..."
