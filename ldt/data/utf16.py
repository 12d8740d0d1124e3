"""Places in a text as browsers count them, in code units of UTF-16, to its characters and back."""

import re
from bisect import bisect_left

_PAIR = re.compile("[\U00010000-\U0010ffff]")


class Utf16:
    """The borders of the characters of a text, in code units of UTF-16.

    A character above U+FFFF, as most emoji are, is two units, any other is one: also a combining
    mark, a joiner, and each half of CR LF.
    """

    def __init__(self, text: str):
        self._pairs = [found.start() for found in _PAIR.finditer(text)]
        self._units = [place + number for number, place in enumerate(self._pairs)]
        self.size = len(text) + len(self._pairs)

    def unit(self, character: int) -> int:
        """The unit at which a character begins; ``size`` at the end."""
        return character + bisect_left(self._pairs, character)

    def character(self, unit: int) -> int | None:
        """The number of the character that begins at a unit; their number at the end. None in the
        middle of a character and outside of the text."""
        before = bisect_left(self._units, unit)
        inside = before > 0 and self._units[before - 1] == unit - 1
        return None if inside or not 0 <= unit <= self.size else unit - before
