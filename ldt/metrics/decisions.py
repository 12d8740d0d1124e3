"""Thresholds, abstention and calibration of a model, fitted to held-out documents.

A `Policy` is fitted to the logits of whole documents, after merging their chunks. Reported scores
are out-of-fold: each document is scored by a policy fitted without it (`Decided`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ldt.errors import plural
from ldt.metrics.calibration import figures
from ldt.metrics.calibrators import CALIBRATORS, Beta, Platt, Temperature, logistic, logit
from ldt.metrics.numbers import softmax

DEFAULT = 0.5  # threshold where none is chosen
DELTA = 0.1  # probability that an exact bound does not hold
STRENGTH = 5  # positives of a label that weigh as much as all labels together
STEPS = 20  # shares of answers that a risk is tried with
TARGET = re.compile(r"f(\d+(?:\.\d+)?)|(precision|recall)\s*>=\s*(0?\.\d+|1(?:\.0*)?|0)")
# Coverages of label sets that a model has quantiles for.
COVERAGES = tuple(percent / 100 for percent in range(50, 100))
# Ways to calibrate, by whether a document can have several labels; `auto` takes the best of them.
METHODS = {False: ("none", "temperature"), True: ("none", "platt", "beta")}


# -- thresholds: probabilities from which on a label is given


@dataclass(frozen=True)
class Objective:
    """Objective that a threshold maximises.

    Args:
        beta: beta of F-beta (recall weighs beta times as much as precision); None if a bound is
            set.
        bounded: ``precision`` or ``recall``, which has to reach ``least`` while the other is
            maximised; empty for F-beta.
        least: lower bound, from 0 to 1.
    """

    beta: float | None = 1.0
    bounded: str = ""
    least: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Parse F-beta (``f1``, ``f0.5``) or a bound from 0 to 1 (``precision>=0.9``,
        ``recall>=0.9``); ValueError for other texts."""
        match = TARGET.fullmatch(text.strip())
        if match is None or match[1] and not float(match[1]):
            raise ValueError(f"expected f1, f2, precision>=0.9 or recall>=0.9, got {text!r}")
        beta, bounded, least = match.groups()
        return cls(None, bounded, float(least)) if bounded else cls(float(beta))

    def value(self, true: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Value of the objective, higher is better, for numbers of true positives, of predicted and
        of gold positives, arrays of one shape: F-beta; with a bound 1 plus the other share where
        the bounded one reaches it, else the bounded one minus 1."""
        precision, recall = true / np.maximum(predicted, 1), true / np.maximum(right, 1)
        if self.beta is not None:
            square = self.beta**2
            return (1 + square) * true / np.maximum(square * right + predicted, 1e-300)
        bounded, other = (precision, recall) if self.bounded == "precision" else (recall, precision)
        # Out of reach, what comes nearest to the bound is best; within it, the other one decides.
        return np.where(bounded >= self.least - 1e-12, 1 + other, bounded - 1)


class Outcome(NamedTuple):
    """Result of a precision or recall target for one label on held-out documents.

    Args:
        verdict: ``reached`` or ``missed`` if the exact bound proves it, ``too few`` if there are
            too few documents to tell, ``no documents`` if none has the label (its threshold is then
            `DEFAULT`); empty for F-beta, which has no target.
        right: true positives.
        total: documents in the denominator of the precision or recall.
        at_least, at_most: Clopper-Pearson bounds (1934) of the share, each holding with probability
            1 - `DELTA`.
    """

    verdict: str
    right: int = 0
    total: int = 0
    at_least: float = 0.0
    at_most: float = 1.0

    @property
    def bound(self) -> str:
        """Text of the measured share and the deciding bound, as "18 of 20, at least 75.5%"; empty
        if there is no target."""
        if self.verdict not in ("reached", "missed", "too few"):
            return ""
        if not self.total:
            return "never given"
        end = f"at most {self.at_most:.1%}" if self.verdict == "missed" else ""
        return f"{self.right:,} of {self.total:,}, {end or f'at least {self.at_least:.1%}'}"


def outcome(predicted: np.ndarray, right: np.ndarray, target: Objective) -> Outcome:
    """Compare out-of-fold predictions of one label, [documents] bool, with its gold labels
    ``right``, [documents] bool: an `Outcome` that tells if the target's precision or recall is
    reached."""
    if not right.any():
        return Outcome("no documents")
    if not target.bounded:
        return Outcome("")
    of = right if target.bounded == "recall" else predicted
    count, hits = int(of.sum()), int((predicted & right).sum())
    at_least = 1 - upper_bound(count - hits, count, DELTA)
    at_most = upper_bound(hits, count, DELTA)
    verdict = "reached" if at_least >= target.least else "too few"
    if at_most < target.least:
        verdict = "missed"
    return Outcome(verdict, hits, count, at_least, at_most)


def best_threshold(
    scores: np.ndarray, right: np.ndarray, target: Objective
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best threshold of each label and the value of the objective there, both [labels].

    A threshold lies midway between two neighbouring scores, below the lowest score midway to 0. Of
    equally good thresholds the highest is taken. Labels without positives get NaN.

    Args:
        scores: [documents, labels], probabilities.
        right: [documents, labels] bool, the gold labels.
        target: objective to maximise.
    """
    positives, columns = right.sum(0), np.arange(scores.shape[1])
    if not len(scores):
        return np.full(len(columns), np.nan), np.full(len(columns), np.nan)
    order = np.argsort(-scores, axis=0, kind="stable")
    ordered = np.take_along_axis(scores, order, 0)
    true = np.take_along_axis(right, order, 0).cumsum(0)
    counts = np.arange(1, len(scores) + 1)[:, None]
    values = target.value(true, counts, positives)
    below = np.vstack([ordered[1:], np.zeros_like(ordered[:1])])
    values[:-1][ordered[:-1] == ordered[1:]] = -np.inf  # no threshold lies between equal scores
    place = values.argmax(0)
    thresholds = (ordered[place, columns] + below[place, columns]) / 2
    return np.where(positives > 0, thresholds, np.nan), values[place, columns]


def label_thresholds(
    scores: np.ndarray, right: np.ndarray, target: Objective, strength: float = STRENGTH
) -> np.ndarray:
    """Return a threshold for each label, [labels], shrunk towards a common one for rare labels.

    The logit of a label's best threshold is averaged with that of the best common threshold, with
    weight n / (n + strength) for n positives. A label without positives gets `DEFAULT`.

    Args:
        scores: [documents, labels], probabilities.
        right: [documents, labels] bool, the gold labels.
        target: objective to maximise.
        strength: number of positives at which both weigh the same; 0 disables the shrinkage.
    """
    best, _ = best_threshold(scores, right, target)
    common = best_threshold(scores.reshape(-1, 1), right.reshape(-1, 1), target)[0][0]
    if np.isnan(common):
        return np.full(scores.shape[1], DEFAULT)
    positives = right.sum(0)
    weight = positives / np.maximum(positives + strength, 1e-300)
    drawn = weight * logit(np.nan_to_num(best, nan=common)) + (1 - weight) * logit(common)
    return np.where(positives > 0, 1 / (1 + np.exp(-drawn)), DEFAULT)


# -- abstention, and sets of labels


class Abstention(NamedTuple):
    """Confidence threshold of an abstaining model, with its scores on the documents of the fit.

    Args:
        threshold: least confidence of an answer; minus infinity answers everything, infinity
            nothing.
        coverage: share of documents that are answered.
        risk: share of wrong answers among the answered; NaN if none is answered.
        bound: upper bound of the risk with the requested certainty; NaN if a coverage was
            requested.
    """

    threshold: float
    coverage: float
    risk: float
    bound: float

    @classmethod
    def measured(
        cls, threshold: float, confidence: np.ndarray, right: np.ndarray, bound: float = math.nan
    ) -> Abstention:
        """Make an `Abstention` of this threshold, with its coverage and share of wrong answers on
        documents of ``confidence`` [documents] that are answered correctly where ``right`` is
        True."""
        answered = confidence >= threshold
        risk = float((~right[answered]).mean()) if answered.any() else math.nan
        return cls(threshold, float(answered.mean()) if len(answered) else 0.0, risk, bound)


def abstain_for_coverage(confidence: np.ndarray, right: np.ndarray, coverage: float) -> Abstention:
    """Choose the least confidence of an answer that a new document reaches with at least the given
    probability; documents at or above it are answered.

    Uses order statistics: the confidence of an exchangeable new document is equally likely to fall
    in each gap (Vovk et al. 2005; Angelopoulos and Bates 2021, section 1,
    https://arxiv.org/abs/2107.07511).

    Args:
        confidence: [documents], confidence on held-out documents.
        right: [documents] bool, True where the answer is correct.
        coverage: share of documents to answer, from 0 to 1.
    """
    lowest = math.floor((len(confidence) + 1) * (1 - coverage) + 1e-9)
    ordered = [-math.inf, *np.sort(confidence).tolist(), math.inf]
    threshold = ordered[min(lowest, len(confidence) + 1)]
    return Abstention.measured(threshold, confidence, right)


def abstain_for_risk(
    confidence: np.ndarray, right: np.ndarray, risk: float, delta: float = 0.1
) -> Abstention:
    """Choose the lowest threshold whose share of wrong answers is at most ``risk`` with certainty 1
    - ``delta``; infinity if there is none.

    `STEPS` thresholds are tried, each with the exact binomial bound (Clopper and Pearson 1934) at
    delta / STEPS, so that all hold at once (Geifman and El-Yaniv 2017, theorem 3.2,
    https://arxiv.org/abs/1705.08500, with a fixed grid in place of a search).

    Args:
        confidence: [documents], confidence on held-out documents.
        right: [documents] bool, True where the answer is correct.
        risk: highest share of wrong answers, from 0 to 1.
        delta: probability that the bound fails.
    """
    ordered = np.sort(confidence)[::-1]
    for step in range(STEPS, 0, -1):
        count = math.ceil(len(ordered) * step / STEPS)
        if not count:
            break
        threshold = float(ordered[count - 1])
        answered = confidence >= threshold
        bound = upper_bound(int((~right[answered]).sum()), int(answered.sum()), delta / STEPS)
        if bound <= risk:
            everything = -math.inf if answered.all() else threshold
            return Abstention.measured(everything, confidence, right, bound)
    return Abstention.measured(math.inf, confidence, right)


@lru_cache(maxsize=10_000)  # of many classes most have the same few counts
def upper_bound(wrong: int, count: int, delta: float) -> float:
    """Clopper-Pearson upper bound (1934) of a share, after ``wrong`` of ``count`` observations: the
    probability p at which ``wrong`` or fewer occur with probability ``delta``."""
    if wrong >= count:
        return 1.0
    places = np.arange(wrong + 1)
    gamma = np.array([math.lgamma(n + 1) for n in range(count + 1)])
    choose = gamma[count] - gamma[places] - gamma[count - places]
    low, high = wrong / count, 1.0
    for _ in range(60):
        p = (low + high) / 2
        terms = choose + places * math.log(p) + (count - places) * math.log1p(-p)
        top = terms.max()
        tail = math.exp(top) * np.exp(terms - top).sum()
        low, high = (p, high) if tail > delta else (low, p)
    return high


def risk_coverage(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coverage and risk, 0 to 1, of answering only the 1, 2, ... most confident documents,
    each [documents]; the mean of the risks is the AURC.

    Documents of equal confidence share their errors evenly (Geifman et al. 2019,
    https://arxiv.org/abs/1805.08206).

    Args:
        confidence: [documents].
        right: [documents] bool, True where the answer is correct.
    """
    order = np.argsort(-confidence, kind="stable")
    wrong = (~right[order]).astype(float)
    _, which, sizes = np.unique(-confidence[order], return_inverse=True, return_counts=True)
    wrong = (np.bincount(which, wrong) / sizes)[which]
    counts = np.arange(1, len(order) + 1)
    return counts / max(len(order), 1), wrong.cumsum() / counts


def conformal_quantile(nonconformity: np.ndarray, coverage: float) -> float:
    """Quantile of split conformal prediction: a bound that the nonconformity of a new document's
    gold label exceeds with probability at most 1 - ``coverage``; infinity if there are too few
    documents.

    With nonconformity 1 - p, the labels within the quantile form a set that contains the gold label
    with probability ``coverage`` (Angelopoulos and Bates 2021, section 1,
    https://arxiv.org/abs/2107.07511).

    Args:
        nonconformity: [documents], of the gold labels of held-out documents.
        coverage: probability that the set contains the gold label, from 0 to 1.
    """
    place = math.ceil((len(nonconformity) + 1) * coverage - 1e-9)
    if place > len(nonconformity):
        return math.inf
    return float(np.sort(nonconformity)[place - 1]) if place else -math.inf


@dataclass(frozen=True)
class Rules:
    """Settings of the fit of a `Policy`.

    Args:
        several: True for multi-label classification.
        thresholds: [labels], fixed thresholds; None fits them.
        target: objective of fitted thresholds.
        calibration: one of `METHODS`, or ``auto``.
        abstain: ``coverage`` or ``risk`` with its value; None always answers.
        positive: number of the label with a threshold in single-label classification; None if there
            is no such label.
    """

    several: bool
    thresholds: np.ndarray | None = None
    target: Objective = field(default_factory=Objective)
    calibration: str = "none"
    abstain: tuple[str, float] | None = None
    positive: int | None = None

    def tuned(self, labels: int) -> list[int]:
        """Indices of the labels, so many in all, whose thresholds are fitted; [] for fixed
        thresholds and for single labels without a ``positive`` one."""
        if self.thresholds is not None or not (self.several or self.positive is not None):
            return []
        return list(range(labels)) if self.several else [self.positive or 0]


@dataclass(frozen=True)
class Policy:
    """Calibration, thresholds and abstention that turn logits into answers.

    Args:
        several: True for multi-label classification.
        calibrator: calibrator of the logits; None applies softmax or the logistic function.
        thresholds: [labels], least probability of a predicted label. In single-label classification
            NaN except for one label, which is preferred from its threshold on; None predicts the
            most probable label.
        least: least confidence of an answer.
        quantiles: conformal quantiles of 1 - p for each of `COVERAGES`; empty without label sets.
    """

    several: bool
    calibrator: Temperature | Platt | Beta | None = None
    thresholds: np.ndarray | None = None
    least: float = -math.inf
    quantiles: Sequence[float] = ()

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Calibrated probabilities of logits that are merged over chunks, both [documents,
        labels]."""
        if self.calibrator is not None:
            return self.calibrator.apply(logits)
        return logistic(logits) if self.several else softmax(logits)

    def predicted(self, scores: np.ndarray) -> np.ndarray:
        """Predicted labels, [documents, labels] bool, of calibrated probabilities [documents,
        labels]; in single-label classification one a document."""
        if self.several:
            return scores >= self.thresholds
        if self.thresholds is not None:
            first = ~np.isnan(self.thresholds)
            is_there = scores >= self.thresholds
            scores = np.where(first, np.where(is_there, np.inf, -np.inf), scores)
        return scores.argmax(1)[:, None] == np.arange(scores.shape[1])

    def confidence(self, scores: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Probability that the whole answer is correct, [documents].

        In multi-label classification the product over all labels, as if they were independent.

        Args:
            scores: [documents, labels], calibrated probabilities.
            predicted: [documents, labels] bool, the labels of the answer.
        """
        if not self.several:
            return (scores * predicted).sum(1)
        return np.exp(np.log(np.maximum(np.where(predicted, scores, 1 - scores), 1e-300)).sum(1))

    def abstention(self, scores: np.ndarray, empty: bool) -> dict[str, Any]:
        """Return {"abstained": True, "why": text} if the model does not answer a document, else {}.
        One that abstains does so for a confidence below ``least``, and for an empty text.

        Args:
            scores: [labels], the probabilities of the document.
            empty: True if the document has no text.
        """
        if self.least == -math.inf:
            return {}
        confidence = float(self.confidence(scores[None], self.predicted(scores[None]))[0])
        if confidence >= self.least and not empty:
            return {}
        needed = f"answers are given from {self.least:.4g} on"
        if self.least == math.inf:
            needed = "on held-out documents none was sure enough"
        why = "the document is empty" if empty else f"confidence {confidence:.4g}, {needed}"
        return {"abstained": True, "why": why}

    def decided(
        self, logits: np.ndarray, names: Sequence[str], empty: bool = False
    ) -> tuple[Any, np.ndarray, dict[str, Any]]:
        """Return (label, probabilities [labels], {}) of a document, the label a name, or in
        multi-label classification a list of names; (None, probabilities, {"abstained": True, "why":
        text}) if the model abstains.

        Args:
            logits: [labels], merged over chunks.
            names: names of the labels.
            empty: True if the document has no text.
        """
        scores = self.scores(logits[None])
        label: Any = label_of(self.predicted(scores)[0], names, self.several)
        if not self.several and self.thresholds is None:
            label = names[int(logits.argmax())]
        abstained = self.abstention(scores[0], empty)
        return None if abstained else label, scores[0], abstained

    def label_set(self, scores: np.ndarray, coverage: float) -> np.ndarray:
        """Return the conformal label set [labels] bool, which contains all gold labels of a new
        document with at least this probability (`conformal_quantile`); ValueError if the model has
        no quantiles, or for a coverage above the highest of `COVERAGES`.

        Args:
            scores: [labels], the probabilities of one document.
            coverage: probability that all gold labels are in the set.
        """
        least = next((n for n, each in enumerate(COVERAGES) if each >= coverage - 1e-9), None)
        if not self.quantiles or least is None:
            raise ValueError(f"no quantile for a coverage of {coverage}")
        return 1 - scores <= self.quantiles[least]

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        """The policy as a dict for JSON, which `from_facts` reads: ``calibration``, ``thresholds``
        by name, ``abstain`` and ``label_sets``, without those that it lacks."""
        facts: dict[str, Any] = {}
        if self.calibrator is not None:
            facts["calibration"] = {"method": self.calibrator.name} | asdict(self.calibrator)
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
        """Make a policy from the facts in a model's config; LookupError, TypeError or ValueError if
        they do not fit the labels.

        Args:
            facts: output of `Policy.facts`, other keys are ignored; {} gives the default policy.
            names: names of the labels.
            several: True for multi-label classification.
            thresholds: [labels], used if the facts contain none.
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
    """Fitted policy with its out-of-fold predictions.

    Args:
        policy: policy fitted to all documents.
        rules: settings of the fit, with the chosen calibration in place of ``auto``.
        scores: [documents, labels], out-of-fold probabilities.
        labels: [documents, labels] bool, out-of-fold predictions.
        confidence: [documents], out-of-fold confidence.
        abstention: chosen abstention; None if every document is answered.
        tried: out-of-fold ``ece`` and ``nll`` of each calibration that ``auto`` compared.
    """

    policy: Policy
    rules: Rules
    scores: np.ndarray
    labels: np.ndarray
    confidence: np.ndarray
    abstention: Abstention | None
    tried: Mapping[str, Mapping[str, float]]


def decide(logits: np.ndarray, right: np.ndarray, rules: Rules) -> Decided:
    """Fit a policy to held-out documents; ValueError for a logit that is not finite.

    Calibration and thresholds are fitted to all documents. Abstention and label sets are fitted to
    out-of-fold probabilities, which the result has, since in-sample ones are overconfident. A
    single document is its own evaluation.

    Args:
        logits: [documents, labels], merged over chunks.
        right: [documents, labels] bool, the gold labels; single-label rows have one label, or none
            if every answer is wrong.
        rules: settings of the fit.
    """
    if not np.isfinite(logits).all():
        raise ValueError("a logit is not finite")
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


def folds(count: int, parts: int = 5, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (training, held-out) document numbers of a random cross-validation; nothing for fewer
    than two documents.

    Args:
        count: number of documents.
        parts: number of folds.
        seed: seed of the random order.
    """
    parts = min(parts, count)
    part = np.empty(count, int)
    part[np.random.default_rng(seed).permutation(count)] = np.arange(count) % max(parts, 1)
    for number in range(parts if parts > 1 else 0):
        yield np.flatnonzero(part != number), np.flatnonzero(part == number)


def _out_of_fold(
    logits: np.ndarray, right: np.ndarray, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = np.empty(logits.shape), np.empty(logits.shape, bool)
    everything = np.arange(len(logits))
    for others, held_out in list(folds(len(logits))) or [(everything, everything)]:
        policy = _fit(logits[others], right[others], rules)
        scores[held_out] = policy.scores(logits[held_out])
        labels[held_out] = policy.predicted(scores[held_out])
    return scores, labels


def _tried(logits: np.ndarray, right: np.ndarray, rules: Rules) -> dict[str, dict[str, float]]:
    rules = replace(rules, thresholds=np.full(logits.shape[1], DEFAULT))
    if not rules.several:
        logits, right = logits[right.any(1)], right[right.any(1)]
    tried = {}
    for method in METHODS[rules.several] if len(logits) else ():
        scores, _ = _out_of_fold(logits, right, replace(rules, calibration=method))
        tried[method] = figures(scores, right, rules.several)
    return tried


def _best(tried: Mapping[str, Mapping[str, float]]) -> str:
    plain = tried.get("none", {})
    helps = {
        method: each["nll"]
        for method, each in tried.items()
        if each["nll"] < plain["nll"] and each["ece"] <= plain["ece"]
    }
    return min(helps, key=helps.__getitem__, default="none")


def label_of(predicted: np.ndarray, names: Sequence[str], several: bool) -> str | list[str]:
    """Name of the predicted label, or in multi-label classification the list of names;
    ``predicted`` is [labels] bool."""
    chosen = [name for name, there in zip(names, predicted, strict=True) if there]
    return chosen if several else chosen[0]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: Any) -> float:
    return math.inf if value is None else float(value)


def in_words(facts: Mapping[str, Any]) -> str:
    """Describe a model's decision policy and the documents it was fitted on, without a full stop;
    empty if the model has no policy.

    Args:
        facts: ``decisions`` of the model's config: the policy (`Policy.facts`), figures of its fit
            under ``measured``, with ``source`` and ``sha256`` of the documents.
    """
    measured, parts = facts.get("measured", {}), []
    if "thresholds" in facts and "threshold_target" in measured:
        parts.append(_thresholds(facts["thresholds"], measured))
    if "calibration" in facts:
        method, (before, after) = facts["calibration"]["method"], measured["ece"]
        worse = ", which is no better" if round(after - before, 3) > 0 else ""
        ece = f"ECE {before:.3f} to {after:.3f}{worse}"
        parts.append(f"probabilities calibrated by {method} ({ece})")
    if "tried" in measured:
        parts.append(f"no calibration, since {' and '.join(measured['tried'])} would not help")
    if "abstain" in facts:
        parts.append(_abstention_text(facts["abstain"]["confidence"], measured))
    if not parts:
        return ""
    documents = plural(measured.get("documents", 0), "document")
    source = f" of {measured['source']}" if "source" in measured else ""
    if "share" in measured:
        source = f", {measured['share']:.0%}{source}"
    hash = f" (sha256 {measured['sha256'][:8]})" if measured.get("sha256") else ""
    return "; ".join([*parts, f"chosen on {documents}{source}{hash}"])


def _thresholds(chosen: Mapping[str, float], measured: Mapping[str, Any]) -> str:
    if "target" in measured:
        ((name, least),) = chosen.items()
        words, only = f"{name!r} from a probability of {least:.4g} on,", measured["target"]
        bound = Outcome(**only).bound
        shares = [f"{only['verdict']}{bound and f': {bound} with 90 % certainty'}"]
    else:
        words = f"thresholds of {len(chosen):,} {'class' if len(chosen) == 1 else 'classes'}"
        counts = measured.get("targets", {})
        shares = [f"{count:,} {verdict}" for verdict, count in counts.items() if count]
    more = ", ".join(filter(None, shares))
    return f"{words} tuned for {measured['threshold_target']}" + (f" ({more})" if more else "")


def _abstention_text(least: float | None, measured: Mapping[str, Any]) -> str:
    ((what, share),) = measured["asked"].items()
    asked = f"for a {what} of {share:g}"
    if least is None:
        return f"no answer at all: no confidence is high enough {asked}"
    wrong = ""
    if measured["risk"] is not None:
        wrong = f", {measured['risk']:.1%} of them wrong"
    if measured["bound"] is not None:
        wrong += f" (90 % sure: at most {measured['bound']:.1%})"
    return (
        f"no answer below a confidence of {least:.3f} {asked} "
        f"({measured['coverage']:.0%} answered{wrong}, AURC {measured['aurc']:.3f})"
    )
