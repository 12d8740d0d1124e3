"""The scripts as modules."""

import importlib
import sys
import zlib
from pathlib import Path

import pytest

from ldt import cli


@pytest.fixture
def script(monkeypatch):
    """script(name) -> a script as a module; its commands run in this process."""
    place = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(place)
    commands = importlib.import_module("commands")

    def ldt(folder, *arguments):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, arguments)])
        assert ended.value.code == 0, arguments

    monkeypatch.setattr(commands, "ldt", ldt)
    yield importlib.import_module
    for path in place.glob("*.py"):
        sys.modules.pop(path.stem, None)


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
