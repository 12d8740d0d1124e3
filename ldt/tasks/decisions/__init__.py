"""From scores to decisions: thresholds, calibration, abstaining. Numbers in, numbers out."""

from ldt.tasks.decisions.abstention import (
    Abstention,
    abstain_for_coverage,
    abstain_for_risk,
    conformal_quantile,
    risk_coverage,
    upper_bound,
)
from ldt.tasks.decisions.calibration import CALIBRATORS, Beta, Platt, Temperature
from ldt.tasks.decisions.folds import folds
from ldt.tasks.decisions.policy import COVERAGES, Decided, Policy, Rules, decide
from ldt.tasks.decisions.report import in_words, report, summary
from ldt.tasks.decisions.thresholds import Target, best_threshold, label_thresholds

__all__ = [
    "CALIBRATORS",
    "COVERAGES",
    "Abstention",
    "Beta",
    "Decided",
    "Platt",
    "Policy",
    "Rules",
    "Target",
    "Temperature",
    "abstain_for_coverage",
    "abstain_for_risk",
    "best_threshold",
    "conformal_quantile",
    "decide",
    "folds",
    "in_words",
    "label_thresholds",
    "report",
    "risk_coverage",
    "summary",
    "upper_bound",
]
