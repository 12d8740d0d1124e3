import pytest

from ldt.metrics.baseline import Baseline, best, commonest, no_better, quoted

FIGURES = {"always a": {"f1": 40.0, "mse": 2.0}, "always b": {"f1": 30.0, "mse": 1.0}}


def test_each_metric_has_the_answer_that_does_best_by_it():
    found = best(FIGURES)
    assert found == {"f1": ("always a", 40.0), "mse": ("always b", 1.0)}
    assert best({"x": {"f1": 1.0}, "y": {"f1": 1.0}})["f1"].answer == "x"  # the first of equals


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        ({"f1": 40.0, "mse": 1.0}, ["no better than always a: f1 40.00"]),
        ({"f1": 40.1, "mse": 1.0}, []),
        ({"f1": 40.0, "mse": 0.9}, []),
    ],
)
def test_what_is_better_by_no_metric_is_warned_of(metrics, lines):
    assert no_better(metrics, best(FIGURES)) == lines


def test_without_a_baseline_there_is_no_warning():
    assert no_better({"f1": 0.0}, {}) == []


def test_the_commonest_answer_counts_once_a_question_and_the_first_of_equals():
    assert commonest([["a", "b"], ["b", "c"], ["a"], ["c", "c", "c"]]) == "a"
    assert commonest([], "none") == "none"


def test_a_long_answer_is_cut_in_words():
    assert quoted("no cap") == "always 'no cap'"
    assert quoted("x" * 41) == f"always '{'x' * 39}…'"
    assert Baseline(quoted("a\nb"), 1.0).answer == r"always 'a\nb'"
