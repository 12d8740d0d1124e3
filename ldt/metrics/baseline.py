"""Scores of answers that are given without reading: the figures to beat."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ldt.metrics.meanings import LOWER_IS_BETTER
from ldt.metrics.numbers import metric_text


class Baseline(NamedTuple):
    """The figure of a trivial answer, which ``answer`` says in words: "always 'no cap'"."""

    answer: str
    value: float


Baselines = dict[str, Baseline]  # by metric


def best(figures: Mapping[str, Mapping[str, float]]) -> Baselines:
    """Return of each metric the trivial answer that does best by it; of equal ones the first.

    Args:
        figures: metrics of each answer, which its key says in words.
    """
    highest: Baselines = {}
    for answer, metrics in figures.items():
        for name, value in metrics.items():
            before = highest.get(name)
            if before is None or is_better(name, value, before.value):
                highest[name] = Baseline(answer, value)
    return highest


def is_better(name: str, value: float, other: float) -> bool:
    """Tell whether the value of a metric is better than another one."""
    return value < other if name in LOWER_IS_BETTER else value > other


def no_better(metrics: Mapping[str, float], baselines: Baselines) -> list[str]:
    """Return a warning where no metric is better than without reading, else nothing.

    A metric that is not defined is left out.
    """
    baselines = {name: each for name, each in baselines.items() if name in metrics}
    beaten = (is_better(name, metrics[name], trivial.value) for name, trivial in baselines.items())
    if not baselines or any(beaten):
        return []
    name, (answer, value) = next(iter(baselines.items()))
    return [f"no better than {answer}: {name} {metric_text(name, value)}"]


def commonest(answers: Iterable[Iterable[Hashable]], default: Any = "") -> Any:
    """Return the answer that is right most often; of equal ones the first.

    Args:
        answers: all that are right, of each question.
        default: where there are none.
    """
    counts = Counter(answer for right in answers for answer in dict.fromkeys(right))
    return max(counts, key=counts.__getitem__, default=default)


def quoted(answer: str) -> str:
    """A trivial answer in words."""
    return f"always {answer if len(answer) <= 40 else answer[:39] + '…'!r}"
