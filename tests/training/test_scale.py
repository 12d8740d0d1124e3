"""What earlier versions wrote with metrics from 0 to 1 is read as from 0 to 100."""

from types import SimpleNamespace

import pytest

from ldt.training.scale import results_to_scale, state_to_scale, threshold_to_scale

OLD = {
    "task": "classification",
    "metrics": {"eval_macro_f1": 0.25, "eval_loss": 0.5, "train_loss": 0.4},
    "baseline": {"macro_f1": {"answer": "always 'a'", "value": 0.2}},
    "table": [{"class": "a", "precision": 0.5, "recall": 1.0, "f1": 0.75, "support": 3}],
    "metric": "eval_macro_f1",
}


def test_old_results_are_brought_to_the_scale_once_and_that_is_said(caplog):
    caplog.set_level("INFO", "ldt")
    new = results_to_scale(OLD, "runs/r/metrics.json")
    assert new["metrics"] == {"eval_macro_f1": 25, "eval_loss": 0.5, "train_loss": 0.4}
    assert new["baseline"] == {"macro_f1": {"answer": "always 'a'", "value": 20}}
    row = {"class": "a", "precision": 50, "recall": 100, "f1": 75, "support": 3}
    assert new["table"] == [row]
    assert new["scale"] == 100
    assert caplog.messages == [
        "runs/r/metrics.json: of an earlier version, its metrics were from 0 to 1"
    ]
    assert results_to_scale(new, "") is new
    assert len(caplog.messages) == 1


def test_figures_that_were_in_percent_before_stay():
    old = OLD | {"task": "wikihop", "metrics": {"eval_accuracy": 37.5}}
    assert results_to_scale(old, "") is old


@pytest.mark.parametrize(
    ("problem", "metric", "best"),
    [
        ("single_label_classification", "eval_accuracy", 50),
        ("multi_label_classification", "macro_f1", 50),
        ("single_label_classification", "eval_loss", 0.5),
        ("regression", "eval_mse", 0.5),
        (None, "eval_accuracy", 0.5),
    ],
)
def test_the_best_metric_of_a_checkpoint(problem, metric, best):
    state = SimpleNamespace(best_metric=0.5)
    state_to_scale(state, metric, SimpleNamespace(problem_type=problem))
    assert state.best_metric == best


def test_the_threshold_of_early_stopping():
    training = {"early_stopping_threshold": 0.01}
    assert threshold_to_scale(training, {}) == {"early_stopping_threshold": 1}
    assert threshold_to_scale(training, {"scale": 100}) is training
    of_loss = training | {"metric_for_best_model": "loss"}
    assert threshold_to_scale(of_loss, {}) is of_loss
    assert threshold_to_scale({}, {}) == {}
