"""The pages by hand: navigation, tables of what can be added, changelog, pictures."""

import ast
import importlib
import json
import re
from pathlib import Path
from statistics import mean

import pictures
import yaml

import ldt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_navigation_has_every_page():
    text = (DOCS / "site" / "mkdocs.yml").read_text("utf-8")
    listed = set(re.findall(r"([\w/]+\.md)", text.partition("\nnav:")[2]))
    hooks = (DOCS / "site" / "hooks.py").read_text("utf-8")
    generated = set(re.findall(r'"(reference/\w+\.md)"', hooks))
    assert listed == {path.name for path in DOCS.glob("*.md")} | generated
    assert yaml.safe_load(text)["docs_dir"] == ".."


def test_recipes_that_pages_name_are_there():
    pages = [path.read_text("utf-8") for path in (*DOCS.glob("*.md"), ROOT / "README.md")]
    named = {name for page in pages for name in re.findall(r"recipes/(\w+\.yaml)", page)}
    assert len(named) > 10
    assert named <= {path.name for path in (ROOT / "recipes").glob("*.yaml")}


def test_figures_of_samples_are_those_of_the_results():
    text = (DOCS / "benchmarks.md").read_text("utf-8")
    made = json.loads((ROOT / "benchmarks" / "results" / "official.json").read_text("utf-8"))
    for name, experiment in made.items():
        section = text.partition(f"(`{name}`)\n")[2].partition("\n### ")[0]
        for row in experiment["seeds"][0]:
            seeds = [seed[row] for seed in experiment["seeds"]]
            figures = {name: mean(seed[name] for seed in seeds) for name in seeds[0]}
            line = next(line for line in section.splitlines() if line.startswith(f"| {row} |"))
            cells = [cell.strip() for cell in line.split("|")[2:-1]]
            shown = [f"{value:.1f}" for value in figures.values()]
            assert [cell for cell in cells if cell] == shown


def test_contributing_names_tables_that_exist():
    text = (DOCS / "CONTRIBUTING.md").read_text("utf-8").partition("## A task")[0]
    table = re.findall(r"^\| [\w ]+ \| ([^|]+) \| [^|]+ \|$", text, re.M)[1:]
    for files in table:
        for folder, pattern in re.findall(r"`(ldt/[\w/]+)/(<x>|\w+)\.py`", files):
            assert (ROOT / folder).is_dir()
            assert pattern == "<x>" or (ROOT / folder / f"{pattern}.py").is_file()
    for name in ("JOBS", "PREDICTORS", "OPTIONS"):  # a row in each for a kind of training
        assert f"`{name}`" in table_row(text, "kind of training")
    rows = re.findall(r"^\| [\w ]+ \| [^|]+ \| `([A-Z]+)` in `([\w/]+)\.py`", text, re.M)
    assert len(rows) >= 5
    for name, file in rows:
        module = importlib.import_module(file.replace("/", ".").removesuffix(".__init__"))
        assert getattr(module, name)
    added = re.findall(r"^\| ([\w ]+) \| ", text, re.M)[1:]
    assert added == (
        "task|kind of answer|kind of training|published set|attention backend|pooling|"
        "encoder|command"
    ).split("|")


def table_row(text, first):
    (row,) = re.findall(rf"^\| {first} \|.*$", text, re.M)
    return row


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    table = page.partition("## Messages")[2].partition("\n## ")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", table, re.M)
    assert len(messages) >= 20
    source = "\n".join(constants())
    for message in messages:
        for piece in message.split("…"):
            assert piece.strip(" :;,") in source, (message, piece)


def constants():
    """The text of every string in ldt; where an f-string has a value, nothing."""
    for path in (ROOT / "ldt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [getattr(part, "value", "") for part in parts]
            yield "".join(text for text in texts if isinstance(text, str))


def test_the_changelog_begins_with_this_version():
    (first, *_) = re.findall(r"^## (\S+)", (DOCS / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert first.rstrip(",") == ldt.__version__


def test_the_pictures_are_those_of_the_figures(tmp_path, monkeypatch):
    there = {path.stem: path.read_text("utf-8") for path in pictures.FOLDER.glob("*.svg")}
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    assert set(there) == set(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        draw()
        words = [
            re.findall(r"<text[^>]*>([^<]*)</text>", text)
            for text in (there[name], (tmp_path / f"{name}.svg").read_text("utf-8"))
        ]
        assert words[0]
        assert words[0] == words[1]
