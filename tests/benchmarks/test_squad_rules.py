from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldt.benchmarks import squad


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Beatles", "beatles"),
        ("a well-known an_swer", "wellknown answer"),  # no space where punctuation was
        ("can't", "cant"),
        ("U.S.A.", "usa"),
        ("‘it’ “is” ´so`", "‘it’ “is” ´so"),  # only ASCII punctuation goes
        ("$3,000.50", "300050"),
        ("the-the", "thethe"),
        ("  many \t\n\u00a0 spaces ", "many spaces"),
        ("der Preis", "der preis"),  # articles of no other language
        ("中国。", "中国。"),
        ("…", "…"),
        ("The.", ""),
        ("", ""),
    ],
)
def test_squad_normalises(text, normalised):
    assert squad.normalise(text) == normalised


@pytest.mark.parametrize(
    ("prediction", "golds", "first", "second"),
    [
        ("the red fox", ["Red Fox."], (1, 1.0), (1, 1.0)),
        ("red", ["red fox", "blue fox"], (0, 2 / 3), (0, 2 / 3)),
        ("red red", ["red fox"], (0, 1 / 2), (0, 1 / 2)),
        ("", ["fox"], (0, 0.0), (0, 0.0)),
        ("the", ["fox"], (0, 0.0), (0, 0.0)),
        ("", ["the"], (1, 0.0), (1, 1.0)),  # 2.0: a gold answer without words is no answer
        ("...", ["", "fox"], (1, 0.0), (0, 0.0)),  # 2.0: it does not count beside another
        ("", [""], (1, 0.0), (1, 1.0)),
        ("fox", [""], (0, 0.0), (0, 0.0)),
    ],
)
def test_squad_takes_the_best_over_all_answers(prediction, golds, first, second):
    assert squad.match(prediction, golds) == pytest.approx(first)
    assert squad.match2(prediction, golds) == pytest.approx(second)


def test_no_gold_answer_is_a_mistake_in_1_and_no_answer_in_2():
    with pytest.raises(ValueError, match="empty"):
        squad.match("a", [])
    assert squad.match2("", []) == (1, 1.0)
    assert squad.match2("An", []) == (1, 1.0)  # nothing is left of it
    assert squad.match2("fox", []) == (0, 0.0)


@given(*[st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=6)] * 2)
def test_f1_is_twice_the_shared_words_over_all_words(found, gold):
    shared = sum(min(count, Counter(gold)[word]) for word, count in Counter(found).items())
    _, f1 = squad.match(" ".join(found), [" ".join(gold)])
    assert f1 == pytest.approx(float(Fraction(2 * shared, len(found) + len(gold))))


def brute(scores, answered, no_answer, answerable):
    """The best over all thresholds, where no two probabilities are the same."""

    def total(threshold):
        kept = {key for key in scores if no_answer[key] <= threshold}
        return sum(
            (scores[key] if key in answerable else float(key not in answered))
            if key in kept
            else float(key not in answerable)
            for key in scores
        )

    return max((total(threshold), -threshold) for threshold in [0.0, *no_answer.values()])


@given(st.permutations(range(1, 7)), st.integers(0, 63), st.integers(0, 63), st.integers(0, 63))
def test_the_best_threshold_is_the_best_of_all(order, has, says, right):
    keys = [f"q{number}" for number in range(6)]
    answerable = {key for place, key in enumerate(keys) if has >> place & 1}
    answered = {key for place, key in enumerate(keys) if says >> place & 1}
    no_answer = dict(zip(keys, (place / 8 for place in order), strict=True))
    scores = {
        key: float(key in answered and right >> place & 1)
        if key in answerable
        else float(key not in answered)
        for place, key in enumerate(keys)
    }
    best, threshold = squad.best_threshold(scores, answered, no_answer, answerable)
    assert (best, -threshold) == brute(scores, answered, no_answer, answerable)


def test_equal_probabilities_are_taken_one_by_one_and_strangers_passed_over():
    scores = {"a": 1.0, "b": 0.0}
    for order in (["a", "b"], ["b", "a"]):
        no_answer = {"stranger": 0.1} | dict.fromkeys(order, 0.5)
        best = squad.best_threshold(scores, ["a", "b"], no_answer, ["a"])
        assert best == ((2.0, 0.5) if order == ["a", "b"] else (1, 0.0))
