"""The scale of metrics, 0 to 100, and what earlier versions wrote of classification: 0 to 1."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import TrainerState

log = logging.getLogger("ldt")

SCALE = 100  # in metrics.json and run.json
_SHARES = frozenset(["accuracy", "exact_match", "macro_f1", "micro_f1"])
_COLUMNS = frozenset(["precision", "recall", "f1"])


def is_share(metric: str) -> bool:
    """True of a metric of classification that was from 0 to 1."""
    return metric.removeprefix("eval_") in _SHARES


def results_to_scale(results: dict[str, Any], where: object) -> dict[str, Any]:
    """The content of a metrics.json with metrics from 0 to 100; one line where they were not.

    Args:
        results: what was read.
        where: the file, for the log.
    """
    if results.get("task") != "classification" or "scale" in results:
        return results
    log.info("%s: of an earlier version, its metrics were from 0 to 1", where)

    def scaled(values: dict[str, Any], names: frozenset[str] = _SHARES) -> dict[str, Any]:
        return {
            name: SCALE * value if name.removeprefix("eval_") in names else value
            for name, value in values.items()
        }

    baseline = {
        name: each | {"value": SCALE * each["value"]} if name in _SHARES else each
        for name, each in results.get("baseline", {}).items()
    }
    return results | {
        "scale": SCALE,
        "metrics": scaled(results["metrics"]),
        "baseline": baseline,
        "table": [scaled(row, _COLUMNS) for row in results.get("table", [])],
    }


def state_to_scale(state: TrainerState, metric: str | None, config) -> None:
    """Bring the best metric of a checkpoint to the scale that its run goes on with.

    Args:
        state: as it was saved by an earlier version; is changed.
        metric: what it is the best of.
        config: of the model.
    """
    classifies = (getattr(config, "problem_type", None) or "").endswith("_label_classification")
    if state.best_metric is not None and classifies and is_share(metric or ""):
        log.info("the metrics of this run were from 0 to 1 so far, from here on 0 to 100")
        state.best_metric *= SCALE


def threshold_to_scale(training: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The training section with ``early_stopping_threshold`` on the scale of the metrics.

    Args:
        training: of a run that is resumed, a classification.
        record: its run.json.
    """
    threshold, metric = training.get("early_stopping_threshold"), "metric_for_best_model"
    if not threshold or "scale" in record or not is_share(training.get(metric) or "macro_f1"):
        return training
    scaled = SCALE * threshold
    log.info(
        "training.early_stopping_threshold: %g from 0 to 1, %g from 0 to 100", threshold, scaled
    )
    return training | {"early_stopping_threshold": scaled}
