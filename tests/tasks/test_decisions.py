"""Calibration against torch's optimiser, thresholds against every one there is, bounds against sums
of exact fractions, and all of them on documents that nothing was chosen by."""

import json
import math
from dataclasses import asdict
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ldt.metrics.calibration import expected_calibration_error, figures, negative_log_likelihood
from ldt.metrics.calibrators import CALIBRATORS, LEAST, Beta, Platt, Temperature
from ldt.metrics.decisions import (
    COVERAGES,
    STEPS,
    Objective,
    Policy,
    Rules,
    abstain_for_coverage,
    abstain_for_risk,
    best_threshold,
    conformal_quantile,
    decide,
    folds,
    label_thresholds,
    risk_coverage,
    upper_bound,
)
from ldt.metrics.numbers import softmax
from ldt.tasks.deciding import in_words, report, summary

NAMES = ["a", "b", "c"]
approx = pytest.approx


def logistic(logits):
    return 1 / (1 + np.exp(-logits))


def made(count, seed=0, scale=1.0, several=True):
    """Logits and truth that is drawn by them; times ``scale`` they are too sure."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (count, 3)) - [0, 1, 3]
    if several:
        right = generator.random((count, 3)) < logistic(logits)
    else:
        drawn = (softmax(logits).cumsum(1) < generator.random((count, 1))).sum(1)
        right = np.eye(3, dtype=bool)[drawn]
    return scale * logits, right


# -- calibration


def by_torch(features, there, weights):
    """Weights of a logistic regression on features [n, documents] by L-BFGS."""
    n = there.sum()
    targets = np.where(there, (n + 1) / (n + 2), 1 / (len(there) - n + 2))
    x = torch.tensor(features.T)
    weights = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-12, tolerance_change=0)

    def loss():
        optimizer.zero_grad()
        logits = x @ weights[:-1] + weights[-1]
        value = F.binary_cross_entropy_with_logits(logits, torch.tensor(targets))
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach().numpy()


def test_the_temperature_has_the_least_cross_entropy_and_changes_no_answer():
    logits, right = made(500, scale=2.5, several=False)
    fitted = Temperature.fit(logits, right.argmax(1))
    grid, truth = np.geomspace(0.1, 10, 2001), torch.tensor(right.argmax(1))
    losses = [F.cross_entropy(torch.tensor(logits / t), truth).item() for t in grid]
    assert fitted.temperature == approx(grid[np.argmin(losses)], rel=3e-3)
    assert fitted.temperature == approx(2.5, rel=0.2)
    assert np.array_equal(fitted.apply(logits).argmax(1), logits.argmax(1))


def test_a_temperature_stays_in_its_range():
    logits, _ = made(20)
    assert Temperature.fit(logits, logits.argmax(1)).temperature == approx(0.1)
    assert Temperature.fit(logits, logits.argmin(1)).temperature == approx(10)
    assert Temperature.fit(logits[:0], np.zeros(0, int)).temperature == 1


@pytest.mark.parametrize("kind", [Platt, Beta])
def test_platt_and_beta_are_the_regressions_that_torch_finds(kind):
    logits, there = made(2000, scale=2.0)
    fitted = kind.fit(logits, there)
    for number in range(3):
        p = logistic(logits[:, number])
        features = {Platt: [logits[:, number]], Beta: [np.log(p), -np.log1p(-p)]}[kind]
        wanted = by_torch(np.stack(features), there[:, number], list(kind.keeps))
        assert np.allclose(fitted.weights[number], wanted, atol=1e-5)
    assert np.allclose(Beta([[1.0, 1.0, 0.0]]).apply(np.array([[-700.0], [700]])), [[0], [1]])


def test_platt_knows_what_a_probability_was_before():
    platt = Platt([[0.5, 1.0], [2.0, -3.0], [0.0, -1.0], [0.0, -1.0]])
    before = platt.before(np.array([0.1, 0.7, 0.2, 0.3]))  # the last two always become 0.2689
    logits = np.log(before[:2]) - np.log1p(-before[:2])
    again = platt.apply(np.append(logits, [5.0, -5.0])[None])[0]
    assert again == approx([0.1, 0.7, 0.2689, 0.2689], abs=1e-4)
    assert before[2:].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", [Platt, Beta])
def test_labels_that_tell_little_or_all_have_weights_that_do_no_harm(kind):
    logits, there = made(200)
    turned = kind.fit(logits, ~there)  # the higher the logit, the less often it is there
    assert (np.diff(turned.apply(np.sort(logits, 0)), axis=0) >= 0).all()
    for count in (0, LEAST - 1, 201 - LEAST, 200):  # few documents have or lack it
        there[:, 1] = np.arange(200) < count
        kept = kind.fit(logits, there).apply(logits)
        assert np.allclose(kept[:, 1], logistic(logits[:, 1]))
    there[:, 1] = np.arange(200) < LEAST
    assert kind.fit(logits, there).weights[1] != list(kind.keeps)
    sure = np.linspace(-3, 3, 40)[:, None]  # told without a mistake
    p = kind.fit(sure, sure > 0).apply(sure)
    assert 0 < p.min() < p.max() < 1


# -- thresholds


def draw(seed, documents=60, labels=4, share=0.3, ties=False):
    rng = np.random.default_rng(seed)
    right = rng.random((documents, labels)) < share
    scores = logistic(rng.normal(size=right.shape) + 1.5 * right - 1)
    return (scores.round(1) if ties else scores), right


def worth(text, scores, right, threshold):
    """The value of a threshold of one label by a target, by hand."""
    given = scores >= threshold
    true = (given & right).sum()
    precision, recall = true / max(given.sum(), 1), true / max(right.sum(), 1)
    if text[0] == "f":
        square = float(text[1:]) ** 2
        bottom = square * precision + recall
        return (1 + square) * precision * recall / bottom if bottom else 0
    bounded, other = (precision, recall) if text.startswith("precision") else (recall, precision)
    return 1 + other if bounded >= float(text.partition("=")[2]) else bounded - 1


TARGETS = ["f1", "f2", "f0.5", "precision>=0.9", "recall>=0.9", "precision>=1", "recall>=0.5"]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("text", TARGETS)
def test_no_other_threshold_is_better(text, ties):
    for seed in range(3):
        scores, right = draw(seed, ties=ties)
        thresholds, values = best_threshold(scores, right, Objective.parse(text))
        for label in range(scores.shape[1]):
            column, there = scores[:, label], right[:, label]
            every = [*np.unique(column), *(np.unique(column) + 1e-9), 0.0]
            best = max(worth(text, column, there, t) for t in every if (column >= t).any())
            got = worth(text, column, there, thresholds[label])
            assert got == approx(best, abs=1e-12) == approx(values[label], abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "right", "target", "threshold"),
    [
        ([0.9, 0.8, 0.4, 0.1], [1, 1, 0, 0], "f1", 0.6),  # half-way between two scores
        ([0.9, 0.8, 0.4, 0.1], [1, 1, 1, 1], "f1", 0.05),  # below the lowest half-way to 0
        ([0.9, 0.8, 0.7], [1, 0, 1], "precision>=1", 0.85),  # of equally good ones the highest
    ],
)
def test_where_a_threshold_lies(scores, right, target, threshold):
    columns = np.array(scores)[:, None], np.array(right, bool)[:, None]
    assert best_threshold(*columns, Objective.parse(target))[0] == approx([threshold])


def test_positives_decide_how_far_a_threshold_is_drawn_to_the_common_one():
    scores, right = draw(1, documents=400)
    own, _ = best_threshold(scores, right, Objective())
    common = best_threshold(scores.reshape(-1, 1), right.reshape(-1, 1), Objective())[0][0]
    assert np.allclose(label_thresholds(scores, right, Objective(), strength=0), own)
    assert np.allclose(label_thresholds(scores, right, Objective(), strength=1e12), common)
    weight = right.sum(0) / (right.sum(0) + 5)
    logit = [
        np.log(p / (1 - p)) for p in (label_thresholds(scores, right, Objective()), own, common)
    ]
    assert np.allclose(logit[0], weight * logit[1] + (1 - weight) * logit[2])
    right[:, 1] = False  # nothing to choose by
    assert label_thresholds(scores, right, Objective())[1] == 0.5
    assert label_thresholds(scores[:0], right[:0], Objective()).tolist() == [0.5] * 4


def test_figures_of_cross_fitting_are_those_of_fresh_documents():
    """Labels have five positives to choose by, in the mean; drawn together they choose better."""
    promised, honest, true, alone = [], [], [], []
    for seed in range(40):
        scores, right = draw(seed, documents=100, labels=10, share=0.05)
        fresh, there = draw(10_000 + seed, documents=4000, labels=10, share=0.05)

        def micro(given, there):
            return 2 * (given & there).sum() / (given.sum() + there.sum())

        chosen = label_thresholds(scores, right, Objective())
        promised.append(micro(scores >= chosen, right))
        true.append(micro(fresh >= chosen, there))
        own = np.nan_to_num(label_thresholds(scores, right, Objective(), 0), nan=0.5)
        alone.append(micro(fresh >= own, there))
        given = np.zeros_like(right)
        for others, held in folds(len(scores), seed=seed):
            chosen = label_thresholds(scores[others], right[others], Objective())
            given[held] = scores[held] >= chosen
        honest.append(micro(given, right))
    assert np.mean(promised) > np.mean(true) + 0.02  # chosen and measured on the same ones
    assert np.mean(honest) == approx(np.mean(true), abs=0.015)
    assert np.mean(true) > np.mean(alone) + 0.01


@pytest.mark.parametrize(
    "text", ["", "f", "f0", "f-1", "f1x", "recall", "recall>=2", "accuracy>=0.5"]
)
def test_what_is_no_target_is_an_error(text):
    with pytest.raises(ValueError, match="expected"):
        Objective.parse(text)


def test_folds_hold_each_document_once():
    parts = [*folds(22, 5)]
    assert sorted(n for _, own in parts for n in own) == [*range(22)]
    assert all(sorted([*others, *own]) == [*range(22)] for others, own in parts)
    assert sorted(len(own) for _, own in parts) == [4, 4, 4, 5, 5]
    assert [*folds(1)] == [*folds(0)] == []


# -- abstention


def drawn(rng, documents):
    """Confidences, and answers that are right as often as these say."""
    confidence = rng.beta(5, 2, documents)
    return confidence, rng.random(documents) < confidence


@pytest.mark.parametrize(("wrong", "count"), [(0, 10), (1, 10), (3, 40), (39, 40), (7, 300)])
@pytest.mark.parametrize("delta", [0.1, 0.005])
def test_the_bound_is_where_so_few_are_as_unlikely_as_asked(wrong, count, delta):
    p = Fraction(upper_bound(wrong, count, delta))
    tail = sum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(wrong + 1))
    assert float(tail) == approx(delta, rel=1e-9)
    assert upper_bound(20, 20, 0.05) == upper_bound(0, 0, 0.05) == 1
    assert upper_bound(3, 20_000, 0.05) == approx(7.7537 / 20_000, rel=1e-3)  # Poisson's


def test_coverages_and_quantiles_are_order_statistics():
    confidence = np.array([0.9, 0.2, 0.6, 0.4, 0.8])
    right = np.array([1, 0, 1, 0, 0], bool)
    assert abstain_for_coverage(confidence, right, 0.5)[:3] == (0.6, 0.6, approx(1 / 3))
    assert abstain_for_coverage(confidence, right, 1)[:3] == (-math.inf, 1.0, 0.6)
    assert abstain_for_coverage(confidence, right, 0).threshold == math.inf
    assert abstain_for_coverage(confidence[:0], right[:0], 0.5).threshold == -math.inf
    values = np.array([0.4, 0.1, 0.3, 0.2])
    quantiles = [conformal_quantile(values, share) for share in (0, 0.6, 0.8, 0.9)]
    assert quantiles == [-math.inf, 0.3, 0.4, math.inf]


@pytest.mark.parametrize("risk", [0.2, 0.3])
def test_a_risk_is_hardly_ever_exceeded_by_new_documents(risk):
    rng = np.random.default_rng(1)
    exceeded, answered = 0, 0
    confidence, right = drawn(rng, 50_000)
    for _ in range(300):
        threshold = abstain_for_risk(*drawn(rng, 800), risk, delta=0.1).threshold
        given = confidence >= threshold
        exceeded += given.any() and (~right[given]).mean() > risk
        answered += given.any()
    assert exceeded <= 0.1 * 300
    assert answered > 200


def test_a_risk_tells_its_bound():
    confidence = np.linspace(0, 1, 200)
    right = confidence > 0.3
    chosen = abstain_for_risk(confidence, right, 0.1)
    given = confidence >= chosen.threshold
    wrong = int((~right[given]).sum())
    assert chosen.bound == upper_bound(wrong, int(given.sum()), 0.1 / STEPS) <= 0.1
    assert (chosen.coverage, chosen.risk) == (given.mean(), wrong / given.sum())
    more = confidence >= np.sort(confidence)[::-1][int(given.sum()) + 200 // STEPS - 1]
    assert upper_bound(int((~right[more]).sum()), int(more.sum()), 0.1 / STEPS) > 0.1
    sure = np.linspace(0.5, 1, 300)
    assert abstain_for_risk(sure, np.ones(300, bool), 0.05)[:3] == (-math.inf, 1.0, 0.0)
    assert abstain_for_risk(np.ones(300), np.arange(300) > 2, 0.1).coverage == 1  # equal ones
    for count, there in ((300, np.zeros), (3, np.ones), (0, np.ones)):
        nothing = abstain_for_risk(sure[:count], there(count, bool), 0.05)
        assert nothing[:2] == (math.inf, 0.0)


def test_risk_by_coverage():
    confidence = np.array([0.9, 0.7, 0.7, 0.1])
    coverage, risk = risk_coverage(confidence, np.array([1, 0, 1, 0], bool))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert np.allclose(risk, [0, 0.25, 1 / 3, 0.5])  # the two in the middle are half wrong each
    assert np.array_equal(risk, risk_coverage(confidence, np.array([1, 1, 0, 0], bool))[1])


# -- all together


def test_without_anything_chosen_scores_are_those_of_the_model():
    logits, _ = made(4)
    several = Policy.from_facts({}, NAMES, True, np.full(3, 0.5))
    assert np.allclose(several.scores(logits), logistic(logits), rtol=1e-12)
    assert several.predicted(several.scores(logits)).tolist() == (logits >= 0).tolist()
    single = Policy.from_facts({}, NAMES, False)
    assert np.array_equal(single.scores(logits), softmax(logits))
    assert single.predicted(single.scores(logits)).argmax(1).tolist() == logits.argmax(1).tolist()
    scores, given = np.array([[0.9, 0.2, 0.4]]), np.array([[True, False, False]])
    assert several.confidence(scores, given) == approx([0.9 * 0.8 * 0.6])
    assert single.confidence(scores, given).tolist() == [0.9]


@pytest.mark.parametrize(
    ("several", "calibration"), [(False, "temperature"), (True, "platt"), (True, "beta")]
)
@pytest.mark.parametrize("abstain", [None, ("coverage", 0.8), ("risk", 0.4), ("risk", 0.0)])
def test_a_policy_is_the_same_after_json(several, calibration, abstain):
    logits, right = made(80, several=several)
    policy = decide(logits, right, Rules(several, calibration=calibration, abstain=abstain)).policy
    facts = json.loads(json.dumps(policy.facts(NAMES)))
    again = Policy.from_facts(facts, NAMES, several)
    assert np.array_equal(again.scores(logits), policy.scores(logits))
    assert CALIBRATORS[calibration](**asdict(policy.calibrator)) == again.calibrator
    assert (again.least, again.quantiles) == (policy.least, policy.quantiles)
    if several:
        assert np.array_equal(again.thresholds, policy.thresholds)
        with pytest.raises(LookupError):
            Policy.from_facts(facts, [*NAMES, "d"], True)


def test_thresholds_are_those_of_all_documents_however_sure_the_model_is_of_a_label():
    logits, right = made(80)
    chosen = decide(logits, right, Rules(True))
    alike = Platt.fit(logits, right)
    wanted = label_thresholds(alike.apply(logits), right, Objective())
    before = np.log(chosen.policy.thresholds) - np.log1p(-chosen.policy.thresholds)
    assert alike.apply(before[None])[0] == approx(wanted)
    calibrated = decide(logits, right, Rules(True, calibration="platt")).policy
    assert calibrated.thresholds == approx(wanted)
    moved = decide(0.3 * logits - [0, 4, 2], right, Rules(True))
    assert np.array_equal(moved.labels, chosen.labels)


def test_labels_are_given_by_documents_of_other_folds():
    # A label that one document has: chosen with that document its threshold gives the label.
    logits = np.random.default_rng(0).normal(-5, 1, (50, 1))
    best = logits.argmax()
    right = np.arange(50)[:, None] == best
    chosen = decide(logits, right, Rules(True))
    assert chosen.policy.predicted(chosen.policy.scores(logits))[best, 0]
    assert not chosen.labels[best, 0]
    alone = decide(*made(1), Rules(True, calibration="platt", abstain=("coverage", 0.9)))
    assert alone.scores.tolist() == alone.policy.scores(made(1)[0]).tolist()  # its own measure


@pytest.mark.parametrize("several", [True, False])
def test_auto_takes_what_has_the_least_cross_entropy(several):
    sure, right = made(400, scale=3.0, several=several)
    assert decide(sure, right, Rules(several, calibration="auto")).rules.calibration != "none"
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
    chosen = decide(logits, right, Rules(several, calibration="auto"))
    plain = chosen.tried["none"]
    name, other = min(chosen.tried.items(), key=lambda each: each[1]["nll"])
    assert (other["nll"] < plain["nll"], other["ece"] > plain["ece"]) == (True, True)
    assert (chosen.rules.calibration, chosen.policy.calibrator) == ("none", None)
    line = in_words({"measured": summary(report(chosen, logits, right, NAMES), None)})
    assert f"no calibration, since {'beta and platt' if several else name} would not help" in line


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
        answered.append(
            (policy.confidence(scores, policy.predicted(scores)) >= policy.least).mean()
        )
    # The standard error of 40 means of 100 + 100 documents is under 0.01.
    assert target - 0.02 < np.mean(sets) < target + 0.04
    assert abs(np.mean(answered) - target) < 0.03


def test_label_sets_have_their_limits():
    policy = decide(*made(30), Rules(True)).policy
    assert policy.label_set(np.zeros(3), COVERAGES[-1]).all()  # too few documents: all labels
    with pytest.raises(ValueError, match="no quantile"):
        policy.label_set(np.zeros(3), 0.995)
    with pytest.raises(ValueError, match="no quantile"):
        Policy(True).label_set(np.zeros(3), 0.9)


def test_a_logit_that_is_not_finite_is_refused():
    logits, right = made(10)
    logits[0, 0] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        decide(logits, right, Rules(True))


def test_ten_thousand_labels():
    generator = np.random.default_rng(0)
    logits = generator.normal(-4, 2, (40, 10_000))
    right = generator.random(logits.shape) < 0.001
    chosen = decide(logits, right, Rules(True, calibration="platt", abstain=("risk", 0.05)))
    assert chosen.policy.thresholds.shape == (10_000,)
    assert np.isfinite(chosen.scores).all()
    assert chosen.policy.least == math.inf  # none is sure enough


# -- in figures and words


def test_a_report_is_json_and_of_the_documents():
    logits, right = made(60, scale=3.0)
    right[:, 2] = False
    chosen = decide(logits, right, Rules(True, calibration="platt", abstain=("risk", 0.5)))
    told = json.loads(json.dumps(report(chosen, logits, right, NAMES)))
    assert told["documents"] == 60
    calibration = told["calibration"]
    wanted = expected_calibration_error(logistic(logits).ravel(), right.ravel())
    assert calibration["before"]["ece"] == approx(wanted)
    assert calibration["after"] == approx(figures(chosen.scores, right, True))
    assert calibration["after"]["ece"] < calibration["before"]["ece"]
    assert sum(row["answers"] for row in calibration["reliability"]) == 180
    assert [told["labels"][name]["documents"] for name in NAMES] == right.sum(0).tolist()
    assert told["labels"]["c"] == {"documents": 0}
    assert told["abstention"]["asked"] == {"risk": 0.5}
    _, risks = risk_coverage(chosen.confidence, (chosen.labels == right).all(1))
    assert told["abstention"]["aurc"] == approx(risks.mean())


def test_the_decision_in_words():
    logits, right = made(60, scale=3.0)
    rules = Rules(True, calibration="platt", abstain=("coverage", 0.9))
    chosen = decide(logits, right, rules)
    told, facts = report(chosen, logits, right, NAMES), chosen.policy.facts(NAMES)
    facts["measured"] = summary(told, "f1") | {"source": "dev.jsonl"}
    line = in_words(facts)
    assert line.startswith(
        "thresholds of 3 classes tuned for f1; probabilities calibrated by platt"
    )
    assert "for a coverage of 0.9 (" in line
    assert f", AURC {told['abstention']['aurc']:.3f})" in line
    assert line.endswith("; chosen on 60 documents of dev.jsonl")
    facts["abstain"]["confidence"] = None
    assert "no answer at all: no confidence is high enough for a coverage of 0.9" in in_words(facts)
    assert in_words({}) == ""


def test_a_threshold_that_gives_nothing_is_told():
    # The one document that has the class scores highest: without it nothing is above.
    logits = np.stack([np.zeros(40), np.linspace(-9, -5, 40)], 1)
    right = np.zeros((40, 2), bool)
    right[:, 0], right[-1] = True, [False, True]
    chosen = decide(logits, right, Rules(False, positive=1))
    assert report(chosen, logits, right, NAMES)["nothing"] == "no document would get the class"
