import pytest
import scored

from ldt.errors import DataError
from ldt.io.strict_json import JsonFile, read


def question(id, answer="b", **more):
    return {
        "id": id,
        "candidates": ["a", "b", "c d"],
        "supports": ["One two.", "three"],
        "answer": answer,
    } | more


def evaluate(questions, predictions):
    return scored.evaluate("wikihop", JsonFile("gold", questions), JsonFile("pred", predictions))


def test_accuracy_is_equality_letter_by_letter_and_missing_is_wrong():
    questions = [question(f"q{number}") for number in range(5)]
    predictions = {"q0": "b", "q1": "a", "q2": "B", "q3": "b ", "zz": "b"}
    result = evaluate(questions, predictions)
    assert result.metrics == {"accuracy": 20, "total": 5}
    assert (result.missing, result.extra) == (["q4"], ["zz"])
    assert "pred: 2 predictions are none of their candidates: 'q2', 'q3'" in result.warnings
    assert {item.words for item in result.items} == {3}


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([question("q"), question("q")], "gold: the id 'q' stands twice"),
        ([{"id": "q"}], "gold: q: no field 'answer'; the files of a test set have none"),
        ([question("q", 4)], "gold: q: 'answer' is 4, expected text"),
        ([question("q", candidates=[1])], "gold: q: 1, expected text"),
        ([question("q", candidates="a")], "gold: q: 'candidates' is 'a', expected a list"),
        ([question("q", supports=None)], "gold: q: 'supports' is null, expected a list"),
        ([question(None)], "gold: question 1: 'id' is null, expected text"),
    ],
)
def test_a_gold_file_that_cannot_be_used(questions, message):
    with pytest.raises(DataError) as error:
        evaluate(questions, {})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", ["wikihop/dev.json", "nq_wikihop_format/dev.json.gz"])
def test_the_real_files_are_read(shared_data, name):
    gold = read(shared_data / name)
    predictions = {item["id"]: item["answer"] for item in gold.value[1:]}
    result = scored.evaluate("wikihop", gold, JsonFile("pred", predictions))
    assert result.metrics["accuracy"] == pytest.approx(100 * (1 - 1 / len(gold.value)))
    assert not any("none of their candidates" in line for line in result.warnings)
    assert sum(item.words for item in result.items) / len(result.items) > 500
