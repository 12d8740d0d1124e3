import pytest
import scored

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
    assert {item.words for item in result.items} == {3}


@pytest.mark.parametrize("name", ["wikihop/dev.json", "nq_wikihop_format/dev.json.gz"])
def test_the_real_files_are_read(shared_data, name):
    gold = read(shared_data / name)
    predictions = {item["id"]: item["answer"] for item in gold.value[1:]}
    result = scored.evaluate("wikihop", gold, JsonFile("pred", predictions))
    assert result.metrics["accuracy"] == pytest.approx(100 * (1 - 1 / len(gold.value)))
    assert sum(item.words for item in result.items) / len(result.items) > 500
