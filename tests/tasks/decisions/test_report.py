import json

import numpy as np
import pytest

from ldt.metrics.calibration import expected_calibration_error, figures
from ldt.tasks.decisions.policy import Rules, decide
from ldt.tasks.decisions.report import in_words, report, summary
from ldt.tasks.decisions.thresholds import Objective

NAMES = ["a", "b"]


@pytest.fixture
def documents():
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (60, 2))
    return logits, generator.random((60, 2)) < 1 / (1 + np.exp(-logits / 3))


def test_figures_by_hand():
    scores, right = np.array([[0.8, 0.4]]), np.array([[True, False]])
    several = figures(scores, right, True)
    assert several["brier"] == pytest.approx((0.04 + 0.16) / 2)
    assert several["nll"] == pytest.approx(-(np.log(0.8) + np.log(0.6)) / 2)
    assert several["ece"] == pytest.approx((0.2 + 0.4) / 2)
    single = figures(np.array([[0.8, 0.2]]), right, False)
    assert single == {
        "ece": pytest.approx(0.2),
        "brier": pytest.approx(0.08),
        "nll": pytest.approx(-np.log(0.8)),
    }


def test_a_report_is_json_and_of_the_documents(documents):
    logits, right = documents
    found = decide(logits, right, Rules(True, calibration="platt", abstain=("risk", 0.5)))
    made = json.loads(json.dumps(report(found, logits, right, NAMES, [100] * 30 + [1500] * 30)))
    assert made["documents"] == 60
    calibration = made["calibration"]
    plain = 1 / (1 + np.exp(-logits))
    wanted = expected_calibration_error(plain.ravel(), right.ravel())
    assert calibration["before"]["ece"] == pytest.approx(wanted)
    assert calibration["after"] == pytest.approx(figures(found.scores, right, True))
    assert calibration["after"]["ece"] < calibration["before"]["ece"]
    lengths = [(row["most_tokens"], row["documents"]) for row in calibration["by_length"]]
    assert lengths == [(512, 30), (2048, 30)]
    assert sum(row["answers"] for row in calibration["reliability"]) == 120
    labels = made["labels"]
    assert [labels[name]["documents"] for name in NAMES] == right.sum(0).tolist()
    assert made["macro_average_precision"] == pytest.approx(
        np.mean([labels[name]["average_precision"] for name in NAMES])
    )
    curve = made["abstention"]["curve"]
    wrong = ~(found.labels == right).all(1)
    assert curve[-1] == {"coverage": 1.0, "risk": pytest.approx(wrong.mean())}
    assert made["abstention"]["asked"] == {"risk": 0.5}


def test_labels_without_documents_have_no_precision(documents):
    logits, right = documents
    right[:, 1] = False
    made = report(decide(logits, right, Rules(True)), logits, right, NAMES, [9] * 60)
    assert made["labels"]["b"] == {"documents": 0}
    assert made["macro_average_precision"] == made["labels"]["a"]["average_precision"]


def test_in_words(documents):
    logits, right = documents
    rules = Rules(True, calibration="platt", abstain=("coverage", 0.9))
    found = decide(logits, right, rules)
    facts = found.policy.facts(NAMES)
    made = report(found, logits, right, NAMES, [9] * 60)
    facts["measured"] = summary(made, "f1") | {"source": "dev.jsonl"}
    line = in_words(facts)
    assert line.startswith(
        "thresholds of 2 classes tuned for f1; probabilities calibrated by platt"
    )
    assert "for a coverage of 0.9 (" in line
    assert f", AURC {made['abstention']['aurc']:.3f})" in line
    assert line.endswith("; chosen on 60 documents of dev.jsonl")
    facts["abstain"]["confidence"] = None
    assert "no answer at all: no confidence is high enough for a coverage of 0.9" in in_words(facts)
    assert in_words({}) == ""


def test_a_threshold_that_gives_nothing_is_told():
    # The one document that has the class scores highest: without it nothing is above.
    logits = np.stack([np.zeros(40), np.linspace(-9, -5, 40)], 1)
    right = np.zeros((40, 2), bool)
    right[:, 0], right[-1] = True, [False, True]
    found = decide(logits, right, Rules(False, positive=1, target=Objective.parse("f1")))
    made = report(found, logits, right, NAMES, [9] * 40)
    assert made["nothing"] == "no document would get the class"
