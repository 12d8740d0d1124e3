"""Bytes of the UTF-8 of a text to its characters and back, exactly."""

from functools import cached_property

import numpy as np


class Utf8:
    """The borders of the characters of a text, in bytes.

    A character is one of Unicode: a combining mark is one, and so is each half of CR LF.
    """

    def __init__(self, text: str):
        self._bytes = np.frombuffer(text.encode(), np.uint8)

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return len(self._bytes)

    def parts(self, byte: int) -> bool:
        """True if a byte from 0 to ``size`` parts two characters: it is in the middle of none."""
        return byte == self.size or bool(self._bytes[byte] & 0xC0 != 0x80)

    def character(self, byte: int) -> int:
        """The number of the character that begins at a byte that ``parts`` two; its length at the
        end."""
        return int(self._starts.searchsorted(byte))

    def byte(self, character: int) -> int:
        """The byte at which a character begins; ``size`` at the end."""
        return int(self._starts[character]) if character < len(self._starts) else self.size

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.flatnonzero(self._bytes & 0xC0 != 0x80)
