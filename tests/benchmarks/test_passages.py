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
    for name in ("passages", "decisions", "commands", "contracts"):
        sys.modules.pop(name, None)


def test_passages_are_ranked_by_score_those_that_are_not_read_are_none(passages):
    spans = [(0, 3), (3, 6), (6, 9)]
    found = passages.first(spans, np.array([0.5, np.nan, 2.0]))
    assert [each["start"] for each in found] == [6, 0]


def test_chance_is_the_mean_over_all_orders(passages):
    places = [{"start": 10 * n, "end": 10 * n + 9} for n in range(5)]
    gold = [{"start": 12, "end": 25}, {"start": 41, "end": 43}]  # in three of them; two and one
    found = passages.by_chance(places, gold)
    # Two are not gold: each three has one that is.
    assert found["hit@1"] == pytest.approx(3 / 5)
    assert found["hit@3"] == 1.0
    # Two of five in the first three: 1 - 1/10; one of five: 3/5.
    assert found["recall@3"] == pytest.approx((9 / 10 + 3 / 5) / 2)


def test_chance_draws_no_more_passages_than_there_are(passages):
    places = [{"start": 0, "end": 5}, {"start": 6, "end": 9}]
    found = passages.by_chance(places, places[1:])
    assert found == {"hit@1": 0.5, "hit@3": 1.0, "recall@3": 1.0}


def test_both_facts_count_in_recall(passages):
    gold = [{"start": 0, "end": 5}, {"start": 20, "end": 25}]
    named = [{"start": 0, "end": 9}, {"start": 10, "end": 19}, {"start": 19, "end": 22}]
    assert passages.scored(named, gold) == {"hit@1": 1.0, "hit@3": 1.0, "recall@3": 1.0}
    assert passages.scored(named[:2], gold)["recall@3"] == 0.5
    assert passages.scored(named[1:], gold)["hit@1"] == 0.0


def test_gold_facts_are_in_the_text_and_decide_together(passages):
    sole = passages.FACTS[0][0] + passages.FACTS[1][0]
    for row in passages.facts(range(12), 3):
        said = [row["text"][start:end] for start, end in row["spans"]]
        assert len(said) == 2
        assert (row["label"] == "sole") == all(each in sole for each in said)
        assert row["text"].count("\n\n") == 2


def test_the_gold_of_disputes_is_their_clause(passages):
    for row in passages.disputes(range(4), whole=True):
        ((start, end),) = row["spans"]
        assert "Disputes." in row["text"][start : start + 20]
        assert "\n\n" not in row["text"][start:end]
        assert row["text"][end : end + 2] == "\n\n"
    assert all("Disputes." in row["text"] for row in passages.disputes(range(4)))


def test_the_tables_show_each_set_and_the_cost(passages, capsys):
    row = {"documents": 40} | dict.fromkeys(("hit@1", "hit@3", "recall@3"), [75.0, 61.0, 87.4])
    found = {"right": 98.4, "sentences": 52.5, "methods": {"gradient": row}}
    cost = {"tokens": 4096, "seconds": {"plain": 2.0, "gradient": 5.0, "occlusion": 140.0}}
    cost["gib"] = {"plain": 0.5, "gradient": 1.25}
    passages.show({"sets": {"clause": found}, "cost": [cost]})
    shown = capsys.readouterr().out
    assert "clause: 98 % right on pieces, 52.5 sentences" in shown
    assert "75.0 (61 to 87)" in shown
    assert "occlusion at 4,096: 140 s" in shown
    assert "2.50" in shown
