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
from ldt.tasks.decisions.report import (
    chosen_on_these,
    in_short,
    in_words,
    report,
    summary,
)
from ldt.tasks.decisions.thresholds import (
    Objective,
    Outcome,
    best_threshold,
    label_thresholds,
    outcome,
)

__all__ = [
    "CALIBRATORS",
    "COVERAGES",
    "Abstention",
    "Beta",
    "Decided",
    "Outcome",
    "Platt",
    "Policy",
    "Rules",
    "Objective",
    "Temperature",
    "abstain_for_coverage",
    "abstain_for_risk",
    "best_threshold",
    "chosen_on_these",
    "conformal_quantile",
    "decide",
    "folds",
    "in_short",
    "in_words",
    "label_thresholds",
    "outcome",
    "report",
    "risk_coverage",
    "summary",
    "upper_bound",
]
