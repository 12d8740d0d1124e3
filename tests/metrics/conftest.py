import zlib

import pytest


@pytest.fixture
def chance():
    """A number from 0 to 1 for a key, always the same."""
    return lambda key: zlib.crc32(key.encode()) / 2**32


@pytest.fixture
def changed(chance):
    """Makes a prediction of a gold answer: itself, dressed up, or a part of it, by its key."""

    def changed(text, key):
        words = text.split()
        dressed = f"The {text.upper()}!"
        forms = [text, dressed, " ".join(words[1:]), " ".join(words[: len(words) // 2])]
        return forms[int(4 * chance(key))]

    return changed
