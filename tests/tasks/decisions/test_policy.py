import math

import numpy as np
import pytest

from ldt.metrics.calibration import negative_log_likelihood
from ldt.metrics.numbers import softmax
from ldt.tasks.decisions.calibration import Platt
from ldt.tasks.decisions.policy import COVERAGES, Policy, Rules, decide
from ldt.tasks.decisions.report import in_words, report, summary
from ldt.tasks.decisions.thresholds import Objective, label_thresholds

NAMES = ["a", "b", "c"]


def made(count, seed=0, scale=1.0, several=True):
    """Logits and truth that is drawn by them; times ``scale`` they are too sure."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (count, 3)) - [0, 1, 3]
    if several:
        right = generator.random((count, 3)) < 1 / (1 + np.exp(-logits))
    else:
        drawn = (softmax(logits).cumsum(1) < generator.random((count, 1))).sum(1)
        right = np.eye(3, dtype=bool)[drawn]
    return scale * logits, right


def _logit(p):
    return np.log(p) - np.log1p(-p)


def test_without_anything_chosen_scores_are_those_of_the_model():
    logits, _ = made(4)
    given = np.full(3, 0.5)
    several = Policy.from_facts({}, NAMES, True, given)
    assert np.allclose(several.scores(logits), 1 / (1 + np.exp(-logits)), rtol=1e-12)
    assert several.given(several.scores(logits)).tolist() == (logits >= 0).tolist()
    single = Policy.from_facts({}, NAMES, False)
    assert np.array_equal(single.scores(logits), softmax(logits))
    assert single.given(single.scores(logits)).argmax(1).tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize(
    ("several", "calibration"), [(False, "temperature"), (True, "platt"), (True, "beta")]
)
@pytest.mark.parametrize("abstain", [None, ("coverage", 0.8), ("risk", 0.4), ("risk", 0.0)])
def test_a_policy_is_the_same_after_json(several, calibration, abstain):
    logits, right = made(80, several=several)
    policy = decide(logits, right, Rules(several, calibration=calibration, abstain=abstain)).policy
    again = Policy.from_facts(policy.facts(NAMES), NAMES, several)
    assert np.array_equal(again.scores(logits), policy.scores(logits))
    assert again.least == policy.least
    assert again.quantiles == policy.quantiles
    if several:
        assert np.array_equal(again.thresholds, policy.thresholds)


def test_facts_are_by_the_name_of_a_label():
    facts = {"thresholds": {"c": 0.3, "a": 0.1, "b": 0.2}}
    assert Policy.from_facts(facts, NAMES, True).thresholds.tolist() == [0.1, 0.2, 0.3]
    with pytest.raises(LookupError):
        Policy.from_facts(facts, [*NAMES, "d"], True)


def test_thresholds_of_new_documents_are_those_of_all():
    logits, right = made(60)
    policy = decide(logits, right, Rules(True)).policy
    alike = Platt.fit(logits, right)
    wanted = label_thresholds(alike.apply(logits), right, Objective.parse("f1"))
    assert alike.apply(_logit(policy.thresholds)[None])[0] == pytest.approx(wanted)
    calibrated = decide(logits, right, Rules(True, calibration="platt")).policy
    assert calibrated.thresholds == pytest.approx(wanted)


def test_thresholds_do_not_depend_on_how_sure_the_model_is_of_a_label():
    logits, right = made(80)
    found = decide(logits, right, Rules(True))
    moved = decide(0.3 * logits - [0, 4, 2], right, Rules(True))
    assert np.array_equal(moved.labels, found.labels)
    wanted = 0.3 * _logit(found.policy.thresholds) - [0, 4, 2]
    assert _logit(moved.policy.thresholds) == pytest.approx(wanted, abs=1e-6)


def test_labels_are_given_by_the_other_folds():
    # A label that one document has: chosen with that document its threshold gives the label.
    logits = np.random.default_rng(0).normal(-5, 1, (50, 1))
    right = np.zeros((50, 1), bool)
    best = logits.argmax()
    right[best] = True
    found = decide(logits, right, Rules(True))
    assert found.policy.given(found.policy.scores(logits))[best, 0]
    assert not found.labels[best, 0]


def test_a_single_document_is_its_own_measure():
    logits, right = made(1)
    found = decide(logits, right, Rules(True, calibration="platt", abstain=("coverage", 0.9)))
    assert found.scores.tolist() == found.policy.scores(logits).tolist()
    assert found.policy.least == 0.0


@pytest.mark.parametrize("several", [True, False])
def test_auto_takes_what_has_the_least_cross_entropy(several):
    sure, right = made(400, scale=3.0, several=several)
    found = decide(sure, right, Rules(several, calibration="auto"))
    assert found.rules.calibration != "none"
    fair, right = made(400, several=several)
    left = decide(fair, right, Rules(several, calibration="auto"))
    truth = (right.ravel(),) if several else (right.argmax(1),)
    plain = Policy(several).scores(fair)
    scores = [x.ravel() if several else x for x in (left.scores, plain)]
    losses = [negative_log_likelihood(x, *truth) for x in scores]
    assert losses[0] <= losses[1]


@pytest.mark.parametrize(("several", "count", "seed"), [(True, 20, 3), (False, 30, 0)])
def test_a_calibration_that_makes_the_error_worse_is_left_out(several, count, seed):
    logits, right = made(count, seed, several=several)
    found = decide(logits, right, Rules(several, calibration="auto"))
    plain = found.tried["none"]
    name, other = min(found.tried.items(), key=lambda each: each[1]["nll"])
    assert (other["nll"] < plain["nll"], other["ece"] > plain["ece"]) == (True, True)
    assert (found.rules.calibration, found.policy.calibrator) == ("none", None)
    figures = report(found, logits, right, NAMES, [9] * count)
    line = in_words({"measured": summary(figures, None)})
    assert f"{name}: ECE {plain['ece']:.3f} to {other['ece']:.3f}" in line


def test_confidence_is_the_probability_of_the_whole_answer():
    policy = Policy(True, thresholds=np.full(3, 0.5))
    scores, given = np.array([[0.9, 0.2, 0.4]]), np.array([[True, False, False]])
    assert policy.confidence(scores, given) == pytest.approx([0.9 * 0.8 * 0.6])
    assert Policy(False).confidence(scores, given).tolist() == [0.9]


@pytest.mark.fast("0.8-True")
@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("target", [0.8, 0.9])
def test_coverage_holds_for_new_documents(several, target):
    sets, answered = [], []
    for seed in range(40):
        logits, right = made(200, seed, 2.0, several)
        rules = Rules(several, calibration="auto", abstain=("coverage", target))
        policy = decide(logits[:100], right[:100], rules).policy
        scores = policy.scores(logits[100:])
        inside = np.array([policy.label_set(row, target) for row in scores])
        sets.append((inside | ~right[100:]).all(1).mean())
        answered.append((policy.confidence(scores, policy.given(scores)) >= policy.least).mean())
    # The standard error of 40 means of 100 + 100 documents is under 0.01.
    assert target - 0.02 < np.mean(sets) < target + 0.04
    assert abs(np.mean(answered) - target) < 0.03


def test_the_risk_is_seldom_exceeded():
    over = 0
    for seed in range(60):
        logits, right = made(400, seed, several=False)
        policy = decide(logits[:200], right[:200], Rules(False, abstain=("risk", 0.25))).policy
        scores = policy.scores(logits[200:])
        given = policy.confidence(scores, policy.given(scores)) >= policy.least
        wrong = ~(policy.given(scores) == right[200:]).all(1)
        over += given.any() and wrong[given].mean() > 0.25 + 0.05  # of 100 documents or so
    assert over <= 6  # a tenth


def test_label_sets_have_their_limits():
    policy = decide(*made(30), Rules(True)).policy
    assert COVERAGES[-1] == 0.99
    assert policy.label_set(np.zeros(3), 0.99).all()  # too few documents for 0.99: all labels
    with pytest.raises(ValueError, match="no quantile"):
        policy.label_set(np.zeros(3), 0.995)
    with pytest.raises(ValueError, match="no quantile"):
        Policy(True).label_set(np.zeros(3), 0.9)


def test_a_logit_that_is_not_finite_is_refused():
    logits, right = made(10)
    logits[0, 0] = math.nan
    with pytest.raises(ValueError, match="not finite|from 0 to 1|not a number"):
        decide(logits, right, Rules(True, calibration="platt"))


def test_ten_thousand_labels():
    generator = np.random.default_rng(0)
    logits = generator.normal(-4, 2, (40, 10_000))
    right = generator.random(logits.shape) < 0.001
    found = decide(logits, right, Rules(True, calibration="platt", abstain=("risk", 0.05)))
    assert found.policy.thresholds.shape == (10_000,)
    assert np.isfinite(found.scores).all()
    assert found.policy.least == math.inf  # none is sure enough
    names = [str(n) for n in range(10_000)]
    assert Policy.from_facts(found.policy.facts(names), names, True).least == math.inf
