"""What a model decides by: its probabilities, thresholds, and when to give no answer.

A `Policy` is fitted to the logits of held-out documents after their chunks were merged. What is
told about it is measured on documents that it was fitted without (`Decided`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ldt.metrics.calibration import negative_log_likelihood
from ldt.metrics.numbers import softmax
from ldt.tasks.decisions.abstention import (
    Abstention,
    abstain_for_coverage,
    abstain_for_risk,
    conformal_quantile,
)
from ldt.tasks.decisions.calibration import CALIBRATORS, Beta, Platt, Temperature
from ldt.tasks.decisions.folds import folds
from ldt.tasks.decisions.thresholds import Target, label_thresholds

# Coverages of label sets that a model has quantiles for.
COVERAGES = tuple(percent / 100 for percent in range(50, 100))
# Ways to calibrate, by whether a document can have several labels; `auto` takes the best of them.
METHODS = {False: ("none", "temperature"), True: ("none", "platt", "beta")}


@dataclass(frozen=True)
class Rules:
    """What is to be fitted.

    Args:
        several: whether a document can have several labels.
        thresholds: [labels], of several; None has them chosen.
        target: by which they are.
        calibration: one of `METHODS`, or ``auto``.
        abstain: ``coverage`` or ``risk``, and how much; None always answers.
    """

    several: bool
    thresholds: np.ndarray | None = None
    target: Target = field(default_factory=Target)
    calibration: str = "none"
    abstain: tuple[str, float] | None = None


@dataclass(frozen=True)
class Policy:
    """What is decided by.

    Args:
        several: whether a document can have several labels.
        calibrator: makes probabilities of logits; None takes softmax or the logistic function.
        thresholds: [labels], the probabilities from which on a label is given; of several.
        least: confidence from which on an answer is given.
        quantiles: of 1 - p of the right labels, for each of `COVERAGES`; empty where there are no
            label sets.
    """

    several: bool
    calibrator: Temperature | Platt | Beta | None = None
    thresholds: np.ndarray | None = None
    least: float = -math.inf
    quantiles: Sequence[float] = ()

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities [documents, labels] of merged logits."""
        if self.calibrator is not None:
            return self.calibrator.apply(logits)
        return 0.5 * (1 + np.tanh(logits / 2)) if self.several else softmax(logits)

    def given(self, scores: np.ndarray) -> np.ndarray:
        """The labels [documents, labels] bool of an answer."""
        if self.several:
            return scores >= self.thresholds
        return scores.argmax(1)[:, None] == np.arange(scores.shape[1])

    def confidence(self, scores: np.ndarray, given: np.ndarray) -> np.ndarray:
        """The probability [documents] that an answer is right as a whole.

        Of several labels the product over all of them, given or not, as if they were independent.
        """
        if not self.several:
            return scores.max(1)
        return np.exp(np.log(np.maximum(np.where(given, scores, 1 - scores), 1e-300)).sum(1))

    def label_set(self, scores: np.ndarray, coverage: float) -> np.ndarray:
        """The labels [labels] bool that, for a new document, are all the right ones or more with at
        least this probability (`conformal_quantile`).

        Args:
            scores: [labels], of a document.
            coverage: of `COVERAGES`, that or the next higher one is taken.

        Raises:
            ValueError: there are no quantiles, or it is above the highest.
        """
        least = next((n for n, each in enumerate(COVERAGES) if each >= coverage - 1e-9), None)
        if not self.quantiles or least is None:
            raise ValueError(f"no quantile for a coverage of {coverage}")
        return 1 - scores <= self.quantiles[least]

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        """As JSON, for `from_facts`; of labels with these names."""
        facts: dict[str, Any] = {}
        if self.calibrator is not None:
            facts["calibration"] = {"method": self.calibrator.name} | self.calibrator.facts()
        if self.thresholds is not None:
            facts["thresholds"] = dict(zip(names, self.thresholds.tolist(), strict=True))
        if self.least > -math.inf:
            facts["abstain"] = {"confidence": _finite(self.least)}
        if self.quantiles:
            facts["label_sets"] = [*map(_finite, self.quantiles)]
        return facts

    @classmethod
    def from_facts(
        cls,
        facts: Mapping[str, Any],
        names: Sequence[str],
        several: bool,
        thresholds: np.ndarray | None = None,
    ) -> Policy:
        """The policy that a model has in its config.

        Args:
            facts: as `facts` made them, whatever else is in them; {} decides by the model alone.
            names: of the labels.
            several: whether a document can have several.
            thresholds: [labels], where the facts have none.

        Raises:
            LookupError, TypeError, ValueError: they are not those of such a model.
        """
        found = cls(several, thresholds=thresholds)
        if "calibration" in facts:
            values = dict(facts["calibration"])
            maker: Any = CALIBRATORS[values.pop("method")]
            found = replace(found, calibrator=maker(**values))
        if several and "thresholds" in facts:
            chosen = np.array([float(facts["thresholds"][name]) for name in names])
            found = replace(found, thresholds=chosen)
        if "abstain" in facts:
            found = replace(found, least=_number(facts["abstain"]["confidence"]))
        if "label_sets" in facts:
            found = replace(found, quantiles=[*map(_number, facts["label_sets"])])
        return found


class Decided(NamedTuple):
    """A policy, and what it gives on documents that it was fitted without.

    Args:
        policy: fitted to all documents.
        rules: those that were asked for, with the way to calibrate in place of ``auto``.
        scores: [documents, labels], probabilities by the policy of the other folds.
        given: [documents, labels] bool, the labels by that.
        confidence: [documents].
        abstention: what giving no answer does; None where there is always one.
    """

    policy: Policy
    rules: Rules
    scores: np.ndarray
    given: np.ndarray
    confidence: np.ndarray
    abstention: Abstention | None


def decide(logits: np.ndarray, right: np.ndarray, rules: Rules) -> Decided:
    """Fit a policy to held-out documents.

    Calibration and thresholds are fitted to all documents. When to be silent, and label sets, go by
    probabilities that are out of fold, since those of the fit are too sure. Of a single document
    nothing is out of fold; it is its own measure.

    Args:
        logits: [documents, labels], after merging.
        right: [documents, labels] bool; one label of each row, or none where every answer is
            wrong, unless there can be several.
        rules: what to fit.

    Raises:
        ValueError: a logit that is not finite.
    """
    if rules.calibration == "auto":
        rules = replace(rules, calibration=_best_method(logits, right, rules))
    scores, given = _out_of_fold(logits, right, rules)
    policy = _fit(logits, right, rules)
    confidence = policy.confidence(scores, given)
    abstention = None
    if rules.abstain is not None:
        what, share = rules.abstain
        fit = abstain_for_coverage if what == "coverage" else abstain_for_risk
        abstention = fit(confidence, (given == right).all(1), share)
        policy = replace(policy, least=max(abstention.threshold, 0.0))
    # Of a document without labels the empty set holds all right ones.
    misses = np.where(right, 1 - scores, -1.0).max(1)
    quantiles = [conformal_quantile(misses, coverage) for coverage in COVERAGES]
    return Decided(
        replace(policy, quantiles=quantiles), rules, scores, given, confidence, abstention
    )


def _fit(logits: np.ndarray, right: np.ndarray, rules: Rules) -> Policy:
    policy = Policy(rules.several, thresholds=rules.thresholds)
    if rules.calibration == "temperature":
        # Where nothing is right, a temperature cannot help.
        known = right.any(1)
        fitted = Temperature.fit(logits[known], right[known].argmax(1))
        policy = replace(policy, calibrator=fitted)
    elif rules.calibration != "none":
        maker: Any = CALIBRATORS[rules.calibration]
        policy = replace(policy, calibrator=maker.fit(logits, right))
    if rules.several and rules.thresholds is None:
        # Labels are drawn to a common threshold, so their probabilities must mean the same.
        platt = Platt.fit(logits, right) if policy.calibrator is None else None
        scores = platt.apply(logits) if platt else policy.scores(logits)
        chosen = label_thresholds(scores, right, rules.target)
        policy = replace(policy, thresholds=platt.before(chosen) if platt else chosen)
    return policy


def _out_of_fold(
    logits: np.ndarray, right: np.ndarray, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    scores, given = np.empty(logits.shape), np.empty(logits.shape, bool)
    everything = np.arange(len(logits))
    for others, own in list(folds(len(logits))) or [(everything, everything)]:
        policy = _fit(logits[others], right[others], rules)
        scores[own] = policy.scores(logits[own])
        given[own] = policy.given(scores[own])
    return scores, given


def _best_method(logits: np.ndarray, right: np.ndarray, rules: Rules) -> str:
    """The way to calibrate with the least cross-entropy out of fold; of equal ones the first."""
    # Thresholds have no say in it.
    rules = replace(rules, thresholds=np.full(logits.shape[1], 0.5))
    if not rules.several:
        logits, right = logits[right.any(1)], right[right.any(1)]
    losses = {}
    for method in METHODS[rules.several]:
        scores, _ = _out_of_fold(logits, right, replace(rules, calibration=method))
        truth = right if rules.several else right.argmax(1)
        flat = (scores.ravel(), truth.ravel()) if rules.several else (scores, truth)
        losses[method] = negative_log_likelihood(*flat)
    return min(losses, key=losses.__getitem__)


def _finite(value: float) -> float | None:
    """A number as JSON has it: infinity is null."""
    return value if math.isfinite(value) else None


def _number(value: Any) -> float:
    return math.inf if value is None else float(value)
