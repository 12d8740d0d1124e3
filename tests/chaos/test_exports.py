"""Exports that are killed or have no room leave a whole folder, or the one that was there."""

import errno
import importlib.util
import shutil
import signal

import pytest
from faults import ALL, sample
from zygote import Fault

from ldt.inference.runtimes import FORMATS

NAMES = ("torch", "onnx") if ALL else ("torch",)  # the first takes a third of the time
CASES = [(name, at) for name in NAMES for at in range(1, 26)]
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def command(name, *options):
    return "export", "runs/done", "exported", "--format", name, *options


def contents(folder):
    """Names and sizes of the files of an exported folder."""
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def leftovers(home):
    return [str(path) for path in home.rglob("*") if ".tmp-" in path.name]


@pytest.fixture(scope="module")
def wanted(ldt, made, tmp_path_factory):
    """Function of a format: (a folder with an export, what is in it, its file events)."""
    results = {}

    def get(name):
        format = FORMATS[name]
        for package in (*format.writes, format.package):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
        if name not in results:
            home = tmp_path_factory.mktemp("wanted") / "home"
            shutil.copytree(made, home, symlinks=True)
            outcome = ldt(*command(name), cwd=home)
            assert outcome.code == 0, outcome.err
            results[name] = home, contents(home / "exported"), len(outcome.events)
        return results[name]

    return get


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), sample(CASES, 1))
def test_an_export_that_is_killed_leaves_what_was_there_or_all_of_the_new(name, at, ldt, wanted):
    home, files, events = wanted(name)
    (home / "exported/of old").write_text("")
    killed = ldt(*command(name, "--overwrite"), cwd=home, fault=Fault(at=at, number=signal.SIGKILL))
    assert killed.code == -signal.SIGKILL or at > events
    there = home / "exported"
    if not there.exists():  # between two renames
        (there,) = home.glob("exported.replaced.tmp-*")
    assert contents(there) in (files, files | {"of old": 0})
    outcome = ldt(*command(name, "--overwrite"), cwd=home)
    assert outcome.code == 0, outcome.err
    assert contents(home / "exported") == files
    assert not leftovers(home)


@pytest.mark.parametrize("code", sample(REFUSED, 1))
@pytest.mark.parametrize(("name", "at"), sample(CASES, 1))
def test_an_export_whose_disk_refuses_once_is_an_error(name, at, code, ldt, wanted):
    home, files, _ = wanted(name)
    (home / "exported/of old").write_text("")
    outcome = ldt(*command(name, "--overwrite"), cwd=home, fault=Fault(at=at, errno=code))
    assert not outcome.bug, outcome.err
    assert outcome.code in (0, 6), outcome.err
    assert contents(home / "exported") == (files if outcome.code == 0 else files | {"of old": 0})
    assert not leftovers(home)
