"""Tasks whose answers have probabilities, and what they decide by, chosen on held-out documents."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema

from ldt.data.labels import MULTI, REGRESSION, Gold
from ldt.errors import ModelError, RecipeError, UserError, did_you_mean, listed
from ldt.io.records import Example
from ldt.metrics.classification import indicators
from ldt.tasks.base import Task, TaskAnswers
from ldt.tasks.decisions.policy import COVERAGES, METHODS, Decided, Policy, Rules, decide
from ldt.tasks.decisions.report import report, summary
from ldt.tasks.decisions.thresholds import DEFAULT, TARGET, Objective, Outcome

if TYPE_CHECKING:
    from ldt.data.options import DataSection

_CLIP = 1e-300  # log of it is finite
F1 = "f1"
# Keys that stand between a score and a decision.
DECISIVE = ("threshold", "threshold_target", "positive", "calibration", "abstain")
Probability = Annotated[float, Field(ge=0, le=1)]


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


ClassName = Annotated[
    str,
    BeforeValidator(_class_name),
    Field(min_length=1),
    WithJsonSchema({"type": ["string", "integer", "boolean"], "minLength": 1}),
]


def _check_target(text: str) -> str:
    Objective.parse(text)
    return text


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

    _policy: tuple[Any, Policy] | None = PrivateAttr(None)

    @property
    def decides(self) -> bool:
        """True if the recipe leaves something to held-out documents (`decide`)."""
        return any(map(self.chooses, self.chosen))

    def in_full(self) -> Self:
        """The task, with answers that have all that `decide` reads."""
        return self

    @abstractmethod
    def decide(
        self, answers: Sequence[dict], golds: Sequence[Any], config, lengths: Sequence[int]
    ) -> Decision:
        """Choose by the answers for held-out documents what a model decides by.

        Args:
            answers: of the task `in_full`, by a model that decides by nothing yet.
            golds: the right answers.
            config: the model's.
            lengths: tokens of each document.
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

    def policy(self, config) -> Policy:
        """Policy that a model decides by.

        Raises:
            ModelError: its config has decisions that are not those of such a model.
        """
        facts = config.decisions
        if self._policy is None or self._policy[0] is not facts:
            try:
                policy = self.policy_of(facts, config)
            except (LookupError, TypeError, ValueError) as error:
                raise ModelError(
                    f"config.json: decisions: not those of this model ({error!r}); "
                    "ldt evaluate RUN --choose-thresholds sets them anew"
                ) from error
            self._policy = facts, policy
        return self._policy[1]

    @abstractmethod
    def policy_of(self, facts: dict[str, Any], config) -> Policy:
        """The policy of the decisions in a config.

        Raises:
            LookupError, TypeError, ValueError: they are not those of such a model.
        """


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

    def silence(self, scores: np.ndarray, config, empty: bool) -> dict[str, Any]:
        """Why there is no answer, as its keys ``abstained`` and ``why``; {} where there is one.

        Args:
            scores: [labels], the probabilities of one document.
            config: the model's.
            empty: whether the document has no text, of which nothing is known.
        """
        policy = self.policy(config)
        if policy.least == -math.inf:
            return {}
        confidence = float(policy.confidence(scores[None], policy.given(scores[None]))[0])
        if confidence >= policy.least and not empty:
            return {}
        needed = f"answers are given from {policy.least:.4g} on"
        if policy.least == math.inf:
            needed = "on held-out documents none was sure enough"
        why = "the document is empty" if empty else f"confidence {confidence:.4g}, {needed}"
        return {"abstained": True, "why": why}


class Deciding(Abstaining):
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
    threshold_target: TargetText = F1
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
        several = problem == MULTI
        fields = type(self).model_fields
        asked = [key for key in DECISIVE if getattr(self, key) != fields[key].default]
        if problem == REGRESSION:
            if asked:
                raise RecipeError(f"task.{asked[0]}: a regression has no probabilities")
            return
        named: dict[str, Iterable[str]] = {}
        named["threshold"] = self.threshold if isinstance(self.threshold, dict) else ()
        named["positive"] = () if self.positive is None else (self.positive,)
        for key, classes in named.items():
            for name in classes:
                if name not in names:
                    near = did_you_mean(name, names) or f"; there are {listed(names)}"
                    raise RecipeError(f"task.{key}: no class {name!r}{near}")
        if several and self.positive is not None:
            raise RecipeError(
                "task.positive: of single_label answers; of several classes each has a threshold"
            )
        if isinstance(self.threshold, dict) and not several:
            raise RecipeError("task.threshold: classes have thresholds in multi_label answers")
        if "threshold" in asked and not several and self.positive is None:
            raise RecipeError(
                "task.threshold: of single_label answers one class has a threshold, task.positive "
                f"names it: {listed(names)}"
            )
        if "threshold_target" in asked and self.threshold != "auto":
            raise RecipeError("task.threshold_target: is of no use without task.threshold: auto")
        if self.calibration not in ("auto", *METHODS[several]):
            right = ", ".join(METHODS[several])
            what = "multi_label" if several else "single_label"
            raise RecipeError(f"task.calibration: of {what} answers: {right} or auto")
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

    def policy_of(self, facts: dict[str, Any], config) -> Policy:
        names, several = names_of(config), config.problem_type == MULTI
        return Policy.from_facts(facts, names, several, self.fixed_thresholds(names, several))

    def decide(
        self, answers: Sequence[dict], golds: Sequence[Any], config, lengths: Sequence[int]
    ) -> Decision:
        """Choose what the recipe leaves to held-out documents.

        Args:
            answers: of the documents, by the probabilities of the model alone.
            golds: the right ones.
            config: of the model.
            lengths: tokens of each document.

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
            answer | {"label": _label(labels, names, several)}
            for answer, labels in zip(answers, decided.labels, strict=True)
        ]
        figures = report(decided, logits, right, names, lengths)
        chosen = self.threshold_target if tunes else None
        facts = decided.policy.facts(names)
        columns: list[dict[str, Any]] = []
        if chosen is not None:
            columns = [_columns(name, facts["thresholds"], figures, target) for name in names]
        else:
            facts.pop("thresholds", None)  # the recipe has them
        facts["measured"] = summary(figures, chosen)
        return Decision(honest, {"decisions": facts}, figures | {"policy": facts}, columns)

    def decided(
        self, logits: np.ndarray, config, empty: bool = False
    ) -> tuple[Any, np.ndarray, dict[str, Any]]:
        """The label or labels of a document, its probabilities, and why there is no answer.

        Args:
            logits: [labels], merged.
            config: the model's.
            empty: whether the document has no text, of which nothing is known.
        """
        policy, names = self.policy(config), names_of(config)
        scores = policy.scores(logits[None])
        labels = policy.given(scores)
        label: Any = _label(labels[0], names, policy.several)
        if not policy.several and policy.thresholds is None:
            label = names[int(logits.argmax())]
        silence = self.silence(scores[0], config, empty)
        return None if silence else label, scores[0], silence

    def label_set(self, answer: dict, config, coverage: float) -> list[str]:
        """The labels that are all the right ones, or more, with at least this probability.

        Raises:
            UserError: the model has no quantiles, or none for so high a coverage.
        """
        names = names_of(config)
        scores = np.array([answer["scores"][name] for name in names])
        try:
            inside = self.policy(config).label_set(scores, coverage)
        except ValueError:
            if not config.decisions.get("label_sets"):
                raise UserError(
                    "label_sets: the model was not asked for any; ldt evaluate RUN "
                    "--choose-thresholds --gold FILE measures what they take"
                ) from None
            raise UserError(
                f"label_sets={coverage:g}: up to {COVERAGES[-1]:g} there are sets"
            ) from None
        return [name for name, is_in in zip(names, inside, strict=True) if is_in]


class _Names(list[str]):
    """Labels in the order of the outputs, found by hash however many there are."""

    def __init__(self, id2label: dict[int, str]):
        super().__init__(id2label[number] for number in range(len(id2label)))
        self.made_of = id2label
        self.numbers = {name: number for number, name in enumerate(self)}

    def __contains__(self, name) -> bool:
        return name in self.numbers

    def index(self, name, *_) -> int:
        return self.numbers[name]


_last = _Names({})  # those that were asked for last: mostly all documents are of one model


def names_of(config) -> list[str]:
    """The labels in the order of the outputs; the same list each time, not to be changed."""
    global _last
    names = _last
    if names.made_of is not config.id2label:
        names = _last = _Names(config.id2label)
    return names


def _columns(
    name: str, thresholds: Mapping[str, float], made: Mapping[str, Any], target: Objective
) -> dict[str, Any]:
    """The threshold of a class, what it is worth, and whether the target is reached."""
    columns: dict[str, Any] = {"threshold": thresholds.get(name, "")}
    if "labels" in made:
        columns["average_precision"] = made["labels"][name].get("average_precision")
    outcome = Outcome(**made["targets"].get(name, {"verdict": ""}))
    if target.bounded or outcome.verdict:
        columns["target"], columns["with 90 % certainty"] = outcome.verdict, outcome.bound
    return columns


def _label(given: np.ndarray, names: Sequence[str], several: bool) -> str | list[str]:
    names_given = [name for name, there in zip(names, given, strict=True) if there]
    return names_given if several else names_given[0]


def calibration(
    answers: Sequence[dict],
    decided: Decided,
    logits: np.ndarray,
    right: np.ndarray,
    lengths: Sequence[int],
    names: Sequence[str] = (),
) -> Decision:
    """Decisions that stay where no labels were chosen, nor sets of them.

    Args:
        answers: as they count for the metrics.
        decided: by these documents.
        logits: [documents, labels].
        right: [documents, labels] bool.
        lengths: tokens of each document.
        names: of the labels, where there can be several.
    """
    figures, policy_facts = (
        report(decided, logits, right, names, lengths),
        decided.policy.facts(names),
    )
    facts: dict[str, Any] = {
        k: policy_facts[k] for k in ("calibration", "abstain") if k in policy_facts
    }
    facts["measured"] = summary(figures, None)
    return Decision(answers, {"decisions": facts}, figures | {"policy": facts})


def logits_of(scores: np.ndarray, several: bool) -> np.ndarray:
    """Logits [..., labels] that have these probabilities; of one right label up to a summand."""
    logits = np.log(np.maximum(scores, _CLIP))
    return logits - np.log(np.maximum(1 - scores, 1e-16)) if several else logits
