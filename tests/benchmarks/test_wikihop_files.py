import json

import pytest

from ldt.benchmarks.formats import read
from ldt.errors import DataError
from ldt.recipe.recipe import DataSection

QUESTION = {"id": "q", "query": "in a b", "candidates": ["x", "y"], "supports": ["One.", ""]}


def examples(path):
    return list(read(str(path), DataSection(format="wikihop")))


def test_a_question_is_an_example_with_its_answer_where_it_has_one(tmp_path):
    file = tmp_path / "dev.json"
    more = {"answer": "y", "annotations": [["follows", "single"]]}
    file.write_text(json.dumps([QUESTION | more, QUESTION | {"id": "r"}]), encoding="utf-8")
    fields = {key: value for key, value in QUESTION.items() if key != "id"}
    found = examples(file)
    assert [(item.id, item.where) for item in found] == [("q", f"{file}: q"), ("r", f"{file}: r")]
    assert [item.fields for item in found] == [fields | {"answer": "y"}, fields]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"data": []}, "an object of 1 key, expected a list of questions with id, query"),
        (["q"], "question 1: 'q', expected an object with 'id'"),
        ([QUESTION | {"id": 7.5}], "question 1: 'id' is 7.5, expected text"),
        ([QUESTION | {"candidates": "x"}], "q: 'candidates' is 'x', expected a list"),
        ([QUESTION | {"supports": ["x", None]}], "q: null, expected text"),
        ([QUESTION | {"answer": ["x"]}], "q: 'answer' is a list of 1, expected text"),
        ([{"id": "q", "candidates": [], "supports": []}], "q: no field 'query', expected text"),
    ],
)
def test_another_layout_is_named(tmp_path, content, what):
    file = tmp_path / "dev.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError) as error:
        examples(file)
    assert str(error.value).startswith(f"{file}: {what}")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("wikihop/train.json", 11),
        ("wikihop/dev.json", 14),
        ("nq_wikihop_format/train.json.gz", 160),
        ("nq_wikihop_format/dev.json.gz", 60),
    ],
)
def test_the_real_files_are_read(shared_data, name, count):
    found = examples(shared_data / name)
    assert len(found) == len({item.id for item in found}) == count
    assert all(item.fields["answer"] in item.fields["candidates"] for item in found)
