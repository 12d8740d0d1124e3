import random

import pytest

from ldt.metrics.ranking import measures, ranked


def figures(run, qrels, cuts=(1, 3, 10)):
    """Measures of the scores of one query's documents, by the relevance of those judged."""
    return measures([qrels.get(id, 0) for id in ranked(run)], [*qrels.values()], cuts)


def test_ties_are_ordered_by_id_the_last_first():
    scores = {"d10": 0.5, "d9": 0.5, "a": 0.5 + 1e-9, "b": 0.7}  # 1e-9 is nothing in float32
    assert ranked(scores) == ["b", "d9", "d10", "a"]


def test_measures_by_hand():
    """Ranking: not judged, 1, negative, 3; one of relevance 2 is not in it."""
    run = {"x": 4.0, "one": 3.0, "bad": 2.0, "three": 1.0}
    ndcg = (1 / 1.5849625007 + 3 / 2.3219280949) / (3 + 2 / 1.5849625007 + 1 / 2)
    assert figures(run, {"one": 1, "bad": -1, "three": 3, "two": 2}) == pytest.approx(
        {
            **{"ndcg@1": 0, "ndcg@3": 1 / 1.5849625007 / (3 + 2 / 1.5849625007 + 1 / 2)},
            **{"ndcg@10": ndcg, "mrr@1": 0, "mrr@3": 1 / 2, "mrr@10": 1 / 2},
            **{"recall@1": 0, "recall@3": 1 / 3, "recall@10": 2 / 3},
            "map": (1 / 2 + 2 / 4) / 3,
        }
    )
    assert set(figures(run, {"one": 0}).values()) == {0.0}


def test_measures_are_those_of_pytrec_eval():
    oracle = pytest.importorskip("pytrec_eval")
    generator = random.Random(0)
    cuts = (1, 3, 10)
    names = {f"{name}_{k}" for name in ("ndcg_cut", "recall") for k in cuts} | {"map", "recip_rank"}
    for _ in range(200):
        ids = [f"d{n}" for n in range(generator.randint(1, 40))]
        qrels = {
            id: generator.choice((-1, 0, 0, 1, 2, 3)) for id in ids if generator.random() < 0.5
        }
        run = {id: generator.randint(0, 4) / 3 for id in ids if generator.random() < 0.8}
        if not (qrels and run):
            continue
        wanted = oracle.RelevanceEvaluator({"q": qrels}, names).evaluate({"q": run})["q"]
        first = wanted["recip_rank"]
        expected = {"map": wanted["map"]}
        for k in cuts:
            expected |= {f"ndcg@{k}": wanted[f"ndcg_cut_{k}"], f"recall@{k}": wanted[f"recall_{k}"]}
            expected[f"mrr@{k}"] = first if first * k >= 1 else 0
        assert figures(run, qrels, cuts) == pytest.approx(expected, abs=1e-9)
