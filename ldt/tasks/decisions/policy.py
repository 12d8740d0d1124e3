"""Calibration, thresholds and abstention of a model.

A `Policy` is fitted to the logits of held-out documents after their chunks were merged. What is
told about it is measured on documents that it was fitted without (`Decided`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ldt.metrics.calibration import figures
from ldt.metrics.numbers import softmax
from ldt.tasks.decisions.calibration import CALIBRATORS, Beta, Platt, Temperature, folds
from ldt.tasks.decisions.thresholds import (
    DEFAULT,
    Abstention,
    Objective,
    abstain_for_coverage,
    abstain_for_risk,
    conformal_quantile,
    label_thresholds,
)

# Coverages of label sets that a model has quantiles for.
COVERAGES = tuple(percent / 100 for percent in range(50, 100))
# Ways to calibrate, by whether a document can have several labels; `auto` takes the best of them.
METHODS = {False: ("none", "temperature"), True: ("none", "platt", "beta")}


@dataclass(frozen=True)
class Rules:
    """Rules of what is to be fitted.

    Args:
        several: whether a document can have several labels.
        thresholds: [labels], as a `Policy` has them; None has them chosen.
        target: by which they are.
        calibration: one of `METHODS`, or ``auto``.
        abstain: ``coverage`` or ``risk``, and how much; None always answers.
        positive: the number of the label that is given from a threshold on, of answers with one
            label; None of others, which have no threshold then.
    """

    several: bool
    thresholds: np.ndarray | None = None
    target: Objective = field(default_factory=Objective)
    calibration: str = "none"
    abstain: tuple[str, float] | None = None
    positive: int | None = None

    def tuned(self, labels: int) -> list[int]:
        """Numbers of the labels, of so many, whose thresholds are chosen."""
        if self.thresholds is not None or not (self.several or self.positive is not None):
            return []
        return list(range(labels)) if self.several else [self.positive or 0]


@dataclass(frozen=True)
class Policy:
    """Calibration, thresholds and abstention in force.

    Args:
        several: whether a document can have several labels.
        calibrator: makes probabilities of logits; None takes softmax or the logistic function.
        thresholds: [labels], the probabilities from which on a label is given. Of answers with one
            label they are NaN but for one label, which comes before the others from there on; None
            gives the likeliest.
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
        if self.thresholds is not None:
            first = ~np.isnan(self.thresholds)
            is_there = scores >= self.thresholds
            scores = np.where(first, np.where(is_there, np.inf, -np.inf), scores)
        return scores.argmax(1)[:, None] == np.arange(scores.shape[1])

    def confidence(self, scores: np.ndarray, given: np.ndarray) -> np.ndarray:
        """The probability [documents] that an answer is right as a whole.

        Of several labels the product over all of them, given or not, as if they were independent.
        """
        if not self.several:
            return (scores * given).sum(1)
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
        """Facts as JSON, for `from_facts`; of labels with these names."""
        facts: dict[str, Any] = {}
        if self.calibrator is not None:
            facts["calibration"] = {"method": self.calibrator.name} | self.calibrator.facts()
        if self.thresholds is not None:
            pairs = zip(names, self.thresholds.tolist(), strict=True)
            facts["thresholds"] = {name: each for name, each in pairs if not math.isnan(each)}
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
        policy = cls(several, thresholds=thresholds)
        if "calibration" in facts:
            values = dict(facts["calibration"])
            maker: Any = CALIBRATORS[values.pop("method")]
            policy = replace(policy, calibrator=maker(**values))
        if "thresholds" in facts:
            chosen = facts["thresholds"]
            if not several and len({*chosen} & {*names}) != 1:
                raise ValueError(f"expected the threshold of one label, got {chosen}")
            of_labels = [chosen[name] if several else chosen.get(name, math.nan) for name in names]
            policy = replace(policy, thresholds=np.array(of_labels, float))
        if "abstain" in facts:
            policy = replace(policy, least=_number(facts["abstain"]["confidence"]))
        if "label_sets" in facts:
            policy = replace(policy, quantiles=[*map(_number, facts["label_sets"])])
        return policy


class Decided(NamedTuple):
    """A policy, and what it gives on documents that it was fitted without.

    Args:
        policy: fitted to all documents.
        rules: those that were asked for, with the way to calibrate in place of ``auto``.
        scores: [documents, labels], probabilities by the policy of the other folds.
        labels: [documents, labels] bool, those given by that policy.
        confidence: [documents].
        abstention: what giving no answer does; None where there is always one.
        tried: ``ece`` and ``nll`` of each way to calibrate, out of fold, where ``auto`` chose one.
    """

    policy: Policy
    rules: Rules
    scores: np.ndarray
    labels: np.ndarray
    confidence: np.ndarray
    abstention: Abstention | None
    tried: Mapping[str, Mapping[str, float]]


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
    tried: Mapping[str, Mapping[str, float]] = {}
    if rules.calibration == "auto":
        tried = _tried(logits, right, rules)
        rules = replace(rules, calibration=_best(tried))
    scores, labels = _out_of_fold(logits, right, rules)
    policy = _fit(logits, right, rules)
    confidence = policy.confidence(scores, labels)
    abstention = None
    if rules.abstain is not None:
        what, share = rules.abstain
        fit = abstain_for_coverage if what == "coverage" else abstain_for_risk
        abstention = fit(confidence, (labels == right).all(1), share)
        policy = replace(policy, least=max(abstention.threshold, 0.0))
    # Of a document without labels the empty set holds all right ones.
    misses = np.where(right, 1 - scores, -1.0).max(1)
    quantiles = [conformal_quantile(misses, coverage) for coverage in COVERAGES]
    policy = replace(policy, quantiles=quantiles)
    return Decided(policy, rules, scores, labels, confidence, abstention, tried)


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
    if tuned := rules.tuned(logits.shape[1]):
        # Labels are drawn to a common threshold, so their probabilities must mean the same.
        alike = rules.several and policy.calibrator is None
        platt = Platt.fit(logits, right) if alike else None
        scores = platt.apply(logits) if platt else policy.scores(logits)
        chosen = np.full(logits.shape[1], math.nan)
        chosen[tuned] = label_thresholds(scores[:, tuned], right[:, tuned], rules.target)
        policy = replace(policy, thresholds=platt.before(chosen) if platt else chosen)
    return policy


def _out_of_fold(
    logits: np.ndarray, right: np.ndarray, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = np.empty(logits.shape), np.empty(logits.shape, bool)
    everything = np.arange(len(logits))
    for others, held_out in list(folds(len(logits))) or [(everything, everything)]:
        policy = _fit(logits[others], right[others], rules)
        scores[held_out] = policy.scores(logits[held_out])
        labels[held_out] = policy.given(scores[held_out])
    return scores, labels


def _tried(logits: np.ndarray, right: np.ndarray, rules: Rules) -> dict[str, dict[str, float]]:
    """The figures of all ways to calibrate, out of fold."""
    # Thresholds have no say in it.
    rules = replace(rules, thresholds=np.full(logits.shape[1], DEFAULT))
    if not rules.several:
        logits, right = logits[right.any(1)], right[right.any(1)]
    tried = {}
    for method in METHODS[rules.several] if len(logits) else ():
        scores, _ = _out_of_fold(logits, right, replace(rules, calibration=method))
        tried[method] = figures(scores, right, rules.several)
    return tried


def _best(tried: Mapping[str, Mapping[str, float]]) -> str:
    """The way to calibrate with the least cross-entropy, of those that make neither it nor the
    calibration error worse; ``none`` where none does."""
    plain = tried.get("none", {})
    helps = {
        method: each["nll"]
        for method, each in tried.items()
        if each["nll"] < plain["nll"] and each["ece"] <= plain["ece"]
    }
    return min(helps, key=helps.__getitem__, default="none")


def _finite(value: float) -> float | None:
    """A number as JSON has it: infinity is null."""
    return value if math.isfinite(value) else None


def _number(value: Any) -> float:
    return math.inf if value is None else float(value)
