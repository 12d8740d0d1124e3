"""Tasks whose answers have probabilities, and what they decide by, chosen on held-out documents."""

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
from ldt.io.sources import digest, each, named
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
    """Decisions by the answers for held-out documents (`Calibrated.decide`).

    Args:
        answers: as they count for the metrics.
        changes: to the config of the model.
        report: figures for metrics.json.
        columns: further ones of each row of the table of metrics; may be empty.
    """

    answers: Sequence[dict]
    changes: Mapping[str, Any] = MappingProxyType({})
    report: Mapping[str, Any] = MappingProxyType({})
    columns: Sequence[dict[str, Any]] = ()


def _class_name(name: Any) -> Any:
    """The text of a class that is a whole number, true or false."""
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
    """A task whose answers have probabilities.

    Args:
        calibration: what makes probabilities that are as often right as they say, fitted to the
            evaluation set; ``auto`` takes the best way there is.
    """

    chosen: ClassVar[tuple[str, ...]] = ("calibration",)  # keys that held-out documents can decide
    probability: ClassVar[str]  # key of its answers that is calibrated

    calibration: Literal["none", "auto", "temperature", "platt", "beta"] = "none"

    @property
    def decides(self) -> bool:
        """True if the recipe leaves something to held-out documents (`decide`)."""
        return any(map(self.chooses, self.chosen))

    def in_full(self) -> Self:
        """The task, with answers that have all that `decide` reads."""
        return self

    @abstractmethod
    def decide(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Decision:
        """Choose by the answers for held-out documents what a model decides by.

        Args:
            answers: of the task `in_full`, by a model that decides by nothing yet.
            golds: the right answers.
            config: the model's.
        """

    def chooses(self, key: str) -> bool:
        """True if the recipe has a key of the task chosen on held-out documents."""
        return getattr(self, key) not in ("none", None)

    def check_held_out(self, data: DataSection) -> None:
        """Refuse to choose without held-out documents.

        Raises:
            RecipeError: one line.
        """
        if self.decides and not (data.eval or data.eval_fraction):
            key = next(filter(self.chooses, self.chosen))
            raise RecipeError(
                f"task.{key}: is chosen on held-out documents; data.eval or data.eval_fraction "
                "names them"
            )

    def _policy_of(self, facts: dict[str, Any], config) -> Policy:
        return Policy.from_facts(facts, (), several=False)


class Abstaining(Calibrated):
    """A task that gives no answer where it is not sure.

    Args:
        abstain: share of documents to answer ({coverage: 0.9}), or highest share of wrong answers
            ({risk: 0.05}), for which the evaluation set says how sure an answer must be; none
            answers always.
    """

    chosen: ClassVar[tuple[str, ...]] = ("calibration", "abstain")

    abstain: (
        Annotated[dict[Literal["coverage", "risk"], Probability], Field(min_length=1, max_length=1)]
        | None
    ) = None

    @property
    def asked_abstention(self) -> tuple[str, float] | None:
        """``coverage`` or ``risk``, and how much; None where there is always an answer."""
        return next(iter(self.abstain.items())) if self.abstain else None


class Deciding(Abstaining, RawScored):
    """A task whose answers are labels.

    Args:
        threshold: probability from which on a class is in a multi_label answer; one for all, one
            for each class ({class: probability}, 0.5 for the others), or ``auto``, which chooses
            one for each class on the evaluation set. Of single_label answers the probability from
            which on the class ``positive`` is the answer, or ``auto``.
        threshold_target: what chosen thresholds are best for: ``f1``, ``f2``, ``precision>=0.9`` or
            ``recall>=0.9``.
        positive: class of single_label answers that has a threshold; below it the likeliest of the
            others is the answer. None takes the likeliest of all.
        calibration: what makes probabilities that are as often right as they say, fitted to the
            evaluation set: ``temperature`` for single_label, ``platt`` or ``beta`` for multi_label,
            ``auto`` for the best of them.
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
        """The problem of the labels, as transformers' configs name it.

        Args:
            config: of the model; None before the data are read, where they have a say.
        """

    @property
    def balanced(self) -> bool:
        """True if an epoch takes each class equally often."""
        return False

    @abstractmethod
    def read_labels(
        self, examples: Iterable[Example], data: DataSection, source: str
    ) -> tuple[str, list[tuple[Any, str]], list[Gold]]:
        """The problem, and the label of each example, as its file has it and as a gold.

        Args:
            source: name of the examples in messages.
        """

    def chooses(self, key: str) -> bool:
        return self.threshold == "auto" if key == "threshold" else super().chooses(key)

    def check_decisions(self, problem: str, names: Sequence[str], data: DataSection) -> None:
        """Refuse what does not suit the problem.

        Raises:
            RecipeError: one line.
        """
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

    def fixed_thresholds(self, names: Sequence[str], several: bool) -> np.ndarray | None:
        """Thresholds [labels], as a `Policy` has them, where none are chosen."""
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
        return Policy.from_facts(facts, names, several, self.fixed_thresholds(names, several))

    def decide(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Decision:
        """Choose what the recipe leaves to held-out documents.

        Returns:
            Answers with the labels that they have by documents of other folds; ``decisions`` of the
            config; the `report`; of each class its threshold.
        """
        if config.problem_type == REGRESSION:
            return Decision(answers)
        names, several = names_of(config), config.problem_type == MULTI
        tunes = self.threshold == "auto"
        fixed = None if tunes else self.fixed_thresholds(names, several)
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
        """The labels that are all the right ones, or more, with at least this probability.

        Raises:
            UserError: the model has no quantiles, or none for so high a coverage.
        """
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
    """The threshold of a class, what it is worth, and whether the target is reached."""
    columns: dict[str, Any] = {"threshold": thresholds.get(name, "")}
    if "labels" in made:
        columns["average_precision"] = made["labels"][name].get("average_precision")
    result = Outcome(**made["targets"].get(name, {"verdict": ""}))
    if target.bounded or result.verdict:
        columns["target"], columns["with 90 % certainty"] = result.verdict, result.bound
    return columns


def calibration(
    answers: Sequence[dict],
    logits: np.ndarray,
    right: np.ndarray,
    rules: Rules,
    names: Sequence[str] = (),
) -> tuple[Decision, Decided]:
    """Decide where no labels are chosen, nor sets of them.

    Args:
        answers: as they count for the metrics.
        logits: [documents, labels].
        right: [documents, labels] bool.
        rules: what to fit.
        names: of the labels, where there can be several.
    """
    decided = decide(logits, right, rules)
    measured, policy = report(decided, logits, right, names), decided.policy.facts(names)
    keys = ("calibration", "abstain")
    facts: dict[str, Any] = {key: policy[key] for key in keys if key in policy}
    facts["measured"] = summary(measured, None)
    return Decision(answers, {"decisions": facts}, measured | {"policy": facts}), decided


def logits_of(scores: np.ndarray, several: bool) -> np.ndarray:
    """Logits [..., labels] that have these probabilities; of one right label up to a summand."""
    logits = np.log(np.maximum(scores, _CLIP))
    return logits - np.log(np.maximum(1 - scores, 1e-16)) if several else logits


# -- weights of classes


class Weighted(Task):
    """A task whose classes may count differently in the loss.

    Args:
        class_weights: what a class counts in the loss. ``balanced`` weighs it by n / (classes x n
            of the class), as scikit-learn does; where documents can have several classes, the
            documents that have it by those without / those with it. {class: weight} weighs the
            others 1; for entities a class is a type, or O.
        focal_gamma: power of 1 - p by which the loss of a label of probability p is multiplied, so
            that labels that are easy count less (Lin et al. 2017); 0 leaves it as it is.
    """

    class_weights: Literal["none", "balanced"] | dict[str, Weight] = "none"
    focal_gamma: float = Field(0.0, ge=0, le=10)

    @property
    def weighs_by(self) -> str | None:
        """The first key by which classes do not count alike; None where all do."""
        plain = {"class_weights": "none", "focal_gamma": 0}
        return next((key for key, value in plain.items() if getattr(self, key) != value), None)

    def weigh(self, features: Sequence[Feature], config) -> tuple[dict[str, Any], list[str]]:
        """Return class_weights and focal_gamma of the config, and a line with counts and weights.

        Raises:
            RecipeError: a class that there is none of.
        """
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
    """The classes of an input by its ``labels``: a number, or [classes] bool."""
    return np.flatnonzero(label).tolist() if isinstance(label, np.ndarray) else [int(label)]


def _counts(features: Sequence[Feature], size: int) -> tuple[np.ndarray, int, bool]:
    """Number of labels of each class and in all; True if inputs have several or none."""
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
    """All figures of held-out documents, as JSON; each by a policy that was fitted without them.

    Args:
        decided: by these documents.
        logits: [documents, labels].
        right: [documents, labels] bool.
        names: of the labels.
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
    """Facts of a `report` that a model carries in its config, for `in_words`.

    Args:
        made: the report.
        target: by which thresholds were chosen; None where they were not.
    """
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
    """Return a warning where the decision in force was chosen on these very files, else nothing."""
    measured = facts.get("measured", {})
    if not (in_words(facts) and measured.get("sha256")) or digest(files) != measured["sha256"]:
        return []
    part = "a part of " if "share" in measured else ""
    return [
        f"{named(each(files))}: the decision in force was chosen on {part}these very documents, so "
        "the figures are too good for new ones"
    ]
