"""The traced walks: the files of a line, a request and a recipe, and what the page says."""

import json
import subprocess
import sys
from itertools import groupby

import pytest
import walk

MOST = 22  # files that a line passes from its reading to its answer


@pytest.fixture(scope="module")
def walked():
    """The walks of a new process: what other tests loaded and cached here would be missing."""
    script = "import json, walk; walks = walk.walks(); print(); print(json.dumps(walks))"
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=walk.ROOT / "docs" / "site",
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_page_shows_the_walks_as_they_are(walked):
    assert walk.traced() == walk.lists(*walked), "python docs/site/walk.py writes the page anew"


@pytest.mark.slow
def test_a_request_passes_few_files(walked):
    request = walked[2]
    assert len(request) <= 26
    for step in (
        "serve/limits.py",
        "serve/requests.py",
        "serve/scheduler.py",
        "model/layers.py",
    ):
        assert step in request


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2], ids=["line", "request"])
def test_no_package_is_passed_twice(walked, number):
    passed = [package for package, _ in groupby(walked[number], lambda path: path.split("/")[0])]
    assert len(passed) == len(set(passed)), passed


@pytest.mark.slow
def test_a_line_passes_few_files_and_no_recipe_or_training(walked):
    line = walked[0]
    assert len(line) <= MOST
    packages = {path.partition("/")[0] for path in line}
    assert packages <= {
        "io",
        "data",
        "inference",
        "tasks",
        "model",
        "attention",
        "metrics",
        "errors.py",
    }
    steps = (
        "io/records.py",
        "inference/answer_file.py",
        "tasks/classification.py",
        "data/tokenization.py",
        "data/features.py",
        "model/heads/classification.py",
        "model/layers.py",
        "attention/__init__.py",
        "attention/blocked.py",
        "metrics/decisions.py",
    )
    places = [list(line).index(step) for step in steps]
    assert places == sorted(places)


def test_a_recipe_goes_from_the_command_to_the_model_card(walked):
    recipe = walked[1]
    for step in (
        "cli/train.py",
        "recipe/recipe.py",
        "training/loop.py",
        "training/finetune.py",
        "recipe/run.py",
        "training/model_card.py",
    ):
        assert step in recipe
    assert list(recipe).index("recipe/recipe.py") < list(recipe).index("training/loop.py")
    assert not any(path.startswith("inference/") for path in recipe)
