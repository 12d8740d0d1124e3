from pathlib import Path

import numpy as np
import pytest

from ldt.errors import DataError
from ldt.metrics import task_metrics
from ldt.metrics.result import LEVEL, RESAMPLES, SEED, Item, Result
from ldt.metrics.task_metrics import Judged
from ldt.recipe.run import Description
from ldt.report.compare import as_json, compare
from ldt.report.model import Document
from ldt.report.subject import Subject

EDGES = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


def of_means(name, scores, units=None, ids=None):
    """A subject whose metric is the mean of such scores, and a number more: f1 of the mean."""
    ids = ids or [f"q{n}" for n in range(len(scores))]
    items = [
        Item(id, unit, {"em": float(score), "half": score / 2})
        for id, unit, score in zip(ids, units or ids, scores, strict=True)
    ]

    def derive(means):
        return means | {"sum": means["em"] + means["half"]}

    means = {"em": 100 * np.mean(scores), "half": 50 * np.mean(scores)}
    metrics = {key: float(value) for key, value in derive(means).items()}
    result = Result("x", items, metrics, "documents", [], [], derive=derive)
    documents = [
        Document(id, f"gold:{n}", gold="g", answer=str(score), scores={"em": float(score)})
        for n, (id, score) in enumerate(zip(ids, scores, strict=True))
    ]
    return Subject(name, None, result, documents)


def difference(found, metric):
    return next(each for each in found.others[0].differences if each.metric == metric)


def macro_f1(gold, answers, names):
    """By hand, over the classes that are there."""
    values = []
    for name in names:
        true = sum(g == a == name for g, a in zip(gold, answers, strict=True))
        both = gold.count(name) + answers.count(name)
        if both:
            values.append(2 * true / both)
    return 100 * sum(values) / len(values)


def classified(name, gold, answers):
    judged = [
        Judged(f"d{n}", f"gold:{n}", f"u{n}", 10, right, {"label": answer, "scores": None})
        for n, (right, answer) in enumerate(zip(gold, answers, strict=True))
    ]
    documents = [
        Document(each.id, each.where, gold=each.gold, answer=answer, right=each.gold == answer)
        for each, answer in zip(judged, answers, strict=True)
    ]
    return Subject(name, None, task_metrics.classes(judged, list("abc"), several=False), documents)


def test_the_interval_of_a_difference_is_that_of_a_computation_by_hand():
    random = np.random.default_rng(7)
    gold = random.choice(list("abc"), 40, p=[0.5, 0.3, 0.2]).tolist()
    sides = [
        [g if random.random() < share else random.choice(list("abc")) for g in gold]
        for share in (0.5, 0.7)
    ]
    found = difference(
        compare([classified(name, gold, side) for name, side in zip("AB", sides, strict=True)]),
        "macro_f1",
    )
    drawn = np.random.default_rng(SEED).integers(40, size=(RESAMPLES, 40))
    apart = []
    for rows in drawn.tolist():
        right = [gold[n] for n in rows]
        values = [macro_f1(right, [side[n] for n in rows], "abc") for side in sides]
        apart.append(values[1] - values[0])
    apart = np.array(apart, np.float64)
    assert found.interval == pytest.approx(np.quantile(apart, EDGES).tolist(), abs=1e-9)
    assert found.above == (apart > 1e-9).mean()
    assert found.first == pytest.approx(macro_f1(gold, sides[0], "abc"))
    assert found.difference == pytest.approx(found.value - found.first)


def test_documents_are_drawn_with_all_of_their_questions():
    scores = np.random.default_rng(1).random((2, 30))
    units = [n // 3 for n in range(30)]
    found = compare([of_means("A", scores[0], units), of_means("B", scores[1], units)])
    drawn = np.random.default_rng(SEED).integers(10, size=(RESAMPLES, 10))
    sums = 150 * (scores[1] - scores[0]).reshape(10, 3).sum(1)[drawn].sum(1) / 30
    assert difference(found, "sum").interval == pytest.approx(np.quantile(sums, EDGES).tolist())


def test_equal_answers_differ_by_exactly_nothing():
    scores = np.random.default_rng(2).random(50)
    again = of_means("B", scores)
    order = np.random.default_rng(3).permutation(50)
    other = Result(**{**vars(again.result), "items": [again.result.items[n] for n in order]})
    found = compare([of_means("A", scores), Subject("B", None, other, again.documents)])
    for each in found.others[0].differences:
        assert (each.difference, each.interval, each.above) == (0, (0, 0), 0)
    assert found.others[0].changes == []


def test_documents_that_not_all_were_asked_are_left_out_and_that_is_said():
    first = of_means("A", [0.0, 1.0, 1.0, 0.0], ids=list("wxyz"))
    second = of_means("B", [1.0, 0.0, 1.0], ids=list("zyx"))
    found = compare([first, second])
    em = difference(found, "em")
    assert (found.documents, em.first, em.value) == (
        3,
        pytest.approx(200 / 3),
        pytest.approx(200 / 3),
    )
    assert found.warnings == ["A: 1 question that not all were asked, left out"]
    assert [each.id for each in found.others[0].changes] == ["y", "z"]


def test_answers_without_a_document_in_common_are_refused():
    with pytest.raises(DataError, match="no document in common.*A: 'a'; B: 'b'"):
        compare([of_means("A", [1.0], ids=["a"]), of_means("B", [1.0], ids=["b"])])


def test_the_documents_that_changed_most_come_first():
    first = of_means("A", [0.9, 0.2, 0.5, 0.5])
    second = of_means("B", [0.8, 0.9, 0.5, 0.1])
    changes = compare([first, second]).others[0].changes
    told = [(each.id, each.change, each.metric, round(each.difference, 6)) for each in changes]
    assert told == [
        ("q1", "score", "em", 0.7),
        ("q3", "score", "em", -0.4),
        ("q0", "score", "em", -0.1),
    ]


def test_of_several_scores_the_one_that_changed_most_counts():
    first, second = of_means("A", [0.0]), of_means("B", [0.0])
    more = {"em": 0.0, "f1": 0.5, "recall": 0.25}
    second = Subject("B", None, second.result, [Document("q0", "gold:0", scores=more)])
    old = Document("q0", "gold:0", scores=more | {"f1": 0.25, "recall": 1.0})
    first = Subject("A", None, first.result, [old])
    (change,) = compare([first, second]).others[0].changes
    assert (change.metric, change.difference) == ("recall", -0.75)


def test_of_right_and_wrong_the_surest_answers_come_first():
    def side(name, rights, sure):
        subject = classified(name, list("aaa"), ["a" if right else "b" for right in rights])
        documents = [
            Document(**{**vars(each), "confidence": p})
            for each, p in zip(subject.documents, sure, strict=True)
        ]
        return Subject(name, None, subject.result, documents)

    first = side("A", [False, True, True], [0.6, 0.9, 0.6])
    changes = compare([first, side("B", [True, False, True], [0.6, 0.9, 0.9])]).others[0].changes
    assert [(each.id, each.change, each.before, each.after) for each in changes] == [
        ("d1", "right to wrong", "a", "b"),
        ("d0", "wrong to right", "b", "a"),
    ]


def test_no_answer_is_neither_right_nor_wrong():
    first = classified("A", ["a", "b", "a"], ["a", "a", "b"])
    second = classified("B", ["a", "b", "a"], [None, None, "b"])
    changes = compare([first, second]).others[0].changes
    assert {each.id: each.change for each in changes} == {
        "d0": "right to no answer",
        "d1": "wrong to no answer",
    }


def test_of_runs_the_keys_and_costs_that_differ_are_told():
    def run(name, length, seconds):
        identity = {"data.max_length": length, "training.seed": 0, "task.labels": None}
        results = {"seconds": seconds, "steps": 60, "versions": {"torch": "2"}}
        subject = of_means(name, [0.0, 1.0])
        run = Description(Path(name), None, identity, results, [], {})
        return Subject(name, run, subject.result, subject.documents)

    found = compare([run("A", 512, 80.25), run("B", 2048, 300.0)])
    assert found.facts == {
        "data.max_length": ["512", "2048"],
        "training time (s)": ["80.25", "300"],
    }
    assert compare([of_means("A", [0.0]), of_means("B", [1.0])]).facts == {}


def test_json_has_all():
    first, second = of_means("A", [0.0, 1.0]), of_means("B", [1.0, 1.0])
    found = as_json(compare([first, second]))
    assert found["names"] == ["A", "B"]
    assert found["others"][0]["changes"][0]["id"] == "q0"
    assert found["interval"] == {
        "level": LEVEL,
        "resamples": RESAMPLES,
        "resampled": "documents",
        "seed": SEED,
    }
