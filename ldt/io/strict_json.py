r"""Strict JSON, where Python's parser is lenient.

NaN, Infinity, numbers too large for a float, duplicate keys and excessive nesting are errors. A
lone surrogate (``\ud800`` without its partner) cannot be written as UTF-8 and becomes U+FFFD, one
character for one, so that offsets still hold. Control characters inside strings are accepted.
"""

import json
import math
import re
from typing import Any, NamedTuple

from ldt.errors import DataError, quote
from ldt.io.streams import BOM, DAMAGE, not_utf8, open_source

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Valid inside a JSON string, but str.splitlines ends a line there.
LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
DIGITS = 9  # of numbers in arrays, behind the point
_KINDS = {str: "text", list: "a list", dict: "an object", int: "a whole number", float: "a number"}


class JsonError(ValueError):
    """Text that is not JSON; ``at_end`` says that it ends too early."""

    def __init__(self, message: str, at_end: bool = False):
        super().__init__(message)
        self.at_end = at_end


class JsonDecoder:
    """Decode consecutive values from a text. Faults that do not break the syntax are collected in
    ``problems`` instead of raised, so that decoding can continue behind the value."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            strict=False,
        )

    def decode(self, text: str, start: int = 0) -> tuple[Any, int]:
        """Return the value that begins at ``start``, and its end.

        The value must be rejected if ``problems`` is not empty afterwards.

        Raises:
            JsonError: no value begins there; the message names the fault and the column.
        """
        self.problems.clear()
        try:
            value, end = self._json.raw_decode(text, start)
            if _SURROGATE_ESCAPE.search(text, start, end):
                value = _mend(value)
        except RecursionError:
            raise JsonError("not JSON that can be read: nested too deep") from None
        except json.JSONDecodeError as error:
            line = f"line {error.lineno}, " if error.lineno > 1 else ""
            what = f"not JSON: {error.msg} at {line}column {error.colno}"
            raise JsonError(what, error.pos >= len(text.rstrip())) from None
        except ValueError:  # Python reads integers of at most 4,300 digits
            raise JsonError("a number of too many digits") from None
        return value, end

    def _object(self, pairs: list[tuple[str, Any]]) -> dict:
        value = dict(pairs)
        if len(value) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self.problems.append(f"key {key!r} stands twice in one object")
                    break
                seen.add(key)
        return value

    def _constant(self, name: str) -> None:
        self.problems.append(f"{name} is no JSON number; null or text would do")

    def _float(self, digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            self.problems.append(f"number {digits[:20]} is too large")
        return value


class JsonFile(NamedTuple):
    """A file's name for messages ("stdin" for "-") and its value."""

    name: str
    value: Any


def read(source: "str | JsonFile", encoding: str | None = None) -> JsonFile:
    """Read a path, or standard input for "-"; a `JsonFile` is returned unchanged.

    Args:
        source: path, "-", or a file already read.
        encoding: encoding of the text; None is UTF-8, for callers without an option to name
            another.

    Raises:
        UserError: the file is missing.
        DataError: the file is damaged, has another encoding, or is not exactly one value of strict
            JSON (duplicate keys included).
    """
    if isinstance(source, JsonFile):
        return source
    with open_source(source) as file:
        try:
            data = file.stream.read()
        except DAMAGE as error:
            raise DataError(f"{file.name}: {file.damaged(error)}") from error
    mark = len(data) - len(data := data.removeprefix(BOM))
    try:
        text = data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        what = not_utf8(data, error, mark, encoding)
        raise DataError(f"{file.name}: {what}") from None
    start = len(text) - len(text.lstrip(" \t\r\n"))
    if start == len(text):
        raise DataError(f"{file.name}: empty; expected JSON")
    decoder = JsonDecoder()
    try:
        value, end = decoder.decode(text, start)
    except JsonError as error:
        cut = "; the file breaks off there" if error.at_end else ""
        raise DataError(f"{file.name}: {error}{cut}") from None
    tail = text[end:].lstrip(" \t\r\n")
    if tail:
        line = text.count("\n", 0, len(text) - len(tail)) + 1
        lines = "; JSON Lines will not do here, one value is expected" if tail[0] in "{[" else ""
        raise DataError(f"{file.name}: more text after the JSON value, at line {line}{lines}")
    if decoder.problems:
        raise DataError(f"{file.name}: {decoder.problems[0]}")
    return JsonFile(file.name, value)


def json_line(value: Any) -> bytes:
    """Serialise a value as one line of JSON with its line end, in valid UTF-8: a lone surrogate
    becomes U+FFFD. numpy arrays become lists of numbers with 9 decimals. NaN and infinity are a
    ValueError."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_listed)
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        text = text.translate(LINE_ENDS)
    return text.encode() + b"\n"


def _listed(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        raise TypeError(f"no JSON for {type(value).__name__}")
    return value.astype(float).round(DIGITS).tolist()


def take(item: Any, key: str, kind: type, where: str) -> Any:
    """Field of a JSON object. DataError, beginning with ``where``, if ``item`` is no object, or the
    field is missing or of another type than ``kind`` (str, list, dict, int or float)."""
    if not isinstance(item, dict):
        raise DataError(f"{where}: {quote(item)}, expected an object with {key!r}")
    if key not in item:
        raise DataError(f"{where}: no field {key!r}, expected {_KINDS[kind]}")
    if not isinstance(item[key], kind):
        raise DataError(f"{where}: {key!r} is {quote(item[key])}, expected {_KINDS[kind]}")
    return item[key]


def texts(values: list, where: str) -> list[str]:
    """The list itself; DataError, beginning with ``where``, if an item is not text."""
    for value in values:
        if not isinstance(value, str):
            raise DataError(f"{where}: {quote(value)}, expected text")
    return values


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mend(item) for item in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    return value
