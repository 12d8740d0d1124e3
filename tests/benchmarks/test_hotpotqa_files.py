import json

import pytest

from ldt.benchmarks.formats import read
from ldt.recipe.recipe import DataSection

QUESTION = {
    "_id": "5a8b57f25542995d1e6f1371",
    "answer": "yes",
    "question": "Were they of the same nationality?",
    "supporting_facts": [["A", 0], ["B", 0]],
    "context": [["A", ["He is American.", " So."]], ["B", ["He is American."]]],
    "type": "comparison",
    "level": "hard",
}


@pytest.fixture
def hotpotqa(tmp_path):
    def hotpotqa(value):
        file = tmp_path / "dev.json"
        file.write_text(json.dumps(value), encoding="utf-8")
        return list(read(str(file), DataSection(format="hotpotqa")))

    return hotpotqa


def test_a_question_has_its_fields_and_id(hotpotqa):
    test = {key: QUESTION[key] for key in ("question", "context")} | {"_id": "t"}
    first, second = hotpotqa([QUESTION, test])
    assert (first.id, second.id) == ("5a8b57f25542995d1e6f1371", "t")
    assert first.fields == {key: value for key, value in QUESTION.items() if key != "_id"}
    assert second.fields == {key: QUESTION[key] for key in ("question", "context")}
    assert second.where.endswith("dev.json: t")
