"""Thresholds against every threshold there is, and on documents that they were not chosen by."""

import numpy as np
import pytest

from ldt.tasks.decisions.calibration import folds
from ldt.tasks.decisions.thresholds import Objective, best_threshold, label_thresholds


def draw(seed, documents=60, labels=4, share=0.3, ties=False):
    rng = np.random.default_rng(seed)
    right = rng.random((documents, labels)) < share
    logits = rng.normal(size=right.shape) + 1.5 * right - 1
    scores = 1 / (1 + np.exp(-logits))
    return (scores.round(1) if ties else scores), right


def measured(scores, right, threshold):
    """Precision and recall of one label, by hand."""
    given = scores >= threshold
    true = (given & right).sum()
    return true / max(given.sum(), 1), true / max(right.sum(), 1)


def worth(text, precision, recall):
    if text[0] == "f":
        square = float(text[1:]) ** 2
        bottom = square * precision + recall
        return (1 + square) * precision * recall / bottom if bottom else 0
    bounded, other = (precision, recall) if text.startswith("precision") else (recall, precision)
    least = float(text.partition("=")[2])
    return 1 + other if bounded >= least else bounded - 1


TARGETS = ["f1", "f2", "f0.5", "precision>=0.9", "recall>=0.9", "precision>=1", "recall>=0.5"]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("text", TARGETS)
def test_no_other_threshold_is_better(text, ties):
    for seed in range(5):
        scores, right = draw(seed, ties=ties)
        found = best_threshold(scores, right, Objective.parse(text))
        for label in range(scores.shape[1]):
            column, there = scores[:, label], right[:, label]
            every = [*np.unique(column), *(np.unique(column) + 1e-9), 0.0]
            every = [t for t in every if (column >= t).any()]
            best = max(worth(text, *measured(column, there, t)) for t in every)
            got = worth(text, *measured(column, there, found.thresholds[label]))
            assert got == pytest.approx(best, abs=1e-12)
            assert got == pytest.approx(found.values[label], abs=1e-12)


def test_a_threshold_lies_half_way_between_two_scores():
    scores = np.array([[0.9], [0.8], [0.4], [0.1]])
    found = best_threshold(scores, np.array([[1], [1], [0], [0]], bool), Objective())
    assert found.thresholds[0] == pytest.approx(0.6)
    found = best_threshold(scores, np.ones((4, 1), bool), Objective())
    assert found.thresholds[0] == pytest.approx(0.05)  # below the lowest half-way to 0


def test_of_equally_good_ones_it_is_the_highest():
    scores = np.array([[0.9], [0.8], [0.7]])
    found = best_threshold(scores, np.array([[1], [0], [1]], bool), Objective.parse("precision>=1"))
    assert found.thresholds[0] == pytest.approx(0.85)


def test_nothing_is_chosen_without_positives():
    scores, right = draw(0)
    right[:, 1] = False
    assert np.isnan(best_threshold(scores, right, Objective()).thresholds).tolist() == [
        *(False, True, False, False)
    ]
    assert label_thresholds(scores, right, Objective())[1] == 0.5
    assert label_thresholds(scores, np.zeros_like(right), Objective()).tolist() == [0.5] * 4
    assert label_thresholds(scores[:0], right[:0], Objective()).tolist() == [0.5] * 4


def test_positives_decide_how_far_a_threshold_is_drawn_to_the_common_one():
    scores, right = draw(1, documents=400)
    own = best_threshold(scores, right, Objective()).thresholds
    common = best_threshold(scores.reshape(-1, 1), right.reshape(-1, 1), Objective()).thresholds[0]
    assert np.allclose(label_thresholds(scores, right, Objective(), strength=0), own)
    assert np.allclose(label_thresholds(scores, right, Objective(), strength=1e12), common)
    weight = right.sum(0) / (right.sum(0) + 5)

    def logit(p):
        return np.log(p / (1 - p))

    drawn = label_thresholds(scores, right, Objective())
    assert np.allclose(logit(drawn), weight * logit(own) + (1 - weight) * logit(common))


def test_few_positives_choose_worse_thresholds_alone_than_together():
    """Macro-F1 of fresh documents; each label has five positives to choose by, in the mean."""
    alone, drawn, plain = [], [], []
    for seed in range(40):
        scores, right = draw(seed, documents=100, labels=10, share=0.05)
        fresh, there = draw(10_000 + seed, documents=4000, labels=10, share=0.05)

        def macro(thresholds, fresh=fresh, there=there):
            given = fresh >= thresholds
            return np.mean(2 * (given & there).sum(0) / (given.sum(0) + there.sum(0)))

        alone.append(macro(np.nan_to_num(label_thresholds(scores, right, Objective(), 0), nan=0.5)))
        drawn.append(macro(label_thresholds(scores, right, Objective())))
        plain.append(macro(0.5))
    assert np.mean(drawn) > np.mean(alone) + 0.01
    assert np.mean(drawn) > np.mean(plain) + 0.02


def test_figures_of_cross_fitting_are_those_of_fresh_documents():
    promised, honest, true = [], [], []
    for seed in range(40):
        scores, right = draw(seed, documents=100, labels=10, share=0.05)
        fresh, there = draw(10_000 + seed, documents=4000, labels=10, share=0.05)

        def micro(given, there):
            return 2 * (given & there).sum() / (given.sum() + there.sum())

        chosen = label_thresholds(scores, right, Objective())
        promised.append(micro(scores >= chosen, right))
        true.append(micro(fresh >= chosen, there))
        given = np.zeros_like(right)
        for others, own in folds(len(scores), seed=seed):
            given[own] = scores[own] >= label_thresholds(scores[others], right[others], Objective())
        honest.append(micro(given, right))
    assert np.mean(promised) > np.mean(true) + 0.02  # chosen and measured on the same ones
    assert np.mean(honest) == pytest.approx(np.mean(true), abs=0.015)


def test_ten_thousand_labels_are_as_many_columns():
    scores, right = draw(0, documents=100, labels=10_000, share=0.02)
    found = label_thresholds(scores, right, Objective())
    some = label_thresholds(scores, right, Objective(), strength=0)[:3]
    assert np.allclose(
        some[right[:, :3].any(0)],
        [
            best_threshold(scores[:, n : n + 1], right[:, n : n + 1], Objective()).thresholds[0]
            for n in range(3)
            if right[:, n].any()
        ],
    )
    assert found.shape == (10_000,)
    assert ((found > 0) & (found < 1)).all()


@pytest.mark.parametrize(
    "text", ["", "f", "f0", "f-1", "f1x", "recall", "recall>=2", "accuracy>=0.5"]
)
def test_what_is_no_target_is_an_error(text):
    with pytest.raises(ValueError, match="expected"):
        Objective.parse(text)


@pytest.mark.parametrize("bad", [np.nan, -0.1, 1.5])
def test_scores_are_probabilities(bad):
    with pytest.raises(ValueError, match="from 0 to 1"):
        best_threshold(np.array([[bad]]), np.ones((1, 1), bool), Objective())


def test_folds_hold_each_document_once_and_groups_together():
    groups = ["a", "b", "a", "c", "b", "d", "e"] * 3
    owns = []
    for others, own in folds(21, 3, seed=1, groups=groups):
        assert sorted([*others, *own]) == list(range(21))
        assert not {groups[n] for n in others} & {groups[n] for n in own}
        owns.extend(own)
    assert sorted(owns) == list(range(21))
    sizes = [len(own) for _, own in folds(22, 5)]
    assert sorted(sizes) == [4, 4, 4, 5, 5]
    assert list(folds(1)) == list(folds(0)) == list(folds(3, groups="aaa")) == []
    assert not np.array_equal(next(folds(50, seed=0))[1], next(folds(50, seed=1))[1])
