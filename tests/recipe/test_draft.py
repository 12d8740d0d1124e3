"""A first recipe loads, and says what was seen."""

import json

import pytest
from recipe_data import LINES

from ldt.recipe import load
from ldt.recipe.draft import draft, lengths, suggested
from ldt.recipe.recipe import COMMANDS
from ldt.recipe.survey import survey
from ldt.tasks import TASKS

DRAFTED = [name for name in TASKS if name != "charlm"]


@pytest.fixture
def drafted(tmp_path, monkeypatch):
    """Writes records and the recipe that is made of them: the loaded recipe and its text."""
    monkeypatch.chdir(tmp_path)

    def make(records, task, name="my data.jsonl", **changes):
        path = tmp_path / name
        path.write_text("".join(json.dumps(each) + "\n" for each in records), "utf-8")
        found = survey(name)
        given = {"task": task, "model": "./m-64", "max_length": 64}
        text = draft(found, tokens=lengths(found, task), **given | changes)
        (tmp_path / "recipe.yaml").write_text(text, "utf-8")
        return load("recipe.yaml", command=COMMANDS[TASKS[task].reads.kind]), text

    return make


@pytest.mark.parametrize("task", DRAFTED)
def test_the_recipe_of_each_task_loads(task, drafted):
    recipe, text = drafted([LINES[task](number) for number in range(12)], task)
    assert recipe.task.name == task
    assert recipe.model.path == "./m-64"
    assert (recipe.data.train, recipe.data.max_length) == ("my data.jsonl", 64)
    assert text.startswith("# A first recipe for my data.jsonl")
    assert f"# ldt {COMMANDS[TASKS[task].reads.kind]} recipe.yaml\n" in text
    assert "  # Longest input in tokens, with special tokens" in text
    assert max(map(len, text.splitlines())) <= 100


def test_fields_are_written_where_they_are_not_the_usual_ones(drafted):
    rows = [
        {"uid": n, "body": f"{n} words of it " * 9, "kind": ("no", "1.5 yes")[n % 2]}
        for n in range(8)
    ]
    recipe, text = drafted(rows, "classification")
    assert (recipe.data.text, recipe.data.label, recipe.data.id) == ("body", "kind", "uid")
    assert "Here 2 classes: no (4), 1.5 yes (4)." in " ".join(text.replace("#", "").split())
    assert recipe.data.eval_fraction == 0.3  # of 4 documents of each class
    usual = [{"id": n, "text": f"{n} words of it " * 9, "label": f"{n % 2}.5"} for n in range(8)]
    recipe, text = drafted(usual, "classification")
    assert recipe.task.problem == "regression"
    assert "text:" not in text
    assert "\n  id:" not in text


def test_a_narrow_model_gets_a_higher_rate(drafted):
    rows = [{"text": f"{n} words", "label": "ab"[n % 2]} for n in range(8)]
    rates = {
        width: drafted(rows, "classification", width=width)[0].training["learning_rate"]
        for width in (None, 384, 768)
    }
    assert rates == {None: 3e-5, 384: 1e-4, 768: 3e-5}


def test_lengths_go_by_the_tokenizer_where_there_is_one(tmp_path):
    path = tmp_path / "d.jsonl"
    rows = [{"text": "word " * n, "label": "ab"[n % 2]} for n in (20, 10)]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    found = survey(str(path))
    assert lengths(found, "classification") == [14, 28]
    by_letter = lengths(found, "classification", len)
    assert by_letter == [50, 100]


def test_a_suggested_length_holds_most_documents_and_is_the_models_at_most():
    assert suggested([10] * 99 + [9000]) == 512
    assert suggested([1000] * 10 + [1500] * 90) == 2048
    assert suggested([510]) == 512
    assert suggested([511]) == 1024
    assert suggested([50_000]) == 4096
    assert suggested([1500], 1024) == 1024
    assert suggested([50_000], 16384) == 16384
    assert suggested([]) == 4096
