"""Tasks whose answer is one of several candidates, as many as the question has."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ldt.tasks.base import Decision
from ldt.tasks.deciding import Calibrated, calibration, logits_of
from ldt.tasks.decisions.policy import Policy, Rules, decide

_ABSENT = -1e5  # a logit whose probability is 0 at any temperature


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
            return Decision(answers, {"decisions": {}})
        logits = np.full((len(known), max(len(scores) for scores, _ in pairs)), _ABSENT)
        right = np.zeros(logits.shape, bool)
        for row, there, number in zip(logits, right, known, strict=True):
            scores, place = pairs[number]
            row[: len(scores)] = logits_of(np.array(scores), several=False)
            there[place] = True
        decided = decide(logits, right, Rules(several=False, calibration=self.calibration))
        return calibration(answers, decided, logits, right, [lengths[number] for number in known])
