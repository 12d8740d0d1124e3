"""The distribution: its name, its version and the files that it brings."""

import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import ldt

ROOT = Path(__file__).parents[1]


def build(kind, folder):
    """Build the ``wheel`` or ``sdist`` of this checkout into a folder, without a network."""
    code = f"from hatchling import build; print(build.build_{kind}({str(folder)!r}))"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return folder / out.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_name_and_the_version_of_the_package(wheel):
    assert wheel.name == f"ldt_toolkit-{ldt.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        fields = Parser().parse(io.StringIO(file.read(name).decode("utf-8")))
    assert fields["Name"] == "ldt-toolkit"
    assert fields["Version"] == ldt.__version__
    assert fields["Author"]
    assert fields["Keywords"]
    assert "Typing :: Typed" in fields.get_all("Classifier")
    links = re.findall(r"\]\((?!http|#)([^)]+)\)", fields.get_payload())
    assert links == [], "a relative link of the README is dead on the index"


def test_the_wheel_brings_recipes_templates_and_the_mark_of_types(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert "ldt/py.typed" in names
    for path in (ROOT / "recipes").glob("*.yaml"):
        assert f"ldt/recipes/{path.name}" in names
    for path in (ROOT / "ldt").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(ROOT).as_posix() in names
    assert {name.partition("/")[0] for name in names} == {
        "ldt",
        f"ldt_toolkit-{ldt.__version__}.dist-info",
    }


def test_the_source_distribution_brings_docs_examples_and_recipes(tmp_path):
    sdist = build("sdist", tmp_path)
    top = f"ldt_toolkit-{ldt.__version__}"
    assert sdist.name == f"{top}.tar.gz"
    with tarfile.open(sdist) as file:
        names = {name.removeprefix(f"{top}/") for name in file.getnames()}
    for wanted in (
        "README.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "docs/architecture.md",
        "examples/demo/demo.py",
        "recipes/classification.yaml",
        "tests/test_packaging.py",
    ):
        assert wanted in names


def test_the_installed_distribution_has_the_version_that_the_command_prints():
    command = [sys.executable, "-m", "ldt", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == f"ldt {ldt.__version__}\n"
    assert metadata.version("ldt-toolkit") == ldt.__version__
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("ldt")  # the name of another project on PyPI


def test_the_commit_hook_runs_what_make_check_runs():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    entries = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    assert entries == ["make check"]
    assert {repo["repo"] for repo in config["repos"]} == {"local"}  # nothing is downloaded


def test_every_dependency_has_a_pinned_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    named = {re.match(r"[\w-]+", line)[0] for lines in lists for line in lines}
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    assert not {n.lower().replace("_", "-") for n in named - {"ldt-toolkit"}} - {
        n.lower().replace("_", "-") for n in pinned
    }
