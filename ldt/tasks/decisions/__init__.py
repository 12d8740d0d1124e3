"""From scores to decisions: thresholds, calibration, abstaining. Numbers in, numbers out."""

from ldt.tasks.decisions.abstention import (
    Abstention,
    abstain_for_coverage,
    abstain_for_risk,
    conformal_quantile,
)
from ldt.tasks.decisions.calibration import CALIBRATORS, Beta, Platt, Temperature
from ldt.tasks.decisions.folds import folds
from ldt.tasks.decisions.thresholds import Target, best_threshold, label_thresholds

__all__ = [
    "CALIBRATORS",
    "Abstention",
    "Beta",
    "Platt",
    "Target",
    "Temperature",
    "abstain_for_coverage",
    "abstain_for_risk",
    "best_threshold",
    "conformal_quantile",
    "folds",
    "label_thresholds",
]
