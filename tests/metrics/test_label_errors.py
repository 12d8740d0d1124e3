import numpy as np
import pytest

from ldt.metrics.label_errors import doubts, doubts_of_each


def test_a_small_case_is_what_it_is_by_hand():
    # Labelled 0: .9 .8 .1, in the mean .6; labelled 1: 1 - (.3 .2) = .7 .8, in the mean .75.
    # The third is labelled 0 and reaches .75 of class 1 with .9: (1 + .9 - .1) / 2.
    # The last is of class 1 without reaching .75 there, nor .6 of class 0: no class is confident.
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8]])
    found = doubts(probabilities, np.array([0, 0, 0, 1, 1]))
    assert found == pytest.approx([np.nan, np.nan, 0.9, np.nan, np.nan], nan_ok=True)


def test_of_confident_classes_the_likeliest_decides_and_a_tie_denies_nothing():
    # Thresholds: class 0 .5 (of .6 .6 .3), class 1 .45 (of .4 .5), class 2 .3 (.3).
    probabilities = np.array(
        [[0.6, 0.2, 0.2], [0.6, 0.3, 0.1], [0.3, 0.35, 0.35], [0.5, 0.4, 0.1], [0.5, 0.5, 0]]
        + [[0.4, 0.3, 0.3]]
    )
    found = doubts(probabilities, np.array([0, 0, 0, 1, 1, 2]))
    # The third is confidently 2. The fourth is confidently 0, .5 against .4. The fifth is as much 0
    # as 1. The last is confidently 2 alone, though 0 is likelier.
    wanted = [np.nan, np.nan, (1 + 0.05) / 2, (1 + 0.1) / 2, np.nan, np.nan]
    assert found == pytest.approx(wanted, nan_ok=True)


def test_a_label_that_the_model_answers_itself_is_no_doubt():
    # Labelled 0: .9 .9 .5, in the mean .77; labelled 1: .3. The third is confidently 1 alone.
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.5, 0.4], [0.7, 0.3]])
    assert np.isnan(doubts(probabilities, np.array([0, 0, 0, 1]))[:3]).all()


def test_the_rounding_of_a_mean_costs_no_confidence():
    probabilities = np.tile([0.1, 0.05, 0.85], (4, 1))  # no document is labelled 2
    assert np.mean(probabilities[:3, 0]) > 0.1
    found = doubts(probabilities, np.array([0, 0, 0, 1]))
    assert found == pytest.approx([np.nan, np.nan, np.nan, 0.9], nan_ok=True)


@pytest.mark.parametrize("classes", [2, 4])
def test_planted_wrong_labels_come_first(classes):
    random = np.random.default_rng(classes)
    true = random.integers(0, classes, 400)
    logits = random.normal(0, 1, (400, classes))
    logits[np.arange(400), true] += 4
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    planted = random.choice(400, 40, replace=False)
    gold = true.copy()
    gold[planted] = (true[planted] + 1) % classes
    found = doubts(probabilities, gold)
    order = np.argsort(-np.nan_to_num(found, nan=-1), kind="stable")
    named = order[: (~np.isnan(found)).sum()]
    assert len({*named} & {*planted}) >= 0.8 * len(planted)
    assert len({*named[:30]} & {*planted}) >= 28
    # By its definition, one document after the other.
    needed = [np.mean(probabilities[gold == c, c]) for c in range(classes)]
    for row, label, doubt in zip(probabilities, gold, found, strict=True):
        confident = [c for c in range(classes) if row[c] >= needed[c]]
        most = max(confident, key=row.__getitem__, default=label)
        denied = most != label and row.argmax() != label
        assert (not np.isnan(doubt)) == denied
        if denied:
            assert doubt == pytest.approx((1 + row.max() - row[label]) / 2)


def test_of_several_labels_each_is_doubted_for_itself():
    probabilities = np.array([[0.9, 0.1], [0.8, 0.9], [0.1, 0.2], [0.2, 0.1]])
    gold = np.array([[True, False], [False, True], [False, False], [False, False]])
    found = doubts_of_each(probabilities, gold)
    # Class 0: .9 is labelled so; not labelled are .8 .1 .2, sure of "not" from 1 - .3667 on. The
    # second has .8 < .9, so no class is confident. With .95 it is denied: (1 + .95 - .05) / 2.
    assert np.isnan(found).all()
    probabilities[1, 0] = 0.95
    assert doubts_of_each(probabilities, gold)[1, 0] == pytest.approx(0.95)
    assert np.isnan(doubts_of_each(probabilities, gold)[[0, 2, 3]]).all()
