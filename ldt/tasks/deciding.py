"""Tasks whose answers have probabilities, with a decision policy fitted on held-out documents."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ldt.data.features import Feature
from ldt.data.labels import MULTI, REGRESSION, Gold
from ldt.data.options import DataSection
from ldt.errors import RecipeError, UserError, did_you_mean, listed
from ldt.io.records import Example
from ldt.io.sources import Names as FileNames
from ldt.io.sources import brief, digest, each
from ldt.metrics.calibration import answers_of, figures, reliability
from ldt.metrics.classification import indicators
from ldt.metrics.curves import average_precision
from ldt.metrics.decisions import (
    COVERAGES,
    DEFAULT,
    METHODS,
    TARGET,
    Decided,
    Objective,
    Outcome,
    Policy,
    Rules,
    decide,
    in_words,
    label_of,
    outcome,
    risk_coverage,
)
from ldt.tasks.base import NO_LABEL, RawScored, Task, TaskAnswers, names_of

_CLIP = 1e-300  # log of it is finite
# Keys that stand between a score and a decision.
DECISIVE = ("threshold", "threshold_target", "positive", "calibration", "abstain")
MOST_SHOWN = 20  # classes in a line
Probability = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(gt=0, le=1e6)]


class Decision(NamedTuple):
    """Result of fitting a decision policy (`Calibrated.decide`).

    Args:
        answers: answers as they count for the metrics (out-of-fold).
        changes: changes of the model's config.
        report: figures for metrics.json.
        columns: further columns for each row of the table of metrics; may be empty.
    """

    answers: Sequence[dict]
    changes: Mapping[str, Any] = MappingProxyType({})
    report: Mapping[str, Any] = MappingProxyType({})
    columns: Sequence[dict[str, Any]] = ()


def _class_name(name: Any) -> Any:
    """Class as text, if given as an integer or a boolean."""
    return json.dumps(name) if isinstance(name, int) else name


def _check_target(text: str) -> str:
    Objective.parse(text)
    return text


ClassName = Annotated[
    str,
    BeforeValidator(_class_name),
    Field(min_length=1),
    WithJsonSchema({"type": ["string", "integer", "boolean"], "minLength": 1}),
]
TargetText = Annotated[
    str,
    AfterValidator(_check_target),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{TARGET.pattern})$"}),
]


class Calibrated(Task):
    """Task whose answers have probabilities.

    Args:
        calibration: calibration of the probabilities, fitted on the evaluation set; ``auto``
            is_fitted the best method.
    """

    chosen: ClassVar[tuple[str, ...]] = ("calibration",)  # keys that held-out documents can decide
    probability: ClassVar[str]  # key of its answers that is calibrated

    calibration: Literal["none", "auto", "temperature", "platt", "beta"] = "none"

    @property
    def decides(self) -> bool:
        """True if the recipe has thresholds, calibration or abstention fitted on held-out
        documents."""
        return any(map(self.is_fitted, self.chosen))

    def uncalibrated(self) -> Self:
        """Return a task whose answers have the scores of all labels or candidates, as `decide`
        needs them; by default the task itself."""
        return self

    @abstractmethod
    def decide(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Decision:
        """Fit the decision policy on held-out documents.

        Args:
            answers: answers of the task `uncalibrated`, by a model without a policy.
            golds: gold answers of the same documents.
            config: config of the model, which is not changed.
        """

    def is_fitted(self, key: str) -> bool:
        """True if the recipe asks for this key of ``chosen``, such as "calibration", to be fitted
        on held-out documents."""
        return getattr(self, key) not in ("none", None)

    def check_held_out(self, data: DataSection) -> None:
        """Raise RecipeError if something is to be fitted and the recipe has no held-out documents,
        data.eval or data.eval_fraction."""
        if self.decides and not (data.eval or data.eval_fraction):
            key = next(filter(self.is_fitted, self.chosen))
            raise RecipeError(
                f"task.{key}: is chosen on held-out documents; data.eval or data.eval_fraction "
                "names them"
            )

    def _policy_of(self, facts: dict[str, Any], config) -> Policy:
        return Policy.from_facts(facts, (), several=False)


class Abstaining(Calibrated):
    """Task that can abstain.

    Args:
        abstain: share of documents to answer ({coverage: 0.9}), or highest share of wrong answers
            ({risk: 0.05}), from which the evaluation set determines the least confidence of an
            answer; none answers always.
    """

    chosen: ClassVar[tuple[str, ...]] = ("calibration", "abstain")

    abstain: (
        Annotated[dict[Literal["coverage", "risk"], Probability], Field(min_length=1, max_length=1)]
        | None
    ) = None

    @property
    def asked_abstention(self) -> tuple[str, float] | None:
        """("coverage" or "risk", share from 0 to 1) that the recipe asks for; None if it always
        answers."""
        return next(iter(self.abstain.items())) if self.abstain else None


class Deciding(Abstaining, RawScored):
    """Task whose answers are labels.

    Args:
        threshold: least probability of a predicted class in multi_label classification; one number,
            one per class ({class: probability}, 0.5 for the others), or ``auto``, which fits one
            per class on the evaluation set. In single_label classification the threshold of the
            class ``positive``, or ``auto``.
        threshold_target: objective of fitted thresholds: ``f1``, ``f2``, ``precision>=0.9`` or
            ``recall>=0.9``.
        positive: class with a threshold in single_label classification; below it the most probable
            other class is the answer. None always takes the most probable class.
        calibration: calibration of the probabilities, fitted on the evaluation set: ``temperature``
            for single_label, ``platt`` or ``beta`` for multi_label, ``auto`` for the best of them.
    """

    answers: ClassVar[TaskAnswers] = replace(
        Abstaining.answers,
        kind="label",
        keys=("label", "scores", "score", "abstained", "why"),
        metric="macro_f1",
    )
    chosen: ClassVar[tuple[str, ...]] = ("threshold", "calibration", "abstain")
    probability: ClassVar[str] = "scores"

    threshold: Probability | Literal["auto"] | dict[str, Probability] = DEFAULT
    threshold_target: TargetText = "f1"
    positive: ClassName | None = None
    calibration: Literal["none", "auto", "temperature", "platt", "beta"] = "none"

    @abstractmethod
    def problem_of(self, config=None) -> str:
        """Return the problem of the labels as transformers' configs name it, such as
        "multi_label_classification"; by the recipe alone if ``config``, the model's, is None."""

    @property
    def balanced(self) -> bool:
        """True if an epoch draws all classes equally often; by default False."""
        return False

    @abstractmethod
    def read_labels(
        self, examples: Iterable[Example], data: DataSection, source: str
    ) -> tuple[str, list[tuple[Any, str]], list[Gold]]:
        """Return the problem, as `problem_of` names it; the label of each example as in its file,
        with its place for messages; and the gold answer of each. ``source`` names the examples
        in messages."""

    def is_fitted(self, key: str) -> bool:
        return self.threshold == "auto" if key == "threshold" else super().is_fitted(key)

    def check_decisions(self, problem: str, names: Sequence[str], data: DataSection) -> None:
        """Raise RecipeError if the recipe's thresholds, positive class or calibration do not fit
        the labels: a ``problem`` as of `problem_of`, and the ``names`` of all classes; or if
        something is to be fitted and ``data`` names no held-out documents."""
        several, fields = problem == MULTI, type(self).model_fields
        asked = [key for key in DECISIVE if getattr(self, key) != fields[key].default]
        if problem == REGRESSION:
            if asked:
                raise RecipeError(f"task.{asked[0]}: a regression has no probabilities")
            return
        of_classes = self.threshold if isinstance(self.threshold, dict) else {}
        for key, names_given in (("threshold", of_classes), ("positive", [self.positive])):
            for name in names_given:
                if name is not None and name not in names:
                    near = did_you_mean(name, names) or f"; there are {listed(names)}"
                    raise RecipeError(f"task.{key}: no class {name!r}{near}")
        refused: dict[str, str] = {}
        if several and self.positive is not None:
            refused["positive"] = "of single_label answers; of several classes each has a threshold"
        if not several and (of_classes or ("threshold" in asked and self.positive is None)):
            refused["threshold"] = (
                "of single_label answers one class has a threshold, task.positive names it: "
                f"{listed(names)}"
            )
        if "threshold_target" in asked and self.threshold != "auto":
            refused["threshold_target"] = "is of no use without task.threshold: auto"
        if self.calibration not in ("auto", *METHODS[several]):
            kind = "multi_label" if several else "single_label"
            refused["calibration"] = f"of {kind} answers: {', '.join(METHODS[several])} or auto"
        for key, why in refused.items():
            raise RecipeError(f"task.{key}: {why}")
        self.check_held_out(data)

    def _fixed_thresholds(self, names: Sequence[str], several: bool) -> np.ndarray | None:
        """[labels] for a `Policy`; None takes the most probable label."""
        if isinstance(self.threshold, dict):
            return np.array([self.threshold.get(name, DEFAULT) for name in names])
        least = DEFAULT if self.threshold == "auto" else self.threshold
        if several:
            return np.full(len(names), least)
        if self.positive is None or self.threshold == "auto":
            return None
        return np.array([least if name == self.positive else math.nan for name in names])

    def _policy_of(self, facts: dict[str, Any], config) -> Policy:
        names, several = names_of(config), config.problem_type == MULTI
        return Policy.from_facts(facts, names, several, self._fixed_thresholds(names, several))

    def decide(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Decision:
        """Fit thresholds, calibration and abstention, as far as the recipe leaves them to held-out
        documents.

        Returns:
            Answers with out-of-fold labels; the config's ``decisions``; the `report`; a row with
                the threshold of each class, if these are fitted. For a regression the answers
                alone.
        """
        if config.problem_type == REGRESSION:
            return Decision(answers)
        names, several = names_of(config), config.problem_type == MULTI
        tunes = self.threshold == "auto"
        fixed = None if tunes else self._fixed_thresholds(names, several)
        positive = names.index(self.positive) if tunes and self.positive is not None else None
        target = Objective.parse(self.threshold_target)
        rules = Rules(several, fixed, target, self.calibration, self.asked_abstention, positive)
        scores = np.array([[answer["scores"][name] for name in names] for answer in answers])
        logits, right = logits_of(scores, several), indicators(golds, names)
        decided = decide(logits, right, rules)
        honest = [
            answer | {"label": label_of(labels, names, several)}
            for answer, labels in zip(answers, decided.labels, strict=True)
        ]
        figures, facts = report(decided, logits, right, names), decided.policy.facts(names)
        columns: list[dict[str, Any]] = []
        if tunes:
            columns = [_columns(name, facts["thresholds"], figures, target) for name in names]
        else:
            facts.pop("thresholds", None)  # the recipe has them
        facts["measured"] = summary(figures, self.threshold_target if tunes else None)
        return Decision(honest, {"decisions": facts}, figures | {"policy": facts}, columns)

    def label_set(self, answer: dict, config, coverage: float) -> list[str]:
        """Return the conformal label set of an answer: labels that contain all gold ones with a
        probability of ``coverage`` at least. UserError if the model has no quantiles, or none
        for this coverage."""
        if not config.decisions.get("label_sets"):
            raise UserError(
                "label_sets: the model was not asked for any; ldt evaluate RUN "
                "--choose-thresholds --gold FILE measures what they take"
            )
        if coverage > COVERAGES[-1]:
            raise UserError(f"label_sets={coverage:g}: up to {COVERAGES[-1]:g} there are sets")
        names = names_of(config)
        scores = np.array([answer["scores"][name] for name in names])
        inside = self.policy(config).label_set(scores, coverage)
        return [name for name, is_in in zip(names, inside, strict=True) if is_in]


def _columns(
    name: str, thresholds: Mapping[str, float], made: Mapping[str, Any], target: Objective
) -> dict[str, Any]:
    """Threshold of a class, its score, and if its target is reached."""
    columns: dict[str, Any] = {"threshold": thresholds.get(name, "")}
    if "labels" in made:
        columns["average_precision"] = made["labels"][name].get("average_precision")
    result = Outcome(**made["targets"].get(name, {"verdict": ""}))
    if target.bounded or result.verdict:
        columns["target"], columns["with 90 % certainty"] = result.verdict, result.bound
    return columns


def fit_calibration(
    answers: Sequence[dict],
    logits: np.ndarray,
    right: np.ndarray,
    rules: Rules,
    names: Sequence[str] = (),
) -> tuple[Decision, Decided]:
    """Fit calibration and abstention for a task without label thresholds; returns the decision, and
    the fitted policy with its out-of-fold probabilities.

    Args:
        answers: answers that the decision has, unchanged.
        logits: [documents, labels].
        right: [documents, labels] bool, the gold labels.
        rules: settings of the fit.
        names: names of the labels, for multi-label tasks.
    """
    decided = decide(logits, right, rules)
    measured, policy = report(decided, logits, right, names), decided.policy.facts(names)
    keys = ("calibration", "abstain")
    facts: dict[str, Any] = {key: policy[key] for key in keys if key in policy}
    facts["measured"] = summary(measured, None)
    return Decision(answers, {"decisions": facts}, measured | {"policy": facts}), decided


def logits_of(scores: np.ndarray, several: bool) -> np.ndarray:
    """Convert probabilities [..., labels] to logits: of several labels log(p / (1 - p)), else
    log(p), which a softmax turns back."""
    logits = np.log(np.maximum(scores, _CLIP))
    return logits - np.log(np.maximum(1 - scores, 1e-16)) if several else logits


# -- weights of classes


class Weighted(Task):
    """Task with class weights in the loss.

    Args:
        class_weights: weight of a class in the loss. ``balanced`` is n / (classes x n of the
            class), as in scikit-learn; for multi-label tasks the number of documents without the
            class / with it. {class: weight} gives the others weight 1; for entities a class is a
            type, or O.
        focal_gamma: exponent of the focal loss (Lin et al. 2017), which multiplies the loss of a
            label with probability p by (1 - p) to this power, so that easy labels count less; 0
            disables it.
    """

    class_weights: Literal["none", "balanced"] | dict[str, Weight] = "none"
    focal_gamma: float = Field(0.0, ge=0, le=10)

    @property
    def weighs_by(self) -> str | None:
        """Key of the recipe that weighs classes, ``class_weights`` or else ``focal_gamma``; None if
        neither does."""
        plain = {"class_weights": "none", "focal_gamma": 0}
        return next((key for key, value in plain.items() if getattr(self, key) != value), None)

    def config_changes(
        self, features: Sequence[Feature], config
    ) -> tuple[dict[str, Any], list[str]]:
        """Return class_weights, one for each label, or None for equal ones, and focal_gamma for the
        config; and, with weights, a line with these and the number of labels. RecipeError if the
        recipe weighs a class that does not exist."""
        changes: dict[str, Any] = {"class_weights": None, "focal_gamma": self.focal_gamma}
        if self.class_weights == "none" or config.problem_type == REGRESSION:
            return changes, []
        names = names_of(config)
        counts, total, several = _counts(features, len(names))
        if isinstance(self.class_weights, dict):
            weights = _weights_given(self.class_weights, names)
        else:
            parts = np.maximum(counts, 1)
            weights = (total - counts) / parts if several else total / (len(names) * parts)
            weights = np.maximum(weights, 1e-6)  # of a class that all have
        shown = [
            f"{name!r} {weight:.4g} ({count:,})"
            for name, weight, count in zip(names, weights, counts.tolist(), strict=True)
        ]
        more = f" and {len(shown) - MOST_SHOWN:,} more" if len(shown) > MOST_SHOWN else ""
        line = f"class weights, with the number of labels: {', '.join(shown[:MOST_SHOWN])}{more}"
        return changes | {"class_weights": weights.tolist()}, [line]


def _weights_given(given: Mapping[str, float], names: Sequence[str]) -> np.ndarray:
    weights = dict.fromkeys(names, 1.0)
    for name, weight in given.items():
        of_type = [each for each in names if name == each.partition("-")[2]]
        matching = [name] if name in weights else of_type
        if not matching:
            near = did_you_mean(name, names) or f"; there are {listed(names)}"
            raise RecipeError(f"task.class_weights: no class {name!r}{near}")
        weights |= dict.fromkeys(matching, weight)
    return np.array([*weights.values()])


def classes_of(label: Any) -> list[int]:
    """Return the class numbers of an input from its ``labels``: a number, or [classes] bool."""
    return np.flatnonzero(label).tolist() if isinstance(label, np.ndarray) else [int(label)]


def _counts(features: Sequence[Feature], size: int) -> tuple[np.ndarray, int, bool]:
    """Number of labels of each class and in total; True if inputs can have several or none."""
    counts, total, several = np.zeros(size, int), 0, False
    for feature in features:
        label = feature["labels"]
        several = isinstance(label, np.ndarray) and label.dtype == bool
        if isinstance(label, np.ndarray) and not several:  # one for each token
            known = label[label != NO_LABEL]
            counts += np.bincount(known, minlength=size)
            total += len(known)
        else:
            counts[classes_of(label)] += 1
            total += 1
    return counts, total, several


# -- what was chosen, in figures and in words


def report(
    decided: Decided, logits: np.ndarray, right: np.ndarray, names: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of a policy on the held-out documents that it was fitted on, each
    out-of-fold, as JSON: calibration, abstention, and for each label its target and average
    precision.

    Args:
        decided: the fitted policy.
        logits: [documents, labels].
        right: [documents, labels] bool, the gold labels.
        names: names of the labels.
    """
    several, rules = decided.rules.several, decided.rules
    # A calibration is of right answers; where all are wrong, they count for the abstention alone.
    rows = np.flatnonzero(right.any(1) | several)
    scores, truth = decided.scores[rows], right[rows]
    calibrated: dict[str, Any] = {
        "method": rules.calibration,
        "before": figures(Policy(several).scores(logits[rows]), truth, several),
        "after": figures(scores, truth, several),
        "reliability": [row._asdict() for row in reliability(*answers_of(scores, truth, several))],
    }
    if decided.tried:
        calibrated["tried"] = decided.tried
    _, risk = risk_coverage(decided.confidence, (decided.labels == right).all(1))
    abstention: dict[str, Any] = {"aurc": float(risk.mean())}
    if decided.abstention is not None and rules.abstain is not None:
        _, coverage, *measured = decided.abstention
        shares = [None if math.isnan(share) else share for share in measured]
        abstention |= {"asked": dict([rules.abstain]), "coverage": coverage}
        abstention |= dict(zip(("risk", "bound"), shares, strict=True))
    facts = {"documents": len(logits), "calibration": calibrated, "abstention": abstention}
    tuned = rules.tuned(right.shape[1])
    if tuned:
        facts["targets"] = {
            names[n]: outcome(decided.labels[:, n], right[:, n], rules.target)._asdict()
            for n in tuned
        }
    if decided.policy.least == math.inf and rules.abstain:
        what, share = rules.abstain
        facts["nothing"] = f"no document would have an answer for a {what} of {share:g}"
    elif tuned and not decided.labels[:, tuned].any():
        facts["nothing"] = f"no document would get {'a class' if several else 'the class'}"
    if several:
        facts["labels"] = {
            name: {"documents": int(there.sum())}
            | ({"average_precision": average_precision(column, there)} if there.any() else {})
            for name, column, there in zip(names, decided.scores.T, right.T, strict=True)
        }
    return facts


def summary(made: Mapping[str, Any], target: str | None) -> dict[str, Any]:
    """Return the part of a `report` that the model's config keeps under ``measured``; ``target`` is
    the objective of the thresholds, None if they were not fitted."""
    facts: dict[str, Any] = {"documents": made["documents"]}
    if target is not None:
        facts["threshold_target"] = target
        verdicts = (row["verdict"] for row in made["targets"].values())
        facts["targets"] = Counter(filter(None, verdicts))
        if len(made["targets"]) == 1:
            (facts["target"],) = made["targets"].values()
    calibration, abstention = made["calibration"], made["abstention"]
    if calibration["method"] != "none":
        facts["ece"] = [calibration[when]["ece"] for when in ("before", "after")]
    elif "tried" in calibration:
        facts["tried"] = sorted(calibration["tried"].keys() - {"none"})
    if "asked" in abstention:
        facts |= {key: abstention[key] for key in ("asked", "coverage", "risk", "bound", "aurc")}
    return facts


def chosen_on_these(facts: Mapping[str, Any], files: FileNames) -> list[str]:
    """Return a warning, in a list, if a model's decisions were fitted on these very files; else [].

    Args:
        facts: ``decisions`` of the model's config.
        files: paths of the gold answers.
    """
    measured = facts.get("measured", {})
    if not (in_words(facts) and measured.get("sha256")) or digest(files) != measured["sha256"]:
        return []
    part = "a part of " if "share" in measured else ""
    return [
        f"{brief(each(files))}: the decision in force was chosen on {part}these very documents, so "
        "the figures are too good for new ones"
    ]
