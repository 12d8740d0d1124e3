"""Baselines: scores of trivial answers that ignore the text."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ldt.metrics.meanings import LOWER_IS_BETTER
from ldt.metrics.numbers import metric_text


class Baseline(NamedTuple):
    """Score of one trivial answer; ``answer`` describes it, such as "always 'no cap'"."""

    answer: str
    value: float


Baselines = dict[str, Baseline]  # by metric


def best(figures: Mapping[str, Mapping[str, float]]) -> Baselines:
    """Return {metric: `Baseline`} of the trivial answer with the best value; of equal ones the
    first.

    Args:
        figures: {description of a trivial answer: {metric: value}}.
    """
    highest: Baselines = {}
    for answer, metrics in figures.items():
        for name, value in metrics.items():
            before = highest.get(name)
            if before is None or is_better(name, value, before.value):
                highest[name] = Baseline(answer, value)
    return highest


def is_better(name: str, value: float, other: float) -> bool:
    """True if ``value`` of the metric of this name is better than ``other``, lower for losses and
    errors."""
    return value < other if name in LOWER_IS_BETTER else value > other


def no_better(metrics: Mapping[str, float], baselines: Baselines) -> list[str]:
    """Return a list with one warning if no metric beats its baseline, else an empty list.

    Undefined metrics (NaN) beat none; without a baseline of a metric there is no warning.
    """
    baselines = {name: each for name, each in baselines.items() if name in metrics}
    beaten = (is_better(name, metrics[name], trivial.value) for name, trivial in baselines.items())
    if not baselines or any(beaten):
        return []
    name, (answer, value) = next(iter(baselines.items()))
    return [f"no better than {answer}: {name} {metric_text(name, value)}"]


def commonest(answers: Iterable[Iterable[Hashable]], default: Any = "") -> Any:
    """Return the answer that is accepted for most questions; of equal ones the first.

    Args:
        answers: the accepted answers of each question.
        default: value returned if no question has an answer.
    """
    counts = Counter(answer for right in answers for answer in dict.fromkeys(right))
    return max(counts, key=counts.__getitem__, default=default)


def quoted(answer: str) -> str:
    """Description of a trivial answer, "always '<answer>'"; a long one is cut after 39
    characters."""
    return f"always {answer if len(answer) <= 40 else answer[:39] + '…'!r}"
