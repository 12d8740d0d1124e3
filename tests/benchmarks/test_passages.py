"""The script that measures passages, with a tiny model at most."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from classified import LABELS, make_run

from ldt.inference.engine import read_recipe
from ldt.inference.passages import gradients
from ldt.inference.predictor import EncoderPredictor
from ldt.io.records import Example

TEXT = (
    "The party of the first part ends this agreement. Other parties of it end, and this ends! "
    "This agreement of the first and other party ends. Ends the other part. And this ends it."
)


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


def test_faithfulness_is_eraser_s(passages):
    """By hand: each token takes 0.1 of the probability, the first one 0.5."""
    chosen = [np.array([0]), np.array([1, 2])]
    every = [np.array([0, 1]), np.array([1, 2]), np.array([3])]  # windows overlap

    def probability(hidden):
        return 0.9 - sum(0.5 if token == 0 else 0.1 for token in hidden)

    found = passages.faithfulness(probability, chosen, every)
    assert found["deletion"] == pytest.approx([0.9, 0.4, 0.2])
    assert found["comprehensiveness"] == pytest.approx(0.7)
    assert found["sufficiency"] == pytest.approx(0.1)  # the last token is hidden


def test_the_area_over_a_curve_is_the_mean_fall(passages):
    """By hand: the probability falls by 0, 0.3, 0.6 and 0.5."""
    assert passages.aopc([0.9, 0.6, 0.3, 0.4]) == pytest.approx(1.4 / 4)
    assert passages.aopc([0.9]) == 0


def test_a_shorter_curve_goes_on_at_its_end(passages):
    curves = [[0.8, 0.6, 0.2], [0.4, 0.2]]
    assert passages.mean_curve(curves) == pytest.approx([0.6, 0.4, 0.2])
    assert passages.mean_curve(curves[1:], 4) == [0.4, 0.2, 0.2, 0.2]


def test_the_area_of_a_method_is_that_over_its_mean_curve(passages):
    """By hand: falls of 0, 0.2, 0.6 and of 0, 0.2, 0.2, for there is one passage to hide."""
    rows = [
        {"comprehensiveness": 0.6, "sufficiency": 0.5, "deletion": [0.8, 0.6, 0.2]},
        {"comprehensiveness": 0.2, "sufficiency": 0.25, "deletion": [0.4, 0.2]},
    ]
    found = passages.curves(rows)
    assert found["deletion"] == pytest.approx([60, 40, 20])
    assert found["aopc"] == pytest.approx([20, 40 / 3, 80 / 3])  # both, one twice, the other
    assert found["comprehensiveness"][0] == pytest.approx(40)
    assert found["sufficiency"][0] == pytest.approx(37.5)


@pytest.fixture
def predictor(tiny_longformer, tmp_path):
    """A tiny classifier that reads a text in chunks, whose highest logit counts."""
    make_run(tiny_longformer, tmp_path)
    predictor = EncoderPredictor(tmp_path, read_recipe(tmp_path), "cpu")
    predictor.max_length = 32
    predictor.task = predictor.task.model_copy(update={"merge": "max"})
    return predictor


def test_deletions_are_the_answer_again_without_passages_and_by_them_alone(passages, predictor):
    example = Example(where="docs.jsonl:1", id="d", fields={"body": {"text": TEXT}})
    features = predictor.encode(example)
    assert len(features) > 2
    outputs = predictor.outputs(features)
    reading = predictor.task.reading(example, predictor.tokenizer, predictor.data)
    answer = predictor.decode(outputs, example, features)
    (target,) = predictor.task.targets(answer, predictor.config, features, ["no"])
    args = predictor, features, outputs, reading, [target], 16384
    scores = {"gradient": gradients(*args)[0], "chunks": target.logits(outputs)}
    args = predictor, example, features, outputs, reading, "no", scores, 3
    found = passages.deletions(*args)

    def asked(hides):
        """The probability where nothing attends to some tokens, by the places of characters."""
        logits = []
        for feature in features:
            inputs = predictor.collate([feature])
            first, start, end = feature["read"]
            for token in range(start, end):
                place, behind = reading.offsets[token]
                if place < behind and hides(token, place):
                    inputs["attention_mask"][0, first + token - start] = 0
            with torch.inference_mode():
                logits.append(predictor.model(**inputs).logits[0].double())
        return torch.stack(logits).amax(0).softmax(0)[LABELS.index("no")].item()

    def without(spans, inside=True):
        return asked(lambda _, place: any(a <= place < b for a, b in spans) == inside)

    full = without([])
    named = [reading.passages[n] for n in passages.best(scores["gradient"], 3)]
    order = np.random.default_rng(len(TEXT)).permutation(len(reading.passages))
    drawn = [reading.passages[n] for n in order[:3]]
    for method, spans in (("gradient", named), ("random", drawn)):
        curve = [full, *(without(spans[:k]) for k in (1, 2, 3))]
        alone = without(spans, inside=False)
        assert found[method]["deletion"] == pytest.approx(curve, abs=1e-5)
        assert found[method]["sufficiency"] == pytest.approx(full - alone, abs=1e-5)
    _, start, end = features[passages.best(scores["chunks"], 1)[0]]["read"]
    hidden = asked(lambda token, place: start <= token < end)
    assert found["chunks"]["deletion"][1] == pytest.approx(hidden, abs=1e-5)


def test_deletion_is_measured_of_each_method_where_it_is_asked_for(passages, predictor, capsys):
    row = {"body": {"text": TEXT}, "label": "no", "spans": [[0, 48]]}
    rows = [row | {"id": name} for name in "ab"]
    plain = passages.hits(predictor, rows, 1, 0)
    found = passages.hits(predictor, rows, 1, 2)
    deletion = found.pop("deletion")
    assert found == plain
    assert list(deletion) == list(plain["methods"])
    assert {method: len(each["deletion"]) for method, each in deletion.items()} == dict.fromkeys(
        plain["methods"], 3
    )
    passages.show({"sets": {"clause": found | {"right": 98.4, "deletion": deletion}}, "cost": []})
    assert "aopc" in capsys.readouterr().out


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
