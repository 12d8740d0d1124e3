"""The script that measures what decisions bring, on contracts that are told by one word."""

import gzip
import json

import numpy as np
import pytest


@pytest.fixture
def decisions(script):
    return script("decisions")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "data" / "cuad").mkdir(parents=True)
    for part, count in (("train", 30), ("dev", 10)):
        lines = []
        for number in range(count):
            clauses = {name: bool(rng.random() < 0.4) for name in ("cap", "audit")}
            text = " ".join(["the parties", *(name for name in clauses if clauses[name]), "agree"])
            lines.append(json.dumps({"id": f"{part}-{number}", "text": text, "clauses": clauses}))
        file = tmp_path / "data" / "cuad" / f"cuad.{part}.jsonl.gz"
        file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path


@pytest.mark.slow
def test_every_way_is_measured_on_contracts_of_no_other_use(decisions, folder, minilm, capsys):
    found = folder / "found.json"
    decisions.main(
        [str(folder), "--seeds", "1", "--length", "512", "--epochs", "1", "--json", str(found)]
    )
    made = json.loads(found.read_text())
    parts = [
        {json.loads(line)["id"] for line in (folder / "seed-0" / f"{name}.jsonl").open()}
        for name in ("train", "decide", "test")
    ]
    assert [len(part) for part in parts] == [24, 8, 8]
    assert len(set.union(*parts)) == 40
    (seed,) = made["seeds"]
    assert list(seed) == [
        "plain, 0.5",
        "class weights",
        "thresholds",
        "thresholds, calibration",
        "weights, thresholds, calibration",
    ]
    assert all(set(row) == set(decisions.METRICS) for row in seed.values())
    ((first, *_),) = made["coverage"]
    assert len(first["label_sets"]["splits"]) == decisions.SPLITS
    shown = capsys.readouterr().out
    assert "2 clauses, 1 seeds" in shown
    assert "labels in a set" in shown


def test_probabilities_that_are_right_are_off_by_chance_alone(decisions):
    rng = np.random.default_rng(3)
    scores = rng.random(2000)
    own = decisions.expected_calibration_error(scores, rng.random(2000) < scores)
    assert own == pytest.approx(decisions.by_chance(scores), rel=0.5)
    assert decisions.by_chance(np.repeat(scores, 100)) < own / 5


def test_coverage_is_what_was_asked_for(decisions):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (400, 3))
    right = rng.random((400, 3)) < 1 / (1 + np.exp(-logits))
    for row in decisions.coverage(logits, right):
        assert row["label_sets"]["mean"] == pytest.approx(row["target"], abs=0.03)
        assert row["answered"]["mean"] == pytest.approx(row["target"], abs=0.03)
    found = decisions.risks(logits, right)
    assert found["curve"][-1]["coverage"] == 1
    assert found["curve"][0]["risk"] < found["curve"][-1]["risk"]
