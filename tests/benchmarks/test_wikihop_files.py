import json

import pytest

from ldt.benchmarks.formats import read
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
