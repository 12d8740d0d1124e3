import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "poolingformer.py"


@pytest.fixture
def script():
    """The script as a module, with a test of few documents and a tiny measurement of cost."""
    spec = importlib.util.spec_from_file_location("poolingformer_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TEST = 8
    module.COST = replace(module.COST, heads=1, layers=1, vocabulary=50)
    module.COST_TOKENS = 512
    return module


@pytest.fixture
def run(script, monkeypatch, tmp_path):
    """A function that runs the script for two steps and gives what it writes."""

    def run(*options):
        file = tmp_path / "result.json"
        words = [tmp_path / "runs", "--json", file, "--steps", 2, "--rounds", 1, *options]
        monkeypatch.setattr(sys, "argv", ["poolingformer.py", *map(str, words)])
        script.main()
        return json.loads(file.read_text("utf-8"))

    return run


def test_a_question_stands_at_its_distance_behind_the_only_place_that_tells(script):
    data = script.Contracts(0)
    words = {number: word for word, number in data.ids.items()}
    ids, labels, distances = (part.tolist() for part in data.batch(20))
    seen = []
    for row, answers, far in zip(ids, labels, distances, strict=True):
        masks = [i for i, token in enumerate(row) if token == script.MASK]
        assert masks == [i for i, label in enumerate(answers) if label >= 0]
        assert len(masks) == script.PAIRS
        for mask in masks:
            place = mask - far[mask]
            assert words[row[place]] == script.NAMES[answers[mask]]
            assert row[place - 5 : place] == row[mask - 5 : mask]
            assert (words[row[place - 5]], words[row[place - 1]]) == ("The", "is")
        assert len({row[mask - 2] for mask in masks}) == script.PAIRS
        seen += [far[mask] for mask in masks]
    assert script.EDGES[0] < min(seen) <= 8
    assert 100 < max(seen) <= script.EDGES[-1]
    near = script.Contracts(0, longest=16).batch(20)[2]
    assert near.max() <= 16


@pytest.mark.parametrize("row", ["two-levels", "mean", "mix", "shared", "fresh", "all-layers"])
def test_a_row_begins_as_the_model_of_small_windows(script, row):
    torch.manual_seed(0)
    small = script.build("small").eval()
    torch.manual_seed(1)
    begun = script.build(row, small.state_dict()).eval()
    ids = script.Contracts(0).batch(2)[0]
    with torch.no_grad():
        torch.testing.assert_close(begun(ids).logits, small(ids).logits)
    second = begun.longformer.encoder.layer[2].attention.self
    if row != "shared":
        copied = torch.equal(second.pooled.key.weight, second.key.weight)
        assert copied == (row != "fresh")


@pytest.mark.slow
def test_finished_runs_are_not_trained_again_and_other_rows_stay(
    run, tmp_path, monkeypatch, script
):
    first = run("--seeds", 1, "--only", "two-levels", "small")
    assert list(first["rows"]) == ["small", "two-levels"]
    found = first["rows"]["two-levels"]["accuracy"]
    assert [part["up_to"] for part in found["by_distance"]] == list(script.EDGES[1:])
    assert (tmp_path / "result.png").read_bytes()[1:4] == b"PNG"
    trained = []

    def all_right(folder, row, seed, steps):
        trained.append((row, seed, steps))
        asked = [4] * (len(script.EDGES) - 1)
        return {"right": asked, "asked": asked, "seconds_a_step": 0.1, "loss": 1, "parameters": 9}

    monkeypatch.setattr(script, "train", all_right)
    assert first["note"] == ""
    second = run("--seeds", 2, "--only", "small", "large")
    assert trained == [("small", 1, 2), ("large", 0, 2), ("large", 1, 2)]
    assert list(second["rows"]) == ["small", "large", "two-levels"]
    assert second["rows"]["two-levels"] == first["rows"]["two-levels"]
    assert second["rows"]["large"]["accuracy"]["far"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert second["rows"]["small"]["accuracy"]["far"]["high"] == 1.0
    assert "one seed is no ground for a verdict" in second["note"]


@pytest.mark.parametrize(
    ("ours", "seeds", "cost", "verdict", "claim"),
    [
        ((0.7, 0.8), 3, 0.9, "two levels do better than the large window", "shows here"),
        ((0.7, 0.8), 3, 1.1, "two levels do better than the large window", "does not show here"),
        ((0.2, 0.4), 3, 0.9, "two levels do worse than the large window", "does not show here"),
        ((0.5, 0.8), 3, 0.9, "no difference beyond that of the seeds", "does not show here"),
        ((0.7, 0.8), 1, 0.9, "one seed is no ground for a verdict", "does not show here"),
    ],
)
def test_the_note_says_whether_the_claim_shows(script, ours, seeds, cost, verdict, claim):
    def row(low, high):
        found = {"mean": (low + high) / 2, "low": low, "high": high}
        return {"seeds": seeds, "accuracy": {"middle": found, "beyond": found}}

    rows = {"small": row(0.1, 0.2), "large": row(0.45, 0.6), "two-levels": row(*ours)}
    parts = {"seconds_to_large": cost, "mib_to_large": 0.9}
    costs = {"rows": {"two-levels": {"forward": parts, "training": parts}}}
    said = script.note({"rows": rows, "cost": costs})
    assert said.count(verdict) == 2
    assert said.endswith(f"at lower cost {claim}.")


@pytest.mark.slow
def test_the_cost_is_measured_beside_the_large_window(run):
    result = run("--only", "cost")
    rows = result["cost"]["rows"]
    assert list(rows) == ["small", "large", "two-levels"]
    for kind in ("forward", "training"):
        assert rows["large"][kind]["seconds_to_large"] == 1
        assert all(row[kind]["seconds"] > 0 and row[kind]["mib"] > 0 for row in rows.values())
    assert "of the large window's time" in result["note"]
