"""Tasks whose answers have probabilities, and what corrects these, fitted to held-out documents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import PrivateAttr

from ldt.errors import ModelError, RecipeError
from ldt.tasks.base import Decision, Task
from ldt.tasks.decisions.policy import Decided, Policy, Rules, decide
from ldt.tasks.decisions.report import report, summary

if TYPE_CHECKING:
    from ldt.data.options import DataSection

_CLIP = 1e-300  # log of it is finite
_ABSENT = -1e5  # a logit whose probability is 0 at any temperature


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
        return any(map(self.chooses, self.chosen))

    def chooses(self, key: str) -> bool:
        """Whether the recipe has held-out documents choose what a key of the task stands for."""
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
        """What a model decides by.

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
                    "ldt thresholds RUN sets them anew"
                ) from error
            self._policy = facts, policy
        return self._policy[1]

    @abstractmethod
    def policy_of(self, facts: dict[str, Any], config) -> Policy:
        """The policy of the decisions in a config.

        Raises:
            LookupError, TypeError, ValueError: they are not those of such a model.
        """


class Ranking(Calibrated):
    """A task whose answer is one of several candidates, as many as the question has.

    Args:
        calibration: what makes the probabilities of candidates as often right as they say, fitted
            to the evaluation set: ``temperature``, or ``auto``, which has it where it helps.
    """

    calibration: Literal["none", "auto", "temperature"] = "none"

    def policy_of(self, facts: dict[str, Any], config) -> Policy:
        return Policy.from_facts(facts, (), several=False)

    @abstractmethod
    def ranked(self, answer: dict, gold: Any) -> tuple[list[float], int | None]:
        """The probabilities of all candidates, and which of them is right; None for none.

        Args:
            answer: of the task `in_full`.
            gold: the right answer.
        """

    def decide(
        self, answers: Sequence[dict], golds: Sequence[Any], config, lengths: Sequence[int]
    ) -> Decision:
        """Fit a temperature. Questions whose right answer is not among the candidates do not count.

        The order of the candidates stays, and so do the answers.
        """
        pairs = [self.ranked(answer, gold) for answer, gold in zip(answers, golds, strict=True)]
        known = [number for number, (_, place) in enumerate(pairs) if place is not None]
        if self.calibration == "none" or not known:
            return Decision(answers)
        logits = np.full((len(known), max(len(scores) for scores, _ in pairs)), _ABSENT)
        right = np.zeros(logits.shape, bool)
        for row, there, number in zip(logits, right, known, strict=True):
            scores, place = pairs[number]
            row[: len(scores)] = logits_of(np.array(scores), several=False)
            there[place] = True
        decided = decide(logits, right, Rules(several=False, calibration=self.calibration))
        return calibration(answers, decided, logits, right, [lengths[number] for number in known])


def calibration(
    answers: Sequence[dict],
    decided: Decided,
    logits: np.ndarray,
    right: np.ndarray,
    lengths: Sequence[int],
    names: Sequence[str] = (),
) -> Decision:
    """What is kept of decisions where nothing but a calibration was fitted.

    Args:
        answers: as they count for the metrics.
        decided: by these documents.
        logits: [documents, labels].
        right: [documents, labels] bool.
        lengths: tokens of each document.
        names: of the labels, where there can be several.
    """
    made, found = report(decided, logits, right, names, lengths), decided.policy.facts(names)
    facts = {key: found[key] for key in ("calibration",) if key in found}
    facts["measured"] = summary(made, None)
    return Decision(answers, {"decisions": facts}, made | {"policy": facts})


def logits_of(scores: np.ndarray, several: bool) -> np.ndarray:
    """Logits [..., labels] that have these probabilities; of one right label up to a summand."""
    logits = np.log(np.maximum(scores, _CLIP))
    return logits - np.log(np.maximum(1 - scores, 1e-16)) if several else logits
