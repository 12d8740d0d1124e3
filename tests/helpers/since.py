"""Tests by change: ``pytest --since REV`` runs those of the files that differ from a commit.

Tests mirror the source, and docs/architecture.md says who imports whom: a package is tested with
all that may import it.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALWAYS = {"test_layers.py", "test_packaging.py"}  # of the whole source, in seconds
SHARED = {"helpers", "conftest.py"}  # of tests/, used by any test
OTHERS = {  # outside of ldt/ and tests/: what shows it
    "README.md": {"test_readme.py", "docs"},
    "benchmarks": {"benchmarks"},
    "docs": {"docs", "test_readme.py"},
    "examples": {"examples"},
    "recipes": {"recipe", "training", "docs"},
}


@cache
def picture():
    """package -> the packages that it may import, as docs/architecture.md has them."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|$", text, re.M)
    parts = {name: set(below.split()) for name, below in rows}
    return {name: set(parts) if below == {"all"} else below for name, below in parts.items()}


def selected(paths):
    """Entries of tests/, folders or files at any depth, that paths of the repository change.

    Args:
        paths: relative to the root of the repository, with slashes.

    Returns:
        A set of paths relative to tests/; None stands for all of them.
    """
    tests = set(ALWAYS)
    for path in paths:
        top, _, rest = path.partition("/")
        first = rest.partition("/")[0]
        if top == "tests":
            if first in SHARED:
                return None
            is_test = rest.rpartition("/")[2].startswith("test_")
            tests.add(rest if is_test or "/" not in rest else rest.rpartition("/")[0])
        elif top == "ldt":
            part = first.removesuffix(".py")
            if part not in picture():
                return None
            above = {name for name, below in picture().items() if part in below}
            tests |= {part, f"test_{part}.py", *above, "chaos"}
        elif top in OTHERS:
            tests |= OTHERS[top]
        else:
            return None
    return tests


def changed(revision):
    """Paths that differ from a commit, those that git does not know yet included."""
    commands = ["diff", "--name-only", revision], ["ls-files", "--others", "--exclude-standard"]
    paths = []
    for command in commands:
        run = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
        if run.returncode:
            raise pytest.UsageError(f"--since {revision}: {run.stderr.strip()}")
        paths += run.stdout.splitlines()
    return paths


def pytest_addoption(parser):
    parser.addoption("--since", metavar="REV", help="run the tests of what changed since REV")


def pytest_collection_modifyitems(config, items):
    revision = config.getoption("--since")
    tests = selected(changed(revision)) if revision else None
    if tests is None:
        return
    chosen, left_out = [], []
    for item in items:
        place = item.path.relative_to(ROOT / "tests")
        names = {place.as_posix(), *(folder.as_posix() for folder in place.parents)}
        (chosen if names & tests else left_out).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)
