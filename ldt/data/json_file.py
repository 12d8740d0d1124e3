"""A file that is one JSON value, whole in memory; packed or not, read strictly; and its fields."""

import lzma
import zlib
from reprlib import Repr
from typing import Any, NamedTuple

from ldt.data.streams import opened
from ldt.data.strict_json import Decoder
from ldt.errors import DataError

KINDS = {str: "text", list: "a list", dict: "an object", int: "a whole number", float: "a number"}

_repr = Repr()
_repr.maxstring = _repr.maxother = 60


class JsonFile(NamedTuple):
    """``name`` for messages ("stdin" for "-"), and the value."""

    name: str
    value: Any


def read(source: str) -> JsonFile:
    """Read a path, or standard input for "-".

    Raises:
        UserError: there is no such file.
        DataError: it cannot be unpacked, is not UTF-8 or not exactly one value of strict JSON; a
            key that stands twice in one object is an error too.
    """
    with opened(source) as file:
        try:
            data = file.stream.read()
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            what = f"the {file.packed} data are damaged or cut off" if file.packed else "not read"
            raise DataError(f"{file.name}: {what} ({error})") from error
    return JsonFile(file.name, _value(file.name, data))


def shown(value: Any) -> str:
    """``value`` as it is named in a message, cut short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return (
            f"{KINDS[type(value)]} of {len(value):,}" if value else f"{KINDS[type(value)]}, empty"
        )
    return _repr.repr(value)


def take(item: Any, key: str, kind: type, where: str) -> Any:
    """The field of an object of a gold file.

    Raises:
        DataError: ``item`` is no object, or the field is missing or of another kind.
    """
    if not isinstance(item, dict):
        raise DataError(f"{where}: {shown(item)}, expected an object with {key!r}")
    if key not in item:
        raise DataError(f"{where}: no field {key!r}, expected {KINDS[kind]}")
    if not isinstance(item[key], kind):
        raise DataError(f"{where}: {key!r} is {shown(item[key])}, expected {KINDS[kind]}")
    return item[key]


def texts(values: list, where: str) -> list[str]:
    """The same list.

    Raises:
        DataError: something in it is no text.
    """
    for value in values:
        if not isinstance(value, str):
            raise DataError(f"{where}: {shown(value)}, expected text")
    return values


def _value(name, data):
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"byte 0x{data[error.start]:02x} at byte {error.start:,}"
        raise DataError(f"{name}: not UTF-8: {what}; iconv -t UTF-8 converts a file") from None
    start = len(text) - len(text.lstrip(" \t\r\n"))
    if start == len(text):
        raise DataError(f"{name}: empty; expected JSON")
    decoder = Decoder()
    try:
        value, end = decoder.decode(text, start)
    except ValueError as error:
        cut = "; the file breaks off there" if getattr(error, "at_end", False) else ""
        raise DataError(f"{name}: {error}{cut}") from None
    rest = text[end:].lstrip(" \t\r\n")
    if rest:
        line = text.count("\n", 0, len(text) - len(rest)) + 1
        lines = "; JSON Lines will not do here, one value is expected" if rest[0] in "{[" else ""
        raise DataError(f"{name}: more text after the JSON value, at line {line}{lines}")
    if decoder.problems:
        raise DataError(f"{name}: {decoder.problems[0]}")
    return value
