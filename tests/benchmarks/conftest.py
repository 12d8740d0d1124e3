"""The scripts as modules."""

import importlib
import sys
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
