"""A file that is one JSON value, whole in memory; packed or not, and read strictly."""

import lzma
import zlib
from typing import Any, NamedTuple

from ldt.errors import DataError
from ldt.opening import opened
from ldt.strict_json import Decoder


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
