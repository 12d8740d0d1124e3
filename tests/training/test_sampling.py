import json
from collections import Counter
from pathlib import Path

import pytest
from training_runs import assert_same_run, train

from ldt.errors import RecipeError
from ldt.training.labelled import Balanced

CLASSES = [[0]] * 20 + [[1]] * 3 + [[2]] * 4


def test_each_class_comes_equally_often():
    order = list(Balanced(CLASSES, seed=0))
    assert len(order) == len(CLASSES)
    assert Counter(CLASSES[n][0] for n in order) == {0: 9, 1: 9, 2: 9}
    counts = Counter(order)
    assert {counts[n] for n in range(20, 23)} == {3}  # none comes again before all have come
    assert {counts[n] for n in range(23, 27)} <= {2, 3}
    assert max(counts[n] for n in range(20)) == 1


def test_an_order_is_that_of_seed_and_epoch():
    one, other = Balanced(CLASSES, 0), Balanced(CLASSES, 0)
    first = list(one)
    assert list(other) == first
    one.set_epoch(1)
    assert list(one) != first
    assert list(Balanced(CLASSES, 1)) != first
    one.set_epoch(0)
    assert list(one) == first


def test_inputs_with_several_classes_or_none():
    orders = [list(Balanced([[0, 1], [0], [], []], seed)) for seed in range(30)]
    assert {len(order) for order in orders} == {4}
    assert {sum(n >= 2 for n in order) for order in orders} == {1, 2}
    # The only one of the second class always comes, and at times for the first one too.
    assert {order.count(0) for order in orders} >= {1, 2}


def rare(path):
    words = ["the party", "ZZZ agree"]
    rows = [{"id": n, "text": words[n % 6 == 0], "label": "ab"[n % 6 == 0]} for n in range(24)]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_a_balanced_run_resumes_bit_by_bit(recipe, at_step, monkeypatch):
    seen = []
    order = Balanced.__iter__
    monkeypatch.setattr(Balanced, "__iter__", lambda self: iter([*seen_of(self, order, seen)]))
    rare("train.jsonl")
    options = ["task.sample=balanced", "training.save_steps=3"]
    train(recipe(*options, "training.output_dir=runs/whole"))
    assert seen[0] != seen[1]
    assert Counter(n % 6 == 0 for n in seen[0]) == {True: 12, False: 12}

    class Stop(Exception):
        pass

    def stop(model):
        raise Stop

    at_step(5, stop)
    with pytest.raises(Stop):
        train(recipe(*options))
    at_step(5, lambda model: None)
    train(recipe(*options), resume=True)
    assert_same_run("runs/whole", "runs/r")


def seen_of(sampler, order, seen):
    numbers = list(order(sampler))
    seen.append(numbers)
    return numbers


def test_smoothed_labels_do_not_go_with_weights(recipe):
    with pytest.raises(RecipeError, match="label_smoothing_factor.*not go with task.focal_gamma"):
        train(recipe("training.label_smoothing_factor=0.1", "task.focal_gamma=2"))
