"""Bytes of the UTF-8 of a text to its characters and back, exactly."""


class Utf8:
    """The borders of the characters of a text, in bytes.

    A character is one of Unicode: a combining mark is one, and so is each half of CR LF.
    """

    def __init__(self, text: str):
        self._text = text
        self._bytes = text.encode()

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return len(self._bytes)

    def parts(self, byte: int) -> bool:
        """True if a byte from 0 to ``size`` parts two characters: it is in the middle of none."""
        return byte == self.size or self._bytes[byte] & 0xC0 != 0x80

    def character(self, byte: int) -> int:
        """The number of the character that begins at a byte that ``parts`` two; their number at
        the end."""
        return len(self._bytes[:byte].decode())

    def byte(self, character: int) -> int:
        """The byte at which a character begins; ``size`` at the end."""
        return len(self._text[:character].encode())
