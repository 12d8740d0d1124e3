"""The script that measures passages, without its models."""

import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def passages(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import passages

    yield passages
    for name in ("passages", "decisions", "commands"):
        sys.modules.pop(name, None)


def test_passages_are_ranked_by_score_those_that_are_not_read_last(passages):
    spans = [(0, 3), (3, 6), (6, 9)]
    found = passages.ranked(spans, np.array([0.5, np.nan, 2.0]))
    assert [each["start"] for each in found] == [6, 0, 3]


def test_the_tables_weigh_seeds_by_their_labels(passages, capsys):
    def seed(pairs, rate):
        hits = dict.fromkeys(passages.METHODS, {f"hit@{k}": rate for k in passages.KS})
        return {"pairs": pairs, "hits": hits, "faithfulness": {"gradient, 3": {"sufficiency": 0.5}}}

    cost = {"tokens": 4096, "seconds": {"plain": 1.0, "gradient": 2.5}, "ratio": 2.5}
    cost["gib"] = {"plain": 0.5, "gradient": 1.25}
    passages.show({"cuad": [seed(10, 0.0), seed(30, 100.0)], "cost": [cost]})
    shown = capsys.readouterr().out
    assert "40 labels of contracts" in shown
    assert "75.0" in shown
    assert "0.500" in shown
    assert "4,096" in shown
