"""JSON as the standard has it, where Python's own reader is lenient.

NaN, Infinity, numbers too large for a float, a key twice in one object and a nesting too deep are
no JSON here. A lone surrogate (an escaped ``\\ud800`` without its partner) is, but cannot be
written as UTF-8: it becomes U+FFFD, one character for one character, so that offsets still hold.
Raw control characters inside strings are accepted.
"""

import json
import math
import re
from typing import Any

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """Text that is no JSON; ``at_end``: it ends too early."""

    def __init__(self, message: str, at_end: bool = False):
        super().__init__(message)
        self.at_end = at_end


class Decoder:
    """Reads one value after the other out of text.

    What breaks no syntax is noted in ``problems`` instead of raised, so that the end of the value
    is known and reading can go on after it.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            strict=False,
        )

    def decode(self, text: str, start: int = 0) -> tuple[Any, int]:
        """Return the value that begins at ``start``, and where it ends.

        The value must be rejected if ``problems`` is not empty afterwards.

        Raises:
            JsonError: no value begins there; the message says what is wrong at which column.
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
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self.problems.append(f"key {key!r} stands twice in one object")
                    break
                seen.add(key)
        return found

    def _constant(self, name: str) -> None:
        self.problems.append(f"{name} is no JSON number; null or text would do")

    def _float(self, digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            self.problems.append(f"number {digits[:20]} is too large")
        return value


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mend(item) for item in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    return value
