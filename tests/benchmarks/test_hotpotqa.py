import pytest
import scored

from ldt.errors import DataError
from ldt.io.strict_json import JsonFile


def question(id, answer="red fox", facts=(("t", 0),), **more):
    facts = [list(fact) for fact in facts]
    context = [["t", ["One two.", " Three."]], ["u", ["four"]]]
    return {"_id": id, "answer": answer, "supporting_facts": facts, "context": context} | more


def evaluate(questions, answer, sp, **more):
    predictions = {"answer": answer, "sp": sp} | more
    return scored.evaluate("hotpotqa", JsonFile("gold", questions), JsonFile("pred", predictions))


def test_answer_facts_and_both_together():
    questions = [question("a"), question("b", "yes", [("t", 0), ("u", 0)])]
    result = evaluate(questions, {"a": "fox", "b": "Yes"}, {"a": [["t", 0]], "b": [["u", 0]]})
    assert result.metrics == pytest.approx(
        {
            **{"em": 50, "f1": 100 * (2 / 3 + 1) / 2, "prec": 100, "recall": 75},
            **{"sp_em": 50, "sp_f1": 100 * (1 + 2 / 3) / 2, "sp_prec": 100, "sp_recall": 75},
            **{"joint_em": 0, "joint_f1": 100 * 2 / 3, "joint_prec": 100, "joint_recall": 50},
        }
    )
    assert result.items[0].words == 4


def test_what_lacks_counts_nothing_there_and_in_joint():
    questions = [question(id) for id in "abc"]
    facts = [["t", 0]]
    result = evaluate(
        questions, {"a": "red fox", "b": "red fox", "y": ""}, {"a": facts, "z": facts}
    )
    metrics = result.metrics
    assert [metrics[key] for key in ("em", "sp_em", "joint_em")] == pytest.approx(
        [200 / 3, 100 / 3, 100 / 3]
    )
    assert (result.missing, result.extra) == (["b", "c"], ["y", "z"])


def test_without_context_there_is_no_length():
    bare = question("a")
    del bare["context"]
    result = evaluate([bare], {}, {})
    assert result.items[0].words is None
    assert result.no_length


@pytest.mark.parametrize(
    ("questions", "answer", "sp", "message"),
    [
        ([question("a"), question("a")], {}, {}, "gold: the id 'a' stands twice"),
        ([question("a", facts=[["t"]])], {}, {}, "gold: a: field supporting_facts.0.1: found a"),
        ([question("a", context=[["t", "x"]])], {}, {}, "gold: a: field context.0.1: found 'x'"),
        ([question("a")], {}, {"a": [["t", True]]}, "pred: field sp.a.0.1: found true; input"),
    ],
)
def test_a_file_that_cannot_be_used(questions, answer, sp, message):
    with pytest.raises(DataError) as error:
        evaluate(questions, answer, sp)
    assert str(error.value).startswith(message)
