import numpy as np
import pytest

from ldt.metrics import result
from ldt.metrics.result import Item, Result, by_length, by_place, compare, count_words, intervals
from ldt.metrics.task_metrics import Judged, classes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        (" one  two\nthree\u00a0four ", 4),
        ("well-known can't", 2),
        ("中国的首都", 5),
        ("Python 是語言 used", 5),
        ("カタカナ と ひらがな", 9),
        ("عاصمة الصين", 2),
        ("चीन की राजधानी", 3),
        ("서울은 수도", 2),
    ],
)
def test_words_stand_between_spaces_and_letters_count_where_there_are_none(text, words):
    assert count_words(text) == words


def items(scores, each=1):
    return [
        Item(str(place), place // each, {"f1": float(score)}) for place, score in enumerate(scores)
    ]


def test_the_interval_of_a_mean_is_that_of_theory_and_always_the_same():
    scores = np.arange(400) % 2
    low, high = intervals(items(scores))["f1"]
    assert (low, high) == intervals(items(scores))["f1"]
    assert (low, high) == pytest.approx((50 - 4.9, 50 + 4.9), abs=0.7)  # 1.96 * 50 / 400**0.5


def test_questions_of_a_document_do_not_make_the_interval_narrower():
    scores = np.arange(100) % 2
    alone = intervals(items(scores))["f1"]
    assert intervals(items(np.repeat(scores, 4), each=4))["f1"] == pytest.approx(alone)


def test_documents_with_more_questions_weigh_more():
    scores = [1] * 90 + [0] * 10
    found = [
        Item(str(place), min(place // 10, 9), {"f1": float(score)})
        for place, score in enumerate(scores)
    ]
    few = [*found[:90], *found[90:91]]  # the wrong document has one question instead of ten
    assert intervals(few)["f1"][0] > 95 > intervals(found)["f1"][0]


def test_the_interval_holds_the_stated_share_of_resamples(monkeypatch):
    random = np.random.default_rng(1)
    scores = items(random.random(50))
    wide = intervals(scores)["f1"]
    monkeypatch.setattr(result, "LEVEL", 0.5)
    narrow = intervals(scores)["f1"]
    width = 100 * np.std([item.scores["f1"] for item in scores]) / 50**0.5
    assert narrow[1] - narrow[0] == pytest.approx(2 * 0.674 * width, rel=0.1)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    monkeypatch.setattr(result, "BLOCK", 100)  # drawn in many blocks, other numbers
    assert intervals(scores)["f1"] == pytest.approx(narrow, abs=0.5)


def test_one_document_has_no_interval():
    assert intervals(items([0, 1, 1], each=3)) == {}


def test_parts_have_intervals_of_their_own():
    scores = items([0, 1] * 20)
    found = Result("x", scores, {}, "questions", [], [], parts={"HasAns_": scores[::2]})
    exact = (0, pytest.approx(100 - 100 * 0.025 ** (1 / 20)))
    assert found.intervals == {"f1": intervals(scores)["f1"], "HasAns_f1": exact}


@pytest.mark.parametrize("right", [1, 0])
def test_all_or_none_of_64_has_the_exact_bound(right):
    exact = pytest.importorskip("scipy.stats").binomtest(64 * right, 64).proportion_ci()
    assert intervals(items([right] * 64))["f1"] == pytest.approx(
        (100 * exact.low, 100 * exact.high)
    )
    errors = [Item(str(n), n, {"error": float(right)}) for n in range(64)]  # no share
    assert intervals(errors)["error"] == (100 * right, 100 * right)


@pytest.mark.parametrize("several", [False, True])
def test_the_interval_of_a_mean_of_classes_some_of_which_are_rare_holds_it(several):
    random = np.random.default_rng(3)
    names = [*"abcdefgh"]
    for _ in range(12):
        judged = []
        for n in range(12):
            scores = random.dirichlet(np.full(8, 0.5))
            chosen = [name for name, score in zip(names, scores, strict=True) if score > 0.2]
            gold = names[min(int(random.exponential(2)), 7)]
            answer = {"scores": dict(zip(names, scores.tolist(), strict=True))}
            answer |= {"label": chosen if several else names[scores.argmax()]}
            judged.append(Judged(str(n), "", n, None, [gold] if several else gold, answer))
        result = classes(judged, names, several=several)
        for name, (low, high) in result.intervals.items():
            assert low <= result.metrics[name] <= high, name
    # A class that a draw lacks keeps there the figure that it has of all.
    right = [
        Judged(name, "", name, None, [name] if several else name, {"label": label, "scores": None})
        for name, label in zip("ab", (["a"], ["b"]) if several else "ab", strict=True)
    ]
    found = classes(right, ["a", "b"], several=several).figures(np.array([[1, 1], [2, 0]]))
    assert found["macro_f1"].tolist() == [100, 100]


def test_groups_by_length_are_those_that_have_questions():
    words = [0, 249, 250, 15_999, 16_000, 10**7, None]
    groups = by_length([Item(str(n), n, {"f1": n == 249}, n) for n in words])
    assert [(group.label, group.limits, group.questions) for group in groups] == [
        ("0 to 249", (0, 250), 2),
        ("250 to 499", (250, 500), 1),
        ("8,000 to 15,999", (8000, 16000), 1),
        ("16,000 or more", (16000, None), 2),
    ]
    assert [group.metrics for group in groups] == [{"f1": 50}, {"f1": 0}, {"f1": 0}, {"f1": 0}]
    assert by_length([Item("a", 0, {"f1": 1.0})]) == []


def test_groups_by_place_are_quarters_then_those_without_a_place():
    places = [0.0, 0.2499, 0.25, 0.75, 1.0, "no answer", None]
    groups = by_place([Item("a", 0, {"f1": place == 0.25}, None, place) for place in places])
    assert [(group.label, group.limits, group.questions) for group in groups] == [
        ("first quarter", (0, 0.25), 2),
        ("second quarter", (0.25, 0.5), 1),
        ("last quarter", (0.75, 1), 2),
        ("no answer", (None, None), 1),
    ]
    assert groups[1].metrics == {"f1": 100}
    assert by_place([Item("a", 0, {"f1": 1.0}, None, "no answer")]) == []


def test_ids_that_do_not_meet_are_in_their_order():
    assert compare(["c", "a", "b"], {"z": 1, "a": 2, "y": 3}) == (["c", "b"], ["z", "y"])


def test_figures_made_anew_of_each_resample_have_the_intervals_of_means_where_they_are_means():
    scores = np.random.default_rng(0).random(60)
    found = items(scores, each=3)  # three questions to a unit

    def figures(counts):
        return {"f1": 100 * (counts * scores).sum(1) / counts.sum(1)}

    assert intervals(found, figures=figures)["f1"] == pytest.approx(intervals(found)["f1"])


def test_figures_of_a_group_are_made_of_its_members_alone():
    found = [Item(str(n), n, {}, words) for n, words in enumerate((100, 300, 310, None))]

    def figures(counts):
        return {"most": (counts * [1, 2, 3, 9]).max(1)}

    groups = by_length(found, figures=figures)
    assert [(group.questions, group.metrics["most"]) for group in groups] == [(1, 1), (2, 3)]


def test_a_figure_that_is_not_defined_is_left_out_of_intervals_and_groups():
    found = [Item(str(n), n, {}, words) for n, words in enumerate((100, 300))]

    def figures(counts):
        value = np.where(counts[:, 0] > 0, 50.0, np.nan)  # of the first item alone
        return {"some": value, "none": np.full(len(counts), np.nan)}

    assert intervals(found, figures=figures) == {"some": (50, 50)}
    assert [group.metrics for group in by_length(found, figures=figures)] == [{"some": 50}, {}]
