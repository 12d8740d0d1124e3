"""The traced walks: through which files a line and a recipe go."""

import sys

import pytest
import walk

from ldt.cli import console

MOST = 22  # files that a line passes from its reading to its answer


@pytest.fixture(scope="module")
def walked():
    return walk.walks()


def test_a_line_passes_few_files_and_no_recipe_or_training(walked):
    line, _ = walked
    assert len(line) <= MOST
    packages = {path.partition("/")[0] for path in line}
    assert packages <= {"data", "inference", "tasks", "model", "attention", "metrics", "errors.py"}
    steps = (
        "data/records.py",
        "tasks/classification.py",
        "data/tokenization.py",
        "data/collate.py",
        "model/heads/classification.py",
        "model/encoders/longformer.py",
        "model/layers.py",
        "attention/__init__.py",
        "attention/blocked.py",
        "inference/answer_file.py",
    )
    places = [list(line).index(step) for step in steps]
    assert places == sorted(places)


def test_a_recipe_goes_from_the_command_to_the_model_card(walked):
    _, recipe = walked
    for step in (
        "cli/finetune.py",
        "recipe/recipe.py",
        "training/loop.py",
        "training/finetune.py",
        "training/run_folder.py",
        "training/model_card.py",
    ):
        assert step in recipe
    assert list(recipe).index("recipe/recipe.py") < list(recipe).index("training/loop.py")
    assert not any(path.startswith("inference/") for path in recipe)


def test_the_page_shows_both_walks(walked, monkeypatch):
    monkeypatch.setattr(walk, "walks", lambda: walked)
    page = walk.page()
    for path, name in [*walked[0].items(), *walked[1].items()]:
        assert f"| `{path}` | `{name}` |" in page


def test_a_walk_leaves_the_console_on_the_streams_of_the_moment(walked):
    assert console.stdout.file is sys.stdout
    assert console.stderr.file is sys.stderr
