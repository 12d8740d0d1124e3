import pytest

from ldt.benchmarks import hotpotqa

NOTHING = (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("prediction", "gold", "score"),
    [
        ("The red fox", "red fox.", (1, 1, 1, 1)),
        ("red", "red fox", (0, 2 / 3, 1, 1 / 2)),
        ("red fox jumps over", "red fox", (0, 2 / 3, 1 / 2, 1)),
        ("Yes.", "yes", (1, 1, 1, 1)),
        ("yes it is", "yes", NOTHING),  # no credit for a part of yes or no
        ("no", "no man's land", NOTHING),
        ("noanswer", "fox", NOTHING),
        ("yes sir", "yes madam", (0, 1 / 2, 1 / 2, 1 / 2)),  # neither is just yes
        ("", "fox", NOTHING),
        ("the", "a", (1, 0, 0, 0)),
    ],
)
def test_hotpotqa_scores_an_answer(prediction, gold, score):
    assert hotpotqa.match_answer(prediction, gold) == pytest.approx(score)


@pytest.mark.parametrize(
    ("prediction", "gold", "score"),
    [
        ([("a", 0), ("b", 1)], [("b", 1), ("a", 0)], (1, 1, 1, 1)),
        ([("a", 0), ("a", 0)], [("a", 0)], (1, 1, 1, 1)),  # a set
        ([("a", 0)], [("a", 0), ("b", 1)], (0, 2 / 3, 1, 1 / 2)),
        ([("a", 0), ("b", 2), ("c", 1)], [("a", 0)], (0, 1 / 2, 1 / 3, 1)),
        ([("a", 1)], [("A", 1)], NOTHING),  # titles letter by letter
        ([], [("a", 0)], NOTHING),
        ([("a", 0)], [], NOTHING),
        ([], [], (1, 0, 0, 0)),
    ],
)
def test_hotpotqa_scores_supporting_facts(prediction, gold, score):
    assert hotpotqa.match_facts(prediction, gold) == pytest.approx(score)
