"""TriviaQA: exact match and F1 over all names of the answer.

Source: Joshi et al. 2017 (arXiv:1705.03551), the rules of their evaluation script for version 1.0.
"""

import string
from collections.abc import Mapping, Sequence
from typing import Any

from ldt.metrics import word_overlap

_SPACES = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


def normalise(text: str) -> str:
    """``text`` in lower case, punctuation (``_ ‘ ’ ´`` too) as space, no articles, single spaces.

    Curly double quotes, dashes and accents stay.
    """
    return word_overlap.tidy(text.lower().translate(_SPACES))


def names(answer: Mapping[str, Any]) -> list[str]:
    """What counts as right: ``NormalizedAliases``, and ``HumanAnswers`` (normalised) if any."""
    humans = answer.get("HumanAnswers") or []
    return [*answer["NormalizedAliases"], *(normalise(human) for human in humans)]


def score(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """Return (exact match, F1), each the best over ``golds``.

    An empty answer has F1 0, also beside an empty gold one, where its exact match is 1.

    Raises:
        ValueError: ``golds`` is empty.
    """
    return word_overlap.best(normalise(prediction), [normalise(gold) for gold in golds])
