"""Tasks whose answer is one of several candidates, as many as the question has."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ldt.tasks.base import TaskAnswers, TaskInputs, TaskReads
from ldt.tasks.deciding import Abstaining, Decision, calibration, logits_of
from ldt.tasks.decisions.policy import Policy, Rules, decide

_ABSENT = -1e5  # a logit whose probability is 0 at any temperature


class Ranking(Abstaining):
    """A task whose answer is one of several candidates, as many as the question has.

    How sure an answer is says the probability of the best candidate.

    Args:
        calibration: what makes the probabilities of candidates as often right as they say, fitted
            to the evaluation set: ``temperature``, or ``auto``, which has it where it helps.
    """

    reads: ClassVar[TaskReads] = replace(Abstaining.reads, noun="questions")
    inputs: ClassVar[TaskInputs] = replace(Abstaining.inputs, together=True)
    answers: ClassVar[TaskAnswers] = replace(Abstaining.answers, metric="accuracy")

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
        """Fit a temperature, and choose how sure an answer must be.

        Questions whose right answer is not among the candidates do not count for the temperature;
        as answers they are wrong. The order of the candidates stays, and so do the answers.
        """
        pairs = [self.ranked(answer, gold) for answer, gold in zip(answers, golds, strict=True)]
        if not self.decides or all(place is None for _, place in pairs):
            return Decision(answers, {"decisions": {}})
        logits = np.full((len(pairs), max(len(scores) for scores, _ in pairs)), _ABSENT)
        right = np.zeros(logits.shape, bool)
        for row, there, (scores, place) in zip(logits, right, pairs, strict=True):
            row[: len(scores)] = logits_of(np.array(scores), several=False)
            if place is not None:
                there[place] = True
        rules = Rules(several=False, calibration=self.calibration, abstain=self.asked_abstention)
        return calibration(answers, decide(logits, right, rules), logits, right, lengths)
