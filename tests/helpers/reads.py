"""What the tests of reading share: a file with a content, and what is read from it."""

import pytest

from ldt.errors import DataError
from ldt.io.records import read

LINES = b'{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n'


def records(path, content, **options):
    path.write_bytes(content)
    return [(example.id, example.fields) for example in read(path, **options)]


def error(path, content, **options):
    """What is said about a broken file, without the file's name."""
    with pytest.raises(DataError) as caught:
        records(path, content, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))
