import json

import pytest

from ldt.benchmarks.formats import FORMATS, read
from ldt.errors import RecipeError
from ldt.recipe.recipe import DataSection

ANSWER = {"text": "Paris", "answer_start": 4}
ARTICLE = {
    "title": "Towns",
    "paragraphs": [
        {
            "context": "In Paris",
            "qas": [
                {"id": "a", "question": "Where?", "answers": [ANSWER]},
                {"id": "b", "question": "When?", "is_impossible": True, "answers": []},
                {"id": "c", "question": "Who?"},
            ],
        }
    ],
}


def test_squad_gives_an_example_for_each_question(tmp_path):
    file = tmp_path / "dev.json"
    file.write_text(json.dumps({"version": "v2.0", "data": [ARTICLE]}), encoding="utf-8")
    found = list(read(str(file), DataSection(format="squad")))
    same = {"title": "Towns", "context": "In Paris"}
    assert [(item.id, item.fields) for item in found] == [
        ("a", same | {"question": "Where?", "answers": [ANSWER]}),
        ("b", same | {"question": "When?", "answers": []}),
        ("c", same | {"question": "Who?"}),
    ]
    assert found[0].where == f"{file}: a"


def test_lines_are_read_by_their_name_or_their_content(tmp_path):
    file = tmp_path / "docs"
    file.write_text("text,label\nhello,a\n", encoding="utf-8")
    assert [item.fields for item in read(str(file), DataSection(format="csv"))] == [
        {"text": "hello", "label": "a"}
    ]
    file.write_text('{"text": "hello"}\n', encoding="utf-8")
    for name in ("jsonl", None):
        (item,) = read(str(file), DataSection(format=name))
        assert item.fields == {"text": "hello"}
    assert FORMATS[:4] == ("jsonl", "csv", "tsv", "parquet")


def test_a_recipe_renames_the_fields_of_its_task_and_no_others(tmp_path):
    from ldt.recipe.recipe import load

    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "task: {name: classification}\ndata: {fields: {question: q}}\n", encoding="utf-8"
    )
    with pytest.raises(RecipeError, match="fields: question: no such field of the task"):
        load(recipe)
